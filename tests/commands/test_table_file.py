from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.commands.table_file import LadderTable, parse_table, read_table
from harness.errors import UserError

NUMBERS = st.floats(1e-6, 1e9)


@pytest.mark.parametrize(
    "text",
    [
        "users,rps,ms\n1,2,3\n4,5,6\n",
        "users;rps;ms\r\n1;2;3\r\n4;5;6",
        "users\trps\tms\n1\t2\t3\n\n4\t5\t6\n",
        '"users","rps","ms"\n"1", 2 ,3\n4,5,6\n',
        "# from a tool\nusers,rps,ms\n1,2,3\n# half way\n4,5,6\n",
        "users,rps,ms\n1,2,3\n,,\n4,5,6\n",
    ],
)
def test_forms_of_a_table(text: str) -> None:
    assert parse_table(text) == LadderTable(("users", "rps", "ms"), [1, 4], [2, 5], [3, 6])


def test_a_table_without_a_header_counts_its_columns() -> None:
    assert parse_table("1,2,3\n4,5,6\n", (None, "3", "2")) == LadderTable(
        ("1", "3", "2"), [1, 4], [3, 6], [2, 5]
    )


def test_columns_by_name() -> None:
    text = "time,p95_ms,rps,users\n10:00,30,2,1\n10:05,60,5,4\n"
    table = parse_table(text, ("users", "rps", "p95_ms"))
    assert (table.load, table.throughput, table.latency) == ([1, 4], [2, 5], [30, 60])


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        ("", (), "t.csv: the table is empty"),
        ("\n# only a remark\n", (), "t.csv: the table is empty"),
        ("users,rps,ms\n", (), "t.csv: the table has a header and no rows"),
        ("users,rps\n1,2\n", (), "t.csv:1: the table has 2 columns and needs three"),
        ("users,rps,ms\n1,2,3\n4,many,6\n", (), "t.csv:3: column rps: 'many' is not a number"),
        ("users,rps,ms\n1,2,\n", (), "t.csv:2: column ms: is empty"),
        ("users,rps,ms\n1,2\n", (), "t.csv:2: column ms: is empty"),
        ("users,rps,ms\n1,0,3\n", (), "t.csv:2: column rps: 0 must lie above 0"),
        ("users,rps,ms\n1,nan,3\n", (), "t.csv:2: column rps: nan must lie above 0"),
        ("users;rps;ms\n1;2,5;3\n", (), "t.csv:2: column rps: '2,5' is not a number (write a decimal point)"),
        ("users,rps,ms\n1,1e308,3\n", (), "t.csv:2: column rps: 1e+308 must lie above 0 and at most 1e+15"),
        ("users,rps,ms\n1,inf,3\n", (), "t.csv:2: column rps: inf must lie above 0"),
        ("users,rps,ms\n1,2,3\n", ("u",), "t.csv:1: --load: there is no column 'u' (it has users, rps, ms)"),
        ("users,rps,ms\n1,2,3\n", ("4",), "t.csv:1: --load: there is no column '4'"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, wanted: tuple[str, ...], said: str) -> None:
    columns = [*wanted, None, None, None][:3]
    with pytest.raises(UserError) as caught:
        parse_table(text, columns, Path("t.csv"))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe1\x00")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_table(tmp_path / "b.csv")
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbfusers,rps,ms\n1,2,3\n")
    assert read_table(tmp_path / "bom.csv", ("users", None, None)).load == [1]


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1), st.sampled_from(",;\t"))
def test_every_table_of_numbers_is_read_back(rows: list[tuple[float, float, float]], delimiter: str) -> None:
    text = "\n".join(delimiter.join(map(repr, row)) for row in [("load", "x", "r"), *rows]).replace("'", "")
    table = parse_table(text)
    assert list(zip(table.load, table.throughput, table.latency, strict=True)) == rows


@given(st.text())
def test_any_text_is_a_table_or_the_users_mistake(text: str) -> None:
    try:
        table = parse_table(text)
    except UserError:
        return
    assert len(table.load) == len(table.throughput) == len(table.latency) > 0
    assert min(table.load + table.throughput + table.latency) > 0
