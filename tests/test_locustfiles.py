"""The locustfiles: all alike, and ours wherever Locust is started."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness.plan import EXPERIMENTS

FOLDER = Path(__file__).parent.parent / "locustfiles"


def test_each_experiment_has_one_and_they_differ_in_nothing_but_its_name() -> None:
    codes = set()
    for name in EXPERIMENTS:
        docstring, *code = ast.parse((FOLDER / f"{name}.py").read_text()).body
        assert f"locust -f locustfiles/{name}.py" in ast.unparse(docstring)
        codes.add(ast.unparse(ast.Module(code, [])).replace(f"register('{name}'", "register(NAME"))
    assert len(codes) == 1
    assert {file.stem for file in FOLDER.glob("*.py")} == set(EXPERIMENTS)


@pytest.mark.parametrize("start", [["-m", "locust"], [str(Path(sys.executable).with_name("locust"))]])
def test_a_package_of_the_same_name_in_the_working_folder_is_not_taken(
    start: list[str], tmp_path: Path
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    command = [sys.executable, *start, "-f", str(FOLDER / "steps.py"), "--list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "KneeUser" in done.stdout
