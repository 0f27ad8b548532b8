"""`knee gpu-log`: what an nvidia-smi log holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.command(name="gpu-log")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--tz", "zone", default="UTC", show_default=True, metavar="ZONE", help="The stamps' time zone.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def gpu_log(file: Path, zone: str, as_json: bool) -> None:
    """Read the nvidia-smi log FILE and print its GPUs, times, gaps, and what was skipped or missing.

    \b
    nvidia-smi --query-gpu=timestamp,uuid,utilization.gpu,memory.used,memory.total \\
      --format=csv -l 1 > smi.csv
    knee gpu-log smi.csv --tz Europe/Berlin
    """
    from harness.observe.gpu_log import parse_file, sort_samples, summarize

    size = file.stat().st_size if file.is_file() else 0
    if sys.stderr.isatty() and size > 40 << 20:
        with click.progressbar(length=size, label="reading", file=sys.stderr) as bar:
            log = parse_file(file, bar.update)
    else:
        log = parse_file(file)
    summary = summarize(sort_samples(log, zone, "--tz"))
    click.echo(json.dumps(summary) if as_json else describe(summary))


def describe(summary: dict[str, Any]) -> str:
    """Return the summary as lines for people."""
    lines = [f"{summary['samples']} samples"]
    if not summary["identity_known"]:
        lines.append("Which GPU a row belongs to is not known: log with index or uuid in --query-gpu.")
    for gpu, figures in summary["gpus"].items():
        util, peak = figures["util_mean"], figures["mem_used_peak_bytes"]
        lines.append(
            f"GPU {gpu}: {figures['n']} samples, {figures['first_utc']} to {figures['last_utc']}, "
            f"busy {'unknown' if util is None else f'{100 * util:.1f} %'}, "
            f"memory at most {'unknown' if peak is None else f'{peak / 2**20:.0f} MiB'}"
        )
    lines.append(f"{summary['gaps']} gaps, {summary['duplicates']} duplicates dropped")
    lines += [f"skipped: {n} x {reason}" for reason, n in summary["skipped"].items()]
    lines += [
        f"missing: {field}: {n} x {reason}"
        for field, reasons in summary["missing"].items()
        for reason, n in reasons.items()
    ]
    return "\n".join(lines)
