"""Each engine's metrics as it writes them, and services that fail in every way."""

import time

import pytest

from harness.observe.clocks import HOST_CLOCKS
from harness.observe.engine_metrics import EngineScraper, describe, engine_kind, parse

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 5.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 0.4375
vllm:num_preemptions_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 3.0
vllm:num_preemptions_created{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 8123.0
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 512.0
vllm:mm_cache_queries_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 40.0
vllm:mm_cache_hits_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 8123.0
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 2048.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 9.0
vllm:request_queue_time_seconds_count{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 10.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 1.25
vllm:request_prefill_time_seconds_sum{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 4.5
vllm:request_decode_time_seconds_sum{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"} 30.0
"""
SGLANG = b"""\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:cached_tokens_total{model_name="m"} 100.0
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:generation_tokens_total{model_name="m"} 555.0
sglang:queue_time_seconds_sum{model_name="m"} 0.5
sglang:queue_time_seconds_count{model_name="m"} 7.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="request_process"} 9.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="prefill_forward"} 2.5
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="decode_forward"} 11.0
"""
TGI = b"""\
tgi_batch_current_size 4
tgi_queue_size 2
tgi_request_queue_duration_sum 3.5
tgi_request_queue_duration_count 20
tgi_request_inference_duration_sum 50
tgi_request_input_length_sum 4000
tgi_request_generated_tokens_sum 900
"""
LMDEPLOY = b"""\
lmdeploy:num_requests_running{engine="0",model_name="m"} 2.0
lmdeploy:num_requests_waiting{engine="0",model_name="m"} 1.0
lmdeploy:num_api_requests_waiting{engine="0",model_name="m"} 3.0
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
lmdeploy:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.25
lmdeploy:request_queue_time_seconds_count{engine="0",model_name="m"} 5.0
"""
LLAMACPP = b"""\
llamacpp:prompt_tokens_total 51
llamacpp:prompt_seconds_total 1.5
llamacpp:tokens_predicted_total 128
llamacpp:tokens_predicted_seconds_total 12.5
llamacpp:prompt_tokens_seconds -nan
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
"""
TRTLLM = b"""\
trtllm_num_requests_running{model_name="m",engine_type="pytorch"} 6.0
trtllm_num_requests_waiting{model_name="m",engine_type="pytorch"} 0.0
trtllm_kv_cache_utilization{model_name="m",engine_type="pytorch"} 0.125
trtllm_request_queue_time_seconds_sum{model_name="m",engine_type="pytorch"} 0.75
"""
TRITON = b"""\
nv_trt_llm_request_metrics{model="llm",request_type="active",version="1"} 3
nv_trt_llm_request_metrics{model="llm",request_type="max",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="llm",version="1"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="llm",version="1"} 500
nv_inference_pending_request_count{model="llm",version="1"} 2
nv_inference_queue_duration_us{model="llm",version="1"} 1500000
nv_inference_request_success{model="llm",version="1"} 12
"""
EXPECTED = {
    "vllm": (
        VLLM,
        {
            "running": 5,
            "waiting": 2,
            "kv_usage": 0.4375,
            "preemptions_total": 3,
            "prefix_query_tokens_total": 8123,
            "prefix_hit_tokens_total": 512,
            "mm_queries_total": 40,
            "mm_hits_total": 4,
            "prompt_tokens_total": 8123,
            "generation_tokens_total": 2048,
            "queue_s_sum": 1.25,
            "queue_count": 10,
            "prefill_s_sum": 4.5,
            "decode_s_sum": 30,
        },
    ),
    "sglang": (
        SGLANG,
        {
            "running": 3,
            "waiting": 1,
            "kv_usage": 0.28,
            "preemptions_total": 2,
            "prefix_hit_tokens_total": 100,
            "prefix_query_tokens_total": 1000,
            "prompt_tokens_total": 1000,
            "generation_tokens_total": 555,
            "queue_s_sum": 0.5,
            "queue_count": 7,
            "prefill_s_sum": 2.5,
            "decode_s_sum": 11,
        },
    ),
    "tgi": (
        TGI,
        {
            "running": 4,
            "waiting": 2,
            "queue_s_sum": 3.5,
            "queue_count": 20,
            "prompt_tokens_total": 4000,
            "generation_tokens_total": 900,
        },
    ),
    "lmdeploy": (
        LMDEPLOY,
        {"running": 2, "waiting": 4, "kv_usage": 0.5, "queue_s_sum": 0.25, "queue_count": 5},
    ),
    "llamacpp": (
        LLAMACPP,
        {
            "running": 1,
            "waiting": 4,
            "prefill_s_sum": 1.5,
            "decode_s_sum": 12.5,
            "prompt_tokens_total": 51,
            "generation_tokens_total": 128,
        },
    ),
    "trtllm": (TRTLLM, {"running": 6, "waiting": 0, "kv_usage": 0.125, "queue_s_sum": 0.75}),
    "triton": (
        TRITON,
        {"running": 3, "waiting": 2, "kv_usage": 0.25, "queue_s_sum": 1.5, "queue_count": 12},
    ),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_engine_is_recognized_and_read(kind):
    text, fields = EXPECTED[kind]
    assert engine_kind(text) == kind
    assert parse(text, kind) == fields


def test_older_names_and_several_servers_and_copies():
    text = (
        b'vllm:gpu_cache_usage_perc{engine="0",pid="10"} 0.5\n'
        b'vllm:gpu_cache_usage_perc{engine="1",pid="10"} 0.25\n'
        b'vllm:num_requests_running{engine="0",pid="10"} 2\n'
        b'vllm:num_requests_running{engine="0",pid="11"} 2\n'
        b'vllm:num_requests_running{engine="1",pid="10"} 3\n'
    )
    assert parse(text, "vllm") == {"running": 5, "kv_usage": 0.5}


def test_other_metrics_are_no_engine():
    assert engine_kind(b"node_load1 0.5\nDCGM_FI_DEV_GPU_UTIL 3\n") is None


@pytest.fixture
def scrape(service):
    scrapers = []

    def once(path="", **answers):
        service.answers = {"/" + name.replace("_", "/"): answer for name, answer in answers.items()}
        if not scrapers:
            scrapers.append(EngineScraper(service.url + path, HOST_CLOCKS, timeout_s=0.3))
        return scrapers[0].read()

    yield once
    scrapers[0].close()


def test_rows_say_where_they_come_from(scrape):
    row = scrape(metrics=VLLM)
    assert (row.source, row.running, row.error) == ("vllm", 5, None)


def test_a_simulated_engine_is_named_so(scrape):
    assert scrape(metrics=b'sim_engine_info{version="1"} 1\n' + VLLM).source == "sim"


def test_metrics_below_another_path(scrape):
    row = scrape(metrics=b'[{"iter": 1}]', prometheus_metrics=TRTLLM)
    assert (row.source, row.running) == ("trtllm", 6)


def test_an_api_path_or_the_metrics_own_path_is_taken_too(service):
    service.answers = {"/metrics": TGI}
    assert describe(service.url + "/v1") == (True, f"tgi at {service.url}/metrics")
    service.answers = {"/inner/metrics": TGI}
    assert describe(service.url + "/inner/metrics")[0]


def test_no_engine_is_a_row_with_the_reason(scrape, service):
    row = scrape()
    assert row.error == "/metrics: HTTP 404; /prometheus/metrics: HTTP 404"
    assert row.source is None
    assert describe(service.url)[0] is False
    assert scrape(metrics=b"node_load1 1\n").error.startswith("/metrics: no metrics of an engine")
    assert scrape(metrics=LLAMACPP).error is None, "it may come later"


def test_a_scrape_that_fails_is_a_gap_not_zeros(scrape):
    assert scrape(metrics=VLLM).error is None
    row = scrape(metrics=500)
    assert (row.error, row.running, row.kv_usage, row.source) == ("HTTP 500", None, None, "vllm")
    assert scrape(metrics=b"").error == "this engine's metrics are gone from its answer"
    assert scrape(metrics=VLLM).running == 5


def test_a_scrape_that_hangs_ends(scrape, service):
    assert scrape(metrics=VLLM).error is None
    began = time.monotonic()
    row = scrape(metrics=lambda handler: time.sleep(1.0))
    assert row.error == "no answer in time"
    assert time.monotonic() - began < 0.9
