"""The processes beside the load: whatever becomes of the sampler, the run goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.load import sidecar
from harness.load.sidecar import Sampler, fullest
from harness.profile import Profile
from harness.records import EngineSample, GpuSample, encode_line
from harness.rundir import RunDir


def profile_of(**observe: Any) -> Profile:
    raw = {
        "name": "t",
        "target": {"base_url": "http://127.0.0.1:1/v1"},
        "traffic": {"mix": [{"kind": "a"}]},
        "observe": observe,
    }
    return msgspec.convert(raw, Profile)


def gpu(uuid: str, seq: int, used: int | None = 10, total: int | None = 100) -> GpuSample:
    return GpuSample(
        seq=seq, host="h", gpu=uuid, mono_ns=1, mono_end_ns=2, wall_ns=seq, mem_used_bytes=used,
        mem_total_bytes=total, source="nvml",
    )  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a shell script in the sampler's place."""

    def put(script: str) -> None:
        start = sidecar.subprocess.Popen
        monkeypatch.setattr(
            sidecar.subprocess, "Popen", lambda args, **more: start(["sh", "-c", script], **more)
        )

    return put


def test_no_process_where_nothing_is_to_be_observed(tmp_path: Path, command: Any) -> None:
    command("touch started; echo ready; sleep 60")
    sampler = Sampler(profile_of(gpu="none", engine="none"), RunDir(tmp_path))
    sampler.wait_ready()
    sampler.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["exit 1", "exec >&-; sleep 60"])
def test_a_sampler_that_does_not_start_is_named_in_the_log(
    tmp_path: Path, command: Any, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    command(script)
    sampler = Sampler(profile_of(), RunDir(tmp_path))
    sampler.wait_ready()
    sampler.end()
    assert "no GPU or engine figures" in caplog.text
    assert "sampler.log" in caplog.text


def test_a_sampler_that_hangs_is_ended_by_force(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "END_WITHIN_S", 0.3)
    command("trap '' TERM; echo $$; while true; do sleep 0.1; done")
    sampler = Sampler(profile_of(), RunDir(tmp_path))
    sampler.wait_ready()
    process = sampler._process
    assert process is not None
    sampler.end()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_the_latest_samples_are_read_from_files_that_grow(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    sampler = Sampler(profile_of(gpu="none", engine="none"), run)
    assert sampler.latest() == ({}, None)
    rows = [gpu("A", 1), gpu("B", 2), gpu("A", 3, used=50)]
    run.gpu.write_bytes(b"".join(encode_line(r) for r in rows) + b'{"v":1,"seq":4,"ho')
    run.engine.write_bytes(encode_line(EngineSample(wall_ns=1, mono_ns=1, kv_usage=0.25)))
    gpus, engine = sampler.latest()
    assert {name: sample.seq for name, sample in gpus.items()} == {"A": 3, "B": 2}
    assert engine is not None
    assert engine.kv_usage == 0.25


def test_the_tail_of_a_long_file_is_read_quickly(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.gpu.write_bytes(encode_line(gpu("A", 1)) * 100_000 + encode_line(gpu("A", 2)))
    began = time.monotonic()
    gpus, _ = Sampler(profile_of(gpu="none", engine="none"), run).latest()
    assert gpus["A"].seq == 2
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    ("gpus", "kv", "expected"),
    [
        ([gpu("A", 1, 30), gpu("B", 1, 90)], None, 0.9),
        ([gpu("A", 1, 95)], 0.4, 0.4),  # an engine that preallocates: its KV cache tells
        ([gpu("A", 1, None, None)], None, None),  # unknown is not 0
        ([], None, None),
    ],
)
def test_the_fullest_memory(gpus: list[GpuSample], kv: float | None, expected: float | None) -> None:
    engine = EngineSample(wall_ns=1, mono_ns=1, kv_usage=kv)
    assert fullest({str(g.gpu) + str(i): g for i, g in enumerate(gpus)}, engine) == expected


def test_a_module_of_the_working_folder_is_not_taken_for_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "harness.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert sidecar.make_report(RunDir(Path("nothing-here"))) == 2
    assert "nothing-here" in capsys.readouterr().out
