import pytest

from harness.analysis.assess import assess
from harness.analysis.capacity import KvShape, kv_notes, peak_tokens, plan_kv, shape_from_config
from harness.analysis.groups import rows_of
from harness.errors import UserError

from . import runs
from .runs import request

QWEN_VL_7B = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "torch_dtype": "bfloat16",
}
LLAMA_2_7B = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "torch_dtype": "float16",
}  # fmt: skip
QWEN_3_4B = QWEN_VL_7B | {
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 2560,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "precision", "per_token"),
    [
        (QWEN_VL_7B, None, 57_344),  # 2 x 28 layers x 4 heads x 128 x 2 bytes
        (QWEN_VL_7B, "fp8", 28_672),
        (LLAMA_2_7B, None, 524_288),  # no grouping: 32 KV heads
        (QWEN_3_4B, None, 147_456),  # the head size is given, not hidden size / heads
        (DEEPSEEK_V3, None, 70_272),  # 61 layers x (512 + 64) x 2 bytes, one vector for all heads
        ({"text_config": QWEN_VL_7B, "vision_config": {"num_hidden_layers": 32}}, None, 57_344),
        (QWEN_VL_7B | {"layer_types": ["linear_attention", "full_attention"] * 14}, None, 28_672),
    ],
)
def test_bytes_per_token_are_those_of_known_models(config, precision, per_token) -> None:
    assert shape_from_config(config, precision=precision).bytes_per_token == per_token


@pytest.mark.parametrize(
    ("config", "precision", "words"),
    [
        ({"num_attention_heads": 8}, None, "num_hidden_layers"),
        (QWEN_VL_7B, "fp3", "fp3"),
        ({}, None, "config.json"),
        ({"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 64}, None, "num_attention_heads"),
        (QWEN_VL_7B | {"head_dim": "x"}, None, "head_dim"),
    ],
)
def test_a_config_that_lacks_a_number_names_it(config, precision, words) -> None:
    with pytest.raises(UserError, match=words):
        shape_from_config(config, precision=precision)


def rows(*spans):
    requests = [
        request(k, start, 1000 * (end - start), in_tokens=tokens, out_tokens=0)
        for k, (start, end, tokens) in enumerate(spans)
    ]
    return rows_of(runs.run([], requests))


def test_the_peak_is_of_requests_at_the_same_time() -> None:
    assert peak_tokens(rows((0, 2, 100), (1, 3, 200), (2, 4, 400))) == 600  # 100 ends as 400 begins
    assert peak_tokens(rows((0, 1, 100), (1, 2, 200))) == 200
    assert peak_tokens(rows_of(runs.run([], [request(0, 1, 10)]))) is None


def test_the_plan_sets_the_peak_against_the_cache() -> None:
    shape = KvShape(layers=28, heads=4, head_size=128, precision="bf16")
    plan = plan_kv(shape, rows((0, 2, 1000), (1, 3, 3000)), cache_bytes=57_344 * 10_000)
    assert (plan.peak_tokens, plan.cache_tokens, plan.requests) == (4000, 10_000, 5)
    assert plan.peak_bytes == 4000 * 57_344


def test_the_notes_say_it_in_words_for_the_step_at_the_cap() -> None:
    data = runs.preset("queue")
    notes = kv_notes(data, assess(data), QWEN_VL_7B, cache_bytes=2**30)
    assert notes[0].startswith("KV cache: 57,344 bytes per token (28 layers x 4 KV heads x 128")
    assert notes[1].startswith("Peak at 4 users:")
    assert "holds 18,724 tokens" in notes[2]
    unknown = kv_notes(runs.without(data, "requests"), assess(data), QWEN_VL_7B)
    assert "not known" in unknown[-1]
