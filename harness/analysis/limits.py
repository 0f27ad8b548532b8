"""The service's limits, each number with its derivation; a number that the run cannot support is left out.

Concurrency is the verdict's. Timeouts come from the tail of the capped step: its p99 (its slowest request
where there are fewer than 100) times 1.5, so that a healthy service at its cap does not trip them. A
request may wait in the queue for what the timeout of the first token leaves beside the work itself, and the
queue may hold what the service gets through in that time. Input limits are what the cap was measured with:
a larger input is not known to be carried. The image sweep, where it found a jump, sets the side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import yaml

from harness.profile import Profile
from harness.results import Experiment, Limit, Load, Report, Step
from harness.rundir import Table

HEADROOM = 1.5
TAIL_FROM = 100
SECTIONS = ("input_limits", "concurrency", "timeouts")


def derive_limits(report: Report, profile: Profile, requests: Table) -> list[Limit]:
    """Return every limit of limits.yaml, in its order; value None where the run does not support it."""
    capped = _capped(report)
    sweep = report.experiments.get("image_sweep")
    return [
        *_inputs(profile, capped, requests, sweep),
        *_concurrency(report, capped),
        *_timeouts(report, capped),
    ]


def _capped(report: Report) -> Step | None:
    """Return the step at the cap that has most requests; a run of one step stands in for its own cap."""
    cap = report.knee.cap if report.knee else None
    steps = [step for step in report.steps if step.n and step.used]
    at = [s for s in steps if _load(s) == cap] if cap is not None else []
    if not at and report.valid and len({_load(s) for s in steps}) == 1:
        at = steps
    return max(at, key=lambda s: s.n, default=None)


def _load(step: Step) -> Load | None:
    return float(step.users) if step.users is not None else step.offered_rps


def _inputs(
    profile: Profile, capped: Step | None, requests: Table, sweep: Experiment | None
) -> Iterator[Limit]:
    section = "input_limits"
    if capped is not None:
        rows = requests[(requests["phase"] == capped.phase) & (requests["outcome"] == "ok")]
        where = f"at the cap of {capped.label}"
    else:
        rows, where = requests[requests["outcome"] == "ok"], "in the run"
    sizes = [tuple(wh) for images in rows.drop_duplicates("payload")["img_wh"] for wh in images]
    side = max((max(wh) for wh in sizes), default=None)
    pixels = max((wh[0] * wh[1] for wh in sizes), default=None)
    why_side = f"the largest image served {where}"
    swept = sweep.figures.get("max_image_side") if sweep is not None else None
    if (
        sweep is not None
        and swept is not None
        and (sweep.figures.get("bounded") or side is None or swept > side)
    ):
        side, pixels = int(swept), sweep.figures.get("max_image_pixels")
        why_side = f"image sweep: {sweep.text}"
    yield Limit(
        section=section, key="max_image_side", value=side, why=why_side if side else "no image was served"
    )
    yield Limit(
        section=section,
        key="max_image_pixels",
        value=pixels,
        why="width x height of that image" if pixels else "no image was served",
    )
    images = int(rows["in_img"].max()) if len(rows) else 0
    yield Limit(
        section=section,
        key="max_images_per_request",
        value=images or None,
        why=f"the most images of one request served {where}" if images else "no image was served",
    )
    tokens = rows["in_tokens"].max() if len(rows) else math.nan
    known = isinstance(tokens, int | float) and not math.isnan(tokens)
    yield Limit(
        section=section,
        key="max_input_tokens",
        value=int(tokens) if known else None,
        why=f"the longest prompt served {where}, images included"
        if known
        else "the service reports no input tokens",
    )
    asked = max([spec.max_tokens or 0 for spec in profile.traffic.mix] + [profile.generation.max_tokens])
    yield Limit(
        section=section,
        key="max_new_tokens",
        value=asked if len(rows) else None,
        why=f"the longest answer asked for {where}" if len(rows) else "no request was answered",
    )


def _concurrency(report: Report, capped: Step | None) -> Iterator[Limit]:
    knee, section = report.knee, "concurrency"
    cap = knee.cap if knee is not None else None
    open_loop = capped is not None and capped.users is None
    if knee is None or cap is None:
        why = f"the verdict is {knee.status}: it gives no cap" if knee else "the run has no ladder of loads"
        yield Limit(section=section, key="cap", value=None, why=why)
        yield Limit(section=section, key="steady", value=None, why=why)
    else:
        from_knee = (
            f"the last step before the knee at {knee.knee_step:g}"
            if knee.knee_step is not None
            else f"no knee was found up to {cap:g}: it carries at least this"
        )
        sure = f", confidence {100 * knee.confidence:.0f} %" if knee.confidence is not None else ""
        yield _at_load("cap", cap, from_knee + sure, capped if open_loop else None)
        if knee.steady is None:
            yield Limit(section=section, key="steady", value=None, why="no step was measured below the cap")
        else:
            beside = next((s for s in report.steps if _load(s) == knee.steady), None)
            yield _at_load(
                "steady",
                knee.steady,
                "one step below the cap, the rest is kept for bursts",
                beside if open_loop else None,
            )
    wait = _queue_wait_ms(capped)
    if capped is None or wait is None or not capped.rps:
        yield Limit(
            section=section, key="queue_max", value=None, why="no capped step with a time to first token"
        )
    else:
        value = max(1, math.floor(capped.rps * wait / 1e3))
        yield Limit(
            section=section,
            key="queue_max",
            value=value,
            why=f"{capped.rps:.3g} requests/s at the cap in the queue_wait_ms of {wait:g} ms",
        )


def _at_load(key: str, load: Load, why: str, open_step: Step | None) -> Limit:
    """Return a level in requests at once: users, or of an arrival rate what Little's law gives."""
    if open_step is None:
        return Limit(
            section="concurrency", key=key, value=int(load) if float(load).is_integer() else load, why=why
        )
    mean = open_step.latency.mean_ms
    if mean is None or open_step.rps is None:
        return Limit(section="concurrency", key=key, value=None, why="no latency at this rate")
    return Limit(
        section="concurrency",
        key=key,
        value=max(1, math.ceil(open_step.rps * mean / 1e3)),
        why=f"{why}; {load:g} requests/s are {open_step.rps:.3g}/s x {mean:.0f} ms in flight",
    )


