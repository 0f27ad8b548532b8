"""Real runs against the simulated engine with each bottleneck planted: are bottleneck and cap found?

    python tests/perf/presets.py [NAME ...]

Two to five minutes each. The same in virtual time, ten seeds each, is in tests/analysis/test_bottleneck.py.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import yaml

from harness.commands.processes import harness_command, running
from harness.engine.presets import PRESETS
from harness.profile import Generation, Hold, Load, Profile, Target, Traffic

EXPECTED = {
    "demo": ("queue", "slots"),
    "preprocess": ("preprocess", "cpu_preprocessing"),
    "queue": ("queue", "slots"),
    "prefill": ("prefill", "gpu_busy"),
    "decode": ("decode", "gpu_busy"),
    "kv": (None, "kv_memory"),
    "long": (None, "long_requests"),
}


def run(name: str, folder: Path) -> dict:
    """Run the ladder of a preset and return what `knee run --json` printed."""
    preset = PRESETS[name]
    with running(harness_command("engine", "--port", "0", "--config", name), folder / "engine.log") as ready:
        profile = Profile(
            name=name,
            target=Target(base_url=ready.removeprefix("ready ") + "/v1", model=preset.config.model),
            traffic=Traffic(mix=preset.traffic),
            generation=Generation(max_tokens=preset.max_tokens),
            load=Load(
                users=(1, 2, 4, 6, 8, 12),
                drift_check=False,
                hold=Hold(seconds=15, min_requests=150, max_seconds=60, settle_s=1),
            ),
        )
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(msgspec.to_builtins(profile)))
        command = harness_command("run", str(file), "--out", str(folder), "--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def main() -> int:
    """Print a line per preset; exit 1 where one is not as planted."""
    wrong = 0
    for name in sys.argv[1:] or list(PRESETS):
        with tempfile.TemporaryDirectory() as folder:
            said = run(name, Path(folder))
        if "error" in said:
            print(f"{name}: {said['error'].strip()}")
            wrong += 1
            continue
        knee, found = said["knee"], said["bottleneck"] or {}
        stage, resource = EXPECTED[name]
        right = knee["cap"] == PRESETS[name].cap and found.get("resource") == resource
        right = right and stage in (None, found.get("stage"))
        wrong += not right
        codes = [problem["code"] for problem in said["problems"]]
        print(
            f"{name}: {'right' if right else 'WRONG'}: {knee['status']}, cap {knee['cap']} "
            f"(planted {PRESETS[name].cap}), {found.get('stage')}, {found.get('resource')} "
            f"(planted {resource}); problems {codes}",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
