"""The engine over real sockets: streams, refusals, wrong engines, metrics, log."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from harness.engine.config import Batch, Decode, EngineConfig, Limits
from harness.engine.serve import serving

replace = msgspec.structs.replace
FAST = EngineConfig(noise=0, decode=Decode(step_ms=1.0, seq_ms=0, compute_ms=0))
SLOW = replace(FAST, decode=Decode(step_ms=20.0), batch=Batch(max_num_seqs=1))
FACT = "K7Q2"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@dataclass
class Client:
    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def connect(self, timeout: float = 10) -> http.client.HTTPConnection:
        where = urlsplit(self.url)
        return http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)

    def send(
        self, path: str, body: dict[str, Any] | bytes | None = None, timeout: float = 10, **headers: str
    ) -> Reply:
        connection = self.connect(timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request("POST" if data else "GET", path, data, self.headers | headers)
            answer = connection.getresponse()
            read = answer.read()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, read)
        finally:
            connection.close()

    def chat(self, content: Any = "hello", timeout: float = 10, **more: Any) -> Reply:
        body = {
            "model": "sim-vlm",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": content}],
            **more,
        }
        return self.send("/v1/chat/completions", body, timeout)

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.send("/metrics").body.decode())
        return {s.name: s.value for f in families for s in f.samples if "le" not in s.labels}


@pytest.fixture
def engine() -> Iterator[Callable[..., Client]]:
    """Return what starts engines that end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda config=FAST, **options: Client(stack.enter_context(serving(config, **options)))


def picture(width: int, height: int, color: int = 0) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (color, 80, 120)).save(buffer, "PNG")
    return as_part(buffer.getvalue(), "png")


def as_part(data: bytes, kind: str) -> dict[str, Any]:
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.01)


def test_a_stream_is_role_tokens_reason_usage_with_stages_and_done(engine: Callable[..., Client]) -> None:
    client = engine()
    reply = client.chat(stream=True, stream_options={"include_usage": True})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    role, *tokens, usage = reply.events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["finish_reason"] for e in tokens] == [None, None, None, "length"]
    assert all(e["choices"][0]["delta"]["content"].strip() for e in tokens)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 2
    assert usage["usage"]["completion_tokens"] == 4
    assert list(usage["timings"]) == ["pre_ms", "queue_ms", "prefill_ms", "decode_ms"]
    assert usage["timings"]["decode_ms"] == pytest.approx(3.0, abs=0.5)  # of the simulated clock
    assert "timings" not in tokens[-1]


def test_without_usage_the_stages_come_with_the_reason(engine: Callable[..., Client]) -> None:
    last = engine().chat(stream=True).events[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert set(last["timings"]) == {"pre_ms", "queue_ms", "prefill_ms", "decode_ms"}


def test_an_answer_that_is_not_streamed_has_its_stages_in_a_header(engine: Callable[..., Client]) -> None:
    client = engine()
    reply = client.chat(max_tokens=6)
    assert len(reply.json["choices"][0]["message"]["content"].split()) == 6
    assert reply.json["object"] == "chat.completion"
    assert reply.json["usage"]["completion_tokens"] == 6
    stages = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    assert list(stages) == ["pre", "queue", "prefill", "decode"]
    assert float(stages["decode"]) == pytest.approx(5.0, abs=0.5)


def test_completions_and_models(engine: Callable[..., Client]) -> None:
    client = engine()
    body = {"model": "sim-vlm", "prompt": "hello world", "max_tokens": 3}
    reply = client.send("/v1/completions", body)
    assert len(reply.json["choices"][0]["text"].split()) == 3
    events = Reply(200, {}, client.send("/v1/completions", body | {"stream": True}).body).events
    assert len(events) == 3
    assert all(e["choices"][0]["text"] for e in events)
    assert client.send("/v1/models").json["data"][0]["id"] == "sim-vlm"
    assert client.send("/health").status == 200


def test_the_request_id_comes_back_and_one_is_made_where_none_was_sent(engine: Callable[..., Client]) -> None:
    client = engine()
    client.headers["x-request-id"] = "abc-1"
    assert client.chat().headers["x-request-id"] == "abc-1"
    assert client.chat(max_tokens=0).headers["x-request-id"] == "abc-1"
    client.headers.clear()
    assert len(client.chat().headers["x-request-id"]) == 32


def test_an_answer_ends_by_itself_unless_told_not_to(engine: Callable[..., Client]) -> None:
    client = engine(replace(FAST, answer_tokens=3))
    ends = []
    for more in ({"max_tokens": 10}, {"max_tokens": 2}, {"max_tokens": 10, "ignore_eos": True}):
        reply = client.chat(**more).json
        ends.append((reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]))
    assert ends == [(3, "stop"), (2, "length"), (10, "length")]


