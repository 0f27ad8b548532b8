"""The service's limits, each number with its derivation; a number that the run cannot support is left out.

Concurrency is the verdict's. Timeouts come from the tail of the capped step: its p99 (its slowest request
where there are fewer than 100) times 1.5, so that a healthy service at its cap does not trip them, and never
below what the SLO allows. A request may wait in the queue for what the timeout of the first token leaves
beside the work itself, and the queue may hold what the service gets through in that time. Input limits are
what the cap was measured with: a larger input is not known to be carried. The image sweep sets the side where
it found a larger one to be too large, or served one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from harness.profile import Slo
from harness.records import BEFORE_LOAD
from harness.results import Experiment, Limit, Load, Quantiles, Report, Step
from harness.rundir import Table

HEADROOM = 1.5
TAIL_FROM = 100  # requests that a p99 needs
SECTIONS = ("input_limits", "concurrency", "timeouts")


@dataclass(frozen=True, slots=True)
class _Number:
    """A limit with its derivation, or None with the reason why there is none."""

    value: int | float | None
    why: str

    def limit(self, section: str, key: str) -> Limit:
        return Limit(section=section, key=key, value=self.value, why=self.why)


def derive_limits(report: Report, slo: Slo, requests: Table) -> list[Limit]:
    """Return every limit of limits.yaml, in its order; value None where the run does not support it."""
    capped = _capped(report)
    good = requests[(requests["outcome"] == "ok") & (requests["phase"] != BEFORE_LOAD)]
    if capped is not None:
        good = good[good["phase"] == capped.phase]
    where = f"at the cap of {capped.label}" if capped is not None else "in the run"
    return [
        *_inputs(good, where, report.experiments.get("image_sweep")),
        *_concurrency(report, capped, slo),
        *_timeouts(capped, slo),
    ]


def _capped(report: Report) -> Step | None:
    """Return the step at the cap that has most requests; a run of one step stands in for its own cap."""
    cap = report.knee.cap if report.knee else None
    steps = [step for step in report.steps if step.n and step.used]
    at = [step for step in steps if cap is not None and step.load == cap]
    if not at and report.valid and len({step.load for step in steps}) == 1:
        at = steps
    return max(at, key=lambda step: step.n, default=None)


def _inputs(good: Table, where: str, sweep: Experiment | None) -> Iterator[Limit]:
    """Yield what the largest request served was made of."""
    side, pixels = _largest_image(good, where)
    swept = sweep.figures.get("max_image_side") if sweep is not None else None
    larger = swept is not None and (side.value is None or swept > side.value)
    if sweep is not None and swept is not None and (larger or sweep.figures.get("bounded")):
        side = _Number(int(swept), f"image sweep: {sweep.text}")
        pixels = _Number(
            sweep.figures.get("max_image_pixels"), "width x height of the swept picture at that side"
        )
    images = int(good["in_img"].max()) if len(good) else 0
    numbers = {
        "max_image_side": side,
        "max_image_pixels": pixels,
        "max_images_per_request": _Number(images, f"the most images of one request served {where}")
        if images
        else _Number(None, "no image was served"),
        "max_input_tokens": _largest(
            good, "in_tokens", f"the longest prompt served {where}, images included"
        ),
        "max_new_tokens": _largest(good, "out_tokens", f"the longest answer served {where}"),
    }
    for key, number in numbers.items():
        yield number.limit("input_limits", key)


def _largest_image(good: Table, where: str) -> tuple[_Number, _Number]:
    sizes = [(int(w), int(h)) for images in good.drop_duplicates("payload")["img_wh"] for w, h in images]
    if not sizes:
        nothing = _Number(None, "no image was served")
        return nothing, nothing
    return (
        _Number(max(map(max, sizes)), f"the largest image served {where}"),
        _Number(max(w * h for w, h in sizes), f"width x height of the largest image served {where}"),
    )


def _largest(good: Table, column: str, why: str) -> _Number:
    values = good[column].to_numpy(dtype=np.float64, na_value=np.nan)
    known = values[~np.isnan(values)]
    return (
        _Number(int(known.max()), why) if len(known) else _Number(None, "the service reports no token counts")
    )


def _concurrency(report: Report, capped: Step | None, slo: Slo) -> Iterator[Limit]:
    knee, section = report.knee, "concurrency"
    if knee is None or knee.cap is None:
        reason = (
            f"the verdict is {knee.status}: it gives no cap" if knee else "the run has no ladder of loads"
        )
        cap = steady = _Number(None, reason)
    else:
        why = (
            f"the last step before the knee at {knee.knee_step:g}"
            if knee.knee_step is not None
            else f"no knee up to {knee.cap:g}: it carries at least this"
        )
        if knee.confidence is not None:
            why += f", confidence {100 * knee.confidence:.0f} %"
        cap = _in_flight(knee.cap, why, report.steps)
        steady = _Number(None, "no step was measured below the cap")
        if knee.steady is not None:
            steady = _in_flight(
                knee.steady, "one step below the cap; the rest is kept for bursts", report.steps
            )
    yield cap.limit(section, "cap")
    yield steady.limit(section, "steady")
    wait = _queue_wait(capped, slo)
    if capped is None or wait.value is None or not capped.rps:
        yield Limit(section=section, key="queue_max", value=None, why=wait.why)
    else:
        why = f"{capped.rps:.3g} requests/s {_at(capped)} within queue_wait_ms"
        yield Limit(
            section=section, key="queue_max", value=max(1, int(capped.rps * wait.value / 1e3)), why=why
        )


def _in_flight(load: Load, why: str, steps: Sequence[Step]) -> _Number:
    """Return a level in requests at once: users, or what Little's law makes of an arrival rate."""
    step = next((s for s in steps if s.load == load), None)
    if step is None or step.users is not None:
        return _Number(int(load) if float(load).is_integer() else load, why)
    if step.rps is None or step.latency.mean_ms is None:
        return _Number(None, f"no latency was measured at {load:g} requests/s")
    value = max(1, math.ceil(step.rps * step.latency.mean_ms / 1e3))
    return _Number(
        value, f"{why}; {step.rps:.3g} requests/s x {step.latency.mean_ms:.0f} ms are in flight there"
    )


