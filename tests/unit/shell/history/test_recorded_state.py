"""State that version fce8538 has left in etcd and beside a run is read and gone on with: an open incident, cordons, spent budgets."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.decide import decide
from supervisor.core.model.kinds import Kind, Rung
from supervisor.ports.store import Item, Snapshot
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import backup
from supervisor.shell.inspect import client, decision_replay, status
from supervisor.wire import keys
from supervisor.wire.records import RunRecord

RECORDED = Path(__file__).parent / "recorded_fce8538"
RUN = "toy"
SINCE_THEN = {f"incident {killed}: outside was 'False', today it is 'True'" for killed in ("i1", "i4")}
"""A later rule: a SIGKILL that no out-of-memory kill explains came from outside the trainer."""


@pytest.fixture(scope="module")
def mirror() -> Mirror:
    records: dict[str, str] = json.loads(gzip.decompress((RECORDED / "etcd.json.gz").read_bytes()))
    return Mirror(Snapshot(1, tuple(Item(key, value.encode(), 1, 1) for key, value in records.items())))


@pytest.fixture
def record(mirror: Mirror) -> RunRecord:
    found = mirror.record(keys.spec(RUN), RunRecord)
    assert found is not None
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    for name in ("journal.jsonl", "inputs.jsonl"):
        (tmp_path / name).write_bytes(gzip.decompress((RECORDED / f"{name}.gz").read_bytes()))
    return tmp_path / "journal.jsonl"


def test_the_run_is_seen_as_it_was_seen_then(mirror: Mirror, record: RunRecord) -> None:
    then: dict[str, Any] = json.loads((RECORDED / "status.json").read_text())
    now = status.as_json(status.run_status(mirror, record))
    assert mirror.unreadable == {}
    for what in ("phase", "paused", "lighthouse", "spares", "budgets_left", "incidents_open"):
        assert now[what] == then[what], what
    assert now["cordons"].keys() == then["cordons"].keys()
    for group, before in zip(now["groups"], then["groups"], strict=True):
        assert {k: group[k] for k in ("group", "phase", "generation", "node", "incident")} == {
            k: before[k] for k in ("group", "phase", "generation", "node", "incident")
        }


def test_its_incidents_keep_kind_group_rung_and_times(mirror: Mirror) -> None:
    found = {i.id: i for i in client.incidents(mirror, RUN)}
    assert {i: (found[i].kind, found[i].group, found[i].rung) for i in sorted(found)} == {
        "i1": (Kind.CRASH, 0, Rung.RESTART),
        "i2": (Kind.NODE_LOST, 1, Rung.REPLACE),
        "i3": (Kind.ALLOCATION_LOST, 0, Rung.REALLOCATE),
        "i4": (Kind.CRASH, 1, Rung.RESTART),
    }
    assert [i for i in sorted(found) if found[i].recovered is None] == ["i4"]


def test_its_open_incident_is_gone_on_with(mirror: Mirror, record: RunRecord) -> None:
    """The run was paused: what was decided about i4 is done once it goes on, and nothing else is."""
    memory, observed = status.seen_of(mirror, record)
    going_on = replace(observed, control=replace(observed.control, paused=False), now=observed.now + 5.0)
    decided = decide(going_on, record.spec, memory)
    assert [(a.verb, a.key) for a in decided.actions if a.incident] == [("start", "start:1:3")]
    assert {g: m.generation for g, m in decided.memory.groups.items()} == {0: 3, 1: 3}


def test_its_decisions_are_made_again_alike(mirror: Mirror, journal: Path) -> None:
    asked = [decision_replay.why(incident, journal) for incident in client.incidents(mirror, RUN)]
    again = [one for why in asked for one in why.again]
    assert len(again) > 5
    assert {d for one in again if one.verdict not in ("same", "words") for d in one.differences} <= SINCE_THEN


def test_its_backup_is_restored(tmp_path: Path) -> None:
    file = RECORDED / "backup.json.gz"
    kept = backup.read(file)
    assert kept.runs == [RUN]
    store = MemoryStore()
    backup.restore(store, kept, file)
    there = Mirror(store.list(keys.PREFIX))
    assert client.incidents(there, RUN)
    assert there.unreadable == {}
