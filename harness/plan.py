"""A plan: the list of phases that a profile and an experiment come to.

Every experiment is the same thing, a list of phases: a label, a load, a schedule of payloads and how long
to hold. So one user class, one shape and one analysis (a group-by) serve them all. A schedule is
deterministic: the i-th request of a user takes entry (i + offset of the user), which keeps the mix equal at
every step.
"""

from __future__ import annotations

import random
from typing import Literal, get_args

import msgspec

from harness.errors import UserError
from harness.profile import Hold, ImageSpec, PayloadSpec, Profile, TextSpec

ExperimentName = Literal["steps", "modality", "image_sweep", "repeat", "isolation", "cache", "review"]
EXPERIMENTS: tuple[ExperimentName, ...] = get_args(ExperimentName)
replace = msgspec.structs.replace


class Entry(msgspec.Struct, frozen=True):
    """One place of a schedule: which payload, and which of its parts get a new nonce."""

    payload: int  # index into Plan.payloads; of a replay: the number of its line, from 0
    fresh_text: bool
    fresh_images: bool


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A load held for a while with one schedule."""

    index: int
    label: str
    experiment: str
    users: int | None  # None: open loop
    rate: float | None  # requests/s; None: closed loop
    schedule: tuple[Entry, ...]
    hold: Hold
    requests: int | None = None  # ends after exactly so many; None: by the rules of `hold`

    @property
    def load(self) -> float:
        """Users, or requests/s."""
        return float(self.users if self.users is not None else self.rate or 0.0)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All phases of a run and the payloads they draw from."""

    experiment: str
    payloads: tuple[PayloadSpec, ...]  # empty for a replay
    phases: tuple[Phase, ...]

    @property
    def max_users(self) -> int:
        """The most users of any phase; 1 where all are open-loop."""
        return max((p.users or 1 for p in self.phases), default=1)


def make_plan(profile: Profile, experiment: str = "steps", *, replay_lines: int = 0) -> Plan:
    """Return the plan of an experiment; `replay_lines` is the number of requests of a replay file.

    Raises UserError where the profile cannot carry the experiment.
    """
    if experiment not in EXPERIMENTS:
        raise UserError(f"no experiment `{experiment}`", remedy="one of " + ", ".join(EXPERIMENTS))
    if experiment != "steps" and not profile.traffic.mix:
        raise UserError(
            f"the experiment `{experiment}` needs traffic.mix", key="traffic", remedy="a replay runs as steps"
        )
    builder = _Builder(list(profile.traffic.mix), replay_lines)
    for name in _MAKERS if experiment == "review" else (experiment,):
        _MAKERS[name](profile, builder)
    plan = Plan(experiment=experiment, payloads=tuple(builder.payloads), phases=tuple(builder.phases))
    if plan.max_users > profile.safety.max_users:
        raise UserError(
            f"is {profile.safety.max_users}, but `{experiment}` wants {plan.max_users} users",
            key="safety.max_users",
            remedy="raise it or lower the experiment's users",
        )
    return plan


def mix_schedule(weights: tuple[int, ...]) -> list[int]:
    """Return one round of a weighted mix, spread evenly (smooth weighted round-robin): 3:2:1 gives 010210."""
    credit, total, order = [0] * len(weights), sum(weights), []
    for _ in range(total):
        credit = [c + w for c, w in zip(credit, weights, strict=True)]
        best = credit.index(max(credit))
        credit[best] -= total
        order.append(best)
    return order


def step_label(users: int | None, rate: float | None) -> str:
    """Return how a step is called everywhere: "6 users" or "0.5 req/s"."""
    return f"{users} user{'' if users == 1 else 's'}" if users is not None else f"{rate:g} req/s"


def refined_phase(plan: Plan, users: int, index: int) -> Phase:
    """Return a phase like the plan's first ladder step, at another number of users."""
    first = next(p for p in plan.phases if p.experiment == "steps")
    return replace(first, index=index, label=step_label(users, None) + " (refined)", users=users)


class _Builder:
    """Collects payloads and phases with their indices."""

    def __init__(self, payloads: list[PayloadSpec], replay_lines: int) -> None:
        self.payloads, self.replay_lines, self.phases = payloads, replay_lines, list[Phase]()

    def payload(self, spec: PayloadSpec) -> int:
        self.payloads.append(spec)
        return len(self.payloads) - 1

    def phase(
        self,
        label: str,
        experiment: str,
        schedule: list[Entry],
        hold: Hold,
        *,
        users: int | None = None,
        rate: float | None = None,
        requests: int | None = None,
    ) -> None:
        self.phases.append(
            Phase(
                index=len(self.phases),
                label=label,
                experiment=experiment,
                users=users,
                rate=rate,
                schedule=tuple(schedule),
                hold=hold,
                requests=requests,
            )
        )


