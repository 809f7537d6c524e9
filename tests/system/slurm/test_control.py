"""Slurm's effects on a run of toys: shared hosts, agents killed, hosts that come back, submissions that are refused."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.remediation.restore import ENDED
from supervisor.shell.processes import start_ticks
from supervisor.wire.records import RunRecord

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(720),
]

SOON_S = 60.0


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    with slurm_world(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def w(hall: SlurmWorld) -> Iterator[SlurmWorld]:
    """A world in which every run has ended and every host is idle again after the test."""
    yield hall
    for record in hall.launched:
        if hall.status(record).phase not in ENDED:
            hall.control(record, stop=True, paused=False)
    eventually(
        lambda: all(hall.status(r).phase in ENDED for r in hall.launched),
        SOON_S,
        "runs end",
    )
    ours = [job for job in hall.live_jobs() if job["comment"]]
    eventually(
        lambda: not {j["job_id"] for j in ours} & {j["job_id"] for j in hall.live_jobs()}, SOON_S, "all are given back"
    )
    hall.lab.clear()
    hall.launched.clear()


def trains(w: SlurmWorld, record: RunRecord) -> RunRecord:
    eventually(lambda: w.all_run(record), SOON_S, f"{record.spec.name} trains")
    return record


def longest_gap_s(w: SlurmWorld, record: RunRecord, since: float, until: float) -> float:
    times = sorted(
        line["t"] for s in w.history(record).steps for line in s.committed() if since - 1 < line["t"] < until
    )
    return max(b - a for a, b in itertools.pairwise(times))


@pytest.mark.long
def test_two_runs_share_the_hosts(w: SlurmWorld) -> None:
    """Each has its own lighthouse, hosts, names and budgets; a failure of one does not touch the other."""
    one, two = (trains(w, w.launch(w.spec(name, spares=0))) for name in ("one", "two"))
    nodes = {name: {g.node for g in w.status(r).groups} for name, r in (("one", one), ("two", two))}
    assert len(nodes["one"] | nodes["two"]) == 4
    assert w.status(one).lighthouse.address != w.status(two).lighthouse.address
    before = w.status(two).budgets_left
    assert w.status(one).budgets_left == before
    w.lab.cancel(w.job_of(one, 1))
    eventually(lambda: w.recovered(one, 0), SOON_S, "the first run recovers")
    assert w.status(one).budgets_left != before
    assert w.status(two).budgets_left == before
    assert w.incidents(two) == []
    assert {g.node for g in w.status(two).groups} == nodes["two"]
    assert {g.generation for g in w.status(two).groups} == {1}
    for record in (one, two):
        w.check(record)


def test_all_jobs_go_at_once(w: SlurmWorld) -> None:
    """Like a power failure: every group starts again, at no budget, and it is held against no host."""
    record = trains(w, w.launch(w.spec("dark", healthy_after_s=1.0)))
    before, began = w.status(record), time.time()
    eventually(lambda: time.time() > began + 1.5, SOON_S, "it has got somewhere: it would pay if it were lost at once")
    w.lab.cancel(*(job["job_id"] for job in w.live_jobs()))
    eventually(lambda: len(w.incidents(record)) >= 2 and w.all_run(record), SOON_S, "all groups train again")
    assert [(i.group, i.kind, i.rung) for i in sorted(w.incidents(record), key=lambda i: i.group)] == [
        (group, Kind.ALLOCATION_LOST, Rung.REALLOCATE) for group in (0, 1)
    ]
    after = w.status(record)
    assert (after.budgets_left, after.cordons) == (before.budgets_left, {})
    assert [g.generation for g in after.groups] == [2, 2]
    w.check(record)


@pytest.mark.long
def test_an_agent_is_upgraded_without_a_missed_step(w: SlurmWorld) -> None:
    """The job's main process is the shim: Slurm does not see the agent end."""
    record = trains(w, w.launch(w.spec("upgraded", spares=0)))
    node, job = w.status(record).groups[1].node, w.job_of(record, 1)
    before = w.trainer(record, 1).pid
    begun = time.time()
    for _ in range(3):
        pid = w.agent_pid(node)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: w.agent_pid(node) not in (0, pid), SOON_S, "the next agent is there")
    eventually(lambda: time.time() > begun + 6.0, 30)
    assert w.trainer(record, 1).pid == before
    assert w.job_of(record, 1) == job
    assert w.incidents(record) == []
    assert longest_gap_s(w, record, begun, time.time()) < record.spec.policy.node_lease_s, "it stepped on"
    w.check(record)


def test_the_task_of_a_stopped_slurmd_is_fenced(w: SlurmWorld) -> None:
    """Slurm calls the node down and the job failed; its processes live on. The group is started elsewhere, and the old
    one never commits again."""
    record = trains(w, w.launch(w.spec("stopped", spares=0)))
    node, pid = w.status(record).groups[1].node, w.trainer(record, 1).pid
    w.lab.freeze_slurmd(node)
    try:
        w.lab.down(node)
        incident = eventually(lambda: w.recovered(record, 0), SOON_S, "the group is elsewhere")
        assert (incident.kind, incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
        assert w.status(record).groups[1].node != node
        moved = time.time()
        eventually(lambda: start_ticks(pid) is None, SOON_S, "its own agent has ended the old trainer")
        late = [
            s
            for s in w.history(record).steps
            if (s.group, s.generation) == (1, 1)
            for x in s.committed()
            if x["t"] > moved
        ]
        assert late == []
        w.check(record)
    finally:
        w.lab.thaw(node)


@pytest.mark.long
def test_a_replacement_that_stays_pending(w: SlurmWorld) -> None:
    """After its deadline the run goes on with fewer groups and reports that; the group is back when there is a host."""
    record = trains(w, w.launch(w.spec("waits", spares=0, allocation_timeout_s=15.0)))
    used = {g.node for g in w.status(record).groups}
    other = [w.lab.submit("sleep 600", "--exclusive", f"--nodelist={n}") for n in w.lab.nodes if n not in used]
    eventually(
        lambda: all(w.lab.node_states()[n][0] == "allocated" for n in w.lab.nodes), SOON_S, "all hosts are taken"
    )
    lost = w.status(record).groups[1].node
    w.lab.drain(lost)
    w.lab.cancel(w.job_of(record, 1))
    said = eventually(lambda: w.says(record, "allocation", "pending: "), SOON_S, "it says what it waits for")
    assert "Resources" in said or "Priority" in said or "ReqNodeNotAvail" in said, "in Slurm's own words"
    eventually(lambda: w.says(record, "the run goes on without it"), SOON_S, "and that it goes on without")
    assert w.says(record, "group 1 without a node")
    assert w.status(record).groups[0].phase == "running"
    assert w.status(record).phase == "running"
    w.lab.cancel(other[0])
    eventually(lambda: w.all_run(record), SOON_S, "the group is back")
    w.check(record)


@pytest.mark.long
def test_what_slurm_refuses_is_not_asked_again(w: SlurmWorld) -> None:
    known = len(w.lab.jobs())
    record = w.launch(w.spec("refused", slurm={"partition": "nowhere"}))
    eventually(lambda: w.status(record).phase == "halted", SOON_S, "the run halts")
    state = w.status(record)
    assert "nowhere" in state.halt_reason or "partition" in state.halt_reason.lower(), "Slurm's own words"
    begun = time.time()
    eventually(lambda: time.time() > begun + 3, 5)
    assert len(w.lab.jobs()) == known, "no job was submitted"
