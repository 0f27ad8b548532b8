"""nvidia-smi query logs, bytes in, columns out, however they were written.

`--query-gpu=timestamp,... --format=csv` files come with and without headers and units, with several GPUs,
with driver messages and headers in the middle, cut at the end. A block of lines that all fit the columns is
read at once; only in other blocks is each line looked at. Each distinct text of a number is read once.
"""

from __future__ import annotations

import codecs
import io
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.observe.smi_columns import Schema, guess, is_stamp, read_value

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK_BYTES = 4 << 20
HEAD_BYTES = 64  # tell the encoding


@dataclass(frozen=True)
class GpuLog:
    """A log as columns, in the order of the file.

    `local_us` are stamps in microseconds as if the log's clock were UTC. `gpu` indexes `gpus` (-1: identity
    not given). `reason` indexes `reasons` where a value is missing, else -1.
    """

    local_us: Ints
    gpu: npt.NDArray[np.int32]
    gpus: list[str]
    about: dict[str, dict[str, str]]  # GPU -> name and index, where given
    values: dict[str, Floats]
    reason: dict[str, npt.NDArray[np.int16]]
    reasons: list[str]
    skipped: dict[str, int]


class LogParser:
    """Feed it a log's bytes in pieces of any size, then ask for the result."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._begun, self._head, self._rest = False, b"", b""
        self._schema: Schema | None = None
        self._skipped: Counter[str] = Counter()
        self._gpus: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._about: dict[str, dict[str, str]] = {}
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        if not self._begun:  # a log shorter than this waits for `finish`
            self._head += data
            if len(self._head) < HEAD_BYTES:
                return
            data = self._begin()
        self._take(data)

    def _begin(self) -> bytes:
        """Tell the encoding from the log's first bytes, and return them."""
        self._begun = True
        encoding = _encoding(self._head)
        if encoding is not None:
            self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return self._head.removeprefix(codecs.BOM_UTF8)

    def _take(self, data: bytes) -> None:
        self._rest += self._decoder.decode(data).encode() if self._decoder else data
        end = self._rest.rfind(b"\n") + 1
        if end:
            block, self._rest = self._rest[:end], self._rest[end:]
            self._block(block)

    def finish(self) -> GpuLog:
        """Return what the log holds; a last line without its newline was cut and is dropped."""
        if not self._begun:
            self._take(self._begin())
        if self._rest.strip(b"\x00\r \t"):
            self._skipped["cut last line"] += 1
        names = sorted({n for part in self._parts for n in part if n not in ("local_us", "gpu")})
        values = {n: self._column(n, np.nan, np.float64) for n in names if not n.endswith("?")}
        return GpuLog(
            local_us=self._column("local_us", 0, np.int64),
            gpu=self._column("gpu", -1, np.int32),
            gpus=list(self._gpus),
            about=self._about,
            values=values,
            reason={n: self._column(n + "?", self._reason("no such column here"), np.int16) for n in values},
            reasons=list(self._reasons),
            skipped=dict(self._skipped),
        )

    def _block(self, block: bytes) -> None:
        """Read whole lines: at once where all fit, else line by line, since columns may change among them."""
        if self._schema is not None and self._schema.fits(block):
            self._rows(block, self._schema)
            return
        good: list[bytes] = []
        for line in block.splitlines(keepends=True):
            if self._schema is not None and self._schema.fits(line):
                good.append(line)
                continue
            schema, reason = self._odd(line)
            if schema is not None:
                if good and self._schema is not None:
                    self._rows(b"".join(good), self._schema)
                self._schema, good = schema, [] if reason else [line]
            elif reason:
                self._skipped[reason] += 1
        if good and self._schema is not None:
            self._rows(b"".join(good), self._schema)

    def _odd(self, line: bytes) -> tuple[Schema | None, str]:
        """Return the schema that a line begins, or why it is skipped; a header both, a first row neither."""
        text = line.decode(errors="replace").strip("\r\n\x00 \t")
        if not text:
            return None, "blank"
        cells = [cell.strip() for cell in text.split(",")]
        header = Schema.of(cells)
        if header is not None:
            repeated = self._schema == header
            if repeated:
                self._skipped["repeated header"] += 1
            return (None, "") if repeated else (header, "header")
        if not any(map(is_stamp, cells)):
            return None, "not data"
        if self._schema is not None:
            return None, "other number of columns than the header"
        first = guess(cells)
        return (first, "") if first is not None and first.fits(line) else (None, "no header, columns unknown")

    def _rows(self, block: bytes, schema: Schema) -> None:
        """Read lines that all have the schema's columns."""
        wanted = sorted({schema.stamp, *schema.fields, *schema.identity.values()})
        table = pd.read_csv(
            io.BytesIO(block),
            header=None,
            names=range(schema.width),
            usecols=wanted,
            dtype={at: str if at == schema.stamp else "category" for at in wanted},
            na_filter=False,
            skipinitialspace=True,
            quoting=3,
            encoding_errors="replace",
            low_memory=False,
        )
        local_us, valid = _stamps(table[schema.stamp].tolist())
        self._skipped.update({"no such date": n} if (n := int((~valid).sum())) else {})
        part: dict[str, npt.NDArray[Any]] = {"local_us": local_us, "gpu": self._identify(table, schema)}
        for at, (name, unit) in schema.fields.items():
            codes, texts = _coded(table[at])
            read = [read_value(text, unit) for text in texts]
            part[name] = np.array([v for v, _ in read])[codes]
            part[name + "?"] = np.array([self._reason(why) for _, why in read], dtype=np.int16)[codes]
        self._unify(part)
        self._parts.append(part if valid.all() else {name: column[valid] for name, column in part.items()})

    def _unify(self, part: dict[str, npt.NDArray[Any]]) -> None:
        """A total of 0 is a GPU that shares the host's memory: what it reports is not known."""
        none = part["mem_total_bytes"] == 0 if "mem_total_bytes" in part else np.array([False])
        if none.any():
            for name in ("mem_used_bytes", "mem_reserved_bytes", "mem_total_bytes"):
                if name in part:
                    part[name][none] = np.nan
                    part[name + "?"][none] = self._reason("unified memory")

    def _identify(self, table: pd.DataFrame, schema: Schema) -> npt.NDArray[np.int32]:
        best = next((kind for kind in ("uuid", "bus", "index") if kind in schema.identity), None)
        if best is None:
            return np.full(len(table), -1, dtype=np.int32)
        codes, texts = _coded(table[schema.identity[best]])
        numbers = []
        for code, text in enumerate(texts):
            known = not text.startswith("[") and text not in ("", "N/A")
            numbers.append(self._gpus.setdefault(text, len(self._gpus)) if known else -1)
            if known and text not in self._about:
                row = int(np.argmax(codes == code))
                others = [kind for kind in ("name", "index") if kind in schema.identity]
                self._about[text] = {k: str(table[schema.identity[k]].iloc[row]).strip() for k in others}
        return np.array(numbers, dtype=np.int32)[codes]

    def _reason(self, why: str) -> int:
        return self._reasons.setdefault(why, len(self._reasons)) if why else -1

    def _column(self, name: str, otherwise: float, dtype: Any) -> npt.NDArray[Any]:
        """Return a column put together, its parts let go."""
        lengths = [len(part["gpu"]) if name != "gpu" else len(part["local_us"]) for part in self._parts]
        column = np.full(sum(lengths), otherwise, dtype=dtype)
        at = 0
        for part, length in zip(self._parts, lengths, strict=True):
            if name in part:
                column[at : at + length] = part[name]
                if name not in ("gpu", "local_us"):
                    del part[name]
            at += length
        return column


