"""What sets two runs apart besides the service's speed, graded by what it does to a comparison of figures.

What was asked of the service (`traffic`) makes figures incomparable where it differs; how it was measured
(`measurement`) calls for care; the service itself (`service`) is what runs are compared for. Two profiles
that say the same may still have sent something else, from a folder or a replay file whose content changed, so
the sizes of what was really sent are compared too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from harness.results import Report
from harness.rundir import RunData, Table

Grade = Literal["traffic", "measurement", "service"]
RunName = Literal["A", "B"]

# Of the longest key that a difference's key begins with; None: says nothing of the figures.
GRADES: dict[str, Grade | None] = {
    "name": None,
    "target": "service",
    "target.endpoint": "traffic",
    "target.stream": "traffic",
    "target.timeouts": "measurement",
    "target.api_key_env": None,
    "generation": "traffic",
    "traffic": "traffic",
    "traffic.seed": "measurement",
    "load": "measurement",
    "load.arrivals": "traffic",
    "observe": "measurement",
    "observe.token_env": None,
    "slo": "measurement",
    "stop": "measurement",
    "safety": None,
    "experiments": "traffic",
    "run": "measurement",
    "gpu": "service",
    "engine": "service",
}
SENT: dict[str, Grade] = {"body_bytes": "traffic", "out_tokens": "traffic", "in_tokens": "service"}
SENT_APART, SENT_ERRORS = 0.05, 3  # a mean differs by this share, and by so many standard errors
WEAKENS = (
    "stopped_early",
    "workers_lost",
    "records_lost",
    "load_not_applied",
    "client_limited",
    "client_lag_unknown",
    "hold_too_short",
    "not_stationary",
    "mix_changed",
    "cache_hits",
)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same in both runs; None: that run has no such thing.

    `key` is that of the profile (an entry of the mix stands under its kind: `traffic.mix[one_image].weight`),
    or one of `run`, `gpu`, `engine` and `requests[kind]`.
    """

    key: str
    before: Any
    after: Any
    grade: Grade


class Caution(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of one run that weakens the comparison."""

    run: RunName
    code: str  # of a problem, or `not_valid`
    steps: list[str] = []  # where it was seen
    text: str | None = None  # of the run as a whole


def differences(a: RunData, b: RunData) -> list[Difference]:
    """Return how run b was made otherwise than run a, what spoils a comparison first."""
    found = [
        Difference(key=key, before=before, after=after, grade=grade)
        for key, before, after in _walk(_settings(a), _settings(b))
        if (grade := _grade(key)) is not None
    ]
    if not any(difference.grade == "traffic" for difference in found):
        found += _sent(a, b)
    return sorted(found, key=lambda difference: get_args(Grade).index(difference.grade))


def cautions(a: Report, b: Report) -> list[Caution]:
    """Return what weakens either run's figures: of the whole run, then each other problem with its steps."""
    return [*_cautions("A", a), *_cautions("B", b)]


def _cautions(run: RunName, report: Report) -> Iterator[Caution]:
    if not report.valid:
        yield Caution(run=run, code="not_valid", text="The run is not valid: see the problems in its report.")
    steps: dict[str, list[str]] = {}
    for problem in report.problems:
        if problem.code not in WEAKENS:
            continue
        if problem.step is None:
            yield Caution(run=run, code=problem.code, text=problem.text)
        else:
            steps.setdefault(problem.code, []).append(problem.step)
    for code, labels in steps.items():
        yield Caution(run=run, code=code, steps=labels)


def _grade(key: str) -> Grade | None:
    names = [name for name in GRADES if key == name or key.startswith((f"{name}.", f"{name}["))]
    return GRADES[max(names, key=len)]


def _walk(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield key and values of every leaf that differs."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after:
            yield key, before, after
        return
    for name in dict.fromkeys([*before, *after]):
        inner = name if not key else f"{key}[{name}]" if key == "traffic.mix" else f"{key}.{name}"
        yield from _walk(before.get(name), after.get(name), inner)


def _settings(run: RunData) -> dict[str, Any]:
    """Return all that a run was made with and that was in force, as nested maps."""
    raw: dict[str, Any] = msgspec.to_builtins(run.profile)
    traffic, load = raw["traffic"], raw["load"]
    for spec in traffic["mix"]:
        if spec["images"]:  # the same folder may lie elsewhere on another machine
            spec["images"]["source"] = PurePath(spec["images"]["source"]).name
    traffic["mix"] = {spec.pop("kind"): spec for spec in traffic["mix"]}
    if traffic["replay"]:
        traffic["replay"]["file"] = PurePath(traffic["replay"]["file"]).name
    load["users"] = list(run.profile.users) or None
    if run.profile.users:
        load = {name: value for name, value in load.items() if name not in ("arrivals", "max_in_flight")}
    made = {phase.experiment for phase in run.info.phases}
    experiments = {name: value for name, value in raw["experiments"].items() if name in made}
    about = {
        "experiment": run.info.experiment,
        "hosts": sorted({run.info.host, *(worker.host for worker in run.info.workers)} - {""}),
        "workers": len(run.info.workers),
        "versions": run.info.versions,
    }
    return {
        **raw,
        "load": load,
        "experiments": experiments,
        "run": about,
        "gpu": {"name": _values(run.gpu, "name"), "source": _values(run.gpu, "source")},
        "engine": {"source": _values(run.engine, "source")},
    }


def _values(table: Table, column: str) -> list[str] | None:
    """Return the different values of a column; None where there are none."""
    return sorted(map(str, table[column].dropna().unique())) or None


def _sent(a: RunData, b: RunData) -> Iterator[Difference]:
    """Yield where the mean sizes of good requests of a kind differ beyond chance."""
    good = [run.requests[run.requests["outcome"] == "ok"] for run in (a, b)]
    kinds = [set(map(str, rows["kind"].unique())) for rows in good]
    for kind in sorted(kinds[0] & kinds[1]):
        for column, grade in SENT.items():
            sizes = [rows.loc[rows["kind"] == kind, column].dropna().to_numpy(np.float64) for rows in good]
            if min(map(len, sizes)) == 0:
                continue
            if column == "body_bytes":  # the model's name is in the body
                sizes = [v - len(run.profile.target.model) for v, run in zip(sizes, (a, b), strict=True)]
            before, after = (float(v.mean()) for v in sizes)
            error = float(np.hypot(*(v.std() / np.sqrt(len(v)) for v in sizes)))
            if abs(after - before) > max(SENT_APART * before, SENT_ERRORS * error):
                yield Difference(
                    key=f"requests[{kind}].{column}", before=round(before), after=round(after), grade=grade
                )
