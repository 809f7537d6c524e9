"""Runs on nodes that a pool holds, as a user launches them: with real etcd, processes, a local engine and toys."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fault_injection.checkers.consistency import check
from fault_injection.checkers.history_file import load as read
from fault_injection.checkers.recovery import ALL
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, world
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.inspect import client, pools
from supervisor.shell.inspect.pools import PoolStatus
from supervisor.wire.records import RunRecord
from tests.real_trainers.test_chaos import chaos
from tests.real_trainers.test_chaos import said as ended
from tests.system.integration.test_cli import fails
from tests.system.integration.test_launch import said

pytestmark = pytest.mark.etcd

RUN = """
name = "first"
titan = { steps = 1000000, checkpoint_interval_steps = 1000000 }
groups = { count = 2 }
policy = { node_lease_s = 5, term_grace_s = 1.0 }
"""


def pool(w: World) -> PoolStatus:
    record = pools.named(w.mirror(), "lab")
    assert record is not None
    return pools.pool_status(w.mirror(), record)


def done(w: World, *arguments: str) -> str:
    result = said(w, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def launched(w: World, file: Path, name: str) -> RunRecord:
    done(w, "launch", str(file), "--name", name, "--on", "lab")
    return client.choose_run(w.mirror(), name)


def given(w: World) -> set[str]:
    """The allocations that were asked of the engine and have not ended."""
    return {grant.key for grant in LocalEngine(w.system).list() if grant.state != "gone"}


@pytest.mark.timeout(300)
def test_runs_share_the_nodes_of_a_pool_one_after_the_other(empty: World, tmp_path: Path) -> None:
    w, file = empty, tmp_path / "run.toml"
    file.write_text(RUN)
    eventually(w.led, 30, "a supervisor leads")
    assert done(w, "hold", str(file), "--name", "lab", "--nodes", "3").startswith("pool lab holds 3 nodes; folder ")
    eventually(lambda: [n.state for n in pool(w).nodes] == ["granted"] * 3, 60, "its nodes are there")
    shims = {n.node: w.shim_pid(n.node) for n in pool(w).nodes}

    first = launched(w, file, "first")
    eventually(w.running(first, 1, 1), 60, "both groups run")
    assert pool(w).used_by == {"first": 2}
    fails(said(w, "release", "lab"), 1, "pool lab is used by run first")
    fails(said(w, "stop", "lab"), 1, "lab is a pool, not a run")

    lost = w.status(first).groups[0].node
    w.kill_node(lost)
    eventually(lambda: w.status(first).groups[0].node not in ("", lost), 60, "the pool's spare takes its place")
    eventually(w.running(first), 60, "both groups run again")
    assert {key.rpartition("-")[0] for key in given(w)} == {"lab"}, "the run asks the engine for nothing"

    leader = w.supervisors[0]
    os.kill(leader.pid, signal.SIGKILL)
    w.supervisor()
    done(w, "stop", "first")
    eventually(lambda: w.status(first).phase == "stopped", 60, "the run ends")
    second = launched(w, file, "second")
    eventually(w.running(second, 1, 1), 60, "the next run trains on the same nodes")
    now = {g.node for g in w.status(second).groups}
    assert now == shims.keys() - {lost}
    assert {node: w.shim_pid(node) for node in now} == {node: shims[node] for node in now}
    assert {key.rpartition("-")[0] for key in given(w)} == {"lab"}

    done(w, "stop", "second")
    eventually(lambda: not pool(w).used_by, 60, "no run uses it")
    assert done(w, "release", "lab") == "pool lab: its 3 nodes are given back to the engine\n"
    eventually(lambda: pool(w).phase == "stopped" and not given(w), 60, "the engine has all nodes")
    for record in (first, second):
        w.check(record)


WIDE = """
name = "wide"
titan = { steps = 1000000, checkpoint_interval_steps = 1000000 }
groups = { count = 2, nodes_per_group = 2, ranks_per_group = 2 }
allocation = { nodes = 4 }
policy = { node_lease_s = 5, term_grace_s = 1.0 }
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_groups_of_several_nodes_on_a_pool(tmp_path: Path) -> None:
    """One lost node is replaced by the pool's spare; its group's other node keeps its shim and its seat."""
    file = tmp_path / "run.toml"
    file.write_text(WIDE)
    with world(tmp_path, nodes=5) as w:
        w.supervisor()
        eventually(w.led, 30, "a supervisor leads")
        done(w, "hold", str(file), "--name", "lab", "--nodes", "5")
        eventually(lambda: [n.state for n in pool(w).nodes] == ["granted"] * 5, 60, "its nodes are there")
        record = launched(w, file, "wide")
        eventually(w.running(record, 1, 1), 60, "both groups run")
        assert pool(w).used_by == {"wide": 4}
        kept, lost = w.status(record).groups[1].nodes
        shim = w.shim_pid(kept)
        w.kill_node(lost)
        eventually(lambda: lost not in w.status(record).groups[1].nodes, 60, "the pool's spare takes its place")
        eventually(w.running(record), 60, "both groups run again")
        spare = ({n.node for n in pool(w).nodes} - {*w.status(record).groups[0].nodes, kept, lost}).pop()
        assert w.status(record).groups[1].nodes == (kept, spare)
        assert w.shim_pid(kept) == shim
        assert {key.rpartition("-")[0] for key in given(w)} == {"lab"}, "the run asks the engine for nothing"
        done(w, "stop", "wide")
        eventually(lambda: not pool(w).used_by, 60, "no run uses it")
        done(w, "release", "lab")
        eventually(lambda: not given(w), 60, "the engine has all nodes")
        w.check(record)


