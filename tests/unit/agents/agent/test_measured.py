"""An agent puts its measurements in the reports that it writes anyhow."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agents.agent.node_view import View
from agents.agent.reporter import Callbacks, Reporter
from agents.shim.settings import Settings
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.testbed.waiting import eventually
from supervisor.shell.metrics import clock_skew
from supervisor.wire import keys
from supervisor.wire.records import Health, NodeObserved, ProcessRecord, Progress, Registration, decode, encode

WAY, RANK = "toy.0.1", "toy.0.1.0"


def test_a_rank_is_reported_with_its_start_and_its_way_to_the_gate(tmp_path: Path) -> None:
    view = View(Settings(node="n1", home=tmp_path, etcd=("h:1",)))
    view.put(ProcessRecord(name=RANK, pid=os.getpid(), start_ticks=1, folder=str(tmp_path)))
    view.look_for_hangs({}, 0.0)
    progress = Progress(run="toy", group=0, generation=1, rank=0, pid=1, sequence=1, phase="step", step=1, commits=1)
    (tmp_path / "progress.json").write_bytes(encode(progress))
    view.poll(1.0)
    quiet = view.milestones()
    view.look_for_hangs({}, 12.0)
    view.trips[WAY] = 4.0
    (seen,) = view.observed().trainers
    assert (seen.measured.start_s, seen.measured.gate_ms, seen.measured.step_s) == (12.0, 4.0, 0.0)
    assert view.milestones() == quiet, "none of it is worth a report of its own"
    view.drop(RANK)
    assert view.trips == {}


def test_the_time_of_etcds_answers_and_the_clock_are_in_the_record_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    monkeypatch.setattr("supervisor.shell.etcd.threads.connect_patiently", lambda *_: store)
    about = {"address": "a", "role": "trainer", "allocation": "", "slots": 1, "agent_pid": 1, "version": "v"}
    thread = Reporter(Registration(node="n1", **about), tmp_path, ["h:1"], 5, Callbacks())  # type: ignore[arg-type]
    thread.observed(NodeObserved(node="n1", sequence=0))
    thread.health(Health(node="n1", sequence=0, warm="off", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0))
    thread.start()
    try:
        eventually(lambda: store.get(keys.health("n1")) is not None, 10, "the record is written")
        item = store.get(keys.health("n1"))
        assert item is not None
        assert decode(item.value, Health).store_ms > 0
        assert clock_skew.off(decode(item.value, Health), time.time()) == ""
        assert (
            clock_skew.off(decode(item.value, Health), time.time() + 3600.0)
            == "its clock is 60 min behind the one here"
        )
    finally:
        thread.stop(give_back=True)
        thread.join(10)
