"""Chosen names of metrics texts, against prometheus_client's own writer and formats from the field."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from harness.observe.metrics_text import read_values

TEXT = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\x85\u2028\u2029"), max_size=12
)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)


@given(st.dictionaries(TEXT, NUMBER, min_size=1, max_size=5))
def test_whatever_a_writer_writes_is_read(samples):
    registry = CollectorRegistry()
    gauge = Gauge("vllm_wanted", "words", ["name"], registry=registry)
    Gauge("vllm_wanted_not", "words", registry=registry).set(5)
    for label, value in samples.items():
        gauge.labels(label).set(value)
    found = read_values(generate_latest(registry), ["vllm_wanted"])
    kept = {(("name", label),): value for label, value in samples.items() if not math.isnan(value)}
    assert dict(found.get("vllm_wanted", [])) == kept


@given(st.binary(max_size=300))
def test_garbage_is_no_error(text):
    assert set(read_values(b"a 1\n" + text, ["a"])) == {"a"}


def test_formats_of_the_field():
    text = (
        b"# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.\n"
        b"# TYPE llamacpp:prompt_tokens_total counter\n"
        b"llamacpp:prompt_tokens_total 51\r\n"
        b"llamacpp:predicted_tokens_seconds -nan\n"
        b'vllm:x_total{engine="0",model="a}b\\"c"} 7.0 1395066363000\n'
        b'vllm:x_total{engine="1",model="d",} 8 # {trace="t"} 0.5\n'
        b"vllm:x_total_created 1.7e9\n"
        b"  vllm:x_total 9\n"
    )
    names = ["llamacpp:prompt_tokens_total", "llamacpp:predicted_tokens_seconds", "vllm:x_total"]
    assert read_values(text, names) == {
        "llamacpp:prompt_tokens_total": [((), 51.0)],
        "vllm:x_total": [
            ((("engine", "0"), ("model", 'a}b"c')), 7.0),
            ((("engine", "1"), ("model", "d")), 8.0),
        ],
    }
