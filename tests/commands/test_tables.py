"""How commands print where no terminal is."""

import pytest

from harness.commands.tables import console, plain_table


def test_in_a_log_a_sentence_and_a_row_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "word " * 100
    table = plain_table("key", "text")
    table.add_row("a", sentence)
    console().print(sentence)
    console().print(table)
    first, head, row = capsys.readouterr().out.splitlines()
    assert first.count("word") == row.count("word") == 100
    assert head.split() == ["key", "text"]
