"""Vega-Lite specifications to SVG and PNG, without a browser and without network.

The page shows the SVG itself. Every mark carries what it stands for in its `aria-label`; thirty lines of
script show that text on hover. So a page weighs a tenth of one with the Vega libraries inlined, prints as it
looks, works without script, and reads aloud.
"""

from __future__ import annotations

import re
from typing import Any

import vl_convert

Spec = dict[str, Any]

INK, MUTED, GRID, ACCENT, SOFT, WARN = "#1c2733", "#5f6b7a", "#e6e9ee", "#1f5fa8", "#8db4dd", "#b4530a"
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
PNG_SCALE = 2.0

_CONFIG: Spec = {
    "background": "white",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 11,
        "gridColor": GRID,
        "domainColor": "#b9c1cc",
        "tickColor": "#b9c1cc",
        "titlePadding": 8,
    },
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 10},
    "legend": {"labelColor": INK, "labelFontSize": 11, "titleColor": MUTED, "symbolSize": 90},
}


def draw(spec: Spec) -> tuple[str, bytes]:
    """Return a chart as SVG text and PNG bytes; the same specification gives the same bytes."""
    whole = {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "config": _CONFIG, **spec}
    svg = _renumbered(vl_convert.vegalite_to_svg(whole))
    return svg, vl_convert.svg_to_png(svg, scale=PNG_SCALE)


def _renumbered(svg: str) -> str:
    """Number the ids from 0: Vega goes on counting from chart to chart."""
    ids = {name: f"id{i}" for i, name in enumerate(dict.fromkeys(re.findall(r'\bid="(\w+)"', svg)))}
    return _IDS.sub(lambda match: match[1] + ids.get(match[2], match[2]), svg)


def inline(svg: str, name: str) -> str:
    """Return an SVG for use inside a page: ids made unique, long numbers cut, scaled to the page's width."""
    svg = _IDS.sub(rf"\1{name}-\2", svg)
    svg = _LONG_NUMBERS.sub(lambda match: _DECIMALS.sub(r"\1", match[0]), svg)
    return re.sub(r'<svg([^>]*?) width="[\d.]+" height="[\d.]+"', r'<svg\1 role="img"', svg, count=1)


_IDS = re.compile(r'(\bid="|url\(#)(\w+)')
_LONG_NUMBERS = re.compile(r' (?:transform|d|x2|y2|width|height)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")
