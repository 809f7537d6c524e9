"""The state kept between rounds equals one built from all of etcd, for any writers and any order of writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Checkpoint, Grant
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import PolicySpec
from supervisor.ports.store import Changes, Expect, Snapshot
from supervisor.shell.control import cordons, observe, projection
from supervisor.shell.control.audit import audit
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import (
    Control,
    Cordon,
    Fact,
    GateGroup,
    GateObserved,
    GatePresence,
    Health,
    LighthouseObserved,
    NodeCheck,
    NodeObserved,
    PolicySet,
    RunRecord,
    TrainerObserved,
    encode,
)
from tests.helpers.reasons import STARTS, text
from tests.unit.shell.records import INCIDENT, SPEC, registration, run_values

RUNS = ("run", "other")
NODES = ("n1", "n1.9", "host")
MACHINE = {"n1": "n1", "n1.9": "n1", "host": "host"}
TORN = 0.08
UNREADABLE = (b"{torn", b'{"$kind":"Else","$version":1}', b'{"$kind":"Memory","$version":99}')


def _of_a_node(node: str) -> Iterable[tuple[str, bytes]]:
    for allocation, role in (("", "service"), ("run-a1", "trainer"), ("other-a1", "trainer")):
        yield from registration(
            node, allocation=allocation, role=role, host=MACHINE[node] if allocation else ""
        ).items()
    for run, state in (("run", "running"), ("run", "exited"), ("other", "starting")):
        trainer = TrainerObserved(run=run, group=0, generation=1, rank=0, pid=1, state=state)  # type: ignore[arg-type]
        house = LighthouseObserved(run=run, generation=1, state=state)  # type: ignore[arg-type]
        yield keys.observed(node), encode(NodeObserved(node=node, sequence=1, trainers=(trainer,)))
        yield keys.observed(node), encode(NodeObserved(node=node, sequence=2, lighthouses=(house,), leaving="drained"))
        gate = GateObserved(
            run=run,
            node=node,
            generation=1,
            address="a:1",
            groups=(GateGroup(group=0, generation=1, hearing="beating"),),
        )
        yield keys.gate(node, run), encode(gate)
        yield keys.gate_presence(node, run), encode(GatePresence(run=run, node=node, generation=1))
    for facts in ((), (Fact(kind="disk_full", subject="/", evidence="it is full"),)):
        about: dict[str, Any] = {"disk_free_bytes": 1, "memory_available_bytes": 1, "load_1m": 0.5}
        yield keys.health(node), encode(Health(node=node, sequence=1, warm="ready", facts=facts, **about))
    failed, unsure = (
        CheckResult(name="disk", outcome="failed", evidence="it cannot be written"),
        CheckResult(name="disk", outcome="unknown", evidence="it did not end"),
    )
    for state, results in (("pending", ()), ("passed", ()), ("failed", (failed,)), ("unknown", (unsure,))):
        check = NodeCheck(
            node=node, host=MACHINE[node], state=state, why="before its first rank", began=3, results=results
        )  # type: ignore[arg-type]
        yield keys.check(node), encode(check)


def _of_a_run(run: str) -> Iterable[tuple[str, bytes]]:
    yield from run_values(name=run).items()
    spec = replace(SPEC, name=run)
    yield keys.spec(run), encode(RunRecord(spec=spec, run_dir="/elsewhere", launched_unix_s=2.0))
    policy = PolicySet(version=1, policy=PolicySpec(node_lease_s=99), because="slow", at_unix_s=1.0)
    yield keys.policy(run), encode(policy)
    yield keys.control(run), encode(Control(paused=True))
    for state in ("granted", "gone"):
        grant = Grant(key=f"{run}-a1", state=state, nodes=("n1", "n1.9"))
        yield keys.grant(run, grant.key), encode(grant)
    for state in ("released", "wanted"):
        allocation = AllocationMemory(key=f"{run}-a1", state=state, since=1.0, reason=STARTS)  # type: ignore[arg-type]
        yield keys.allocation(run, allocation.key), encode(allocation)
    for freed in ("", "the checks that it passed"):
        found = Suspicion(host="n1", run=run, incident="i1", kind=Kind.NODE_LOST, at=1.0, freed=freed)
        yield keys.suspicion("n1", run, "i1"), encode(found)
    yield keys.incident(run, "i1"), encode(replace(INCIDENT, state="recovered"))


PERSON = Cordon(host="n1", why="it smells", by="somebody@there", at_unix_s=1.0)
RECORDS = (
    *(each for node in NODES for each in _of_a_node(node)),
    *(each for run in RUNS for each in _of_a_run(run)),
    (keys.cordon("n1"), encode(PERSON)),
    (keys.cordon("n1"), encode(replace(PERSON, drain=True))),
    (keys.RUNS + "run/spec/none/of/ours", b"x"),
)
KEYS = sorted({key for key, _ in RECORDS})
ALL_OF = [[key for key in KEYS if f"/{one}/" in key] for one in (*NODES, *RUNS)]
STEPS = (*("theirs", "ours", "decided", "watched") * 2, "launched", "reset", *("looked",) * 4)
STEPS_A_SEED = 60


class Term:
    epoch = 1
    lapsed = False

    def expect(self) -> Expect:
        return Expect(keys.LEADER)


class Engine:
    name = SPEC.allocation.engine


class Supervisor:
    """The kept state, and a store that others write too."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.store = MemoryStore()
        self.store.commit(run_values())
        self.mirror = Mirror(self.store.list(keys.PREFIX))
        self.driver = EngineDriver(self.store, Engine())  # type: ignore[arg-type]
        self.made = {run: projection.Made() for run in RUNS}
        self.place = self.mirror.revision

    def theirs(self) -> None:
        puts = self._some()
        deletes = self.chance.choice([[], [], [], self.chance.sample(KEYS, 2), self.chance.choice(ALL_OF)])
        self.store.commit(puts, [key for key in deletes if key not in puts])

    def launched(self) -> None:
        """Launches a run, perhaps again, under a name that is gone."""
        run = self.chance.choice(RUNS)
        spec = {key: value for key, value in RECORDS if key == keys.spec(run)} if self.chance.random() < 0.5 else {}
        self.store.commit(run_values(name=run) | spec)

    def ours(self) -> None:
        self._write(self._some())

    def _some(self) -> dict[str, bytes]:
        chosen = self.chance.sample(RECORDS, self.chance.randrange(5))
        return {key: value if self.chance.random() > TORN else self.chance.choice(UNREADABLE) for key, value in chosen}

    def _write(self, puts: dict[str, bytes]) -> None:
        if puts:
            self.mirror.wrote(puts, self.store.commit(puts))

    def watched(self) -> None:
        watch = self.store.watch(keys.PREFIX, self.place)
        while (changes := watch.poll(0.0)) is not None:
            self.mirror.apply(changes)
            self.place = changes.revision
        assert self.mirror.items == {item.key: item for item in self.store.list(keys.PREFIX).items}

    def reset(self) -> None:
        found = self.store.list(keys.PREFIX)
        self.mirror.apply(Changes(found.revision, found.items, reset=True))
        self.place = found.revision
        self.watched()

    def looked(self) -> None:
        anew = Mirror(Snapshot(self.mirror.revision, tuple(self.mirror.items.values())))
        assert told(self.mirror, self.driver) == told(anew, EngineDriver(self.store, Engine()))  # type: ignore[arg-type]

    def decided(self) -> None:
        """Writes a decision as the loop does: changed parts of a memory, and those desired records that differ."""
        run = self.chance.choice(RUNS)
        record = observe.runs(self.mirror).get(run)
        try:
            memory = observe.memory(self.mirror, run)
        except observe.Unreadable:
            return
        if record is None:
            return
        after = changed(memory, self.chance)
        parts = projection.memory_records(record.spec, after, (), memory)
        whole = projection.memory_records(record.spec, after, ())
        left_out = {key: self.mirror.items[key].value for key in whole.keys() - parts.keys()}
        assert {**parts, **left_out} == whole
        intents = projection.intent_records(record.spec, record.run_dir, after, self.made[run])
        assert list(intents.items()) == list(projection.intent_records(record.spec, record.run_dir, after).items())
        known = self.mirror.items
        self._write({k: v for k, v in (parts | intents).items() if k not in known or known[k].value != v})


