"""What the web UI shows of the runs: one plain value, of the ladder's figures and at the end of the report's.

All sentences are made here, so that the tab, the strip and the live page say the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from harness.analysis.hold import vote_between
from harness.load.conclusion import conclusion, is_left_out, step_notes, step_votes
from harness.load.judge import last_pair
from harness.load.ladder import Ladder
from harness.load.step import Step
from harness.records import EngineSample, GpuSample, Problem
from harness.results import Vote

if TYPE_CHECKING:
    from harness.load.conductor import Conductor
    from harness.load.session import Session

State = Literal["idle", "preparing", "running", "ending", "analysing", "done", "failed"]
VOTES = {"A": "latency", "B": "memory", "C": "throughput"}


class Live:
    """The state of a session's run, else of its last one; votes are found once for each step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._votes: dict[int, Vote | None] = {}  # by phase
        self._voted: Conductor | None = None

    def state(self) -> dict[str, Any]:
        """Return what is shown; figures that are not known are None."""
        session = self._session
        state = state_of(session)
        run = session.run or session.last
        if run is None or state in ("preparing", "failed"):
            return {"state": state, "headline": _HEADLINES[state], "detail": session.error or "", "run": None}
        if run is not self._voted:
            self._votes, self._voted = {}, run
        return _of_run(run, state, [self._step(run, index) for index in range(len(run.ladder.steps))])

    def _step(self, run: Conductor, index: int) -> dict[str, Any] | None:
        step = run.ladder.steps[index]
        if step.t0_ns is None:
            return None
        if step.stage == "done" and index not in self._votes:
            self._votes[index] = _vote_at(run.ladder.steps[: index + 1])
        report = run.report
        vote = step_votes(report, step.phase) if report is not None else self._votes.get(index)
        return {
            "label": step.phase.label,
            "experiment": step.phase.experiment,
            "load": step.phase.load,
            "done": step.t1_ns is not None,
            **msgspec.structs.asdict(step.figures()),
            "votes": None if vote is None else [word for key, word in VOTES.items() if getattr(vote, key)],
            "why": "" if vote is None else vote.why,
            "left_out": report is not None and is_left_out(report, step.phase),
            "note": _note(run, step) if report is None else step_notes(report, step.phase),
        }


def state_of(session: Session) -> State:
    """Return where the session stands."""
    if session.preparing:
        return "preparing"
    if session.run is not None:
        if not session.run.ladder.over:
            return "running"
        return "analysing" if session.run.analysing else "ending"
    if session.error is not None:
        return "failed"
    return "idle" if session.last is None else "done"


_HEADLINES: dict[State, str] = {
    "idle": "No run yet",
    "preparing": "Preparing: payloads, workers and sampler get ready",
    "ending": "The last requests are ending",
    "analysing": "Analysing: the report is being written",
    "done": "Done, without a report",
    "failed": "The run could not begin",
}


def _of_run(run: Conductor, state: State, steps: list[dict[str, Any] | None]) -> dict[str, Any]:
    ladder, (gpus, engine) = run.ladder, run.sampler.latest()
    users = sum(status.users for status in run.statuses.values())
    in_flight = sum(status.in_flight for status in run.statuses.values())
    number, of = len(ladder.steps), len(ladder.steps) + ladder.coming
    now_s = time.monotonic()
    if state == "running":
        headline = f"{ladder.phase.label} ({number} of {of})"
        detail = waits_for(ladder, users, in_flight, now_s)
        progress = (number - 1 + share_of(ladder.step, now_s)) / of
    else:
        headline, detail = _HEADLINES[state], ladder.stopped_early or ""
        progress = number / of
    report = run.report if state == "done" else None
    said = conclusion(report) if report is not None else None
    problems = ladder.problems if report is None else report.problems
    return {
        "state": state,
        "headline": said.sentence if said is not None else headline,
        "detail": detail,
        "progress": progress,
        "run": run.dir.path.name,
        "profile": run.profile.name,
        "experiment": run.plan.experiment,
        "target": run.profile.target.base_url,
        "workers": len(run.crew.ids),
        "users": users,
        "in_flight": in_flight,
        "requests": run.ended,
        "steps": [step for step in steps if step is not None],
        "gpus": [_gpu(sample) for sample in gpus.values()],
        "engine": _engine(engine),
        "problems": _by_text(problems),
        "tone": said.tone if said is not None else None,
        "facts": said.facts if said is not None else [],
        "report": report is not None and run.dir.report_html.exists(),
    }


