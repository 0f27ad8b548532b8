"""`knee sample`: the GPU and engine sidecar."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.commands.ranges import FiniteRange
from harness.errors import INTERRUPTED, UserError

if TYPE_CHECKING:
    from harness.observe.sampler import Sidecar


@click.command()
@click.option(
    "--source",
    default="auto",
    show_default=True,
    metavar="WHERE",
    help="auto, none, nvml, dcgm:URL, sim:URL, or http://host:9877 of another host's sidecar.",
)
@click.option("--engine", metavar="URL", help="The engine's address; its metrics are found below it.")
@click.option("--gpus", metavar="ID,...", help="UUIDs or NVML indexes of the GPUs that serve; default: all.")
@click.option("--interval-s", type=FiniteRange(0.05, 3600), default=1.0, show_default=True)
@click.option("--listen", default="127.0.0.1:9877", show_default=True, metavar="HOST:PORT")
@click.option(
    "--token-env",
    metavar="NAME",
    help="Variable that holds the token: needed to listen beyond this host, sent to another sidecar.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep the samples here (gpu.jsonl), continued if it exists; default: until the end only.",
)
@click.option(
    "--engine-out", type=click.Path(path_type=Path), metavar="FILE", help="The same for engine.jsonl."
)
@click.option(
    "--clock-out", type=click.Path(path_type=Path), metavar="FILE", help="The same for clock.jsonl."
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when the starting process has ended.")
def sample(
    source: str,
    engine: str | None,
    gpus: str | None,
    interval_s: float,
    listen: str,
    token_env: str | None,
    out: Path | None,
    engine_out: Path | None,
    clock_out: Path | None,
    with_parent: bool,
) -> None:
    """Sample GPUs and engine each second, keep the samples, and serve them to the harness.

    \b
    knee sample --out gpu.jsonl                                    on the GPU host
    knee sample --listen 0.0.0.0:9877 --token-env KNEE_TOKEN       reached from another host
    knee sample --source dcgm:http://127.0.0.1:9400 --engine http://127.0.0.1:8000
    """
    from harness.observe.sampler import Settings, Sidecar
    from harness.observe.server import is_loopback

    host, port = parse_listen(listen)
    token = read_token(token_env)
    if token is None and not is_loopback(host):
        raise UserError(
            f"listening on {host} needs a token", key="--token-env", remedy="name a variable that holds one"
        )
    sidecar = Sidecar(
        Settings(
            source=source,
            engine=None if engine in (None, "", "none") else engine,
            gpus=tuple(part.strip() for part in gpus.split(",") if part.strip()) if gpus else (),
            interval_s=interval_s,
            host=host,
            port=port,
            token=token,
            ask_token=not is_loopback(host),
            out=out,
            engine_out=engine_out,
            clock_out=clock_out,
        )
    )
    click.get_current_context().exit(_run(sidecar, with_parent=with_parent))


def _run(sidecar: Sidecar, *, with_parent: bool) -> int:
    """Let the sidecar work until a signal, or until its parent has ended; returns the exit code."""
    parent, stop = os.getppid(), threading.Event()
    codes = {signal.SIGTERM: 0, signal.SIGINT: INTERRUPTED}
    caught: list[int] = []

    def end(number: int, _: object) -> None:
        caught.append(number)
        stop.set()

    for number in codes:
        signal.signal(number, end)
    sidecar.start()
    status = sidecar.status()
    click.echo(json.dumps({key: status[key] for key in ("ready", "url", "gpu", "engine")}))
    click.echo(f"knee sample: GPU: {status['gpu']}. Engine: {status['engine']}. {status['url']}", err=True)
    while not stop.wait(1.0 if with_parent else None):
        if os.getppid() != parent:
            break
    sidecar.close()
    status = sidecar.status()
    click.echo(
        f"knee sample: {status['samples']} GPU rows, {status['engine_samples']} engine rows, "
        f"{sum(status['overruns'].values())} ticks skipped, {status['lost']} rows lost",
        err=True,
    )
    return codes[signal.Signals(caught[0])] if caught else 0


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPV6]:PORT`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"not HOST:PORT: {text}", key="--listen", remedy="as in 127.0.0.1:9877")
    return host, int(port)


def read_token(name: str | None) -> str | None:
    """Return the token in the variable `name`; UserError where it holds none."""
    if name is None:
        return None
    token = os.environ.get(name, "").strip()
    if not token:
        raise UserError(f"the variable {name} is empty", key="--token-env", remedy="put a token into it")
    return token
