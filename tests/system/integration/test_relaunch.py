"""A run goes on by another spec on the nodes that it has, with real etcd, processes and a supervisor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, toy_spec
from supervisor.core.model.observed import Grant
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from tests.system.integration.test_cli import fails
from tests.system.integration.test_launch import said

pytestmark = pytest.mark.etcd


def test_a_run_changes_what_it_trains_by_and_keeps_its_nodes(empty: World, tmp_path: Path) -> None:
    """The leader is killed right after the wish; nothing is asked of the engine."""
    w = empty
    spec = toy_spec(groups=2, spares=1)
    record = w.launch(replace(spec, titan=replace(spec.titan, checkpoint_interval_steps=20)))
    eventually(w.running(record, 1, 1), 60, "both groups run")
    nodes = [g.node for g in w.status(record).groups]
    shims = [w.shim_pid(node) for node in nodes]
    allocations = w.mirror().keys(keys.allocation("toy", ""))

    fails(said(w, "relaunch", "toy"), 2, "nothing to change: give a run file, or --set KEY=VALUE")
    fails(
        said(w, "relaunch", "toy", "--set", "titan.step=5"),
        2,
        "titan.step = 5: there is no such key; nearest: titan.steps",
    )
    fails(said(w, "relaunch", "toy", "--set", f"titan.steps={record.spec.titan.steps}"), 1, "has this spec already")
    too_many = said(w, "relaunch", "toy", "--set", "titan.steps=900000", "--set", "groups.ranks_per_group=64")
    fails(too_many, 1, "groups.ranks_per_group: 1 -> 64: node n", "was allocated for 1 ranks")
    differs = [f"titan.steps: {record.spec.titan.steps} -> 900000", "groups.ranks_per_group: 1 -> 64"]
    assert too_many.stdout.splitlines() == differs

    asked = said(w, "relaunch", "toy", "--set", "titan.steps=900000", "--because", "enough")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[0] == f"titan.steps: {record.spec.titan.steps} -> 900000"
    leader = w.supervisors[-1]
    leader.kill()
    leader.wait()
    w.supervisor()
    eventually(w.running(record, 2, 2), 90, "both groups run by the next spec")
    assert [g.node for g in w.status(record).groups] == nodes
    assert [w.shim_pid(node) for node in nodes] == shims
    assert w.mirror().keys(keys.allocation("toy", "")) == allocations

    listed = json.loads(said(w, "runs", "--json").stdout)
    assert [(line["run"], line["spec"], line["next_spec"]) for line in listed] == [("toy", 2, 0)]
    differs = said(w, "runs", "diff", "toy@1", "toy")
    assert (differs.returncode, differs.stdout) == (1, f"titan.steps: {record.spec.titan.steps} -> 900000\n")
    assert "because: enough" in said(w, "runs", "show", "toy").stdout
    fails(said(w, "runs", "show", "toy@7"), 1, "run toy has no spec '7': it has 1 to 2")
    journal = [json.loads(line) for line in (Path(record.run_dir) / "journal.jsonl").read_text().splitlines()]
    assert {line["number"] for line in journal if line.get("event") == "relaunch"} == {2}, "again in each later term"

    steps = ("--set", "titan.steps=800000")
    refused = said(w, "relaunch", "toy", "--from-memory", *steps, "--set", "groups.count=1")
    fails(refused, 1, "groups.count: a state in memory fits the same model and ranks alone: leave out --from-memory")
    assert refused.stdout.splitlines() == ["titan.steps: 900000 -> 800000", "groups.count: 2 -> 1"]
    kept = said(w, "relaunch", "toy", "--from-memory", *steps)
    assert kept.returncode == 0, kept.stderr
    assert "toy: spec 3: groups that train keep their states in memory, and end after one common step" in kept.stdout
    record = eventually(lambda: _by_spec(w, 3), 60, "it is in force")
    eventually(w.running(record, 3, 3), 90, "both groups run by it")

    fewer = said(w, "scale", "toy", "--spares", "0")
    lines = ["allocation.spares: 1 -> 0", "toy: spec 4: 2 groups; those that stay train on"]
    assert (fewer.returncode, fewer.stdout.splitlines()) == (0, lines)
    record = eventually(lambda: _by_spec(w, 4), 30, "it is in force")
    eventually(lambda: len(_granted(w)) == 2, 60, "the spare is given back")
    assert said(w, "scale", "toy", "--spares", "1").returncode == 0
    record = eventually(lambda: _by_spec(w, 5), 30, "it is in force")
    eventually(lambda: len(_granted(w)) == 3, 60, "a spare is held again")
    assert [g.generation for g in w.status(record).groups] == [3, 3]

    eventually(lambda: min(g.step for g in w.status(record).groups) >= 10, 60, "they step")
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "it stops")
    w.check(record)


@pytest.mark.long
def test_a_live_run_gets_more_groups_and_fewer_while_the_others_train(empty: World) -> None:
    """Toys that step in a real quorum: those that stay are never started again, and none of their steps is lost."""
    w = empty
    spec = toy_spec(groups=2, spares=0)
    spec = replace(
        spec, titan=replace(spec.titan, overrides={"toy.mode": "quorum", "toy.step_s": 0.05}), torchft=TORCHFT
    )
    record = w.launch(spec)
    eventually(w.running(record, 1, 1), 60, "both groups run")
    pids = [w.trainer(record, g).pid for g in (0, 1)]

    more = said(w, "scale", "toy", "--groups", "4")
    assert (more.returncode, more.stdout.splitlines()[-1]) == (0, "toy: spec 2: 4 groups; those that stay train on")
    assert more.stdout.splitlines()[:2] == ["groups.count: 2 -> 4", "allocation.nodes: 2 -> 4"]
    assert "nodes in the pool" not in more.stderr, "there are enough"
    record = eventually(lambda: _by_spec(w, 2), 30, "it is in force")
    eventually(w.running(record, 1, 1, 1, 1), 90, "four groups run")
    fails(said(w, "scale", "toy", "--groups", "4"), 1, "has this spec already")
    assert said(w, "scale", "toy", "--groups", "3", "--because", "a node is wanted elsewhere").returncode == 0
    record = eventually(lambda: _by_spec(w, 3), 30, "it is in force")
    held = keys.memory("toy", "group-3")
    eventually(lambda: held not in w.mirror().items, 60, "the fourth has ended")
    eventually(lambda: len(_granted(w)) == 3, 60, "its node is given back")
    goal = w.status(record).step + 10
    eventually(lambda: min(g.step for g in w.status(record).groups) >= goal, 60, "they step on")
    assert [w.trainer(record, g).pid for g in (0, 1)] == pids
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "it stops")
    steps = w.history(record).steps
    for group in (0, 1):
        of_group = [line for s in steps if s.group == group for line in s.committed()]
        numbers = [line["step"] for line in of_group]
        assert numbers == list(range(1, numbers[-1] + 1)), "each step once, none failed"
    assert w.incidents(record) == []
    w.check(record)


def _by_spec(w: World, number: int) -> RunRecord | None:
    record = client.choose_run(w.mirror(), "toy")
    return record if record.number == number else None


def _granted(w: World) -> list[str]:
    return [grant.key for grant in w.mirror().table(keys.grant("toy", ""), Grant).values() if grant.state == "granted"]
