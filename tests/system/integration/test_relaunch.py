"""A run goes on by another spec on the nodes that it has, with real etcd, processes and a supervisor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.wire import keys
from tests.system.integration.test_cli import fails
from tests.system.integration.test_launch import said

pytestmark = pytest.mark.etcd


def test_a_run_changes_what_it_trains_by_and_keeps_its_nodes(empty: World, tmp_path: Path) -> None:
    """The leader is killed while the groups drain, and again a relaunch later; nothing is asked of the engine."""
    w = empty
    spec = toy_spec(groups=2, spares=1)
    record = w.launch(replace(spec, titan=replace(spec.titan, checkpoint_interval_steps=20)))
    eventually(w.running(record, 1, 1), 60, "both groups run")
    nodes = sorted(g.node for g in w.status(record).groups)
    shims = [w.shim_pid(node) for node in nodes]
    allocations = w.mirror().keys(keys.allocation("toy", ""))

    fails(said(w, "relaunch", "toy"), 2, "nothing to change: give a run file, or --set KEY=VALUE")
    fails(
        said(w, "relaunch", "toy", "--set", "titan.step=5"),
        2,
        "titan.step = 5: there is no such key; nearest: titan.steps",
    )
    fails(said(w, "relaunch", "toy", "--set", f"titan.steps={record.spec.titan.steps}"), 1, "has this spec already")
    fails(said(w, "relaunch", "toy", "--set", "groups.ranks_per_group=64"), 1, "was allocated for 1 ranks")

    asked = said(w, "relaunch", "toy", "--set", "titan.steps=900000", "--because", "enough")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[0] == f"titan.steps: {record.spec.titan.steps} -> 900000"
    leader = w.supervisors[-1]
    leader.kill()
    leader.wait()
    w.supervisor()
    eventually(w.running(record, 2, 2), 90, "both groups run by the next spec")
    assert sorted(g.node for g in w.status(record).groups) == nodes
    assert [w.shim_pid(node) for node in nodes] == shims
    assert w.mirror().keys(keys.allocation("toy", "")) == allocations

    listed = json.loads(said(w, "runs", "--json").stdout)
    assert [(line["run"], line["spec"], line["next_spec"]) for line in listed] == [("toy", 2, 0)]
    differs = said(w, "runs", "diff", "toy@1", "toy")
    assert (differs.returncode, differs.stdout) == (1, f"titan.steps: {record.spec.titan.steps} -> 900000\n")
    assert "because: enough" in said(w, "runs", "show", "toy").stdout
    fails(said(w, "runs", "show", "toy@7"), 1, "run toy has no spec '7': it has 1 to 2")
    journal = [json.loads(line) for line in (Path(record.run_dir) / "journal.jsonl").read_text().splitlines()]
    assert [line["number"] for line in journal if line.get("event") == "relaunch"] == [2]

    eventually(lambda: min(g.step for g in w.status(record).groups) >= 10, 60, "they step")
    w.control(record, stop=True)
    eventually(lambda: w.status(record).phase == "stopped", 60, "it stops")
    w.check(replace(record, spec=replace(record.spec, titan=replace(record.spec.titan, steps=900000))))
