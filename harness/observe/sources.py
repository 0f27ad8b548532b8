"""Where GPU samples come from, and the choice between them.

A source is read once per tick and never raises: what it cannot know is missing, with the reason. `auto` takes
NVML where it works, then the simulated GPU of a simulated engine, then nothing: a run without a GPU goes on.
"""

from __future__ import annotations

import socket
from typing import Protocol

from harness.errors import UserError
from harness.observe.clocks import HOST_CLOCKS, Clocks
from harness.observe.dcgm import DcgmSource
from harness.observe.fetch import Getter
from harness.observe.nvml import NvmlSource
from harness.observe.remote import describe_sidecar
from harness.observe.simulated import SimulatedSource
from harness.records import GpuSample


class Source(Protocol):
    """One way to sample the GPUs of a host; used by one thread."""

    words: str  # what it is and how it does, for people

    def read(self) -> list[GpuSample]:
        """Return one row per GPU, with seq 0; an empty list where nothing can be told now."""
        ...

    def close(self) -> None:
        """Let go of libraries and connections."""
        ...


def open_source(text: str, engine: str | None, clocks: Clocks) -> Source | None:
    """Return the source that `--source` names, or None where there is none; UserError for an unknown name."""
    host = socket.gethostname()
    kind, _, url = text.partition(":")
    match kind:
        case "none" if not url:
            return None
        case "nvml" if not url:
            return NvmlSource(host, clocks)
        case "dcgm" if url:
            return DcgmSource(Getter(url), host, clocks)
        case "sim" if url:
            return SimulatedSource(Getter(url), host, clocks)
        case "auto" if not url:
            nvml = NvmlSource(host, clocks)
            if (nvml.ready and not nvml.words.startswith("none")) or engine is None:
                return nvml
            simulated = SimulatedSource(Getter(engine), host, clocks)
            if simulated.read():
                nvml.close()
                return simulated
            simulated.close()
            return nvml
    raise UserError(
        f"unknown GPU source {text!r}",
        key="--source",
        remedy="auto, none, nvml, dcgm:URL, sim:URL, or http://host:9877 of another sidecar",
    )


def describe(source: str, engine: str | None) -> tuple[bool, str]:
    """Return whether a source gives samples now, and what it is or why not (`knee doctor`)."""
    address = sidecar_address(source)
    if address is not None:
        return describe_sidecar(Getter(address))
    opened = open_source(source, engine, HOST_CLOCKS)
    if opened is None:
        return False, "observe.gpu is none"
    rows = opened.read()
    opened.close()
    return bool(rows), opened.words.removeprefix("none: ") + ("" if rows else " gives no samples")


def sidecar_address(source: str) -> str | None:
    """Return the address of another sidecar that a source names, or None."""
    return source if source.startswith(("http://", "https://")) else None


def chosen(rows: list[GpuSample], gpus: tuple[str, ...]) -> list[GpuSample]:
    """Return the rows of the GPUs named by UUID or index; all of them where none is named."""
    return [r for r in rows if r.gpu in gpus or str(r.index) in gpus] if gpus else rows


def check_choice(rows: list[GpuSample], gpus: tuple[str, ...]) -> None:
    """Raise UserError for a GPU that is named and not there; `rows` is a first reading."""
    known = {name for r in rows for name in (r.gpu, str(r.index))}
    unknown = [name for name in gpus if name not in known]
    if rows and unknown:
        there = ", ".join(f"{r.index} = {r.gpu}" for r in rows)
        raise UserError(f"no GPU {', '.join(unknown)}", key="--gpus", remedy=f"there are: {there}")
