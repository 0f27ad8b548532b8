"""`/metrics`: vLLM's names, so that whatever reads an engine of that kind reads this one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from harness.engine.preprocess import Preprocessor
from harness.engine.scheduler import Histogram, Scheduler


class EngineCollector:
    """Reads the engine's own counters when it is scraped."""

    def __init__(self, scheduler: Scheduler, preprocessor: Preprocessor) -> None:
        self._scheduler, self._preprocessor = scheduler, preprocessor

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, labelled with the model's name."""
        scheduler, totals, pre = self._scheduler, self._scheduler.totals, self._preprocessor
        gauges = {
            "num_requests_running": (len(scheduler.running), "Requests in the batch."),
            "num_requests_waiting": (len(scheduler.waiting), "Requests waiting for a place."),
            "kv_cache_usage_perc": (scheduler.kv_usage, "KV cache in use, 1 is all of it."),
        }
        counters = {
            "num_preemptions": (totals.preemptions, "Requests pushed out of the batch for want of memory."),
            "prefix_cache_queries": (totals.prefix_query_tokens, "Tokens looked up in the prefix cache."),
            "prefix_cache_hits": (totals.prefix_hit_tokens, "Tokens found in the prefix cache."),
            "mm_cache_queries": (pre.queries, "Images looked up in the image cache."),
            "mm_cache_hits": (pre.hits, "Images found in the image cache."),
            "prompt_tokens": (totals.prompt_tokens, "Prompt tokens of finished requests."),
            "generation_tokens": (totals.generation_tokens, "Tokens generated."),
            "request_success": (totals.finished, "Requests finished."),
        }
        histograms = {
            "request_queue_time_seconds": (totals.queue_s, "Time in the queue."),
            "request_prefill_time_seconds": (totals.prefill_s, "From admission to the first token."),
            "request_decode_time_seconds": (totals.decode_s, "From the first token to the last."),
        }
        yield GaugeMetricFamily("sim_engine_info", "These figures are simulated.", value=1)
        label, model = ["model_name"], [scheduler.config.model]
        for name, (value, words) in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", words, labels=label)
            gauge.add_metric(model, value)
            yield gauge
        for name, (value, words) in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", words, labels=label)
            counter.add_metric(model, value)
            yield counter
        for name, (histogram, words) in histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", words, labels=label)
            family.add_metric(model, _buckets(histogram), histogram.sum)
            yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return cumulative counts with their upper bounds, the last one open."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    total, buckets = 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


class MetricsPage:
    """The text of `/metrics`."""

    def __init__(self, scheduler: Scheduler, preprocessor: Preprocessor) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(scheduler, preprocessor))

    def text(self) -> bytes:
        """Return the page as it is now."""
        return generate_latest(self._registry)
