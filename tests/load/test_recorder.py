"""Records from worker to master: none lost unseen, none twice, over a wire that loses and repeats."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.load import recorder as recorder_module
from harness.load.recorder import MAX_KEPT, MAX_ROWS, MasterRecorder, WorkerRecorder
from harness.records import ClientSample, Request, decode_lines
from harness.rundir import RunDir

Message = dict[str, Any]


def request(seq: int, worker: str = "w") -> Request:
    return Request(
        run="r",
        worker=worker,
        user=0,
        seq=seq,
        phase=0,
        label="1 user",
        kind="text",
        payload="text",
        body_bytes=10,
        wall_ns=1000 + seq,
        start_ns=seq,
        total_ms=5.0,
        outcome="ok" if seq % 2 else "reset",
        req_id=str(seq),
    )


def rows(path: Path) -> list[Request | None]:
    with path.open("rb") as lines:
        return list(decode_lines(lines, Request))


def add(worker: WorkerRecorder, count: int) -> None:
    for _ in range(count):
        worker.add(request(worker.made, worker.worker))


class Ends:
    """Makes both ends of the wire and closes them."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.sent: list[Message] = []
        self._open: list[Callable[[], None]] = []

    def worker(self, name: str = "w", path: Path | None = None) -> WorkerRecorder:
        worker = WorkerRecorder(name, path or self.run.worker(name), self.sent.append)
        self._open.append(lambda: worker.close(complete=False))
        return worker

    def master(self) -> MasterRecorder:
        master = MasterRecorder(self.run)
        self._open.append(master.close)
        return master

    def close(self) -> None:
        for close in self._open:
            close()


@pytest.fixture
def ends(run: RunDir) -> Iterator[Ends]:
    made = Ends(run)
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_a_record_lies_in_its_workers_file_at_once_and_reaches_the_master_as_the_same_bytes(
    ends: Ends,
    run: RunDir,
) -> None:
    sent = ends.sent
    worker = ends.worker()
    add(worker, 3)
    assert len(rows(run.worker("w"))) == 3  # before any flush: a killed worker loses nothing
    worker.flush(b"one")
    master = ends.master()
    number, finished = master.take(sent[0])
    assert number == 0
    assert [(f.worker, f.wall_ns, f.ok) for f in finished] == [
        ("w", 1000, False),
        ("w", 1001, True),
        ("w", 1002, False),
    ]
    assert run.requests.read_bytes() == run.worker("w").read_bytes()
    assert sent[0]["status"] == b"one"


def test_a_flush_with_nothing_new_carries_the_status_alone(ends: Ends, run: RunDir) -> None:
    sent = ends.sent
    worker = ends.worker()
    worker.flush(b"two")
    assert sent == [{"worker": "w", "status": b"two", "made": 0}]
    assert ends.master().take(sent[0]) == (None, [])
    assert worker.unacknowledged == 0


def test_batches_are_bounded_and_only_the_last_carries_the_status(ends: Ends) -> None:
    sent = ends.sent
    worker = ends.worker()
    add(worker, 2 * MAX_ROWS + 5)
    worker.flush(b"one")
    assert [(m["first"], m["count"]) for m in sent] == [
        (0, MAX_ROWS),
        (MAX_ROWS, MAX_ROWS),
        (2 * MAX_ROWS, 5),
    ]
    assert [m["status"] for m in sent] == [None, None, b"one"]


