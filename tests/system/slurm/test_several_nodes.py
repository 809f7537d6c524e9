"""Groups of two nodes on a real Slurm of six, four ranks each: toys in a real quorum, once with a job for each node, once
with one for each group; then real trainers.

The tests follow each other on one run, so a failure in one may be the cause of those after it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import equal_digests
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import BudgetSpec, GroupsSpec, TitanSpec
from supervisor.shell.inspect import hosts
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, RunRecord
from tests.helpers.reasons import texts

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(600),
]

GROUPS, NODES, RANKS = 2, 2, 2
SOON_S = 240.0


@pytest.fixture(scope="module", params=[("job_per_node", True), ("job_per_group", True), ("job_per_group", False)])
def shape_and_toys(request: pytest.FixtureRequest) -> tuple[str, bool]:
    return request.param


@pytest.fixture(scope="module")
def shape(shape_and_toys: tuple[str, bool]) -> str:
    return shape_and_toys[0]


@pytest.fixture(scope="module")
def w(shape_and_toys: tuple[str, bool], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    _, toys = shape_and_toys
    with slurm_world(tmp_path_factory.mktemp("slurm"), toys=toys, nodes=6, slurmd_timeout=300) as made:
        yield made


@pytest.fixture(scope="module")
def record(w: SlurmWorld, shape: str) -> RunRecord:
    budget = BudgetSpec(restart=10, replace=10, reallocate=10)
    spec = w.spec("wide", GROUPS, start_timeout_s=SOON_S, budget=budget, slurm={"shape": shape})
    if w.toys:
        titan = TitanSpec(
            steps=10**6, checkpoint_interval_steps=20, overrides={"toy.mode": "model", "toy.step_s": 0.05}
        )
    else:
        titan = replace(spec.titan, recipe="tests.real_trainers.titan.recipes:that_rests_between_steps")
    groups = GroupsSpec(count=GROUPS, ranks_per_group=NODES * RANKS, nodes_per_group=NODES)
    allocation = replace(spec.allocation, nodes=GROUPS * NODES)
    return w.launch(replace(spec, titan=titan, groups=groups, allocation=allocation))


@dataclass(frozen=True)
class Before:
    """The run before a fault: nodes of both groups, all pids of group 0, and of group 1 the shims and agents, and the jobs."""

    nodes: tuple[str, ...]
    other: list[dict[str, int]]
    shims: dict[str, tuple[int, int]]
    jobs: dict[str, int]
    generation: int
    incidents: int


def pids(w: SlurmWorld, node: str) -> dict[str, int]:
    """The pids of the node's shim, and of the ranks there, by rank."""
    seen = w.mirror().record(keys.observed(node), NodeObserved)
    assert seen is not None
    return {"shim": w.shim_pid(node)} | {f"{t.rank}": t.pid for t in seen.trainers if t.state == "running"}


def shims(w: SlurmWorld, nodes: Iterable[str]) -> dict[str, tuple[int, int]]:
    return {node: (w.shim_pid(node), w.agent_pid(node)) for node in nodes}


def job_on(w: SlurmWorld, record: RunRecord, node: str) -> int:
    grants = w.mirror().table(keys.grant(record.spec.name, ""), Grant).values()
    (found,) = [g for g in grants if g.nodes == (node,) and g.state == "granted"]
    return int(found.engine_id.rpartition(":")[2])


@pytest.fixture
def before(w: SlurmWorld, record: RunRecord) -> Before:
    """Waits until both groups train, all is recovered, and the run holds its spare."""
    eventually(lambda: w.all_run(record), SOON_S, "both groups train, and there is a spare")
    steps_on(w, record)
    group, hurt = w.status(record).groups
    return Before(
        nodes=tuple(hurt.nodes),
        other=[pids(w, node) for node in group.nodes],
        shims=shims(w, hurt.nodes),
        jobs={node: job_on(w, record, node) for node in hurt.nodes},
        generation=hurt.generation,
        incidents=len(w.incidents(record)),
    )


