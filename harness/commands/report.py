"""`knee report`: run directory in, all outputs out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
import msgspec

from harness import rundir
from harness.errors import UserError
from harness.results import Report


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--gpu-log", type=click.Path(path_type=Path), help="An nvidia-smi log of the GPU host to join in."
)
@click.option("--gpu-log-tz", metavar="ZONE", help="The log's time zone, as in Europe/Berlin.")
@click.option("--stage-log", type=click.Path(path_type=Path), help="The service's own JSON timing lines.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit file for a pipeline.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def report(
    run_dir: Path,
    gpu_log: Path | None,
    gpu_log_tz: str | None,
    stage_log: Path | None,
    lang: str,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Analyse RUN_DIR and write report.html, report.md, report.json, limits.yaml and the charts again.

    \b
    knee report runs/20260101T120000Z-staging-vlm-steps
    knee report RUN --gpu-log smi.csv --gpu-log-tz Asia/Shanghai --lang zh
    """
    from harness.analysis.assess import assess, exit_code
    from harness.commands import outputs

    run = rundir.read_run(run_dir)
    stages = None if stage_log is None else _read_stage_log(stage_log)
    if gpu_log is not None:
        run = _join_gpu_log(run, gpu_log, gpu_log_tz)
    result: Report = assess(run, stage_log=stages)
    outputs.write_all(rundir.RunDir(run_dir), result, run, lang=lang, junit=junit)
    code = exit_code(result, run.profile)
    if as_json:
        click.echo(msgspec.json.encode(outputs.summary(run_dir, result)).decode())
    else:
        outputs.print_verdict(run_dir, result)
    click.get_current_context().exit(code)


def _read_stage_log(path: Path) -> rundir.Table:
    """Read a service's own JSON timing lines into a table joined by request id later."""
    from harness.analysis.stages import parse_stage_log

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    return parse_stage_log(data)


def _join_gpu_log(run: rundir.RunData, path: Path, zone: str | None) -> rundir.RunData:
    """Return the run with its GPU samples replaced by those of an nvidia-smi log."""
    from harness.observe.gpu_log import check_overlap, read_gpu_log

    table = read_gpu_log(path, zone)
    check_overlap(table, run.info, path)
    return dataclasses.replace(run, gpu=table)
