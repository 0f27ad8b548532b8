"""What the sidecar serves, and to whom."""

import http.client
import json
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.errors import UserError
from harness.observe.journal import Journal
from harness.observe.server import Board, is_loopback, make_server, serve
from harness.records import EngineSample, GpuSample


def sample(seq, **fields):
    return GpuSample(
        seq=seq,
        host="h",
        gpu="GPU-0",
        name='A "b"',
        mono_ns=1,
        mono_end_ns=2,
        wall_ns=3,
        source="nvml",
        **fields,
    )


@pytest.fixture
def start(clock):
    running = []

    def begin(token=None):
        board = Board(
            "h", Journal(None, GpuSample), Journal(None, EngineSample), clock.clocks, lambda: {"gpu": "words"}
        )
        server = make_server("127.0.0.1", 0, token, board)
        running.append((board, server, serve(server)))
        return board, f"http://127.0.0.1:{server.server_address[1]}"

    yield begin
    for board, server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()
        board.samples.close()
        board.engine.close()


def get(url, **headers):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_rows_since_a_number(start):
    board, url = start()
    for _ in range(5):
        board.samples.append(sample(0, util=0.5))
    answer = json.loads(get(url + "/samples?since=2")[1])
    assert [row["seq"] for row in answer["rows"]] == [3, 4]
    assert answer["since"] == 4
    assert answer["journal"] == board.samples.identity
    assert json.loads(get(url + "/samples?since=4")[1])["rows"] == []
    assert [row["seq"] for row in json.loads(get(url + "/samples?limit=2")[1])["rows"]] == [3, 4]
    assert [row["seq"] for row in json.loads(get(url + "/samples?since=0&limit=2")[1])["rows"]] == [1, 2]
    assert len(json.loads(get(url + "/samples?age_s=60")[1])["rows"]) == 5
    assert json.loads(get(url + "/samples?age_s=-1")[1])["rows"] == []


def test_engine_rows_health_clock(start, clock):
    board, url = start()
    board.engine.append(EngineSample(wall_ns=1, mono_ns=2, running=3.0))
    assert json.loads(get(url + "/engine?since=-1")[1])["rows"][0]["running"] == 3.0
    assert json.loads(get(url + "/health")[1]) == {"gpu": "words"}
    assert json.loads(get(url + "/clock")[1]) == {
        "host": "h",
        "t1_ns": 10**18 + clock.now_ns,
        "mono_ns": clock.now_ns,
        "t2_ns": 10**18 + clock.now_ns,
    }


@pytest.mark.parametrize("query", ["since=x", "limit=1.5", "age_s=nan", "age_s=inf"])
def test_bad_questions(start, query):
    _, url = start()
    assert get(f"{url}/samples?{query}")[0] == 400
    assert get(f"{url}/nowhere")[0] == 404


def test_a_token_is_asked_for_everywhere(start):
    _, url = start(token="secret")
    for path in ("/samples", "/engine", "/clock", "/metrics", "/health", "/nowhere"):
        assert get(url + path)[0] == 401
        assert get(url + path, Authorization="Bearer wrong")[0] == 401
    assert get(url + "/health", Authorization="Bearer secret")[0] == 200


def test_prometheus_text_has_opentelemetrys_names_and_leaves_out_what_is_missing(start):
    board, url = start()
    board.latest["GPU-0"] = sample(0, util=0.25, mem_used_bytes=7, mem_total_bytes=9, energy_j=1.5)
    families = {f.name: f for f in text_string_to_metric_families(get(url + "/metrics")[1].decode())}
    values = {name: [s.value for s in family.samples] for name, family in families.items()}
    assert values == {
        "hw_gpu_utilization_ratio": [0.25],
        "hw_gpu_memory_usage_bytes": [7],
        "hw_gpu_memory_limit_bytes": [9],
        "hw_power_watts": [],
        "hw_energy_joules": [1.5],
        "hw_temperature_celsius": [],
    }
    assert families["hw_gpu_utilization_ratio"].samples[0].labels == {
        "hw_id": "GPU-0",
        "hw_type": "gpu",
        "hw_name": 'A "b"',
    }
    assert families["hw_energy_joules"].samples[0].name == "hw_energy_joules_total"


def test_a_taken_port_is_the_users_mistake(start):
    board, url = start()
    with pytest.raises(UserError, match="cannot listen"):
        make_server("127.0.0.1", urlsplit(url).port, None, board)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu1", False)],
)
def test_loopback(host, alone):
    assert is_loopback(host) is alone
