"""Records of a pool with three nodes, and of runs on it, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec
from supervisor.shell.control import observe
from supervisor.shell.control.pools import PoolDriver
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, NodeObserved, RunRecord, TrainerObserved, encode
from tests.helpers.reasons import STARTS
from tests.unit.shell.records import Term, registration

POOL = RunSpec(name="lab", groups=GroupsSpec(count=0), allocation=AllocationSpec(nodes=3, spares=0))
RUN = RunSpec(name="toy", allocation=AllocationSpec(engine="pool", pool="lab", nodes=2, spares=0))


def launched(spec: RunSpec, memory: Memory | None = None, at: float = 1.0) -> dict[str, bytes]:
    record = RunRecord(spec=spec, run_dir=f"/runs/{spec.name}", launched_unix_s=at)
    known = {keys.memory(spec.name, "run"): encode(memory)} if memory is not None else {}
    return {keys.spec(spec.name): encode(record), **known}


def wants(run: str, number: int, **about: Any) -> dict[str, bytes]:
    key = f"{run}-a{number}"
    wanted = AllocationMemory(key=key, state="wanted", since=1.0, reason=STARTS)
    return {keys.allocation(run, key): encode(replace(wanted, **about))}


def node(number: int, **about: Any) -> dict[str, bytes]:
    """An allocation of the pool, whose node has registered."""
    key = f"lab-a{number}"
    given = Grant(key=key, state="granted", nodes=(f"n{number}",), engine_id=f"local:{number}")
    there = registration(f"n{number}", allocation=key, slots=about.pop("slots", 1))
    return {**wants("lab", number), keys.grant("lab", key): encode(replace(given, **about)), **there}


def lent(run: str, number: int, of: int, **about: Any) -> dict[str, bytes]:
    key = f"{run}-a{number}"
    given = Grant(key=key, state="granted", nodes=(f"n{of}",), engine_id=f"lab/lab-a{of}", through=f"lab-a{of}")
    return {keys.grant(run, key): encode(replace(given, **about))}


def runs_there(number: int, run: str, state: Any = "running") -> dict[str, bytes]:
    trainer = TrainerObserved(run=run, group=0, generation=1, rank=0, pid=7, state=state)
    return {keys.observed(f"n{number}"): encode(NodeObserved(node=f"n{number}", sequence=1, trainers=(trainer,)))}


def lab(memory: Memory | None = None, spec: RunSpec = POOL) -> dict[str, bytes]:
    """The pool, with three nodes that are free."""
    return {**launched(spec, memory or Memory(phase="running", held_since=1.0)), **node(1), **node(2), **node(3)}


def store_of(*values: dict[str, bytes]) -> MemoryStore:
    """Returns a store with these records, and a leader."""
    store = MemoryStore()
    for each in values:
        for key, value in each.items():
            store.put(key, value)
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="/runs")))
    return store


class Leads(Term):
    """The term of the leader that is in the store."""

    def __init__(self, store: MemoryStore) -> None:
        item = store.get(keys.LEADER)
        assert item is not None
        self.epoch = item.create_revision


def mirror(store: MemoryStore) -> Mirror:
    return Mirror(store.list(keys.PREFIX))


def turn(store: MemoryStore) -> Mirror:
    """One turn of a leader's driver. Returns what etcd holds then."""
    seen = mirror(store)
    PoolDriver(store).offer(seen, observe.runs(seen), Leads(store))  # type: ignore[arg-type]
    now = mirror(store)
    assert {k: i.value for k, i in seen.items.items()} == {k: i.value for k, i in now.items.items()}
    return now


def granted(store: MemoryStore, run: str) -> dict[str, Grant]:
    return {g.key: g for g in mirror(store).table(keys.grant(run, ""), Grant).values()}


def placed(*groups: GroupMemory) -> Memory:
    return Memory(phase="running", groups={g.group: g for g in groups})
