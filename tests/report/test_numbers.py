import math

import pytest

from harness.report import numbers


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0, "0"),
        (0.04123, "0.0412"),
        (6.8449, "6.84"),
        (0.99961, "1.00"),
        (99.96, "100"),
        (28.06, "28.1"),
        (123.4, "123"),
        (1234.4, "1,234"),
        (-0.512, "-0.512"),
        (0.0000213, "2.1e-05"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_plain_keeps_three_significant_digits_and_never_prints_nan(x, text):
    assert numbers.plain(x) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.931, "93 %"), (0.004, "0.4 %"), (0, "0 %"), (1.0, "100 %"), (0.0999, "10 %"), (None, "–")],
)
def test_percent_keeps_figure_and_sign_on_one_line(x, text):
    assert numbers.percent(x) == text.replace(" ", "\u00a0")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.500 s"), (42, "42 s"), (420, "7 min 0 s"), (3900, "1 h 5 min"), (None, "–")],
)
def test_duration(seconds, text):
    assert numbers.duration(seconds) == text


def test_a_table_of_long_times_is_in_seconds():
    assert numbers.time_unit(9_999).text(1_500) == "1,500"
    assert numbers.time_unit(10_000).text(12_345) == "12.3"
    assert numbers.time_unit(10_000).name == "s"
    assert numbers.time_unit(None).name == "ms"
