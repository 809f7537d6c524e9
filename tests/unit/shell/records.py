"""A mirror of a small run, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Lighthouse, Memory, SlowSince, Tried
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import AllocationSpec, RunSpec
from supervisor.ports.store import Expect, Item, Snapshot
from supervisor.shell.control import projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord, encode
from tests.helpers.reasons import STARTS, text

SPEC = RunSpec(name="run", allocation=AllocationSpec(nodes=2, spares=1))

INCIDENT = Incident(
    id="i1",
    kind=Kind.NODE_LOST,
    group=1,
    node="n9",
    rung=Rung.REPLACE,
    generation_before=1,
    generation_after=2,
    reason=text("its node is gone"),
    evidence=(Reason.of(Code.LEASE_LAPSED, node="n9", lease_s=5),),
    considered=(Reason.of(Code.PAST_IT, rung="restart"),),
    state="acting",
    opened=5.0,
    decided=5.5,
)

MEMORY = Memory(
    clock=12.5,
    decisions=4,
    phase="running",
    groups={
        0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase="running", since=3.0),
        1: GroupMemory(group=1, generation=2, phase="fencing", left=(Seat("n9"),), incident="i1", attempts=1),
    },
    allocations={
        "run-a1": AllocationMemory(key="run-a1", state="wanted", since=1.0, reason=STARTS),
        "run-a2": AllocationMemory(key="run-a2", state="released", since=9.0, reason=text("cordoned"), exclude=("n9",)),
    },
    incidents={"i1": INCIDENT},
    incidents_seen=1,
    cordons={"n9": text("incident i1")},
    spent={"restart:0": (1.0, 2.0), "replace": (5.5,)},
    spent_by_kind={"crash:0": (1.0,)},
    tried={"restart": (Tried(seconds=3.5, mended=True),)},
    slow={0: SlowSince(generation=1, since=4.0, step=40)},
    restarts_done={0: 2},
    lighthouse=Lighthouse(node="host", generation=1, address="host:1"),
    checkpoint=Checkpoint(50, "step-50", 0, 1),
    silent=(1,),
)


def mirror_of(values: Mapping[str, bytes], revision: int = 1) -> Mirror:
    return Mirror(Snapshot(revision, tuple(Item(k, v, 1, revision) for k, v in values.items())))


def run_values(memory: Memory = MEMORY, name: str = "run") -> dict[str, bytes]:
    """All of a run's records in etcd."""
    spec = replace(SPEC, name=name)
    return {
        keys.spec(name): encode(RunRecord(spec=spec, run_dir=f"/runs/{name}", launched_unix_s=1.0)),
        **projection.memory_records(spec, memory, tuple(memory.incidents.values())),
        **projection.intent_records(spec, f"/runs/{name}", memory),
    }


def registration(node: str, **about: Any) -> dict[str, bytes]:
    record = Registration(
        **{  # type: ignore[arg-type]
            "node": node, "address": "127.0.0.1", "role": "trainer", "allocation": "", "slots": 1, "agent_pid": 1,
            "version": "0.1.0", **about,
        }
    )  # fmt: skip
    return {keys.registration(node): encode(record)}


class Term:
    """The term of a leader that leads while its key is in the store."""

    lost = lapsed = False

    def __init__(self, store: MemoryStore) -> None:
        self.epoch = store.put(keys.LEADER, b"{}")

    def expect(self) -> Expect:
        return Expect(keys.LEADER, create_revision=self.epoch)
