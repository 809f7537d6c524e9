"""Cordons in etcd: their writers, a run's view of them, and the messages to a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import AllocationMemory, GroupMemory
from supervisor.core.model.observed import CordonView, Grant
from supervisor.core.model.seats import Seat
from supervisor.ports.errors import Fatal
from supervisor.shell.control import cordons, observe, projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import auth, backup
from supervisor.shell.inspect import hosts, render, status
from supervisor.wire import keys
from supervisor.wire.records import Cordon, GateGroup, GateObserved, GatePresence, RunRecord, decode, encode
from tests.helpers.reasons import STARTS
from tests.unit.shell.control.test_loop import _loop
from tests.unit.shell.inspect.test_status import text
from tests.unit.shell.records import MEMORY, SPEC, mirror_of, registration, run_values


def person(host: str = "n2", drain: bool = False) -> dict[str, bytes]:
    record = Cordon(host=host, why="disk", by="ann@login", at_unix_s=1.0, drain=drain)
    return {keys.cordon(host): encode(record)}


def suspicion(host: str = "n9", run: str = "run", incident: str = "i1", at: float = 5.0) -> dict[str, bytes]:
    return projection.suspicion_records([Suspicion(host=host, run=run, incident=incident, kind=Kind.NODE_LOST, at=at)])


def seen(*values: dict[str, bytes], run: str = "run") -> dict[str, CordonView]:
    return cordons.seen_by(mirror_of({k: v for found in values for k, v in found.items()}), run)


# --- a run's view ---


def test_a_persons_word_bars_a_host_for_every_run_and_a_drain_has_it_left() -> None:
    assert seen(person()) == {"n2": CordonView(why="cordoned by ann@login: disk")}
    why = "drained by ann@login: disk"
    assert seen(person(drain=True)) == {"n2": CordonView(why=why, drain=why)}


def test_one_incident_is_the_affair_of_its_own_run() -> None:
    assert seen(suspicion()) == {"n9": CordonView(ours=True)}
    assert seen(suspicion(), run="other") == {"n9": CordonView()}


def test_incidents_of_two_runs_are_everybodys() -> None:
    why = "incident i1 of run run (node_lost) and incident i4 of run other (node_lost) within a day"
    both = (suspicion(), suspicion(run="other", incident="i4", at=9.0))
    assert seen(*both) == {"n9": CordonView(why=why, ours=True)}
    assert seen(*both, run="third") == {"n9": CordonView(why=why)}


def test_what_a_switch_does_twice_within_a_day_bars_none_of_its_hosts() -> None:
    flaps = [
        suspicion(host, incident=f"i{at:g}", at=at + number)
        for at in (5.0, 40_000.0)
        for number, host in enumerate(("n7", "n8", "n9"))
    ]
    assert seen(*flaps) == {host: CordonView(ours=True) for host in ("n7", "n8", "n9")}
    alone = suspicion("n9", incident="i3", at=50_000.0), suspicion("n9", incident="i4", at=60_000.0)
    assert "incident i3 of run run (node_lost) and incident i4" in seen(*flaps, *alone)["n9"].why


@pytest.mark.parametrize("value", [b"{torn", b'{"$kind":"Other","$version":1}'])
def test_a_record_that_cannot_be_read_keeps_away_and_drains_nothing(value: bytes) -> None:
    (found,) = seen({keys.cordon("n2"): value}).values()
    assert (found.why, found.drain, found.ours) == (cordons.UNREADABLE, "", False)
    assert seen({keys.suspicion("n9", "run", "i1"): value}) == {"n9": CordonView(ours=True)}


def test_a_key_that_is_none_of_ours_bars_nothing() -> None:
    assert seen({keys.CORDONS + "n2": b"x", keys.CORDONS + "n2/else": b"x"}) == {}


def test_it_is_a_part_of_what_is_observed() -> None:
    mirror = mirror_of({**run_values(), **person()})
    assert observe.observed(mirror, "run", MEMORY, 1.0, 1.0).cordons == cordons.seen_by(mirror, "run")


# --- the leader ---


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """The store of a run of two groups, of which the one on n9 is gone with its node."""
    store = MemoryStore()
    store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir=str(tmp_path), launched_unix_s=0.0)))
    groups = {g: GroupMemory(group=g, generation=1, seats=(Seat(f"n{9 * g or 1}"),), phase="running") for g in (0, 1)}
    allocations = {
        key: AllocationMemory(key=key, state="wanted", since=1.0, reason=STARTS)
        for key in ("run-a1", "run-a2", "run-a3")
    }
    memory = replace(
        MEMORY, groups=groups, allocations=allocations, incidents={}, incidents_seen=0, cordons={}, spent={},
        restarts_done={}, checkpoint=None, silent=(), clock=1e6,
    )  # fmt: skip
    granted = {"run-a1": "n1", "run-a2": "n9", "run-a3": "n3"}
    values = projection.memory_records(SPEC, memory, ())
    for key, node in granted.items():
        values[keys.grant("run", key)] = encode(Grant(key=key, state="granted", nodes=(node,)))
    values |= {**registration("n1", allocation="run-a1"), **registration("n3", allocation="run-a3")}
    values |= registration("host", role="service")
    heard = tuple(
        GateGroup(group=g, generation=1, hearing=hearing)  # type: ignore[arg-type]
        for g, hearing in ((0, "beating"), (1, "silent"))
    )
    gate = GateObserved(run="run", node="host", generation=1, address="host:1", groups=heard)
    values[keys.gate("host", "run")] = encode(gate)
    values[keys.gate_presence("host", "run")] = encode(GatePresence(run="run", node="host", generation=1))
    for key, value in values.items():
        store.put(key, value)
    return store


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _cordons(store: MemoryStore) -> list[str]:
    return Mirror(store.list(keys.CORDONS)).keys(keys.CORDONS)


def test_the_leader_writes_what_it_holds_against_a_host_with_its_memory_and_lets_go_when_that_is_gone(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real `decide` is used: the host is cordoned, freed by a person, and used again."""
    clock = Clock()
    loop = _loop(store)
    loop._monotonic = clock
    loop._began = loop._stable_since = clock.now
    clock.now += 60.0
    loop.step()
    clock.now += 60.0
    loop.step()
    key = keys.suspicion("n9", "run", "i1")
    assert _cordons(store) == [key]
    (together,) = [puts for puts in store.commits if key in puts]
    assert keys.memory("run", "run") in together, "one transaction"
    memory = observe.memory(Mirror(store.list(keys.PREFIX)), "run")
    assert list(memory.cordons) == ["n9"]
    loop.step()
    assert sum(key in puts for puts in store.commits) == 1, "written once"
    hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "n9")
    loop.step()
    assert _cordons(store) == [], "nor again"
    assert observe.memory(Mirror(store.list(keys.PREFIX)), "run").cordons == {}


