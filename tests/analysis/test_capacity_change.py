import pytest

from harness.analysis.capacity_change import Pair, cap_move, conclusions
from harness.results import Knee, Limit, Report, Step


def report(loads, status="knee", cap=None, span=None, *, rates=False, limits=(), **knee):
    steps = [
        Step(label=f"{x}", phase=k, users=None if rates else x, offered_rps=x if rates else None)
        for k, x in enumerate(loads)
    ]
    span = span or ((cap, cap) if cap is not None else None)
    verdict = Knee(status=status, cap=cap, range=span, **knee) if status else None
    return Report(
        run="r", profile="p", experiment="steps", valid=True, steps=steps, knee=verdict, limits=list(limits)
    )


LADDER = (1, 2, 4, 6, 8, 12)
SIX = report(LADDER, cap=6, knee_step=8)


@pytest.mark.parametrize(
    ("b", "move"),
    [
        (SIX, "same"),
        (report(LADDER, cap=4), "fell"),
        (report(LADDER, cap=4, span=(4, 6)), "unclear"),  # may still be 6
        (report(LADDER, cap=8), "rose"),
        (report((1, 2, 3), "none_in_range", 3), "unclear"),  # the ladder ended before the cap of A
        (report((1, 2, 4, 8), cap=4), "unclear"),  # the step of 6 was not measured
        (report((1, 2, 5, 7), cap=5), "unclear"),
        (report((1, 2, 3, 5), cap=3), "fell"),  # 5 is too much for B, and less than A carried
        (report((8, 12, 16), "below_first", most_likely=8), "unclear"),
        (report((4, 6, 8), "below_first", most_likely=4), "fell"),  # at 6 it is saturated for sure
        (report((1, 2, 4), "below_first", most_likely=1), "fell"),
        (report(LADDER, "none_in_range", 12), "rose"),
        (report(LADDER, "inconclusive", most_likely=4), "unclear"),
        (report(LADDER, None), None),
        (report(LADDER, cap=4, rates=True), None),  # requests/s are no users
    ],
)
def test_a_cap_moves_only_where_both_ladders_show_it(b, move) -> None:
    assert cap_move(SIX, b) == move


def test_runs_without_a_cap_have_none_that_moved() -> None:
    assert cap_move(report((4,), "insufficient"), report((4,), "insufficient")) is None


def test_a_cap_that_may_have_been_lower_before_did_not_fall() -> None:
    assert cap_move(report(LADDER, cap=6, span=(4, 6)), report(LADDER, cap=4)) == "unclear"


def test_conclusions_pair_verdict_and_limits() -> None:
    a = report(LADDER, cap=6, limits=[Limit(section="timeouts", key="ttft_ms", value=90, why="")])
    b = report(LADDER, cap=4, limits=[Limit(section="concurrency", key="queue_max", value=3, why="")])
    found = conclusions(a, b)
    assert Pair(key="cap", before=6, after=4) in found
    assert Pair(key="limits.timeouts.ttft_ms", before=90, after=None) in found
    assert Pair(key="limits.concurrency.queue_max", before=None, after=3) in found
    assert "slo_cap" not in {pair.key for pair in found}  # neither has one


def test_runs_without_a_ladder_conclude_nothing() -> None:
    assert conclusions(report((), None), report((), None)) == []
