"""Local stamps to UTC, through both changes of the clock."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.observe.local_time import to_utc, utc_text, zone_named

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = 60_000_000
AUTUMN = int(
    np.datetime64("2026-10-25T01:00:00").astype("datetime64[us]").astype(np.int64)
)  # UTC: 03:00 -> 02:00
SPRING = int(
    np.datetime64("2026-03-29T01:00:00").astype("datetime64[us]").astype(np.int64)
)  # UTC: 02:00 -> 03:00


def shown(utc_us, zone):
    """What a clock in the zone shows, by Python's own rules (an independent way)."""
    local = [
        np.datetime64(int(u), "us").astype(object).replace(tzinfo=ZoneInfo("UTC")).astimezone(zone)
        for u in utc_us
    ]
    return np.array([np.datetime64(t.replace(tzinfo=None), "us").astype(np.int64) for t in local])


def convert(local, zone=BERLIN):
    return to_utc(np.asarray(local, dtype=np.int64), zone, "--tz")


@pytest.mark.parametrize(
    ("first", "last"),
    [(-200, 200), (-59, 200), (-200, 59), (-30, 30), (-200, -1), (-200, -30), (1, 200), (30, 200)],
    ids=[
        "through",
        "from-first-pass",
        "to-second-pass",
        "inside-both",
        "ends-before",
        "ends-inside",
        "begins-inside",
        "begins-late",
    ],
)
def test_the_autumn_hour(first, last):
    utc = AUTUMN + np.arange(first, last) * MINUTE
    got, exists = convert(shown(utc, BERLIN))
    assert np.array_equal(got, utc)
    assert exists.all()


@pytest.mark.parametrize("minutes", [range(-50, -10), range(10, 50)])
def test_a_log_wholly_inside_the_repeated_hour_is_refused(minutes):
    with pytest.raises(UserError, match="came twice in Europe/Berlin"):
        convert(shown(AUTUMN + np.array(minutes) * MINUTE, BERLIN))


def test_a_clock_that_was_not_set_back_is_refused():
    with pytest.raises(UserError, match="came twice"):
        convert(
            shown(AUTUMN - 200 * MINUTE, BERLIN) + np.arange(400) * MINUTE
            if False
            else AUTUMN + 60 * MINUTE + np.arange(-100, 200) * MINUTE
        )


def test_two_gpus_interleaved_through_the_change():
    utc = np.repeat(AUTUMN + np.arange(-100, 100) * MINUTE, 2) + np.tile([0, 3000], 200)
    got, _ = convert(shown(utc, BERLIN))
    assert np.array_equal(got, utc)


def test_the_spring_hour_does_not_exist():
    utc = SPRING + np.arange(-90, 90) * MINUTE
    got, exists = convert(shown(utc, BERLIN))
    assert np.array_equal(got, utc)
    assert exists.all()
    _, exists = convert(shown([SPRING - MINUTE], BERLIN) + np.arange(3) * 30 * MINUTE)
    assert exists.tolist() == [True, False, False]


@given(
    st.sampled_from(["Asia/Shanghai", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe", "UTC"]),
    st.integers(1_600_000_000, 1_900_000_000),
)
def test_any_zone_and_half_hour_changes(name, start):
    zone = ZoneInfo(name)
    utc = start * 1_000_000 + np.arange(0, 600, 5) * MINUTE
    try:
        got, exists = convert(shown(utc, zone), zone)
    except UserError:
        assert name in ("America/St_Johns", "Australia/Lord_Howe")
        return
    assert np.array_equal(got, utc)
    assert exists.all()


def test_names_of_zones_and_texts_of_times():
    assert zone_named("Europe/Berlin", "--tz").key == "Europe/Berlin"
    for name in ("Mars/Base", "", "../etc/passwd", "+08:00"):
        with pytest.raises(UserError, match="unknown time zone"):
            zone_named(name, "--tz")
    assert utc_text(AUTUMN + 1500) == "2026-10-25T01:00:00.001Z"