def _steps(profile: Profile, out: _Builder) -> None:
    traffic, load = profile.traffic, profile.load
    fresh = traffic.unique
    if traffic.replay is not None:
        order = list(range(out.replay_lines))
        if traffic.replay.order == "shuffle":
            random.Random(traffic.seed).shuffle(order)
    else:
        order = mix_schedule(tuple(spec.weight for spec in traffic.mix))
    schedule = [Entry(i, fresh, fresh) for i in order]
    steps: list[tuple[int | None, float | None]] = [(users, None) for users in profile.users]
    steps += [(None, rate) for rate in load.rates or ()]
    for repeat in range(load.repeats):
        ordered = list(steps)
        if repeat:
            random.Random(traffic.seed + repeat).shuffle(ordered)
        for users, rate in ordered:
            label = step_label(users, rate) + (f" #{repeat + 1}" if repeat else "")
            out.phase(label, "steps", schedule, load.hold, users=users, rate=rate)
    if load.drift_check and load.repeats == 1 and len(steps) > 1:
        users, rate = steps[0]
        out.phase(step_label(users, rate) + " (drift)", "drift", schedule, load.hold, users=users, rate=rate)


def _counted(profile: Profile) -> Hold:
    """Return the hold of a phase that ends by its count: its seconds only bound it."""
    hold = profile.load.hold
    return replace(
        hold, settle_s=0, seconds=max(hold.max_seconds, 300), max_seconds=max(hold.max_seconds, 300)
    )


def _with_images(profile: Profile, count: int | None) -> PayloadSpec | None:
    """Return the first spec of the mix with so many images (None: several)."""
    for spec in profile.traffic.mix:
        found = spec.images.count if spec.images else 0
        if found == count or (count is None and found > 1):
            return spec
    return None


def _modality(profile: Profile, out: _Builder) -> None:
    rounds = profile.experiments.modality.rounds + 1  # the first of each is reported apart
    any_image = next((s.images for s in profile.traffic.mix if s.images), ImageSpec(side=512))
    text = (_with_images(profile, 0) or profile.traffic.mix[0]).text
    several = (_with_images(profile, None) or PayloadSpec(kind="", images=replace(any_image, count=4))).images
    one = (_with_images(profile, 1) or PayloadSpec(kind="", images=replace(any_image, count=1))).images
    classes = [
        out.payload(PayloadSpec(kind=kind, text=text, images=images))
        for kind, images in (("text_only", None), ("one_image", one), ("multi_image", several))
    ]
    schedule = [Entry(i, True, True) for i in classes]
    out.phase("modality", "modality", schedule, _counted(profile), users=1, requests=rounds * len(classes))


def _image_sweep(profile: Profile, out: _Builder) -> None:
    settings = profile.experiments.image_sweep
    base = _with_images(profile, 1) or _with_images(profile, None)
    images = replace(base.images if base and base.images else ImageSpec(), count=1, width=None, height=None)
    text = base.text if base else TextSpec(chars=60)
    sides = [
        out.payload(PayloadSpec(kind=f"side_{side}", text=text, images=replace(images, side=side)))
        for side in settings.sides
    ]
    schedule = [Entry(i, True, True) for i in sides]
    requests = (settings.rounds + 1) * len(sides)
    out.phase("image sweep", "image_sweep", schedule, _counted(profile), users=1, requests=requests)


def _repeat(profile: Profile, out: _Builder) -> None:
    settings, mix = profile.experiments.repeat, profile.traffic.mix
    wanted = settings.kind or next((s.kind for s in mix if s.images), mix[0].kind)
    index = next(i for i, spec in enumerate(mix) if spec.kind == wanted)
    entry = Entry(out.payload(replace(mix[index], kind=f"repeat_{wanted}")), False, False)
    out.phase("repeat", "repeat", [entry], _counted(profile), users=1, requests=settings.rounds)


def _isolation(profile: Profile, out: _Builder) -> None:
    settings, kinds = profile.experiments.isolation, [s.kind for s in profile.traffic.mix]
    short = kinds.index(settings.short or kinds[0])
    long = kinds.index(settings.long or kinds[-1])
    alone, beside = Entry(short, True, True), Entry(long, True, True)
    hold = profile.load.hold
    both = replace(hold, min_requests=2 * hold.min_requests)  # half of them are short
    out.phase("short alone", "isolation", [alone], hold, users=settings.users)
    out.phase("short beside long", "isolation", [alone, beside], both, users=settings.users)


def _cache(profile: Profile, out: _Builder) -> None:
    rounds = profile.experiments.cache.rounds + 1  # the first of each fills the cache and is left out
    base = _with_images(profile, 1) or _with_images(profile, None)
    images = replace(base.images if base and base.images else ImageSpec(side=512), count=1)
    text = max((s.text for s in profile.traffic.mix), key=lambda t: (t.tokens or 0) * 4 + (t.chars or 0))
    image_text = base.text if base else TextSpec(chars=60)
    entries = [
        Entry(out.payload(PayloadSpec(kind=kind, text=words, images=pictures)), fresh_text, fresh_images)
        for kind, words, pictures, fresh_text, fresh_images in (
            ("image_unique", image_text, images, True, True),
            ("image_repeated", image_text, images, True, False),
            ("prefix_unique", text, None, True, False),
            ("prefix_repeated", text, None, False, False),
        )
    ]
    out.phase("cache", "cache", entries, _counted(profile), users=1, requests=rounds * len(entries))


_MAKERS = {
    "steps": _steps,
    "modality": _modality,
    "image_sweep": _image_sweep,
    "repeat": _repeat,
    "isolation": _isolation,
    "cache": _cache,
}