def _timeouts(capped: Step | None, slo: Slo) -> Iterator[Limit]:
    section = "timeouts"
    yield _queue_wait(capped, slo).limit(section, "queue_wait_ms")
    yield _ttft_timeout(capped, slo).limit(section, "ttft_ms")
    yield _timeout(capped, capped.latency if capped else None, slo.total_p95_ms).limit(section, "total_ms")
    yield Limit(section=section, key="on_exceed", value="reject", why="a fast refusal costs others nothing")


def _ttft_timeout(capped: Step | None, slo: Slo) -> _Number:
    return _timeout(capped, capped.ttft if capped else None, slo.ttft_p95_ms)


def _timeout(capped: Step | None, times: Quantiles | None, allowed_ms: float | None) -> _Number:
    if capped is None or times is None:
        return _Number(None, "the run gives no capped step to derive it from")
    if times.p99_ms is None or times.max_ms is None:
        return _Number(None, "no time to first token was measured")
    tail = times.p99_ms if capped.n >= TAIL_FROM else times.max_ms
    name = "p99" if capped.n >= TAIL_FROM else "the slowest"
    value = round_up(HEADROOM * tail)
    if allowed_ms is not None and allowed_ms > value:
        return _Number(
            round(allowed_ms),
            f"the SLO's bound; {name} of {capped.n} requests {_at(capped)} is {tail:.0f} ms",
        )
    return _Number(
        value, f"{name} of {capped.n} requests {_at(capped)}, {tail:.0f} ms, x {HEADROOM:g}, rounded up"
    )


def _queue_wait(capped: Step | None, slo: Slo) -> _Number:
    ttft = _ttft_timeout(capped, slo)
    if capped is None or ttft.value is None:
        return ttft
    work = capped.ttft.p50_ms or 0.0
    return _Number(
        max(1, int(ttft.value - work)), f"ttft_ms less the {work:.0f} ms of a first token {_at(capped)} (p50)"
    )


def _at(step: Step) -> str:
    return f"at {step.label}"


def round_up(value: float) -> int:
    """Return milliseconds rounded up to two significant digits."""
    if value <= 10:
        return max(1, math.ceil(value))
    unit = 10 ** (math.floor(math.log10(value)) - 1)
    return int(math.ceil(round(value / unit, 6)) * unit)


def limits_yaml(report: Report, notes: Sequence[str] = ()) -> str:
    """Return the text of limits.yaml: each number under the comment that derives it, the rest named.

    `notes` are lines to put on top.
    """
    lines = [f"# Limits of {report.profile}, from run {report.run}."]
    if not report.valid:
        lines.append("# The run is not valid: take these numbers as hints.")
    lines += [f"# {_one_line(note)}" for note in notes]
    for section in SECTIONS:
        limits = [limit for limit in report.limits if limit.section == section]
        given = any(limit.value is not None for limit in limits)
        lines += ["", f"{section}:" if given else f"{section}: {{}}"]
        for limit in limits:
            if limit.value is None:
                lines.append(f"  # {limit.key} is left out: {_one_line(limit.why)}")
            else:
                entry = yaml.safe_dump({limit.key: limit.value}, allow_unicode=True).strip()
                lines += [f"  # {_one_line(limit.why)}", f"  {entry}"]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
