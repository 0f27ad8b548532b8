import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.payloads.json_places import items, members

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
SPACE = st.sampled_from(["", " ", "\n\t", "  \r\n"])


def spaced(value: Any, space: str, *, ascii_only: bool) -> str:
    """Write JSON with blanks in every place that takes them."""
    if isinstance(value, dict):
        pairs = [[spaced(x, space, ascii_only=ascii_only) for x in pair] for pair in value.items()]
        inner = f"{space},{space}".join(f"{k}{space}:{space}{v}" for k, v in pairs)
        return f"{{{space}{inner}{space}}}"
    if isinstance(value, list):
        inner = f"{space},{space}".join(spaced(v, space, ascii_only=ascii_only) for v in value)
        return f"[{space}{inner}{space}]"
    return json.dumps(value, ensure_ascii=ascii_only)


@given(st.dictionaries(st.text(), VALUES), SPACE, st.booleans())
def test_every_member_stands_where_it_is_said_to(value: dict[str, Any], space: str, ascii_only: bool) -> None:
    text = spaced(value, space, ascii_only=ascii_only)
    found = {key: json.loads(text[start:end]) for key, (start, end) in members(text, 0).items()}
    assert found == value


@given(st.lists(VALUES), SPACE)
def test_every_item_stands_where_it_is_said_to(value: list[Any], space: str) -> None:
    text = "xx" + spaced(value, space, ascii_only=False)
    assert [json.loads(text[start:end]) for start, end in items(text, 2)] == value


def test_of_a_key_given_twice_the_last_counts_as_for_a_decoder() -> None:
    text = '{"a": 1, "a": 2}'
    start, end = members(text, 0)["a"]
    assert int(text[start:end]) == json.loads(text)["a"] == 2
