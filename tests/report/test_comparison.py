import pytest

from harness.analysis.changes import Change
from harness.analysis.compare import Comparison
from harness.analysis.differences import Caution
from harness.report.comparison import LONGEST, change_cells, folded, groups, notes, shorten, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (8.0, "8"),
        ([1, 2, 4], "1, 2, 4"),
        ([], "none"),
        ({}, "{}"),
        ({"count": 1, "width": None, "fit": "crop"}, "{count: 1, fit: crop}"),
        ("qwen2.5-vl-7b", "qwen2.5-vl-7b"),
    ],
)
def test_values_are_shown_as_in_a_profile(value, text) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("length", [5, 30, 60, 200])
@pytest.mark.parametrize("at", ["start", "middle", "end"])
def test_shortened_values_still_differ(length, at) -> None:
    same = "http://a-host-of-a-long-name.example/" + "v" * length
    place = {"start": 0, "middle": len(same) // 2, "end": len(same)}[at]
    texts = shorten(*(same[:place] + end + same[place:] for end in ("one", "two")))
    assert texts[0] != texts[1]
    assert max(map(len, texts)) <= LONGEST


def change(word, kind="all", ratio=1.0, figure="total_mean_ms", step="2 users"):
    return Change(
        step=step, kind=kind, figure=figure, before=100, after=100 * ratio, ratio=ratio, low=ratio * 0.9,
        high=ratio * 1.1, word=word,
    )  # fmt: skip


def comparison(*changes, **more):
    return Comparison(
        run_a="a", run_b="b", max_regression=0.1, regressed=False, text="", changes=list(changes), **more
    )


def test_a_change_is_given_in_per_cent_with_its_interval() -> None:
    cells = change_cells(change("regression", "picture", 1.2))
    assert cells == ["2 users", "picture", "total mean", "100", "120", "+20 %", "+8.0 to +32 %"]
    failed = Change(step="s", kind="all", figure="failures", before=0, after=0.05, word="regression")
    assert change_cells(failed)[2:] == ["failed", "0\u00a0%", "5.0\u00a0%", "–", "–"]


def test_worse_comes_before_better_and_what_did_not_change_is_counted() -> None:
    found = comparison(
        change("improvement", ratio=0.5),
        change("regression", ratio=1.5, step="4 users"),
        change("regression", "a", ratio=1.5, step="4 users"),
        change("regression", "b", ratio=3.0, step="4 users"),
        change("unclear"),
        change("same"),
        change("beyond_cap"),
    )
    told = [(g.word, [c.kind for c in g.changes]) for g in groups(found, everything=False)]
    assert told == [("regression", ["all", "b"]), ("improvement", ["all"])]
    assert folded(found) == (
        "Not shown: 1 of single kinds that say the same as their step, 1 cannot be told, 1 not slower by "
        "more than 10 %, 1 above the cap of A (--all shows them)."
    )
    assert sum(len(g.changes) for g in groups(found, everything=True)) == 7
    assert folded(comparison(change("regression", ratio=1.5))) is None


def test_weak_runs_and_steps_without_a_partner_are_noted() -> None:
    cautions = [
        Caution(run="A", code="client_limited", steps=["6 users", "8 users"]),
        Caution(run="B", code="stopped_early", text="The run was cut off at its end."),
    ]
    assert notes(comparison(cautions=cautions, only_b=["12 users"], cap_move="unclear")) == [
        "Whether the cap moved cannot be told from these two ladders.",
        "A: Limited by the load generator at 6 users, 8 users.",
        "B: The run was cut off at its end.",
        "Only in B: 12 users.",
    ]