def waits_for(ladder: Ladder, users: int, in_flight: int, now_s: float) -> str:
    """Return what the step waits for, in words; `users` and `in_flight` are those of the moment."""
    step, hold = ladder.step, ladder.phase.hold
    held_s = now_s - step.stage_s
    again = f" (begun anew, {step.restarts} so far: users or workers changed)" if step.restarts else ""
    match step.stage:
        case "gather" if users != ladder.users:
            return f"{users} of {ladder.users} users are running{again}"
        case "gather" if in_flight and not ladder.gate:
            return f"{in_flight} requests of the step before are ending{again}"
        case "gather":
            return f"workers enter the step{again}"
        case "settle" if held_s < hold.settle_s:
            return f"settling, {hold.settle_s - held_s:.0f} s to go{again}"
        case "settle":
            warm = sum(count >= 2 for count in step.rounds.values())
            return f"settling, {warm} of {ladder.users} users have finished two requests{again}"
        case "window":
            return f"measuring, {_progress(step, held_s)}{again}"
        case _:
            return f"the last requests of the step are ending, {in_flight} in flight"


def _progress(step: Step, held_s: float) -> str:
    phase, hold = step.phase, step.phase.hold
    if phase.requests is not None:
        return f"{step.in_phase} of {phase.requests} requests"
    if held_s < hold.seconds:
        return f"{held_s:.0f} of {hold.seconds:g} s, {step.good} of {hold.wanted(phase.users)} good requests"
    if step.missing > 0:
        good = f"{step.good} of {hold.wanted(phase.users)} good requests"
        return f"{good}, {held_s:.0f} of at most {hold.max_seconds:g} s"
    return f"until its votes are decided, {held_s:.0f} of at most {hold.max_seconds:g} s"


def share_of(step: Step, now_s: float) -> float:
    """Return how much of a step is done (0-1), by time and by requests."""
    phase = step.phase
    if step.stage not in ("window", "drain", "done"):
        return 0.0
    if step.stage != "window":
        return 1.0
    if phase.requests is not None:
        return min(1.0, step.in_phase / phase.requests)
    return min(1.0, (now_s - step.stage_s) / phase.hold.seconds, step.good / phase.hold.wanted(phase.users))


def _by_text(problems: Sequence[Problem]) -> list[str]:
    """Return each problem once, after the steps that have it."""
    steps: dict[str, list[str]] = {}
    for problem in problems:
        steps.setdefault(problem.text, []).extend([problem.step] if problem.step else [])
    return [f"{', '.join(labels)}: {text}" if labels else text for text, labels in steps.items()]


def _vote_at(steps: list[Step]) -> Vote | None:
    ladder = [step for step in steps if step.phase.experiment == "steps"]
    if not ladder or ladder[-1] is not steps[-1] or steps[-1].t1_ns is None:
        return None
    pair = last_pair(ladder)
    return None if pair is None else vote_between(*pair)


def _note(run: Conductor, step: Step) -> str:
    codes = {p.code.replace("_", " ") for p in run.ladder.problems if p.step == step.phase.label}
    return ", ".join(["measuring"] * (step.t1_ns is None) + sorted(codes))


def _gpu(sample: GpuSample) -> dict[str, Any]:
    used, total = sample.mem_used_bytes, sample.mem_total_bytes
    return {
        "name": sample.name or sample.gpu or "GPU",
        "util": sample.util,
        "memory": used / total if used is not None and total else None,
        "simulated": sample.source.startswith("sim"),
    }


def _engine(sample: EngineSample | None) -> dict[str, Any] | None:
    if sample is None or sample.error is not None:
        return None
    return {"running": sample.running, "waiting": sample.waiting, "kv_usage": sample.kv_usage}
