from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.assess import assess
from harness.analysis.stages import parse_stage_log, with_stage_log
from harness.errors import UserError

from . import runs
from .runs import phase, request

LINE = b'{"v":1,"req_id":"r-w-0","pre_ms":1.5,"queue_ms":2,"prefill_ms":30.25,"decode_ms":100}\n'


def test_lines_are_read_by_request_id() -> None:
    table = parse_stage_log(LINE + b'{"req_id":"r-w-1","queue_ms":7,"prefill_ms":null}\n')
    assert list(table.req_id) == ["r-w-0", "r-w-1"]
    assert list(table.queue_ms) == [2, 7]
    assert list(table.pre_ms.isna()) == [False, True]


@pytest.mark.parametrize(
    "noise",
    [
        b"INFO starting up\n",
        b'{"level":"info","msg":"hello"}\n',
        b"\xff\xfe\n\n",
        b'{"req_id":"r-w-9","queue_ms":"soon"}\n',
        b'{"req_id":"r-w-9","queue_ms":-1}\n',
        b'{"req_id":"r-w-9","queue_ms":true}\n',
        b'{"req_id":5,"queue_ms":1}\n',
        b'["req_id"]\n',
        LINE[:40] + b"\n",
    ],
)
def test_other_lines_of_a_log_are_passed_over(noise) -> None:
    assert len(parse_stage_log(noise + LINE + noise)) == 1


def test_a_prefix_before_the_json_is_no_hindrance() -> None:
    assert len(parse_stage_log(b"2026-01-01 12:00:00 INFO " + LINE)) == 1


def test_the_last_line_of_a_request_counts() -> None:
    assert list(parse_stage_log(LINE + LINE.replace(b"30.25", b"31")).prefill_ms) == [31]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON line"),
        (b'\n{"req_id":"a","x":1}\n', "line 2"),
        (b'{"req_id": "a", "queue_ms"', "not valid JSON"),
    ],
)
def test_a_log_without_a_usable_line_is_refused(data, words) -> None:
    with pytest.raises(UserError, match=words):
        parse_stage_log(data)


def run():
    own = {"pre_ms": 9.0, "queue_ms": 9.0, "prefill_ms": 9.0, "decode_ms": 9.0, "stage_source": "timings"}
    rows = [request(0, 2, 150), request(1, 3, 150, **own), request(2, 4, 150)]
    return runs.run([phase(0, 1, 0)], rows)


def test_the_log_fills_only_what_requests_left_open() -> None:
    log = LINE + LINE.replace(b"r-w-0", b"r-w-1") + LINE.replace(b"r-w-0", b"elsewhere")
    requests = with_stage_log(run(), parse_stage_log(log)).requests
    assert list(requests.prefill_ms[:2]) == [30.25, 9]
    assert np.isnan(requests.prefill_ms[2])
    assert list(requests.stage_source[:2]) == ["stage_log", "timings"]
    assert requests.stage_source.isna()[2]


def test_the_run_that_was_read_is_left_as_it_was() -> None:
    data = run()
    with_stage_log(data, parse_stage_log(LINE))
    assert np.isnan(data.requests.prefill_ms[0])


def test_a_log_of_another_run_is_refused() -> None:
    with pytest.raises(UserError, match="none of its 1 lines belongs to a request of this run"):
        with_stage_log(run(), parse_stage_log(LINE.replace(b"r-w-0", b"other")))


def test_stages_of_a_log_arrive_in_the_report() -> None:
    full = runs.preset("queue")
    names = ["pre_ms", "queue_ms", "prefill_ms", "decode_ms"]
    log = full.requests[["req_id", *names]].copy()
    bare = full.requests.assign(**dict.fromkeys(names, np.nan), stage_source=None)
    found = assess(replace(full, requests=bare), stage_log=log)
    assert found.steps == assess(full).steps
    assert found.bottleneck.stage == "queue"
