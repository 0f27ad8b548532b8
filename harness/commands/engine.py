"""`knee engine`: the simulated inference engine alone."""

from __future__ import annotations

from pathlib import Path

import click

from harness.commands.keys import read_key
from harness.errors import UserError


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--config", metavar="FILE|PRESET", help="A YAML file, or demo, queue, prefill, decode, kv, ...")
@click.option("--log", type=click.Path(path_type=Path), help="Append one JSON line per request: its stages.")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key that requests must show.")
def engine(port: int, host: str, config: str | None, log: Path | None, api_key_env: str | None) -> None:
    """Serve a simulated engine, OpenAI-compatible, until interrupted; prints `ready URL` when it listens.

    \b
    knee engine --port 8000
    knee engine --port 0 --config kv --log engine.jsonl
    """
    from harness.engine.presets import named_config
    from harness.engine.serve import serve

    chosen = named_config(config or "demo")
    key = read_key(api_key_env, "--api-key-env")
    try:
        lines = log.open("ab") if log else None
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=log) from None
    try:
        serve(
            chosen,
            host=host,
            port=port,
            log=lines,
            api_key=key,
            on_ready=lambda url: click.echo(f"ready {url}"),
        )
    finally:
        if lines:
            lines.close()
