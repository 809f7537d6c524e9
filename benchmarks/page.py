"""Measures what the page costs with 1,000 groups of 8 ranks: `python -m benchmarks.page [--rounds N]`.

Two things are measured in turn, in one run: a look after every group has stepped since the last one, and a fixed
reference loop. The loop's time shows how fast the machine was just then. The bytes sent to a browser are counted too.
Exits 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.decide import describe, machine, once, reference
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.sim.lane import commit
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Lighthouse, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec
from supervisor.ports.store import Changes, Item, Snapshot
from supervisor.shell.control import projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.web.watcher import Page
from supervisor.wire import keys
from supervisor.wire.records import (
    GateGroup,
    GateObserved,
    GatePresence,
    Health,
    NodeObserved,
    Progress,
    Registration,
    RunRecord,
    TrainerObserved,
    encode,
)

GROUPS, RANKS, SPARES = 1000, 8, 20
RUN = "bench"
LOOK_MS = 1000.0
"""Milliseconds of a look. A pause ten times as long follows it: news every eleven seconds at the worst."""
WHOLE_BYTES, CHANGE_BYTES = 256_000, 64_000
RESULTS = Path(__file__).parent / "results" / "page.json"


def stepped(group: int, step: int) -> Item:
    """Returns the observed record of a group's node."""
    ranks = tuple(
        TrainerObserved(
            run=RUN, group=group, generation=1, rank=rank, pid=1, state="running", compute_s=1.0,
            progress=Progress(
                run=RUN, group=group, generation=1, rank=rank, pid=1, sequence=step, phase="step", step=step, commits=step,
                loss=2.5, step_s=1.0, quorum_id=3, participants=GROUPS,
            ),
        )
        for rank in range(RANKS)
    )  # fmt: skip
    seen = NodeObserved(node=f"n{group}", sequence=step, trainers=ranks if group < GROUPS else ())
    return Item(keys.observed(f"n{group}"), encode(seen), 1, step)


def mirror() -> Mirror:
    """Returns a run that trains, as etcd holds it."""
    allocation = AllocationSpec(nodes=GROUPS, spares=SPARES)
    spec = RunSpec(name=RUN, groups=GroupsSpec(count=GROUPS, ranks_per_group=RANKS), allocation=allocation)
    memory = Memory(
        clock=100.0,
        phase="running",
        groups={
            g: GroupMemory(group=g, generation=1, seats=(Seat(f"n{g}", allocation=f"{RUN}-a{g}"),), phase="running")
            for g in range(GROUPS)
        },
        allocations={
            f"{RUN}-a{g}": AllocationMemory(
                key=f"{RUN}-a{g}", state="wanted", since=0.0, reason=Reason.of(Code.RUN_STARTS)
            )
            for g in range(GROUPS + SPARES)
        },
        lighthouse=Lighthouse(node="host", generation=1, address="host:1"),
    )
    heard = tuple(GateGroup(group=g, generation=1, hearing="beating") for g in range(GROUPS))
    values = {
        keys.spec(RUN): encode(RunRecord(spec=spec, run_dir="/nowhere", launched_unix_s=1.0)),
        **projection.memory_records(spec, memory, ()),
        **projection.intent_records(spec, "/nowhere", memory),
        keys.gate("host", RUN): encode(
            GateObserved(run=RUN, node="host", generation=1, address="host:1", groups=heard)
        ),
        keys.gate_presence("host", RUN): encode(GatePresence(run=RUN, node="host", generation=1)),
    }
    for g in range(GROUPS + SPARES):
        node, key = f"n{g}", f"{RUN}-a{g}"
        values[keys.registration(node)] = encode(
            Registration(
                node=node, address="10.0.0.1", role="trainer", allocation=key, slots=RANKS, agent_pid=1, version="0"
            )
        )
        values[keys.health(node)] = encode(
            Health(node=node, sequence=1, warm="ready", disk_free_bytes=1, memory_available_bytes=1, load_1m=1.0)
        )
        values[keys.grant(RUN, key)] = encode(Grant(key=key, state="granted", nodes=(node,)))
    items = [Item(key, value, 1, 1) for key, value in values.items()]
    return Mirror(Snapshot(1, (*items, *(stepped(g, 1) for g in range(GROUPS + SPARES)))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    copy, page = mirror(), Page(MemoryStore())
    looks, base = [], []
    with page.reading("") as feed:
        page.look(copy)
        for step in range(2, rounds + 2):
            copy.apply(Changes(step, tuple(stepped(g, step) for g in range(GROUPS))))
            looks.append(once(lambda: page.look(copy)))
            base.append(once(reference))
        version, whole = feed.after(0, 0.0)
        _, change = feed.after(version - 1, 0.0)
    figures = {"look": describe(looks), "reference": describe(base)}
    met = figures["look"]["median_ms"] <= LOOK_MS and len(whole) <= WHOLE_BYTES and len(change) <= CHANGE_BYTES
    result = {
        "what": f"the page of {GROUPS} groups of {RANKS} ranks: a look after every group has stepped, and what is sent of it",
        "command": f"python -m benchmarks.page --rounds {rounds}",
        "bounds": {"look_ms": LOOK_MS, "whole_bytes": WHOLE_BYTES, "change_bytes": CHANGE_BYTES},
        "bounds_met": met,
        "rounds": rounds,
        "figures": figures,
        "ratio_to_reference": round(figures["look"]["median_ms"] / figures["reference"]["median_ms"], 2),
        "whole_bytes": len(whole),
        "change_bytes": len(change),
        "commit": commit(),
        "machine": machine(),
    }  # fmt: skip
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"a look: median {figures['look']['median_ms']:.0f} ms, {result['ratio_to_reference']} x reference")
    print(f"sent: {len(whole)} bytes at first, {len(change)} when every group has stepped")
    print(f"bounds: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
