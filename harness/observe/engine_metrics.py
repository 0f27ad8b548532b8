"""The inference engine's own metrics, whatever engine it is: found out from the names it publishes.

Each engine's names stand in one table. Counters and histogram sums are stored as scraped; the analysis takes
differences. Samples that differ only in a repeating label (`pid` of several API servers, ranks of one model
copy) are one figure seen twice: the largest is taken. What is left (model copies, models) is added up, except
KV-cache use, of which the fullest counts: it is the one that preempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.observe.clocks import HOST_CLOCKS, Clocks
from harness.observe.fetch import FetchError, Getter
from harness.observe.metrics_text import Labels, Values, read_values
from harness.records import EngineSample

PATHS = ("/metrics", "/prometheus/metrics")
SIMULATED = "sim_engine_info"
REPEATING = frozenset({"pid", "tp_rank", "pp_rank", "worker_id"})


@dataclass(frozen=True, slots=True)
class Metric:
    """One name of an engine, the labels that it must carry, and the factor to our unit."""

    name: str
    labels: Labels = ()
    factor: float = 1.0


Choices = tuple[Metric, ...]  # the first that is published is taken


def _named(prefix: str, **fields: str) -> dict[str, Choices]:
    return {f: tuple(Metric(prefix + n) for n in names.split("|")) for f, names in fields.items()}


_HISTOGRAMS = {  # as vLLM names them; LMDeploy and TensorRT-LLM follow
    "queue_s_sum": "request_queue_time_seconds_sum",
    "queue_count": "request_queue_time_seconds_count",
    "prefill_s_sum": "request_prefill_time_seconds_sum",
    "decode_s_sum": "request_decode_time_seconds_sum",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
}


def _sglang_stage(*stages: str) -> Choices:
    name = "sglang:per_stage_req_latency_seconds_sum"
    return tuple(Metric(name, (("stage", stage),)) for stage in stages)


ENGINES: dict[str, dict[str, Choices]] = {
    "vllm": _named(
        "vllm:",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_usage="kv_cache_usage_perc|gpu_cache_usage_perc",
        preemptions_total="num_preemptions_total|num_preemptions",
        prefix_hit_tokens_total="prefix_cache_hits_total|gpu_prefix_cache_hits_total",
        prefix_query_tokens_total="prefix_cache_queries_total|gpu_prefix_cache_queries_total",
        mm_hits_total="mm_cache_hits_total",
        mm_queries_total="mm_cache_queries_total",
        **_HISTOGRAMS,
    ),
    "sglang": _named(
        "sglang:",
        running="num_running_reqs",
        waiting="num_queue_reqs",
        kv_usage="token_usage",
        preemptions_total="num_retracted_requests_total",
        prefix_hit_tokens_total="cached_tokens_total",
        prefix_query_tokens_total="prompt_tokens_total",
        queue_s_sum="queue_time_seconds_sum",
        queue_count="queue_time_seconds_count",
        prompt_tokens_total="prompt_tokens_total",
        generation_tokens_total="generation_tokens_total",
    )
    | {
        "prefill_s_sum": _sglang_stage("prefill_forward"),
        "decode_s_sum": _sglang_stage("decode_forward", "decode_loop"),
    },
    "tgi": _named(  # its inference time holds prefill and decode together: neither is given
        "tgi_",
        running="batch_current_size",
        waiting="queue_size",
        queue_s_sum="request_queue_duration_sum",
        queue_count="request_queue_duration_count",
        prompt_tokens_total="request_input_length_sum",
        generation_tokens_total="request_generated_tokens_sum",
    ),
    "trtllm": _named(
        "trtllm_",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_usage="kv_cache_utilization",
        **_HISTOGRAMS,
    ),
    "triton": {
        "running": (Metric("nv_trt_llm_request_metrics", (("request_type", "active"),)),),
        "waiting": (Metric("nv_inference_pending_request_count"),),
        "kv_usage": (Metric("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", "fraction"),)),),
        "queue_s_sum": (Metric("nv_inference_queue_duration_us", factor=1e-6),),
        "queue_count": (Metric("nv_inference_request_success"),),
    },
    "lmdeploy": _named(
        "lmdeploy:",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_usage="gpu_cache_usage_perc",
        **_HISTOGRAMS,
    ),
    "llamacpp": _named(
        "llamacpp:",
        running="requests_processing",
        waiting="requests_deferred",
        prefill_s_sum="prompt_seconds_total",
        decode_s_sum="tokens_predicted_seconds_total",
        prompt_tokens_total="prompt_tokens_total",
        generation_tokens_total="tokens_predicted_total",
    ),
}
# requests that wait before the engine's own queue: added to it
_WAITING_TOO = {"lmdeploy": Metric("lmdeploy:num_api_requests_waiting")}
_NAMES: dict[str, frozenset[str]] = {
    kind: frozenset(m.name for choices in fields.values() for m in choices)
    | frozenset(m.name for k, m in _WAITING_TOO.items() if k == kind)
    for kind, fields in ENGINES.items()
}
_ALL_NAMES = frozenset().union(*_NAMES.values())


def engine_kind(text: bytes) -> str | None:
    """Return the key of ENGINES whose names this metrics text holds most of; None: no engine that we know."""
    found = set(read_values(text, _ALL_NAMES))
    counts = {kind: len(names & found) for kind, names in _NAMES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else None


def parse(text: bytes, kind: str) -> dict[str, float]:
    """Return the fields of EngineSample that this metrics text of an engine of `kind` gives."""
    values = read_values(text, _NAMES[kind])
    fields: dict[str, float] = {}
    for field, choices in ENGINES[kind].items():
        found = (_figure(values, metric, field) for metric in choices)
        figure = next((f for f in found if f is not None), None)
        if figure is not None:
            fields[field] = figure
    extra = _figure(values, _WAITING_TOO[kind], "waiting") if kind in _WAITING_TOO else None
    if extra is not None:
        fields["waiting"] = fields.get("waiting", 0.0) + extra
    return fields


def _figure(values: Values, metric: Metric, field: str) -> float | None:
    groups: dict[Labels, float] = {}
    for labels, value in values.get(metric.name, []):
        if all(label in labels for label in metric.labels):
            key = tuple(label for label in labels if label[0] not in REPEATING)
            groups[key] = max(groups.get(key, value), value)
    if not groups:
        return None
    combine: Callable[..., float] = max if field == "kv_usage" else sum
    return metric.factor * combine(groups.values())


def describe(url: str) -> tuple[bool, str]:
    """Return whether an engine's metrics are found at an address, and what they are or why not."""
    scraper = EngineScraper(url, HOST_CLOCKS)
    scraper.read()
    scraper.close()
    return scraper.found, scraper.words.removeprefix("none: ")


