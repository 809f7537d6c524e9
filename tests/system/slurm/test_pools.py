"""A pool of Slurm's nodes: one job for each node, and none for the runs that train on them one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import AllocationSpec
from supervisor.shell.inspect import pools
from supervisor.shell.inspect.pools import PoolStatus
from supervisor.wire.records import RunRecord

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(600),
]

SOON_S = 120.0


def status(w: SlurmWorld) -> PoolStatus:
    record = pools.named(w.mirror(), "lab")
    assert record is not None
    return pools.pool_status(w.mirror(), record)


def launched(w: SlurmWorld, name: str) -> RunRecord:
    """Launches a run of two groups on the pool, and waits until both train."""
    on_it = AllocationSpec(engine="pool", pool="lab", nodes=2, spares=0)
    record = w.launch(replace(w.spec(name), allocation=on_it))
    eventually(w.running(record, 1, 1), SOON_S, f"{name} trains")
    return record


def test_runs_on_a_pool_submit_no_job(tmp_path: Path) -> None:
    with slurm_world(tmp_path) as w:
        w.launch(pools.spec_of(w.spec("lab"), 3, None))
        eventually(lambda: [n.state for n in status(w).nodes] == ["granted"] * 3, SOON_S, "its nodes are there")
        submitted = max(job["job_id"] for job in w.lab.jobs())
        shims = {n.node: w.shim_pid(n.node) for n in status(w).nodes}

        first = launched(w, "first")
        lost = w.status(first).groups[0].node
        w.kill_node(lost)
        eventually(lambda: w.status(first).groups[0].node not in ("", lost), SOON_S, "the pool's spare takes its place")
        eventually(w.running(first), SOON_S, "both groups train again")
        w.control(first, stop=True)
        eventually(lambda: w.status(first).phase == "stopped", SOON_S, "the run ends")

        second = launched(w, "second")
        now = {g.node for g in w.status(second).groups}
        assert now == shims.keys() - {lost}
        assert {node: w.shim_pid(node) for node in now} == {node: shims[node] for node in now}
        w.control(second, stop=True)
        eventually(lambda: not status(w).used_by, SOON_S, "no run uses it")
        assert max(job["job_id"] for job in w.lab.jobs()) == submitted, "no job was submitted for a run"

        pools.release(w.store, w.mirror(), "lab")
        eventually(lambda: status(w).phase == "stopped" and not w.live_jobs(), SOON_S, "Slurm has all nodes back")
        for record in (first, second):
            w.check(record)
