import ast
import string
from pathlib import Path
from typing import get_args

import pytest

from harness.records import ProblemCode
from harness.report import messages

REPORT = Path(messages.__file__).parent.parent
EN, ZH = messages.LANGUAGES["en"], messages.LANGUAGES["zh"]


def figures(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_say_the_same_things_with_the_same_figures():
    assert set(EN) == set(ZH)
    assert {k: figures(v) for k, v in EN.items()} == {k: figures(v) for k, v in ZH.items()}


def test_every_message_asked_for_exists():
    keys, prefixes = set(), set()
    for path in REPORT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say" and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and "." in part.value:
                        (keys if part.value in ZH else prefixes).add(part.value)
    assert len(keys) > 100
    assert [p for p in prefixes if not any(p in key for key in ZH)] == []


def test_every_message_is_asked_for():
    source = "".join(path.read_text(encoding="utf-8") for path in REPORT.glob("*.py")).replace("'", '"')
    made = ("verdict.", "problem.", "experiment.", "stage.", "resource.", "check.", "panel.", "method.",
            "conditions.", "col.", "why.", "column.", "how.")  # fmt: skip
    assert [key for key in EN if f'"{key}"' not in source and not key.startswith(made)] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_problem_has_words(lang):
    assert all(messages.has(lang, f"problem.{code}") for code in get_args(ProblemCode))


def test_chinese_is_chinese():
    same = {key for key in EN if EN[key] == ZH[key]}
    assert all(len(EN[key]) < 20 for key in same), same
