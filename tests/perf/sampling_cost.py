"""What observing costs: CPU of the sidecar, and time and memory of reading what it and nvidia-smi wrote.

python tests/perf/sampling_cost.py [--seconds 30]     needs gcc for the stub driver; prints one table
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUB = ROOT / "tests" / "observe" / "stub_nvml.c"
LIMITS = {"NVML at 1 s": 0.5, "NVML at 0.2 s": 2.0, "and 500 lines of metrics each second": 3.0}
READ_S, READ_MB = 10.0, 500.0


def metrics_text() -> bytes:
    """Return 500 lines as vLLM writes them."""
    labels = '{engine="0",model_name="Qwen/Qwen2.5-VL-7B-Instruct"'
    lines = [f"vllm:num_requests_running{labels}}} 5.0", f"vllm:kv_cache_usage_perc{labels}}} 0.4"]
    for name in ("queue", "prefill", "decode"):
        stem = f"vllm:request_{name}_time_seconds"
        lines += [f'{stem}_bucket{labels},le="{i / 10}"}} {i}.0' for i in range(150)]
        lines += [f"{stem}_sum{labels}}} 12.5", f"{stem}_count{labels}}} 40.0"]
    lines += [f'http_request_duration_seconds_bucket{{le="{i}"}} 1.0' for i in range(500 - len(lines))]
    return "\n".join(lines).encode() + b"\n"


def serve_metrics() -> tuple[ThreadingHTTPServer, str]:
    """Serve the text from a thread of this process; return the server and its address."""
    text = metrics_text()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n".encode()
            self.wfile.write(head + text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, from the scheduler's own count (ns)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def sidecar_cost(scratch: Path, seconds: float, *args: str) -> float:
    """Return the share of a core, in percent, that `knee sample` takes on the stub driver."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(scratch), "NVML_STUB": ""}
    command = [sys.executable, "-m", "harness", "sample", "--source", "nvml", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *args], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        time.sleep(1.0)
        before, began = cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (cpu_s(process.pid) - before) / (time.monotonic() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measured(code: str) -> tuple[float, float]:
    """Return seconds and peak MiB of a fresh interpreter that runs `code`."""
    tail = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code + tail], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return time.monotonic() - began, float(done.stdout.splitlines()[-1])


def write_gpu_rows(path: Path, count: int) -> None:
    """Write rows as the sidecar does."""
    row = (
        '{"v":1,"seq":%d,"host":"gpu1","gpu":"GPU-%d","index":%d,"name":"NVIDIA A100-SXM4-80GB","mono_ns":%d,'
        '"mono_end_ns":%d,"wall_ns":%d,"util":%.2f,"mem_used_bytes":%d,"mem_reserved_bytes":953155584,'
        '"mem_total_bytes":85899345920,"mem_api":"v2","power_w":250.5,"energy_j":%.3f,"sm_mhz":1410,"temp_c":61,'
        '"throttle":["power_cap"],"source":"nvml","missing":{}}\n'
    )
    with path.open("w") as file:
        for i in range(count):
            t = i // 8 * 1_000_000_000
            file.write(
                row % (i, i % 8, i % 8, t, t + 90_000, 17 * 10**17 + t, i % 100 / 100, 7 * 10**10 + i, i / 3)
            )


def write_smi_log(path: Path, size: int) -> None:
    """Write an nvidia-smi log of eight GPUs of about `size` bytes."""
    with path.open("w") as file:
        file.write("timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n")
        second = 0
        while file.tell() < size:
            clock = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(1_780_000_000 + second))
            for g in range(8):
                used = 60_000 + (second * 37 + g) % 12_000
                ms, busy = (second * 7 + g) % 1000, (second + g) % 101
                file.write(f"{clock}.{ms:03d}, {g}, {busy} %, {used} MiB, 81559 MiB\n")
            second += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    seconds = parser.parse_args().seconds
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| what | measured | limit |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        library = scratch / "libnvidia-ml.so.1"
        subprocess.run(
            [
                "gcc",
                "-O2",
                "-shared",
                "-fPIC",
                "-Wl,-soname,libnvidia-ml.so.1",
                "-o",
                str(library),
                str(STUB),
            ],
            check=True,
        )
        server, url = serve_metrics()
        slow = sidecar_cost(scratch, seconds)
        quick = sidecar_cost(scratch, seconds, "--interval-s", "0.2")
        both = sidecar_cost(scratch, seconds, "--engine", url)
        server.shutdown()
        for (what, limit), value in zip(LIMITS.items(), (slow, quick, both - slow), strict=True):
            print(f"| {what} | {value:.2f} % of a core | {limit} % |")
        rows, log = scratch / "gpu.jsonl", scratch / "smi.csv"
        write_gpu_rows(rows, 1_000_000)
        write_smi_log(log, 200_000_000)
        reads = {
            "a million GPU samples": f"""
from pathlib import Path
from harness.records import GpuSample
from harness.rundir import read_table
assert len(read_table(Path({str(rows)!r}), GpuSample)) == 1_000_000""",
            "a 200 MB nvidia-smi log": f"""
from harness.cli import group
group.main(["gpu-log", {str(log)!r}, "--json"], standalone_mode=False)""",
        }
        for what, code in reads.items():
            took_s, peak = measured(code)
            print(f"| read {what} | {took_s:.1f} s, {peak:.0f} MiB | {READ_S:.0f} s, {READ_MB:.0f} MB |")


if __name__ == "__main__":
    main()
