import asyncio
import io
import json
import threading

import pytest

from harness.analysis.stages import parse_stage_log
from harness.stages import StageClock, StageMiddleware, StageWriter, current, default_writer


class Ticking:
    """A clock that is told the time in milliseconds."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> int:
        return int(self.ms * 1e6)


def test_between_six_stamps_lie_five_stages() -> None:
    now = Ticking()
    clock = StageClock("a", now=now)
    stamps = (clock.received, clock.ready, clock.started, clock.first_token, clock.done)
    for at, stamp in zip((2, 5, 45, 145, 1145), stamps, strict=True):
        now.ms = at
        stamp()
    fields = clock.fields()
    assert fields == {
        "v": 1, "req_id": "a",
        "transfer_ms": 2, "pre_ms": 3, "queue_ms": 40, "prefill_ms": 100, "decode_ms": 1000,
    }  # fmt: skip


def test_a_stamp_left_out_leaves_the_stages_beside_it_unknown_and_the_first_call_counts() -> None:
    now = Ticking()
    clock = StageClock("a", now=now)
    clock.received()
    now.ms = 10
    clock.started()
    now.ms = 30
    clock.first_token()
    now.ms = 40
    clock.first_token()
    fields = clock.fields()
    assert (fields["pre_ms"], fields["queue_ms"], fields["decode_ms"]) == (None, None, None)
    assert fields["prefill_ms"] == 20


def test_images_are_noted_apart_with_their_sizes() -> None:
    clock = StageClock("a")
    clock.image(1024, 768, 90_000, decode_ms=8, resize_ms=3)
    clock.image(640, 480, 10_000, decode_ms=2)
    fields = clock.fields()
    assert (fields["img_wh"], fields["img_bytes"]) == ([(1024, 768), (640, 480)], 100_000)
    assert (fields["image_decode_ms"], fields["image_resize_ms"]) == (10, 3)


def call(app, *, headers=((b"x-request-id", b"abc"),), kind="http", body=(b"part", b"rest")):
    """Call an ASGI application with a body in parts; returns what it sent."""
    parts = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(body)}
        for number, part in enumerate(body)
    ]
    sent = []

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": kind, "headers": list(headers)}, receive, send))
    return sent


async def service(scope, receive, send):
    """Read the whole body, take every stamp, answer in two parts."""
    while (await receive()).get("more_body"):
        pass
    stages = current()
    stages.ready()
    stages.started()
    stages.first_token()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


def test_the_middleware_writes_one_line_per_request_that_a_report_can_read() -> None:
    out = io.StringIO()
    sent = call(StageMiddleware(service, writer=StageWriter(out)))
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 2
    (line,) = out.getvalue().splitlines()
    assert all(json.loads(line)[name] >= 0 for name in ("transfer_ms", "pre_ms", "queue_ms", "decode_ms"))
    table = parse_stage_log(out.getvalue().encode())
    assert list(table.req_id) == ["abc"]
    assert table.prefill_ms[0] >= 0


def test_a_service_that_fails_still_has_its_line_and_its_error() -> None:
    async def failing(scope, receive, send):
        await receive()
        raise ValueError("out of memory")

    out = io.StringIO()
    with pytest.raises(ValueError, match="out of memory"):
        call(StageMiddleware(failing, writer=StageWriter(out)), body=(b"",))
    assert json.loads(out.getvalue())["prefill_ms"] is None
    assert current().fields()["req_id"] == ""  # nothing leaks into the next request


@pytest.mark.parametrize("more", [{"headers": ()}, {"kind": "lifespan"}])
def test_what_is_no_request_with_an_id_passes_untouched(more) -> None:
    out = io.StringIO()
    assert len(call(StageMiddleware(service, writer=StageWriter(out)), **more)) == 3
    assert out.getvalue() == ""


@pytest.mark.parametrize("value", ["off", "0", "FALSE", "no"])
def test_a_variable_turns_it_off(value, monkeypatch) -> None:
    monkeypatch.setenv("KNEE_STAGES", value)
    out = io.StringIO()
    assert len(call(StageMiddleware(service, writer=StageWriter(out)))) == 3
    assert out.getvalue() == ""


def test_a_variable_names_the_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KNEE_STAGES_FILE", str(tmp_path / "stages.jsonl"))
    writer = default_writer()
    writer.write(StageClock("a"))
    writer.close()
    assert json.loads((tmp_path / "stages.jsonl").read_text())["req_id"] == "a"


def test_lines_of_many_threads_stay_whole() -> None:
    out = io.StringIO()
    writer = StageWriter(out)
    clocks = [StageClock(f"{n}-" + "x" * 200) for n in range(8)]
    threads = [threading.Thread(target=lambda c=c: [writer.write(c) for _ in range(50)]) for c in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 400
    assert {line["req_id"] for line in lines} == {clock.req_id for clock in clocks}


def test_outside_a_request_nothing_is_kept() -> None:
    current().received()
    current().image(1, 1, 1, decode_ms=1)
    assert set(current().fields()) == {
        "v", "req_id", "transfer_ms", "pre_ms", "queue_ms", "prefill_ms", "decode_ms",
    }  # fmt: skip