# --- a person ---


def filled(**values: bytes) -> MemoryStore:
    """A store with n2 alive on host big, with group 0 of `run`; n1 only remembered; the lighthouse on `host`."""
    store = MemoryStore()
    memory = replace(
        MEMORY, groups={0: GroupMemory(group=0, generation=1, seats=(Seat("n2", "big"),), phase="running")}
    )
    known = {**registration("n2", host="big"), **registration("host", role="service"), keys.health("n1"): b"{}"}
    store.commit({**run_values(memory), **known, **values})
    return store


def say(store: MemoryStore, name: str, drain: bool = False, elsewhere: bool = False) -> str:
    return hosts.cordon(store, Mirror(store.list(keys.PREFIX)), name, "disk", drain, lambda _: elsewhere)


def record(store: MemoryStore, host: str) -> Cordon:
    item = store.get(keys.cordon(host))
    assert item is not None
    return decode(item.value, Cordon)


@pytest.mark.parametrize("name", ["big", "n2"])
def test_a_cordon_is_of_the_host_whatever_name_is_given(name: str) -> None:
    store = filled()
    assert say(store, name) == (
        "host big is cordoned: no group is placed there any more; group 0 of run run stays on it; "
        "free it again: supervisor uncordon big"
    )
    found = record(store, "big")
    assert (found.host, found.why, found.drain) == ("big", "disk", False)
    assert "@" in found.by


def test_a_drain_says_who_will_leave() -> None:
    store = filled()
    assert "group 0 of run run will leave it when another node is there" in say(store, "n2", drain=True)
    assert record(store, "big").drain
    assert "no group is on it" in say(store, "n1", drain=True)


def test_a_cordon_after_a_drain_takes_the_drain_not_back() -> None:
    store = filled()
    say(store, "n2", drain=True)
    assert "host big is drained" in say(store, "n2")
    assert record(store, "big").drain


def test_what_somebody_else_writes_in_between_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled()
    real = store.get

    def late(key: str) -> Any:
        found = real(key)
        if key == keys.cordon("big") and found is None:
            store.commit(person("big", drain=True))
        return found

    monkeypatch.setattr(store, "get", late)
    assert "host big is drained" in say(store, "n2")


@pytest.mark.parametrize(
    ("name", "words"),
    [("n22", "nearest: n2"), ("zebra", "known: big, host, n1"), ("a/b", "a/b"), ("", "''")],
)
def test_a_host_that_nobody_knows_is_refused(name: str, words: str) -> None:
    store = filled()
    with pytest.raises(Fatal, match="no node was ever on a host") as error:
        say(store, name)
    assert words in str(error.value)
    assert _cordons(store) == []