def _paths(base: str) -> tuple[str, ...]:
    """Return where metrics may be: at a path that names them, below the API's path, at the root."""
    if base.endswith("metrics"):
        return (base,)
    return tuple(dict.fromkeys([*PATHS, *(base + path for path in PATHS)]))


class EngineScraper:
    """Scrapes one engine; a scrape that fails is a row with its reason. For one thread."""

    def __init__(self, url: str, clocks: Clocks, timeout_s: float = 2.0) -> None:
        self._getter, self._clocks = Getter(url, timeout_s=timeout_s), clocks
        self._paths = _paths(self._getter.path)
        self._path: str | None = None
        self._kind = self._source = ""
        self.words = f"none: not asked yet ({self._getter.url})"

    @property
    def found(self) -> bool:
        """Whether the engine's kind is known by now."""
        return self._path is not None

    def read(self) -> EngineSample:
        """Return one row: figures, or the error that took their place."""
        mono, wall = self._clocks.mono_ns(), self._clocks.wall_ns()
        try:
            text = self._getter.get(self._path) if self._path else self._find()
        except FetchError as error:
            if not self.found:
                self.words = f"none: {self._getter.url}: {error}"
            return EngineSample(wall_ns=wall, mono_ns=mono, source=self._source or None, error=str(error))
        fields = parse(text, self._kind)
        gone = None if fields else "this engine's metrics are gone from its answer"
        known: dict[str, Any] = {"source": self._source, "error": gone, **fields}
        return EngineSample(wall_ns=wall, mono_ns=mono, **known)

    def close(self) -> None:
        """Close the connection."""
        self._getter.close()

    def _find(self) -> bytes:
        """Return the metrics text of the first path that holds an engine's names, and remember both."""
        reasons = []
        for path in self._paths:
            try:
                text = self._getter.get(path)
            except FetchError as error:
                reasons.append(f"{path}: {error}")
                continue
            kind = engine_kind(text)
            if kind is not None:
                self._path, self._kind = path, kind
                self._source = "sim" if read_values(text, (SIMULATED,)) else kind
                self.words = f"{self._source} at {self._getter.url}{path}"
                return text
            reasons.append(f"{path}: no metrics of an engine that is known here")
        raise FetchError("; ".join(reasons))