def test_images_are_decoded_and_counted_by_their_size(engine: Callable[..., Client]) -> None:
    client = engine()
    content = [picture(100, 50), text("[[image sizes]]"), picture(28, 28)]
    reply = client.chat(content, max_tokens=8).json
    assert reply["usage"]["prompt_tokens"] == 4 * 2 + 4 + 1
    assert reply["choices"][0]["message"]["content"].startswith("100x50 28x28 ")


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (as_part(b"no image at all", "png"), "invalid_image"),
        (as_part(_jpeg()[:-400], "jpeg"), "invalid_image"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,&&&"}}, "invalid_image"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "invalid_image_url"),
        ({"type": "image_url"}, "invalid_request"),
    ],
)
def test_what_is_no_image_is_a_400(engine: Callable[..., Client], part: dict[str, Any], code: str) -> None:
    reply = engine().chat([text("look"), part])
    assert (reply.status, reply.error["error_code"]) == (400, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"\xff\xfe", 400, "invalid_request"),
        (b'{"messages": []}', 400, "invalid_request"),
        (b'{"model": "sim-vlm"}', 400, "invalid_request"),
        (b'{"model": "sim-vlm", "prompt": "x", "max_tokens": 0}', 400, "invalid_request"),
        (b'{"model": "sim-vlm", "messages": [{"role": "user", "content": 5}]}', 400, "invalid_request"),
        (b'{"model": "other", "prompt": "x"}', 404, "model_not_found"),
    ],
)
def test_what_is_no_request_is_refused(
    engine: Callable[..., Client], body: bytes, status: int, code: str
) -> None:
    reply = engine().send("/v1/chat/completions", body)
    assert (reply.status, reply.error["error_code"]) == (status, code)


def test_a_key_is_asked_for_where_one_is_set(engine: Callable[..., Client]) -> None:
    client = engine(api_key="secret")
    assert (client.chat().status, client.send("/v1/models").status) == (401, 401)
    client.headers["authorization"] = "Bearer wrong"
    assert client.chat().error["error_code"] == "invalid_api_key"
    client.headers["authorization"] = "Bearer secret"
    assert (client.chat().status, client.send("/v1/models").status) == (200, 200)


