"""`knee probe`: does the service refuse what is over its limits, with a clear error, or cut silently?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from harness.commands.keys import read_key
from harness.commands.ranges import FiniteRange
from harness.commands.tables import console, plain_table
from harness.errors import ThresholdError, UserError
from harness.load.answer import error_text
from harness.load.target import address
from harness.probe.ask import Service, ask
from harness.probe.cases import probe_all
from harness.probe.judge import FAILED, Finding
from harness.probe.limits_file import load_limits


@click.command()
@click.argument("limits", type=click.Path(path_type=Path))
@click.option("--host", required=True, metavar="URL", help="The service, as in http://127.0.0.1:8000/v1.")
@click.option("--model", default="default", show_default=True)
@click.option("--api-key-env", metavar="NAME", help="The variable that holds the key.")
@click.option("--timeout-s", type=FiniteRange(0.1, 3600), default=60.0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def probe(
    limits: Path, host: str, model: str, api_key_env: str | None, timeout_s: float, as_json: bool
) -> None:
    """Send requests at and over each limit of LIMITS and check the answers; exit 1 where one is wrong.

    \b
    knee probe runs/.../limits.yaml --host http://127.0.0.1:8000/v1 --model qwen2.5-vl-7b
    """
    wanted = load_limits(limits)
    base = address(host, "--host").geturl().rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    key = read_key(api_key_env, "--api-key-env")
    service = Service(base, model, timeout_s, {"authorization": f"Bearer {key}"} if key else {})
    first = ask(service, "Say yes.", 1)
    if not first.good:
        said = first.error.get("message") or ("without an answer in it" if first.status == 200 else "")
        reason = first.failure or error_text(f"{first.status} {said}")
        raise UserError(
            f"does not answer: {reason}", key=base, remedy="check --host, --model and --api-key-env"
        )
    waiting = Console(stderr=True)
    with waiting.status("probing") as status:
        findings = probe_all(service, wanted, lambda key: status.update(f"probing {key}"))
    if as_json:
        click.echo(msgspec.json.encode([asdict(f) for f in findings]).decode())
    else:
        console().print(_table(findings))
    wrong = [f.key for f in findings if f.verdict in FAILED]
    if not findings:
        raise UserError("holds no limit to probe", file=limits)
    if wrong:
        raise ThresholdError(f"{len(wrong)} of {len(findings)} limits are not kept: {', '.join(wrong)}")


def _table(findings: list[Finding]) -> Table:
    table = plain_table("limit", "value", "verdict", "", numbers=("value",))
    for f in findings:
        colour = "red" if f.verdict in FAILED else "green" if f.verdict == "right" else "yellow"
        value = f"{f.limit:.12g}" if f.limit is not None else "–"
        table.add_row(f.key, value, f"[{colour}]{f.verdict.replace('_', ' ')}[/{colour}]", f.text)
    return table
