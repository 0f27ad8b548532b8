"""`knee limits`: the service's limits as a file, each number with its derivation."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from harness.commands.ranges import FiniteRange
from harness.errors import UserError


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write.  [default: RUN_DIR/limits.yaml]"
)
@click.option(
    "--model-config", type=click.Path(path_type=Path), help="The model's config.json: plan the KV cache."
)
@click.option("--kv-gib", type=FiniteRange(min=0, min_open=True), help="Memory of the KV cache, in GiB.")
@click.option(
    "--kv-precision", metavar="NAME", help="Of the KV cache where it differs from the model's, as fp8."
)
@click.option("--json", "as_json", is_flag=True, help="Print the limits as JSON.")
def limits(
    run_dir: Path,
    out: Path | None,
    model_config: Path | None,
    kv_gib: float | None,
    kv_precision: str | None,
    as_json: bool,
) -> None:
    """Write limits.yaml from RUN_DIR: each number derived in a comment, what the run cannot support named.

    \b
    knee limits runs/20260101T120000Z-staging-vlm-steps
    knee limits RUN --model-config Qwen2.5-VL-7B/config.json --kv-gib 40
    """
    from harness import rundir
    from harness.analysis.assess import assess
    from harness.analysis.capacity import kv_notes
    from harness.analysis.limits import limits_yaml

    run = rundir.read_run(run_dir)
    report = assess(run)
    shown: list[str] = []
    if model_config is not None:
        cache = kv_gib * 2**30 if kv_gib is not None else None
        shown = kv_notes(run, report, _read_config(model_config), precision=kv_precision, cache_bytes=cache)
    path = out or rundir.RunDir(run_dir).limits
    rundir.write_atomically(path, limits_yaml(report, shown).encode())
    if as_json:
        body = {"file": str(path), "valid": report.valid, "limits": report.limits, "kv_cache": shown}
        click.echo(msgspec.json.encode(body).decode())
        return
    for limit in report.limits:
        value = "-" if limit.value is None else limit.value
        click.echo(f"{limit.section}.{limit.key}: {value}  ({limit.why})")
    for line in shown:
        click.echo(line)
    click.echo(f"limits: {path}")


def _read_config(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    except msgspec.DecodeError as error:
        raise UserError(f"not a model's config.json: {error}", file=path) from None
