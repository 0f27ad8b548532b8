"""The option that rewrites golden files: `pytest tests/report --update-goldens`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files of tests/report")