def test_one_that_the_scheduler_knows_may_be_cordoned_before_anything_ran_there() -> None:
    store = filled()
    assert "host gpu-17 is cordoned" in say(store, "gpu-17", elsewhere=True)
    with pytest.raises(Fatal):
        say(store, "a/b", elsewhere=True)


def test_a_service_host_is_refused() -> None:
    with pytest.raises(Fatal, match="host host carries the lighthouse and no groups"):
        say(filled(), "host")


def test_a_node_of_a_shared_host_is_known_by_its_job_after_it_is_gone() -> None:
    store = filled(**{keys.health("big.77"): b"{}", keys.health("10.0.0.4"): b"{}"})
    assert "host big is cordoned" in say(store, "big.77")
    assert "host 10.0.0.4 is cordoned" in say(store, "10.0.0.4")


def test_uncordon_takes_away_all_that_is_held_against_a_host_and_nothing_else() -> None:
    store = filled(**person("big"), **person("n1"), **suspicion("big"), **suspicion("big", run="other", incident="i4"))
    said = hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "n2")
    assert said == "host big is free again, for every run (it was: cordoned by ann@login: disk)"
    assert _cordons(store) == [keys.cordon("n1")]
    with pytest.raises(Fatal, match=r"host big is not cordoned \(cordoned are n1\)"):
        hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "n2")


def test_several_are_freed_at_once_or_none_is() -> None:
    store = filled(**person("big"), **person("n1"))
    with pytest.raises(Fatal, match="host n9 is not cordoned"):
        hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "n1", "n9")
    assert _cordons(store) == [keys.cordon("big"), keys.cordon("n1")]
    said = hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "n1", "n2", "big")
    assert [line.split(",")[0] for line in said.splitlines()] == ["host n1 is free again", "host big is free again"]
    assert _cordons(store) == []


def test_more_than_a_transaction_holds_is_freed() -> None:
    store = filled()
    for number in range(205):
        store.commit(suspicion("big", run=f"r{number}"))
    hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "big")
    assert _cordons(store) == []


def test_an_unreadable_one_is_not_written_over_and_can_be_freed() -> None:
    store = filled(**{keys.cordon("big"): b"{torn"})
    with pytest.raises(Fatal, match="cannot be read"):
        say(store, "big")
    hosts.uncordon(store, Mirror(store.list(keys.PREFIX)), "big")
    assert "host big is cordoned" in say(store, "big")


# --- display ---


def test_status_and_nodes_say_why_and_by_whom() -> None:
    values = {**run_values(), **registration("n1"), **registration("n2"), **person("n2"), **suspicion("n9")}
    mirror = mirror_of(values)
    found = status.run_status(mirror, RunRecord(spec=SPEC, run_dir="/r", launched_unix_s=1.0))
    assert found.cordons == {"n2": "cordoned by ann@login: disk", "n9": "incident i1 (only for this run)"}
    assert "cordoned n2: cordoned by ann@login: disk" in text(render.run(found, 0.0))
    one, two, nine = status.node_status(mirror)
    assert (one.node, one.cordon) == ("n1", "")
    assert (two.node, two.cordon) == ("n2", "cordoned by ann@login: disk")
    assert (nine.node, nine.host, nine.cordon) == ("", "n9", "incident i1 (only for run run)")
    shown = text(render.nodes([one, two, nine]))
    assert "cordoned by ann@login: disk" in shown
    assert "no node on n9" in shown


def test_a_drained_node_is_said_to_leave_once() -> None:
    mirror = mirror_of({**run_values(), **registration("n2"), **person("n2", drain=True)})
    (two,) = [n for n in status.node_status(mirror) if n.node == "n2"]
    assert (two.leaving, two.cordon) == ("drained by ann@login: disk",) * 2
    assert text(render.nodes([two])).count("drained by") == 1


def test_what_an_ended_run_holds_against_a_host_is_not_shown() -> None:
    mirror = mirror_of({**run_values(replace(MEMORY, phase="finished")), **suspicion("n9")})
    assert status.node_status(mirror) == []
    assert "run that has ended" in hosts.uncordon(MemoryStore(), mirror, "n9")


# --- kept, and the writers ---


def test_a_backup_holds_them_and_a_restore_brings_them_back() -> None:
    store = filled(**person("n1", drain=True), **suspicion("big"))
    taken = backup.take(store)
    plan = backup.plan(taken)
    for key in _cordons(store):
        item = store.get(key)
        assert item is not None
        assert plan.records[key] == item.value
    assert len(_cordons(store)) == 2


def test_a_node_may_not_write_them() -> None:
    for role, permissions in auth.roles(["n1"]).items():
        may = any(keys.cordon("n1").startswith(prefix) and kind == "readwrite" for prefix, kind in permissions.items())
        assert may == (role == "supervisor"), role