BROKEN = """
name = "broken"
chaos = "allowed"
groups = { count = 2 }
torchft = { quorum_timeout_ms = 30000, quorum_retries = 60 }
policy = { node_lease_s = 5, term_grace_s = 1.0 }
[titan]
steps = 1000000
checkpoint_interval_steps = 1000000
digest_interval_steps = 10
overrides = { "toy.mode" = "quorum", "toy.step_s" = 0.1 }
"""


@pytest.mark.long
@pytest.mark.timeout(420)
def test_chaos_on_a_pool_takes_its_spare(empty: World, tmp_path: Path) -> None:
    w, file, schedule = empty, tmp_path / "run.toml", tmp_path / "schedule.toml"
    file.write_text(BROKEN)
    eventually(w.led, 30, "a supervisor leads")
    done(w, "hold", str(file), "--name", "lab", "--nodes", "3")
    eventually(lambda: [n.state for n in pool(w).nodes] == ["granted"] * 3, 60, "its nodes are there")
    record = launched(w, file, "broken")
    eventually(w.running(record, 1, 1), 60, "both groups run")
    lost = w.status(record).groups[1].node
    (spare,) = {n.node for n in pool(w).nodes} - {g.node for g in w.status(record).groups}

    def broken(*names: str) -> tuple[int, str]:
        faults = (f'[[fault]]\nname = "{name}"\nat_step = 5\ngroup = 1\n' for name in names)
        schedule.write_text("".join(faults))
        to = ["run", str(schedule), "--run", "broken", "--home", str(w.runs), "--etcd", w.etcd.endpoint]
        command = chaos(w.runs, *to)
        words = ended(command, 240)
        return command.returncode, words

    code, text = broken("allocation_gone", "replacement_pending")
    assert code == 2
    assert text.count("cannot be made here: the run's nodes are lent by a pool") == 2, text
    code, text = broken("sigkill", "node_killed")
    history = read(Path(record.run_dir) / "history.jsonl")
    answers = {v.checker: v.answer for v in check(history, ALL)}
    assert answers.pop("digests_equal") == "unknown", "toys hash nothing"
    assert (code, set(answers.values())) == (1, {"pass"}), text
    assert [fault.name for fault in history.faults] == ["sigkill", "node_killed"]
    assert (lost, w.status(record).groups[1].node) == (history.faults[1].node, spare)
    assert w.running(record)(), "it goes on"