def changed(memory: Memory, chance: Random) -> Memory:
    """A memory with one changed value."""
    number, node = chance.randrange(3), chance.choice(NODES)
    about: dict[str, Any] = {"decisions": memory.decisions + 1}
    match chance.randrange(8):
        case 0 | 1 if memory.groups:
            group = chance.choice(list(memory.groups.values()))
            ways: tuple[dict[str, Any], ...] = (
                {"phase": "running", "seats": (Seat(node),)},
                {"phase": "fencing"},
                {"generation": number},
                {"seats": (Seat(node),)},
            )
            about["groups"] = {**memory.groups, group.group: replace(group, **chance.choice(ways))}
        case 2:
            more = AllocationMemory(key=f"run-a{number}", state="wanted", since=1.0, reason=text(node))
            about["allocations"] = {**memory.allocations, more.key: more}
        case 3:
            other: tuple[dict[str, Any], ...] = ({"node": node}, {"address": node}, {"closing": number == 1})
            about["lighthouse"] = replace(memory.lighthouse, **chance.choice(other))
        case 4:
            about["silent"] = tuple(range(number))
        case 5:
            about["checkpoint"] = Checkpoint(number, f"step-{number}", 0, 1)
        case 6:
            about["phase"] = chance.choice(["running", "running", "stopping", "stopped"])
        case _:
            about |= {"handover_at_step": number or None, "stop_at_step": number or None}
    return replace(memory, **about)


def told(mirror: Mirror, driver: EngineDriver) -> dict[str, Any]:
    """All answers that a round gets from a mirror."""

    def seen(run: str) -> Any:
        try:
            memory = observe.memory(mirror, run)
        except observe.Unreadable as error:
            return sorted(str(error).split(": ", 1)[1].split("; "))
        return memory, list(memory.groups), observe.observed(mirror, run, memory, 7.0, 8.0)

    driver.offer(mirror, Term())  # type: ignore[arg-type]
    runs = observe.runs(mirror)
    return {
        "runs": list(runs.items()),
        "seen": {run: seen(run) for run in runs},
        "runs on": {run: observe.runs_on(mirror, run) for run in RUNS},
        "nodes": mirror.nodes(),
        "hosts": cordons.by_host(mirror),
        "freed": cordons.freed_by_checks(mirror),
        "offered": (driver._wanted.allocations, driver._wanted.grants) if driver._wanted else None,
        "unreadable": audit(mirror, mirror.items),
        "said": mirror.unreadable,
        "keys": (mirror.keys(""), mirror.keys(keys.NODES), mirror.of_sort("spec"), mirror.of_sort("observed")),
    }


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_would_be_made_anew(seed: int) -> None:
    supervisor = Supervisor(Random(seed))
    for name in supervisor.chance.choices(STEPS, k=STEPS_A_SEED):
        getattr(supervisor, name)()
    supervisor.looked()
    supervisor.watched()
    supervisor.looked()