def steps_on(w: SlurmWorld, record: RunRecord, more: int = 10) -> None:
    goal = max(g.step for g in w.status(record).groups) + more
    eventually(lambda: min(g.step for g in w.status(record).groups) >= goal, SOON_S, "both groups step")


def after(w: SlurmWorld, record: RunRecord, before: Before, lost: str = "") -> Incident:
    """The one incident that came, once the group steps again: the other group and the nodes that stayed are as before."""
    since = time.time()
    incident = eventually(lambda: w.recovered(record, before.incidents), SOON_S, "the group steps again")
    assert len(w.incidents(record)) == before.incidents + 1, "one failure, one incident"
    steps_on(w, record)
    group, hurt = w.status(record).groups
    assert [pids(w, node) for node in group.nodes] == before.other
    assert hurt.generation == before.generation + 1
    stayed = set(before.nodes) - {lost}
    assert stayed <= set(hurt.nodes)
    # Slurm may give the host of a cancelled job to the next job
    assert lost not in hurt.nodes or job_on(w, record, lost) != before.jobs[lost]
    assert shims(w, stayed) == {node: before.shims[node] for node in stayed}
    if not w.toys:
        eventually(lambda: equal_digests(w, record, since), SOON_S, "all ranks have the same state")
    w.check(record)
    return incident


def test_the_jobs_are_of_one_node_or_of_a_group(w: SlurmWorld, record: RunRecord, before: Before, shape: str) -> None:
    sizes = sorted(job["node_count"] for job in w.live_jobs())
    assert sizes == ([1] * 5 if shape == "job_per_node" else [1, NODES, NODES])


def test_a_rank_of_the_second_node_is_killed(w: SlurmWorld, record: RunRecord, before: Before) -> None:
    os.kill(pids(w, before.nodes[1])["3"], signal.SIGKILL)
    incident = after(w, record, before)
    assert (incident.kind, incident.rung, incident.node) == (Kind.CRASH, Rung.RESTART, before.nodes[1])


@pytest.mark.parametrize("lost", [0, 1])
def test_a_slurmd_and_its_agent_are_killed(w: SlurmWorld, record: RunRecord, before: Before, lost: int) -> None:
    """The neighbour lives on, in its job, and a job of one node is asked for."""
    gone, stayed = before.nodes[lost], before.nodes[1 - lost]
    w.lose_machine(gone)
    incident = after(w, record, before, gone)
    assert job_on(w, record, stayed) == before.jobs[stayed]
    newest = max(w.live_jobs(), key=lambda job: int(job["job_id"]))
    assert (newest["node_count"], newest["job_id"] in before.jobs.values()) == (1, False)
    assert (incident.kind, incident.rung, incident.node) == (Kind.NODE_LOST, Rung.REPLACE, gone)
    assert set(before.nodes).intersection(w.status(record).cordons) == {gone}
    # its administrator brings it back, and a person frees it
    w.lab.start_slurmd(gone)
    hosts.uncordon(w.store, w.mirror(), gone)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_its_jobs_is_cancelled_from_outside(w: SlurmWorld, record: RunRecord, before: Before, lost: int) -> None:
    gone = before.nodes[lost]
    job = job_on(w, record, gone)
    w.lab.cancel(job)
    incident = after(w, record, before, gone)
    assert (incident.kind, incident.node) == (Kind.ALLOCATION_LOST, gone)
    assert f"job {job}" in texts(*incident.evidence)


def test_one_of_its_nodes_is_drained(w: SlurmWorld, record: RunRecord, before: Before) -> None:
    gone, spent = before.nodes[0], w.status(record).budgets_left
    w.lab.drain(gone, "kernel update")
    incident = after(w, record, before, gone)
    assert (incident.kind, incident.rung, incident.node) == (Kind.LEAVING, Rung.REPLACE, gone)
    assert "kernel update" in texts(*incident.evidence)
    assert w.status(record).budgets_left == spent, "a planned move draws on no budget"
    eventually(lambda: w.lab.node_states()[gone] == ["idle", "drain"], SOON_S, "its job has been given back")