def _coded(column: pd.Series[Any]) -> tuple[npt.NDArray[np.intp], list[str]]:
    codes: npt.NDArray[Any] = column.cat.codes.to_numpy(dtype=np.intp)
    return codes, [str(text).strip() for text in column.cat.categories]


def _encoding(data: bytes) -> str | None:
    """Return the UTF-16 kind of a log that begins so, as PowerShell writes it; None: UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = data[:HEAD_BYTES]
    if zeros[1::2].count(0) > len(zeros) // 4:
        return "utf-16-le"
    return "utf-16-be" if zeros[::2].count(0) > len(zeros) // 4 else None


def _stamps(texts: list[str]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return stamps as microseconds since 1970 by their own clock, and which of them are dates."""
    raw = np.array([text.strip() for text in texts], dtype="S26")
    digits = raw.view(np.uint8).reshape(len(raw), 26).astype(np.int64) - 48
    digits[digits < 0] = 0  # absent decimals

    def number(*places: int) -> Ints:
        total: Ints = np.zeros(len(digits), dtype=np.int64)
        for place in places:
            total = total * 10 + digits[:, place]
        return total

    months = (number(0, 1, 2, 3) - 1970) * 12 + number(5, 6) - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (number(8, 9) - 1)
    hour, minute, second = number(11, 12), number(14, 15), number(17, 18)
    valid = (days.astype("datetime64[M]").astype(np.int64) == months) & (number(5, 6) >= 1)
    valid &= (number(5, 6) <= 12) & (hour < 24) & (minute < 60) & (second < 61)
    seconds = days.astype(np.int64) * 86400 + hour * 3600 + minute * 60 + second
    return seconds * 1_000_000 + number(20, 21, 22, 23, 24, 25), valid
