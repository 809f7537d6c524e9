"""Real trainers on a real Slurm: one run through every rung, then one whose replacement must wait for slurmctld.

The tests of the first run follow each other on it, so a failure in one may be the cause of those after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import BEGIN_S, SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Rung
from supervisor.wire.records import RunRecord
from tests.helpers.measure import measured
from tests.helpers.reasons import texts

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.trainers,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(3 * BEGIN_S),
]

AWAY_S = 30.0
"""Seconds for which slurmctld is away in the middle of a reallocation."""


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    with slurm_world(tmp_path_factory.mktemp("slurm"), toys=False) as made:
        yield made


@pytest.fixture(scope="module")
def record(w: SlurmWorld) -> RunRecord:
    """A run of two groups and a spare, on four hosts."""
    return w.launch(w.spec("rungs", start_timeout_s=BEGIN_S))


@pytest.fixture
def known(w: SlurmWorld, record: RunRecord) -> int:
    """The number of incidents so far, once all groups train and the run holds its spare."""
    eventually(lambda: w.all_run(record) and w.warm(record), BEGIN_S, "all groups train, and there is a warm spare")
    return len(w.incidents(record))


def after(w: SlurmWorld, record: RunRecord, known: int, fault: float) -> tuple[str, Rung]:
    """Kind and rung of the incident that came, once the group trains with the other again and they are equal."""
    incident = eventually(lambda: w.recovered(record, known), BEGIN_S, "it is over")
    measured(f"slurm: {incident.kind}, recovered", time.time() - fault)
    assert len(w.incidents(record)) == known + 1, "one failure, one incident"
    w.digests_equal(record, time.time())
    w.check(record)
    return incident.kind.value, incident.rung


def others_step_on(w: SlurmWorld, record: RunRecord, group: int, since: float) -> bool:
    """True if the other group has committed a step without it since then."""
    return any(
        line["participants"] == 1 and line["t"] > since
        for steps in w.history(record).steps
        if steps.group != group
        for line in steps.committed()
    )


@pytest.mark.long
def test_a_trainer_is_killed(w: SlurmWorld, record: RunRecord, known: int) -> None:
    node, fault = w.status(record).groups[1].node, time.time()
    w.kill_trainer(record, 1)
    assert after(w, record, known, fault) == ("crash", Rung.RESTART)
    assert w.status(record).groups[1].node == node


@pytest.mark.long
def test_a_slurmd_and_its_agent_are_killed(w: SlurmWorld, record: RunRecord, known: int) -> None:
    lost, spare = w.status(record).groups[1].node, w.status(record).spares
    fault = time.time()
    w.lose_machine(lost)
    assert after(w, record, known, fault) == ("node_lost", Rung.REPLACE)
    assert w.status(record).groups[1].node in spare
    assert others_step_on(w, record, 1, fault)
    eventually(lambda: len(w.status(record).spares) == 1, 60, "another host is asked for in its place")
    assert lost not in w.status(record).spares
    # its administrator brings it back
    w.lab.start_slurmd(lost)
    eventually(lambda: w.lab.node_states()[lost][0] == "idle", 60, "Slurm has it again")


@pytest.mark.long
def test_a_job_is_cancelled_from_outside(w: SlurmWorld, record: RunRecord, known: int) -> None:
    job, fault = w.job_of(record, 0), time.time()
    w.lab.cancel(job)
    assert after(w, record, known, fault) == ("allocation_lost", Rung.REALLOCATE)
    assert w.job_of(record, 0) != job
    assert f"job {job}" in texts(*w.incidents(record)[-1].evidence)


@pytest.mark.long
def test_a_node_is_drained(w: SlurmWorld, record: RunRecord, known: int) -> None:
    node, spent, fault = w.status(record).groups[1].node, w.status(record).budgets_left, time.time()
    w.lab.drain(node, "kernel update")
    assert after(w, record, known, fault) == ("leaving", Rung.REPLACE)
    assert "kernel update" in texts(*w.incidents(record)[-1].evidence)
    assert w.status(record).groups[1].node != node
    assert w.status(record).budgets_left == spent, "a planned move draws on no budget"
    eventually(lambda: w.lab.node_states()[node] == ["idle", "drain"], 60, "its job has been given back")
    w.lab.resume(node)


@pytest.mark.long
def test_slurmctld_is_away_in_the_middle_of_a_reallocation(w: SlurmWorld, record: RunRecord) -> None:
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped" and not w.live_jobs(), 120, "the first run ends")
    second = w.launch(w.spec("waits", spares=0, start_timeout_s=BEGIN_S))
    eventually(w.running(second, 1, 1), BEGIN_S, "both groups train")
    submitted, fault = len(w.lab.jobs()), time.time()
    w.lab.cancel(w.job_of(second, 1))
    w.lab.stop_controller()
    # by Slurm's answer, if that still came, or by the lease: no spare is left either way
    eventually(lambda: [i.rung for i in w.incidents(second)] == [Rung.REALLOCATE], 30, "it is decided")
    eventually(lambda: time.time() > fault + AWAY_S, AWAY_S + 5)
    assert [i.state for i in w.incidents(second)] == ["acting"]
    assert others_step_on(w, second, 1, fault + 10), "the other group trains on"
    w.lab.start_controller()
    assert after(w, second, 0, fault)[1] == Rung.REALLOCATE
    assert len(w.lab.jobs()) == submitted + 1, "one submission, however often it was tried"