LIMITED = replace(
    FAST,
    limits=Limits(
        max_image_side=100,
        max_image_pixels=5000,
        max_images_per_request=2,
        max_input_tokens=50,
        max_new_tokens=8,
        max_body_bytes=20_000,
    ),
)
LONG = "x" * 200  # 50 tokens
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, str, int]] = {
    # limit: what fits, what does not, status, error_code, actual
    "max_image_side": (
        {"content": [picture(100, 20)]},
        {"content": [picture(20, 101)]},
        413,
        "image_side_exceeded",
        101,
    ),
    "max_image_pixels": (
        {"content": [picture(100, 50)]},
        {"content": [picture(100, 51)]},
        413,
        "image_pixels_exceeded",
        5100,
    ),
    "max_images_per_request": (
        {"content": [picture(9, 9)] * 2},
        {"content": [picture(9, 9)] * 3},
        400,
        "image_count_exceeded",
        3,
    ),
    "max_input_tokens": ({"content": LONG}, {"content": LONG + "y"}, 400, "input_tokens_exceeded", 51),
    "max_new_tokens": ({"max_tokens": 8}, {"max_tokens": 9}, 400, "new_tokens_exceeded", 9),
    "max_body_bytes": (
        {"user": "z" * 19_000},
        {"user": "z" * 3_000_000},
        413,
        "body_bytes_exceeded",
        3_000_000,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_limit_holds_at_the_edge_and_names_limit_and_actual(
    engine: Callable[..., Client], name: str
) -> None:
    client, (fits, too_much, status, code, actual) = engine(LIMITED), CASES[name]
    assert client.chat(**fits).status == 200
    reply = client.chat(**too_much)
    assert (reply.status, reply.error["error_code"]) == (status, code)
    assert reply.error["limit"] == getattr(LIMITED.limits, name)
    assert reply.error["actual"] == pytest.approx(actual, rel=0.001)
    assert client.chat(stream=True, **too_much).status == status


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_engine_ignores_any_limit_or_answers_500(engine: Callable[..., Client], name: str) -> None:
    too_much = CASES[name][1]
    assert engine(replace(LIMITED, on_exceed={name: "ignore"})).chat(**too_much).status == 200
    reply = engine(replace(LIMITED, on_exceed={name: "error500"})).chat(**too_much)
    assert (reply.status, reply.body) == (500, b"Internal Server Error")


def test_a_wrong_engine_hangs_and_still_serves_others(engine: Callable[..., Client]) -> None:
    client = engine(replace(LIMITED, on_exceed={"max_new_tokens": "hang"}))
    with pytest.raises(TimeoutError):
        client.chat(max_tokens=9, timeout=0.3)
    assert client.chat().status == 200


def test_a_wrong_engine_cuts_the_end_of_the_prompt_without_a_word(engine: Callable[..., Client]) -> None:
    client = engine(replace(LIMITED, on_exceed={"max_input_tokens": "truncate"}))
    fact = f"[[fact:{FACT}]]"
    whole = client.chat("x" * 180 + fact).json
    cut = client.chat("x" * 200 + fact).json
    assert FACT in whole["choices"][0]["message"]["content"]
    assert FACT not in cut["choices"][0]["message"]["content"]
    assert cut["usage"]["prompt_tokens"] == 50


def test_a_wrong_engine_shrinks_images_drops_them_and_shortens_answers(engine: Callable[..., Client]) -> None:
    wrong = {
        "max_image_side": "downscale",
        "max_image_pixels": "downscale",
        "max_images_per_request": "truncate",
        "max_new_tokens": "truncate",
    }
    client = engine(replace(LIMITED, on_exceed=wrong))
    content = [picture(200, 20), picture(90, 90), picture(9, 9), text("[[image sizes]]")]
    reply = client.chat(content, max_tokens=100).json
    assert reply["choices"][0]["message"]["content"].startswith("100x10 70x70 ")
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["usage"]["prompt_tokens"] == 4 * 1 + 3 * 3 + 4


def in_background(client: Client, count: int, **call: Any) -> list[threading.Thread]:
    threads = [threading.Thread(target=client.chat, kwargs=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_full_queue_answers_503_and_says_when_to_come_again(engine: Callable[..., Client]) -> None:
    client = engine(replace(SLOW, limits=Limits(queue_max=1)))
    threads = in_background(client, 2, max_tokens=40)
    until(lambda: client.metrics()["vllm:num_requests_waiting"] == 1)
    reply = client.chat()
    for thread in threads:
        thread.join()
    assert (reply.status, reply.error["error_code"]) == (503, "queue_full")
    assert (reply.error["limit"], reply.error["actual"]) == (1, 2)
    assert int(reply.headers["retry-after"]) >= 1


def test_waiting_too_long_is_a_504_also_for_a_stream(engine: Callable[..., Client]) -> None:
    client = engine(replace(SLOW, limits=Limits(queue_wait_ms=100)))
    threads = in_background(client, 1, max_tokens=60)
    until(lambda: client.metrics()["vllm:num_requests_running"] == 1)
    replies = [client.chat(), client.chat(stream=True)]
    for thread in threads:
        thread.join()
    for reply in replies:
        assert (reply.status, reply.error["error_code"], reply.error["limit"]) == (
            504,
            "queue_wait_exceeded",
            100,
        )
        assert reply.error["actual"] >= 100


def test_repeated_images_and_prefixes_hit_the_caches_and_unique_ones_do_not(
    engine: Callable[..., Client],
) -> None:
    client = engine()
    words = "the same words at the start of every prompt, and no others " * 4

    def cached(*content: dict[str, Any]) -> int:
        return client.chat(list(content)).json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(text("1 " + words), picture(64, 64, 1)) == 0
    assert cached(text("2 " + words), picture(64, 64, 2)) == 0
    totals = client.metrics()
    assert (totals["vllm:mm_cache_hits_total"], totals["vllm:prefix_cache_hits_total"]) == (0, 0)
    assert cached(text("3 " + words), picture(64, 64, 2)) == 0
    assert cached(text("3 " + words), picture(64, 64, 3)) == 48  # whole blocks of 16 of the 60 words' tokens
    totals = client.metrics()
    assert (totals["vllm:mm_cache_queries_total"], totals["vllm:mm_cache_hits_total"]) == (4, 1)
    assert totals["vllm:prefix_cache_hits_total"] == 48


def test_a_client_that_leaves_frees_its_place(engine: Callable[..., Client]) -> None:
    log = io.BytesIO()
    client = engine(SLOW, log=log)
    connection = client.connect()
    body = {"model": "sim-vlm", "prompt": "x", "stream": True, "max_tokens": 4000}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data:")
    assert client.metrics()["vllm:num_requests_running"] == 1
    answer.close()
    connection.close()
    until(lambda: client.metrics()["vllm:num_requests_running"] == 0)
    until(lambda: b"client_left" in log.getvalue())
    assert json.loads(log.getvalue())["status"] == 499


def test_metrics_count_what_happened(engine: Callable[..., Client]) -> None:
    client = engine()
    for _ in range(3):
        client.chat("x" * 40, max_tokens=5)
    totals = client.metrics()
    assert totals["vllm:prompt_tokens_total"] == 30
    assert totals["vllm:generation_tokens_total"] == 15
    assert totals["vllm:request_success_total"] == 3
    for stage in ("queue", "prefill", "decode"):
        assert totals[f"vllm:request_{stage}_time_seconds_count"] == 3
    assert totals["vllm:request_decode_time_seconds_sum"] == pytest.approx(3 * 0.004, rel=0.1)
    assert totals["vllm:num_requests_running"] == totals["vllm:kv_cache_usage_perc"] == 0


def test_the_gpu_says_that_it_is_simulated_and_is_busy_under_load(engine: Callable[..., Client]) -> None:
    client = engine(SLOW)
    idle = client.send("/sim/gpu").json
    thread = in_background(client, 1, max_tokens=70)[0]
    readings = []
    while thread.is_alive():
        readings.append(client.send("/sim/gpu").json)
        time.sleep(0.05)
    assert (idle["name"], idle["simulated"], idle["uuid"]) == ("Simulated GPU", True, "SIM-0")
    assert idle["util"] == 0
    assert max(r["util"] for r in readings) > 0.9
    assert max(r["mem_used_bytes"] for r in readings) > idle["mem_used_bytes"]
    assert all(r["mem_used_bytes"] <= r["mem_total_bytes"] for r in readings)
    assert max(r["power_w"] for r in readings) > 2 * idle["power_w"]


def test_the_log_has_one_line_per_request_with_its_stages(engine: Callable[..., Client]) -> None:
    log = io.BytesIO()
    client = engine(log=log)
    client.headers["x-request-id"] = "one"
    client.chat([text("look"), picture(100, 50)])
    client.headers["x-request-id"] = "two"
    client.chat(max_tokens=0)
    until(lambda: log.getvalue().count(b"\n") == 2)
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["req_id"], first["status"], first["img_wh"]) == ("one", 200, [[100, 50]])
    assert (first["in_tokens"], first["out_tokens"]) == (1 + 8, 4)
    assert first["img_bytes"] > 50
    assert all(first[stage] >= 0 for stage in ("pre_ms", "queue_ms", "prefill_ms", "decode_ms"))
    assert (second["req_id"], second["status"], second["error_code"]) == ("two", 400, "invalid_request")
    assert "prefill_ms" not in second


def test_preprocessing_takes_the_configured_time_at_least(engine: Callable[..., Client]) -> None:
    slow = replace(FAST, preprocess=replace(FAST.preprocess, workers=1, image_ms=60))
    events = engine(slow).chat([picture(50, 50, 1), picture(50, 50, 2)], stream=True).events
    assert events[-1]["timings"]["pre_ms"] >= 120


def test_the_batch_is_shared_and_the_queue_is_not(engine: Callable[..., Client]) -> None:
    client = engine(replace(SLOW, batch=Batch(max_num_seqs=2)))
    log: list[float] = []

    def ask() -> None:
        log.append(client.chat(stream=True, max_tokens=10).events[-1]["timings"]["queue_ms"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quick, late = sorted(log)[:2], sorted(log)[2:]
    assert max(quick) < 100 < min(late)  # ten steps of 20 ms


def test_tokens_are_not_held_back_by_nagle(engine: Callable[..., Client]) -> None:
    connection = engine(replace(FAST, decode=Decode(step_ms=2.0))).connect()
    body = json.dumps({"model": "sim-vlm", "prompt": "x", "stream": True, "max_tokens": 8})
    slack = []
    for _ in range(20):  # on a kept connection: a new one acknowledges at once
        begun = time.monotonic()
        connection.request("POST", "/v1/completions", body)
        events = Reply(200, {}, connection.getresponse().read()).events
        slack.append((time.monotonic() - begun) * 1e3 - sum(events[-1]["timings"].values()))
    connection.close()
    assert sorted(slack)[10] < 15  # Nagle and delayed acknowledgements cost about 30 ms a request
