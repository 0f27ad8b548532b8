"""The document as one self-contained page: no network, no library, every string escaped."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from harness.report.document import Block, Document
from harness.report.draw import inline


def page(document: Document, charts: dict[str, str]) -> str:
    """Return the page; `charts` are SVG texts by name."""
    inlined = {name: Markup(inline(svg, name)) for name, svg in charts.items()}
    return _template().render(
        doc=document, charts=inlined, style=_asset("style.css"), script=_asset("hover.js")
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["block_type"] = _block_type
    return environment.get_template("report.html.j2")


def _block_type(block: Block) -> str:
    return type(block).__name__.lower()


@cache
def _asset(name: str) -> Markup:
    """Return a style sheet or script of our own, which goes into the page as it is."""
    return Markup((files("harness.report") / "templates" / name).read_text(encoding="utf-8"))
