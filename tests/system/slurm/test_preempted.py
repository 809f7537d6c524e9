"""Another user's job in a partition of a higher tier gets a host of ours, after a grace: toys on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from fault_injection.testbed.own_slurm import GRACE_S, available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT
from supervisor.core.model.kinds import Kind, Rung
from supervisor.wire.records import RunRecord
from tests.helpers.reasons import texts
from tests.real_trainers.test_rungs import others_step_on
from tests.system.slurm.test_control import SOON_S, trains

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(900),
]

LONG_S = 120
"""A grace in which a group can be moved on a busy machine."""
LONG = f"long Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={LONG_S}"
SIGNALS = {"SlurmctldParameters": "preempt_send_user_signal"}
"""The option of Slurm 22.05; since 23.02 it is PreemptParameters=send_user_signal."""


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.long)],
    ids=["by Slurm's lists alone", "by a signal too"],
)
def signals(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def w(signals: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    options = SIGNALS if signals else {}
    with slurm_world(tmp_path_factory.mktemp("slurm"), preempt=True, partitions=[LONG], options=options) as made:
        yield made


def preempt(w: SlurmWorld, node: str) -> int:
    """Submits a job that takes the node; returns its number."""
    return w.lab.submit("sleep 600", "--partition=high", "--exclusive", f"--nodelist={node}")


def job(w: SlurmWorld, number: int) -> dict[str, object]:
    return next(job for job in w.lab.jobs() if job["job_id"] == number)


def other_goes_on(w: SlurmWorld, record: RunRecord, since: float) -> None:
    """Checks that the other group never pauses for longer than a collective that lost a peer may take. A group that
    moves to a warm spare may be back before the others are ordered to go on without it."""
    back = time.time()
    eventually(lambda: any(t > back for t in committed(w, record, since)), SOON_S, "the other group commits")
    longest = max(later - earlier for earlier, later in pairwise([since, *committed(w, record, since)]))
    print(f"MEASURED the other group's longest gap {longest:.2f} s")
    assert longest < 2 * TORCHFT.process_group_timeout_ms / 1000
    assert w.status(record).groups[0].generation == 1


def committed(w: SlurmWorld, record: RunRecord, since: float) -> list[float]:
    """Times since then of the commits of the group that is not preempted."""
    ours = [steps for steps in w.history(record).steps if steps.group == 0]
    return [line["t"] for steps in ours for line in steps.committed() if line["t"] > since]


def test_the_group_moves_to_the_spare_before_its_grace_is_over(w: SlurmWorld, signals: bool) -> None:
    record = trains(w, w.launch(w.spec("moves", slurm={"partition": "long"})))
    before, ours, begun = w.status(record), w.job_of(record, 1), time.time()
    taken = preempt(w, before.groups[1].node)
    incident = eventually(lambda: w.recovered(record, 0), SOON_S, "it is over")
    assert (incident.kind, incident.rung) == (Kind.LEAVING, Rung.REPLACE)
    assert (incident.group, incident.node) == (1, before.groups[1].node)
    assert f"Slurm preempts job {ours}, after a grace of {LONG_S} s" in texts(incident.evidence[0])
    shim_said = (w.system / "nodes" / incident.node / "shim.jsonl").read_text()
    assert ('"event":"leaving"' in shim_said.replace(" ", "")) is signals, "the signal alone would not say why"
    other_goes_on(w, record, begun)
    after = w.status(record)
    assert after.groups[1].node in before.spares
    assert (after.budgets_left, after.cordons) == (before.budgets_left, {})
    eventually(lambda: job(w, taken)["job_state"] == "RUNNING", SOON_S, "the other has the host")
    assert time.time() < begun + LONG_S, "long before the grace is over: the allocation is given back"
    assert job(w, ours)["restart_cnt"] == 0
    eventually(lambda: w.all_run(record), SOON_S, "another spare is asked for in its place")
    assert len(w.incidents(record)) == 1
    w.check(record)
    w.lab.cancel(taken)
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", SOON_S, "the run ends")


@pytest.mark.long
def test_where_no_host_is_free_its_allocation_ends_at_nobodys_fault(w: SlurmWorld) -> None:
    eventually(lambda: not w.live_jobs("RUNNING", "COMPLETING"), SOON_S, "all hosts are free")
    record = trains(w, w.launch(w.spec("waits", spares=0, slurm={"partition": "graced"})))
    before, ours, begun = w.status(record), w.job_of(record, 1), time.time()
    used = {group.node for group in before.groups}
    taken = [preempt(w, node) for node in w.lab.nodes if node not in used]
    taken.append(preempt(w, before.groups[1].node))
    why = f"Slurm preempts job {ours}, after a grace of {GRACE_S} s"
    eventually(lambda: why in w.status(record).leaving.values(), SOON_S, "it says why")
    incident = eventually(lambda: next(iter(w.incidents(record)), None), GRACE_S + SOON_S, "the grace is over")
    assert (incident.kind, incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    assert (incident.group, incident.node) == (1, before.groups[1].node)
    assert "PREEMPTED" in texts(incident.evidence[0])
    other_goes_on(w, record, begun)
    eventually(lambda: others_step_on(w, record, 1, begun), SOON_S, "alone, as nobody takes the lost one's place")
    assert (w.status(record).budgets_left, w.status(record).cordons) == (before.budgets_left, {})
    w.lab.cancel(taken[0])
    eventually(lambda: w.recovered(record, 0), SOON_S, "the group is back when a host is free")
    assert job(w, ours)["restart_cnt"] == 0
    assert len(w.incidents(record)) == 1
    w.check(record)
