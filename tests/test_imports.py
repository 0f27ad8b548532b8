"""Imports point one way: a module imports only its own layer and lower ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "harness"

# Lowest first. The longest prefix that matches gives the layer of a module.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "records", "results", "bundled"),
    ("profile", "profile_rules", "profile_reader", "stages"),
    ("plan",),
    ("rundir",),
    ("payloads", "observe", "analysis"),
    ("load", "report"),
    ("preflight", "engine", "probe"),
    ("commands", "cli"),
    ("__main__",),
)
FORBIDDEN = {
    "load": ("observe", "report", "commands", "engine"),
    "observe": ("load", "analysis", "report", "payloads", "commands"),
    "payloads": ("load", "observe", "analysis", "report"),
    "analysis": ("load", "observe", "payloads", "report", "commands", "engine"),
    "report": ("load", "observe", "payloads", "commands", "engine"),
    "engine": ("load", "observe", "analysis", "report", "payloads"),
}
MAY_IMPORT_LOCUST = ("load.user", "load.shape", "load.session")
PURE = ("analysis", "report")
NOT_IN_PURE = ("gevent", "socket", "urllib.request", "http", "subprocess", "requests")


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(p for p in parts if p != "__init__") or "__init__"] = path
    return names


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def layer(name: str) -> int:
    best, depth = -1, -1
    for number, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            if inside(name, (prefix,)) and len(prefix) > depth:
                best, depth = number, len(prefix)
    return best


ALL = modules()


@pytest.mark.parametrize("name", [n for n in ALL if n != "__init__"])
def test_a_module_imports_only_its_own_layer_and_lower_ones(name: str) -> None:
    assert layer(name) >= 0, f"{name} has no layer: add it to LAYERS"
    for target in imported(ALL[name]):
        own = target.removeprefix("harness.")
        if target.startswith("harness.") and own in ALL:
            assert layer(own) <= layer(name), f"{name} imports {own}, which stands above it"
            part = name.partition(".")[0]
            assert not inside(own, FORBIDDEN.get(part, ())), f"{name} must not know {own}"


@pytest.mark.parametrize("name", list(ALL))
def test_only_the_locust_side_imports_locust(name: str) -> None:
    if not inside(name, MAY_IMPORT_LOCUST):
        assert not any(inside(t, ("locust",)) for t in imported(ALL[name])), f"{name} imports Locust"


@pytest.mark.parametrize("name", [n for n in ALL if inside(n, PURE)])
def test_analysis_and_report_touch_neither_network_nor_processes(name: str) -> None:
    assert not [t for t in imported(ALL[name]) if inside(t, NOT_IN_PURE)]


def test_the_command_line_starts_without_locust_and_analysis_libraries() -> None:
    heavy = {"locust", "pandas", "vl_convert", "gevent"}
    code = f"import sys, harness.cli; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
