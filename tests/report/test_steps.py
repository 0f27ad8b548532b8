import pytest

from harness.report.messages import messages
from harness.report.steps import load_table
from harness.results import Step

JUDGED = Step(label="1 user", phase=0, users=1, n=50, meets_slo=True)
DRIFT = "measured again at the end to show drift"


@pytest.mark.parametrize(
    ("step", "english", "chinese"),
    [
        (
            Step(label="1 user (drift)", phase=1, users=1, n=50, used=False, why_not=DRIFT),
            f"not judged: {DRIFT}",
            "未评判：结束时复测，用于观察漂移",
        ),
        (
            Step(label="2 users", phase=1, users=2, n=0, used=False, why_not=DRIFT),
            "no good request in the window",
            "窗口内没有成功请求",
        ),
    ],
)
def test_a_step_that_is_not_judged_by_the_slo_says_why(step: Step, english: str, chinese: str) -> None:
    for lang, words in (("en", english), ("zh", chinese)):
        table = load_table([JUDGED, step], None, messages(lang), lang)
        cell = table.rows[1][-1]
        assert cell.ref is not None
        assert table.notes[cell.ref - 1] == words