def _timeouts(report: Report, capped: Step | None) -> Iterator[Limit]:
    section = "timeouts"
    wait = _queue_wait_ms(capped)
    ttft, total = (_timeout(capped, name) for name in ("ttft", "latency"))
    if capped is None:
        missing = "the run gives no capped step to derive it from"
    else:
        missing = "no time to first token was measured"
    yield Limit(
        section=section,
        key="queue_wait_ms",
        value=wait,
        why=f"ttft_ms less the {_work_ms(capped):.0f} ms that a first token takes at {capped.label} (p50)"
        if capped is not None and wait is not None
        else missing,
    )
    for key, value, figures in (
        ("ttft_ms", ttft, capped.ttft if capped else None),
        ("total_ms", total, capped.latency if capped else None),
    ):
        if value is None or capped is None or figures is None:
            yield Limit(section=section, key=key, value=None, why=missing)
            continue
        name, tail = _tail(capped, figures.p99_ms, figures.max_ms)
        yield Limit(
            section=section,
            key=key,
            value=value,
            why=f"{name} at {capped.label} {tail:.0f} ms x {HEADROOM:g}, rounded up",
        )
    yield Limit(section=section, key="on_exceed", value="reject", why="a fast refusal costs others nothing")


def _timeout(step: Step | None, name: str) -> int | None:
    if step is None:
        return None
    figures = step.ttft if name == "ttft" else step.latency
    if figures.p99_ms is None or figures.max_ms is None:
        return None
    return round_up(_tail(step, figures.p99_ms, figures.max_ms)[1] * HEADROOM)


def _tail(step: Step, p99_ms: float | None, max_ms: float | None) -> tuple[str, float]:
    """Return the tail figure that a step's sample supports: p99, or the slowest of a small sample."""
    if step.n >= TAIL_FROM and p99_ms is not None:
        return f"p99 of {step.n} requests", p99_ms
    return f"the slowest of {step.n} requests", max_ms or 0.0


def _work_ms(step: Step | None) -> float:
    return (step.ttft.p50_ms or 0.0) if step is not None else 0.0


def _queue_wait_ms(step: Step | None) -> int | None:
    ttft = _timeout(step, "ttft")
    if ttft is None:
        return None
    return max(int(ttft - _work_ms(step)), 1)


def round_up(value: float) -> int:
    """Return a number of milliseconds rounded up to two significant digits."""
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
        lines.append("# The run is not valid: treat these numbers as hints.")
    lines += [f"# {note}" for note in notes]
    for section in SECTIONS:
        limits = [limit for limit in report.limits if limit.section == section]
        lines.append("")
        supported = [limit for limit in limits if limit.value is not None]
        lines.append(f"{section}:" if supported else f"{section}: {{}}")
        for limit in limits:
            if limit.value is None:
                lines.append(f"  # {limit.key} is left out: {_one_line(limit.why)}")
            else:
                lines.append(f"  # {_one_line(limit.why)}")
                lines.append("  " + yaml.safe_dump({limit.key: limit.value}, allow_unicode=True).strip())
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
