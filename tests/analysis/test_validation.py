"""A small run of the validation, its bounds loose for so few ladders; `make validate` is the real one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

VALIDATE = Path(__file__).parent.parent / "perf" / "validate.py"


@pytest.fixture(scope="module")
def arms() -> dict[str, dict[str, float]]:
    command = [sys.executable, str(VALIDATE), "--ladders", "60", "--seed", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("arm", ["fixed", "adaptive", "repeated"])
def test_confirmed_verdicts_are_right(arms: dict[str, dict[str, float]], arm: str) -> None:
    assert arms[arm]["single"] > 0.7
    assert arms[arm]["confirmed_right"] >= 0.95
    assert arms[arm]["confirmed_two_off"] == 0
    assert arms[arm]["likely_right"] >= 0.92
    assert arms[arm]["false_knee"] == 0
    assert arms[arm]["safe_above"] <= 0.05


def test_holding_on_decides_what_a_fixed_time_cannot(arms: dict[str, dict[str, float]]) -> None:
    assert arms["adaptive"]["inconclusive"] <= 0.08
    assert arms["adaptive"]["inconclusive_all"] <= arms["fixed"]["inconclusive_all"] + 0.02
    assert arms["adaptive"]["requests"] > arms["fixed"]["requests"]


def test_a_knee_in_a_gap_is_not_named_beside_it(arms: dict[str, dict[str, float]]) -> None:
    assert arms["gaps"]["confirmed_right_all"] >= 0.95
    assert arms["gaps"]["safe_above"] <= 0.05
    assert arms["gaps"]["false_knee"] == 0
    assert arms["gaps"]["inconclusive_all"] <= 0.6


def test_one_slowed_step_is_outvoted_by_repeats(arms: dict[str, dict[str, float]]) -> None:
    assert arms["repeated"]["confirmed_right"] >= arms["slowed"]["confirmed_right"]
