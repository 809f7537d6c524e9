"""A pool of Slurm's nodes: one job for each node, and none for the runs and the code that come to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import AllocationSpec
from supervisor.shell.inspect import client, pools
from supervisor.shell.inspect.pools import PoolStatus
from supervisor.wire.records import RunRecord
from tests.system.integration.test_killed_client import alive, killed_until_it_is_there
from tests.system.integration.test_pools import done
from tests.system.integration.test_sync import code, held, lies, printed, run_file, version_of

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(600),
]

SOON_S = 120.0
SLURM = """
[allocation]
engine = "slurm"
nodes = 2
slurm = {{ node_folder = "{folder}", drain_suspects = false }}
"""


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


def submitted(w: SlurmWorld) -> int:
    """The number of the newest job."""
    return max(int(job["job_id"]) for job in w.lab.jobs())


def test_runs_on_a_pool_submit_no_job(tmp_path: Path) -> None:
    with slurm_world(tmp_path) as w:
        w.launch(pools.spec_of(w.spec("lab"), 3, None))
        eventually(lambda: [n.state for n in status(w).nodes] == ["granted"] * 3, SOON_S, "its nodes are there")
        newest = submitted(w)
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
        assert submitted(w) == newest, "no job was submitted for a run"

        pools.release(w.store, w.mirror(), "lab")
        eventually(lambda: status(w).phase == "stopped" and not w.live_jobs(), SOON_S, "Slurm has all nodes back")
        for record in (first, second):
            w.check(record)


def test_clients_that_are_killed_submit_nothing_twice(tmp_path: Path) -> None:
    with slurm_world(tmp_path) as w:
        folder = code(tmp_path / "code", "one")
        file = run_file(folder, tmp_path / "crash", SLURM.format(folder=w.system))
        eventually(lambda: w.led() and alive(w), SOON_S, "a supervisor leads, and the service host is there")
        ask = partial(killed_until_it_is_there, w, 8)
        assert ask("hold", str(file), "--name", "lab", "--nodes", "2")["before"]
        eventually(lambda: [n.state for n in status(w).nodes] == ["granted"] * 2, SOON_S, "its nodes are there")
        assert len(w.live_jobs()) == 2, "a job for each node"
        newest = submitted(w)
        assert ask("launch", str(file), "--on", "lab")["before"]
        record = client.choose_run(w.mirror(), "first")
        eventually(w.running(record, 1, 1), SOON_S, "both groups run")
        code(folder, "two")
        assert ask("sync", str(folder), "--on", "lab")["before"]
        for node in status(w).nodes:
            eventually(partial(lies, w, node.node, version_of(w, "lab")), 30, "every node of the pool gets it")
        assert ask("relaunch", "first", "--yes")["before"]
        eventually(w.running(record, 2, 2), SOON_S, "all groups start again")
        assert [printed(w, record, group, 2) for group in (0, 1)] == ["two", "two"]
        assert ask("stop", "first")["before"]
        eventually(lambda: not status(w).used_by, SOON_S, "no run uses it")
        assert submitted(w) == newest, "no job was submitted for a run or its code"
        assert ask("release", "lab")["before"]
        eventually(lambda: not w.live_jobs(), SOON_S, "Slurm has all nodes back")
        w.check(record, stepped=False)


def test_edited_code_is_synced_and_seen_by_the_next_start_without_a_job(tmp_path: Path) -> None:
    with slurm_world(tmp_path) as w:
        folder = code(tmp_path / "code", "one")
        file = run_file(folder, tmp_path / "crash", SLURM.format(folder=w.system))
        held(w, folder, 2)
        newest = submitted(w)
        assert len(w.live_jobs()) == 2, "a job for each node"
        shims = {n.node: w.shim_pid(n.node) for n in status(w).nodes}

        def synced(version: str) -> None:
            code(folder, version)
            done(w, "sync", str(folder), "--on", "lab")
            for node in shims:
                eventually(partial(lies, w, node, version_of(w, "lab")), 30, "every node of the pool gets it")

        synced("one")
        done(w, "launch", str(file), "--on", "lab")
        record = client.choose_run(w.mirror(), "first")
        eventually(w.running(record, 1, 1), SOON_S, "both groups run")
        assert [printed(w, record, group, 1) for group in (0, 1)] == ["one", "one"]

        synced("two")
        done(w, "relaunch", "first", "--yes")
        eventually(w.running(record, 2, 2), SOON_S, "all groups start again")
        assert [printed(w, record, group, 2) for group in (0, 1)] == ["two", "two"]

        synced("three")
        done(w, "restart", "1", "--run", "first")
        assert printed(w, record, 1, 3) == "three"

        done(w, "stop", "first")
        eventually(lambda: not status(w).used_by, SOON_S, "no run uses it")
        assert {node: w.shim_pid(node) for node in shims} == shims
        assert submitted(w) == newest, "no job was submitted for a run or its code"
        done(w, "release", "lab")
        eventually(lambda: not w.live_jobs(), SOON_S, "Slurm has all nodes back")
        w.check(record, stepped=False)
