"""Jobs that live for three minutes, and a run that lives longer: no committed step is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import BEGIN_S, SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import GroupsSpec
from supervisor.wire.records import RunRecord

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
]

LIMIT_S = 180.0
WARN_S = 60
"""Slurm's signal may come up to a minute before that, so between one and two minutes after a job's start."""


def committed(w: SlurmWorld, record: RunRecord) -> list[tuple[int, int, int]]:
    """(step, group, generation) of every commit."""
    return [(line["step"], s.group, s.generation) for s in w.history(record).steps for line in s.committed()]


def no_step_twice(w: SlurmWorld, record: RunRecord) -> None:
    """Checks that no step was lost: a later generation of the same group would have made it again."""
    seen: dict[tuple[int, int], int] = {}
    for step, group, generation in committed(w, record):
        assert seen.setdefault((step, group), generation) == generation, f"step {step} of group {group} was made twice"
    steps = {step for step, _, _ in committed(w, record)}
    assert steps == set(range(1, max(steps) + 1)), "no step is missing"


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(LIMIT_S + 3 * BEGIN_S)
@pytest.mark.parametrize(("size", "shape"), [(1, "job_per_node"), (2, "job_per_node"), (2, "job_per_group")])
def test_groups_move_before_their_jobs_end(tmp_path: Path, size: int, shape: str) -> None:
    """With hosts enough for the move of one group at a time, or of both: each moves to its successors while the other trains."""
    with slurm_world(tmp_path, toys=False, nodes=3 * size + size % 2) as w:
        slurm = {"time_limit": "3", "warn_s": WARN_S, "shape": shape}
        spec = w.spec("limited", spares=0, slurm=slurm, start_timeout_s=BEGIN_S)
        groups = GroupsSpec(count=2, ranks_per_group=size, nodes_per_group=size)
        record = w.launch(replace(spec, groups=groups, allocation=replace(spec.allocation, nodes=2 * size)))
        eventually(w.running(record, 1, 1), BEGIN_S, "both groups train")
        begun = time.time()
        first = {job["job_id"] for job in w.live_jobs()}
        eventually(lambda: time.time() > begun + LIMIT_S, LIMIT_S + 5)
        eventually(lambda: not first & {job["job_id"] for job in w.live_jobs()}, 120, "the first jobs have ended")
        eventually(lambda: w.all_run(record), BEGIN_S, "both groups train on")
        incidents = w.incidents(record)
        assert {(i.kind, i.rung) for i in incidents} == {(Kind.LEAVING, Rung.REPLACE)}, incidents
        assert {i.group for i in incidents} == {0, 1}
        ended = {job["job_state"] for job in w.lab.jobs() if job["job_id"] in first}
        assert ended == {"CANCELLED"}, "they were given back before Slurm took them"
        w.digests_equal(record, time.time())
        no_step_twice(w, record)
        w.check(record)
