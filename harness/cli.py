"""The command line: every subcommand in one literal, every exception an exit code in one place.

Commands are imported when they are called, so that `knee --help` and the sidecar start without the
analysis libraries.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

import click

from harness.errors import INTERRUPTED, HarnessError, UserError

COMMANDS = {
    "demo": (
        "harness.commands.demo:demo",
        "Run the ladder against the simulated engine, in under 3 minutes.",
    ),
    "run": ("harness.commands.run:run", "Load a service as a profile says and report its knee."),
    "report": ("harness.commands.report:report", "Analyse a run directory and write all outputs again."),
    "find": ("harness.commands.find:find", "Find the knee in a table of any tool."),
    "compare": ("harness.commands.compare:compare", "Compare two runs; exit 1 on a regression."),
    "limits": ("harness.commands.limits:limits", "Write limits.yaml with the derivation of each number."),
    "probe": ("harness.commands.probe:probe", "Send requests at and over each limit and check the answers."),
    "sample": ("harness.commands.sample:sample", "The GPU and engine sidecar."),
    "gpu-log": ("harness.commands.gpu_log:gpu_log", "What an nvidia-smi log holds."),
    "engine": ("harness.commands.engine:engine", "The simulated inference engine alone."),
    "calibrate": ("harness.commands.calibrate:calibrate", "What this machine's load generator can carry."),
    "doctor": ("harness.commands.doctor:doctor", "Check profile, target, key, GPU and clocks before a run."),
}


class _Lazy(click.Group):
    """A group that imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Lazy,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="locust-knee", prog_name="knee")
@click.pass_context
def group(context: click.Context) -> None:
    """Find the knee of an inference service that takes text and images.

    \b
    knee demo                               the whole way, on this machine alone
    knee run profiles/steps.yaml            your own service
    knee report runs/20260101T120000Z-...   analyse again
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run `knee`: one line on stderr for an error, and its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)  # whoever ends this command must not leave its load running
    try:
        code = group.main(prog_name="knee", standalone_mode=False)
    except HarnessError as error:
        click.echo(f"knee: {error}", err=True)
        code = error.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        click.echo(f"knee: {error.format_message()}{hint}", err=True)
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("knee: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.filename is None:
            raise
        click.echo(f"knee: {error.filename}: {error.strerror}", err=True)
        code = UserError.exit_code
    sys.exit(code if isinstance(code, int) else 0)
