"""Every exception that leaves a module on purpose, and the exit code each becomes.

HarnessError
├── UserError        2    the user's mistake: profile, argument, path, target address
├── ThresholdError   1    the measured service missed an SLO or threshold; a probe or comparison failed
└── InvalidRunError  3    the run cannot support a verdict: no data, workers lost, client-limited

A failed *request* is none of these: it is a value, `records.Outcome`. The command line turns these
exceptions into one line on stderr and an exit code, in exactly one place (`cli.main`).
"""

from __future__ import annotations

from pathlib import Path

INTERRUPTED = 130  # the exit code of what a signal ended


class HarnessError(Exception):
    """An error with one clear line for the user and an exit code."""

    exit_code = 3


class UserError(HarnessError):
    """The user's mistake: what is wrong, where (file, line, key), and what to do about it."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        key: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.file, self.line, self.key, self.remedy = what, file, line, key, remedy
        place = f"{file}:{line}" if file and line else f"{file}" if file else f"line {line}" if line else ""
        text = ": ".join(part for part in (place, key, what) if part)
        super().__init__(f"{text} ({remedy})" if remedy else text)


class ThresholdError(HarnessError):
    """The measured service missed an SLO or threshold, or a probe or comparison failed."""

    exit_code = 1


class InvalidRunError(HarnessError):
    """The run holds no data that a verdict could stand on."""

    exit_code = 3