def test_a_batch_is_sent_again_until_it_is_acknowledged(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(recorder_module.time, "monotonic", lambda: now[0])
    sent = ends.sent
    worker = ends.worker()
    add(worker, 1)
    worker.flush(b"s")
    now[0] = 1.0
    worker.flush(b"s")
    assert [m.get("number") for m in sent] == [0, None]
    now[0] = 6.0
    worker.flush(b"s")
    assert [m.get("number") for m in sent] == [0, None, 0, None]
    assert sent[2]["status"] is None  # what was true then
    worker.acknowledged(0)
    now[0] = 60.0
    worker.flush(b"s")
    assert len(sent) == 5


def test_a_drain_sends_again_what_is_not_acknowledged(ends: Ends) -> None:
    sent = ends.sent
    worker = ends.worker()
    add(worker, 1)
    worker.flush(b"s")
    worker.resend()
    assert [m["number"] for m in sent] == [0, 0]
    worker.acknowledged(0)
    worker.resend()
    assert len(sent) == 2


def test_over_a_wire_that_loses_repeats_and_reorders_every_record_arrives_once(
    ends: Ends, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(recorder_module.time, "monotonic", lambda: now[0])
    chance = random.Random(7)
    wire = ends.sent
    workers = [ends.worker(name) for name in ("a", "b")]
    master = ends.master()
    for turn in range(200):
        now[0] += 1.0
        for worker in workers:
            add(worker, chance.randrange(4) if turn < 120 else 0)
            worker.flush(b"s")
        chance.shuffle(wire)
        for message in [m for m in wire for _ in range(chance.choice((0, 1, 1, 2)))]:
            number, _ = master.take(message)
            if number is not None and chance.random() < 0.7:
                next(w for w in workers if w.worker == message["worker"]).acknowledged(number)
        wire.clear()
    keys = [(row.worker, row.seq) for row in rows(run.requests) if row is not None]
    assert len(keys) == len(set(keys)) == sum(w.made for w in workers)
    assert [master.gaps(w.worker) for w in workers] == [[], []]
    assert [master.received(w.worker) for w in workers] == [w.made for w in workers]
    assert [w.unacknowledged for w in workers] == [0, 0]


def test_gaps_are_named_exactly(ends: Ends, run: RunDir) -> None:
    sent = ends.sent
    worker = ends.worker()
    for count in (3, 2, 4, 1, 2):
        add(worker, count)
        worker.flush(b"s")
    master = ends.master()
    for index in (3, 0):
        master.take(sent[index])
    assert master.gaps("w") == [(3, 9)]
    worker.flush(b"s")
    master.take({"worker": "w", "status": None, "made": worker.made})
    assert master.gaps("w") == [(3, 9), (10, 12)]
    assert master.gaps("unheard") == []
    master.take(sent[2])
    assert master.gaps("w") == [(3, 5), (10, 12)]


def test_a_master_that_does_not_answer_costs_bounded_memory_and_no_record(ends: Ends, run: RunDir) -> None:
    worker = ends.worker()
    for _ in range(MAX_KEPT + 20):
        add(worker, 1)
        worker.flush(b"s")
    assert worker.unacknowledged == MAX_KEPT
    assert len(rows(run.worker("w"))) == MAX_KEPT + 20


@pytest.mark.parametrize("complete", [True, False])
def test_a_workers_file_goes_only_when_the_master_has_everything(
    ends: Ends, run: RunDir, complete: bool
) -> None:
    worker = ends.worker()
    add(worker, 1)
    worker.close(complete=complete)
    assert run.worker("w").exists() is not complete
    assert run.worker("w").parent.exists() is not complete


def test_a_full_disk_at_the_master_is_said_and_nothing_acknowledged(ends: Ends, run: RunDir) -> None:
    sent = ends.sent
    worker = ends.worker()
    add(worker, 1)
    worker.flush(b"s")
    run.requests.symlink_to("/dev/full")
    master = ends.master()
    assert master.take(sent[0]) == (None, [])
    assert master.failed == "No space left on device"
    assert master.gaps("w") == [(0, 1)]


def test_a_full_disk_at_the_worker_costs_no_record(ends: Ends, run: RunDir, tmp_path: Path) -> None:
    sent = ends.sent
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    worker = ends.worker(path=full)
    add(worker, 2)
    worker.flush(b"s")
    assert [m["count"] for m in sent] == [2]


def test_samples_of_the_process_go_to_their_own_file(ends: Ends, run: RunDir) -> None:
    sent = ends.sent
    worker = ends.worker()
    sample = ClientSample(worker="w", wall_ns=1, mono_ns=2, phase=0, users=1, in_flight=1, lag_p99_ms=0.5)
    worker.add_sample(sample)
    worker.flush(b"s")
    ends.master().take(sent[0])
    with run.client.open("rb") as lines:
        assert list(decode_lines(lines, ClientSample)) == [sample]
    assert run.requests.read_bytes() == b""
