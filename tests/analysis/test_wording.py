from typing import get_args

import pytest

from harness.analysis.wording import SENTENCES, verdict_sentence
from harness.results import Knee, Status, Vote


@pytest.mark.parametrize(
    ("knee", "text"),
    [
        (
            Knee(status="knee", cap=6, knee_step=8, votes=[Vote(users=8), Vote(users=12)]),
            "The service carries 6 users; at 8, latency outruns throughput.",
        ),
        (
            Knee(status="knee", cap=8, knee_step=12, votes=[Vote(users=12)]),
            "The service carries 8 users; at 12, the last step measured, latency outruns throughput.",
        ),
        (
            Knee(status="knee", cap=1, knee_step=2, votes=[Vote(users=2), Vote(users=4)]),
            "The service carries 1 user; at 2, latency outruns throughput.",
        ),
        (
            Knee(status="inconclusive", undecided=(4, 6), most_likely=4, more_requests=1200),
            "The data cannot decide between 4 and 6 users; 4 is most likely. "
            "About 1,200 more good requests at these steps would decide it.",
        ),
        (
            Knee(status="below_first", most_likely=4),
            "The service is saturated at the lowest step measured: test below 4 users.",
        ),
        (
            Knee(status="below_first", most_likely=1),
            "The service is saturated at the lowest step measured: test below 1 user.",
        ),
        (Knee(status="inconclusive"), "The data cannot decide where the knee lies."),
        (
            Knee(status="inconclusive", undecided=(2, 2), most_likely=2),
            "The data cannot decide where the knee lies.",
        ),
        (
            Knee(status="client_limited", safe_cap=8, most_likely=8, undecided=(8, 12)),
            "The load generator was the limit, not the service: it carries at least 8 users, "
            "its cap is not known.",
        ),
        (
            Knee(status="client_limited", most_likely=2),
            "The load generator was the limit, not the service: no verdict.",
        ),
        (
            Knee(status="load_not_applied", safe_cap=1, undecided=(1, 4)),
            "The load asked for was not applied: the service carries at least 1 user, its cap is not known.",
        ),
    ],
)
def test_sentences(knee: Knee, text: str) -> None:
    assert verdict_sentence(knee) == text


def test_rates_keep_their_unit() -> None:
    knee = Knee(status="none_in_range", cap=2.5)
    assert verdict_sentence(knee, "req/s").startswith("The service carries at least 2.5 req/s:")


@pytest.mark.parametrize("status", get_args(Status))
def test_every_status_has_a_sentence(status: Status) -> None:
    assert verdict_sentence(Knee(status=status)).endswith(".")
    assert status in SENTENCES
