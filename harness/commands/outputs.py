"""What `knee run` and `knee report` write and print of an analysed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from harness import rundir
from harness.analysis.limits import limits_yaml
from harness.analysis.wording import load_unit, verdict_sentence
from harness.commands.tables import console, plain_table
from harness.report.junit import junit as render_junit
from harness.report.render import render
from harness.results import Report, Step


def write_all(
    run_dir: rundir.RunDir, report: Report, run: rundir.RunData, *, lang: str, junit: Path | None
) -> None:
    """Write report.html, report.md, report.json, limits.yaml and charts, each whole or not at all."""
    rendered = render(report, run, lang=lang)
    rundir.write_atomically(run_dir.report_json, rendered.json)
    rundir.write_atomically(run_dir.report_html, rendered.html.encode())
    rundir.write_atomically(run_dir.report_md, rendered.markdown.encode())
    for name, data in rendered.charts.items():
        rundir.write_atomically(run_dir.charts / name, data)
    if report.limits:
        rundir.write_atomically(run_dir.limits, limits_yaml(report).encode())
    if junit is not None:
        rundir.write_atomically(junit, render_junit(report))


def summary(run_dir: Path, report: Report) -> dict[str, Any]:
    """Return what `--json` prints: the run directory, the verdict and the problems."""
    return {
        "run_dir": str(run_dir),
        "valid": report.valid,
        "knee": msgspec.to_builtins(report.knee),
        "bottleneck": msgspec.to_builtins(report.bottleneck),
        "experiments": {
            name: {"verdict": e.verdict, "text": e.text} for name, e in report.experiments.items()
        },
        "problems": msgspec.to_builtins(report.problems),
        "report": str(run_dir / "report.html"),
    }


def print_verdict(run_dir: Path, report: Report) -> None:
    """Print the verdict, the table of steps, what weakens it, and where the report lies."""
    out = console()
    steps = [step for step in report.steps if step.users is not None or step.offered_rps is not None]
    if steps and report.knee is not None:
        out.print(_table(steps))
    if report.knee is not None:
        out.print(f"[bold]{verdict_sentence(report.knee, load_unit(steps))}[/bold]")
        for key in ("status", "cap", "knee_step", "steady"):
            value = getattr(report.knee, key)
            out.print(f"  {key}: {value:g}" if isinstance(value, float | int) else f"  {key}: {value or '-'}")
    if report.bottleneck is not None:
        where = f"{report.bottleneck.stage}, {report.bottleneck.resource.replace('_', ' ')}"
        out.print(f"  bottleneck: {where}")
    for name, experiment in report.experiments.items():
        out.print(f"  {name}: {experiment.text}", markup=False)
    for problem in report.problems:
        place = f" ({problem.step})" if problem.step else ""
        out.print(f"  ! {problem.code}{place}: {problem.text}", style="yellow", markup=False)
    click.echo(f"report: {run_dir / 'report.html'}")


def _table(steps: list[Step]) -> Table:
    columns = ("n", "failed", "req/s", "tok/s", "p50 ms", "p95 ms", "TTFT p95 ms")
    table = plain_table("step", *columns, numbers=columns)
    for step in steps:
        figures = (step.rps, step.out_tok_s, step.latency.p50_ms, step.latency.p95_ms, step.ttft.p95_ms)
        table.add_row(step.label, str(step.n), str(step.failures), *(_figure(value) for value in figures))
    return table


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
