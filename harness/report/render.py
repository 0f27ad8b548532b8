"""Everything that a run's report consists of, as values: page, Markdown, JSON and charts.

Pure: no files, no network. The same charts stand in the page and in the folder `charts/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from harness.report.charts import knee_chart, stage_chart, ttft_chart
from harness.report.draw import Spec, draw
from harness.report.experiments import chart_name, experiment_chart
from harness.report.html import page
from harness.report.sections import ladder_steps, make_document
from harness.report.text import markdown
from harness.report.timeline import timeline_chart
from harness.report.verdict import without_secrets
from harness.results import Report
from harness.rundir import RunData


@dataclass(frozen=True, slots=True)
class Rendered:
    """The outputs of a report; `charts` by file name: name.svg and name.png."""

    html: str
    markdown: str
    json: bytes
    charts: dict[str, bytes] = field(default_factory=dict)


def render(report: Report, run: RunData, *, lang: str = "en") -> Rendered:
    """Render a report in English or Chinese; words inside charts stay English."""
    report = _cleaned(report)
    specs = _specs(report, run)
    drawn = {name: draw(spec) for name, spec in specs.items()}
    document = make_document(report, run, list(drawn), lang)
    files: dict[str, bytes] = {}
    for name, (svg, png) in drawn.items():
        files |= {f"{name}.svg": svg.encode(), f"{name}.png": png}
    return Rendered(
        html=page(document, {name: svg for name, (svg, _) in drawn.items()}),
        markdown=markdown(document),
        json=msgspec.json.format(msgspec.json.encode(report), indent=1),
        charts=files,
    )


def _specs(report: Report, run: RunData) -> dict[str, Spec]:
    """Return the charts that have something to show, by name."""
    ladder, slo = ladder_steps(report, run), run.profile.slo
    specs: dict[str, Spec | None] = {
        "knee": knee_chart(ladder, report.knee, slo.total_p95_ms),
        "stages": stage_chart(ladder),
        "ttft": ttft_chart(ladder, report.knee, slo.ttft_p95_ms),
        "timeline": timeline_chart(run),
    }
    for name, experiment in report.experiments.items():
        specs[chart_name(name)] = experiment_chart(experiment)
    return {name: spec for name, spec in specs.items() if spec is not None}


def _cleaned(report: Report) -> Report:
    """Return the report with a target address that names no user, password or key."""
    url = report.target.get("base_url")
    if not url:
        return report
    return msgspec.structs.replace(report, target=report.target | {"base_url": without_secrets(str(url))})
