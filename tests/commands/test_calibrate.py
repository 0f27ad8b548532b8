"""`knee calibrate`: figures of this machine, as a table and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

Knee = Callable[..., subprocess.CompletedProcess[str]]


def test_it_prints_what_one_process_carries(knee: Knee) -> None:
    done = knee("calibrate", "--processes", "1", "--seconds", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["machine"]["cores"] >= 1
    (one,) = told["ceilings"]
    assert (one["processes"], one["failures"]) == (1, 0)
    assert one["limited_by"] in ("client_lag", "client_cpu", "machine")
    assert one["chunks_per_s"] > 100
    assert one["requests_per_s"] > 20
    assert 1 < one["cpu_us_per_chunk"] < 5000


@pytest.mark.parametrize("given", [("--processes", "0"), ("--seconds", "soon")])
def test_what_cannot_be_measured_is_refused(knee: Knee, given: tuple[str, str]) -> None:
    done = knee("calibrate", *given)
    assert done.returncode == 2
    assert given[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_it_does_without_locust() -> None:
    code = "import sys, harness.load.ceiling, harness.commands.calibrate; print('locust' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
