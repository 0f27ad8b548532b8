from harness.report.document import Cell, Column, tabulate
from harness.report.numbers import Missing


def absent(names, reason):
    return f"not shown: {names} ({reason})"


def test_a_missing_figure_is_a_dash_that_points_to_its_reason():
    rows = [1, 2, 3]
    columns = [
        Column("a", str),
        Column("b", lambda r: Missing("no GPU") if r == 2 else str(10 * r)),
        Column("c", lambda r: Missing("lost") if r == 3 else Missing("no GPU") if r == 2 else "x"),
    ]
    table = tabulate(rows, columns, absent=absent)
    assert table.rows[1] == (Cell("2"), Cell("–", 1), Cell("–", 1))
    assert table.rows[2] == (Cell("3"), Cell("30"), Cell("–", 2))
    assert table.notes == ("no GPU", "lost")


def test_a_column_without_any_figure_is_left_out_and_named():
    columns = [
        Column("a", str),
        Column("b", lambda _: Missing("no GPU")),
        Column("c", lambda _: Missing("no GPU")),
    ]
    table = tabulate([1, 2], columns, absent=absent, caption="Figures.")
    assert [head.text for head in table.heads] == ["a"]
    assert table.caption == "Figures. not shown: b, c (no GPU)"
    assert table.notes == ()


def test_a_column_that_always_stays_keeps_its_dashes():
    table = tabulate([1], [Column("a", lambda _: Missing("why"), always=True)], absent=absent)
    assert table.rows == ((Cell("–", 1),),)
    assert table.notes == ("why",)
