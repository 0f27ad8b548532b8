"""The service's own timing lines, joined to the requests by their id.

A line is what `harness.stages` writes: a JSON object with `req_id` and any of `pre_ms`, `queue_ms`,
`prefill_ms`, `decode_ms`. Stages that a request brought itself (a stream's timings, a Server-Timing header)
come first: the log fills only what they left open.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from harness.errors import UserError
from harness.records import STAGES
from harness.rundir import RunData, Table

COLUMNS = ("req_id", *(f"{stage}_ms" for stage in STAGES))


def parse_stage_log(data: bytes) -> Table:
    """Return one row per usable line, the last of those with the same id; other lines of a log are passed
    over.

    Raises UserError where no line can be used, saying what the last candidate lacks.
    """
    rows: dict[str, list[float]] = {}
    fault, fault_line = "no JSON line with `req_id` and a stage", None
    for number, line in enumerate(data.split(b"\n"), start=1):
        start = line.find(b"{")
        if start < 0 or b"req_id" not in line:
            continue
        try:
            fields: Any = msgspec.json.decode(line[start:].strip())
        except (msgspec.DecodeError, UnicodeDecodeError):
            fault, fault_line = "not valid JSON", number
            continue
        key = fields.get("req_id") if isinstance(fields, dict) else None
        stages = [_milliseconds(fields.get(name)) for name in COLUMNS[1:]] if isinstance(key, str) else []
        if any(not math.isnan(value) for value in stages):
            rows[str(key)] = stages
        else:
            fault, fault_line = "names no stage: one of " + ", ".join(COLUMNS[1:]), number
    if not rows:
        raise UserError(
            f"stage log: {fault}", line=fault_line, remedy="write the lines that harness.stages writes"
        )
    figures = np.array(list(rows.values()), dtype=np.float64)
    return pd.DataFrame({"req_id": list(rows), **{name: figures[:, i] for i, name in enumerate(COLUMNS[1:])}})


def _milliseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return math.nan
    return float(value)


def with_stage_log(run: RunData, log: Table) -> RunData:
    """Return the run with the stages of a log where its requests brought none.

    Raises UserError where no line belongs to a request of the run.
    """
    requests = run.requests.copy(deep=False)
    at = pd.Index(log["req_id"]).get_indexer(pd.Index(requests["req_id"].astype(object)))
    if len(requests) and not (at >= 0).any():
        raise UserError(
            f"stage log: none of its {len(log)} lines belongs to a request of this run",
            remedy="log the x-request-id header of each request as req_id",
        )
    open_ = requests[list(COLUMNS[1:])].isna().all(axis=1).to_numpy() & (at >= 0)
    for name in COLUMNS[1:]:
        values = requests[name].to_numpy(dtype=np.float64, na_value=np.nan).copy()
        values[open_] = log[name].to_numpy()[at[open_]]
        requests[name] = values
    source = requests["stage_source"].astype(object).to_numpy().copy()
    source[open_] = "stage_log"
    requests["stage_source"] = source
    return dataclasses.replace(run, requests=requests)
