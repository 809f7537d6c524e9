"""Groups on several nodes with real processes: toys of several ranks, which meet at one store and step in a real quorum."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, toy_spec, world
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, TitanSpec
from supervisor.shell.engines.local import Pool
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, Registration, RunRecord

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(600)]

GROUPS, NODES, RANKS = 2, 2, 2
SWITCHES = {"n1": "s.a", "n2": "s.b", "n3": "s.a", "n4": "s.b"}


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("wide"), nodes=GROUPS * NODES + 3) as made:
        pool = Pool.load(made.system)
        assert pool is not None
        nodes = tuple(replace(node, switch=SWITCHES.get(node.name, "")) for node in pool.nodes)
        replace(pool, nodes=nodes).save(made.system)
        made.supervisor()
        yield made


@pytest.fixture(scope="module")
def record(w: World) -> RunRecord:
    spec = toy_spec("wide", GROUPS, start_timeout_s=120.0)
    titan = TitanSpec(
        steps=10**6,
        checkpoint_interval_steps=20,
        overrides={"toy.mode": "model", "toy.step_s": 0.05},
    )
    spec = replace(
        spec,
        titan=titan,
        torchft=TORCHFT,
        groups=GroupsSpec(count=GROUPS, ranks_per_group=NODES * RANKS, nodes_per_group=NODES),
        allocation=AllocationSpec(nodes=GROUPS * NODES, spares=1),
        policy=replace(spec.policy, budget=replace(spec.policy.budget, restart=10)),
    )
    launched = w.launch(spec)
    eventually(w.running(launched, 1, 1), 120, "both groups run")
    return launched


def pids(w: World, node: str) -> dict[str, int]:
    """The pids of the node's shim, and of the ranks there, by rank."""
    seen = w.mirror().record(keys.observed(node), NodeObserved)
    assert seen is not None
    return {"shim": w.shim_pid(node)} | {f"{t.rank}": t.pid for t in seen.trainers if t.state == "running"}


def steps_on(w: World, record: RunRecord, more: int = 10) -> None:
    goal = max(g.step for g in w.status(record).groups) + more
    eventually(lambda: min(g.step for g in w.status(record).groups) >= goal, 60, "both groups step")


def recovered(w: World, record: RunRecord, generation: int) -> Incident:
    """The newest incident of group 1, once that trains in this generation."""

    def newest() -> Incident | None:
        found = [i for i in w.incidents(record) if i.generation_after >= generation and i.group == 1]
        return found[-1] if found and found[-1].state == "recovered" else None

    return eventually(newest, 60, "the group steps again")


def test_a_group_takes_nodes_at_one_switch(w: World, record: RunRecord) -> None:
    """Four of the five nodes may be there when groups are placed: two at one switch are among them, for the first."""
    at = {name: w.mirror().record(keys.registration(name), Registration) for name in SWITCHES}
    assert {name: registered.switch for name, registered in at.items() if registered is not None} == SWITCHES
    actions = [action for decision in w.history(record).committed() for action in decision.actions]
    first = next(action for action in actions if action["verb"] == "place")
    assert tuple(first["nodes"]) in (("n1", "n3"), ("n2", "n4"))
    assert f"switch {SWITCHES[first['node']]}" in json.dumps(first["reason"]), first


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 3])
def test_a_killed_rank_ends_those_of_its_group_on_all_nodes(w: World, record: RunRecord, rank: int) -> None:
    steps_on(w, record)
    before = w.status(record).groups
    nodes, other = before[1].nodes, [pids(w, node) for node in before[0].nodes]
    shims = [w.shim_pid(node) for node in nodes]
    os.kill(pids(w, nodes[rank // RANKS])[str(rank)], signal.SIGKILL)
    incident = recovered(w, record, before[1].generation + 1)
    assert (incident.kind, incident.rung, incident.rank) == (Kind.CRASH, Rung.RESTART, rank)
    assert incident.node == nodes[rank // RANKS]
    assert w.status(record).groups[1].nodes == nodes
    assert [w.shim_pid(node) for node in nodes] == shims
    steps_on(w, record)
    assert [pids(w, node) for node in before[0].nodes] == other


@pytest.mark.long  # by day: tests/unit/core/test_several_nodes.py
@pytest.mark.parametrize("lost", [0, 1])
def test_only_the_lost_node_is_replaced(w: World, record: RunRecord, lost: int) -> None:
    steps_on(w, record)
    before = w.status(record).groups
    gone, kept = before[1].nodes[lost], before[1].nodes[1 - lost]
    other, shim = [pids(w, node) for node in before[0].nodes], w.shim_pid(kept)
    w.kill_node(gone)
    incident = recovered(w, record, before[1].generation + 1)
    assert (incident.kind, incident.node) == (Kind.NODE_LOST, gone)
    assert incident.generation_after == before[1].generation + 1, (
        "that ranks elsewhere lost a peer is no failure of its own"
    )
    now = w.status(record).groups[1].nodes
    assert now[0] == kept
    assert gone not in now
    assert w.shim_pid(kept) == shim
    steps_on(w, record)
    assert [pids(w, node) for node in before[0].nodes] == other
    assert set(w.status(record).cordons) >= {gone}
    assert kept not in w.status(record).cordons


def test_the_checkers_agree(w: World, record: RunRecord) -> None:
    w.check(record)
    assert (Path(record.run_dir) / "journal.jsonl").exists()
