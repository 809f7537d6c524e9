"""The shipped example of groups of two nodes, run as its head says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor.client as everstep
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung

EXAMPLE = Path(__file__).parents[2] / "examples" / "local" / "two-nodes-a-group.toml"
WITHIN_S = 600.0


def cli(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)


@pytest.mark.etcd
@pytest.mark.trainers
@pytest.mark.long  # by day: tests/system/integration/test_several_nodes.py, with toys
@pytest.mark.timeout(2 * WITHIN_S)
def test_a_killed_node_is_replaced_and_its_neighbour_stays(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    command = [sys.executable, "-m", "supervisor.cli", "up", "--nodes", "5", "--home", str(home)]
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        eventually(lambda: "up: " in log.read_text(), 120, "up is up")
        with everstep.connect(home=home) as client:
            run = client.launch(EXAMPLE, set={"titan.steps": 100_000})
            run.wait("step=3", timeout_s=WITHIN_S)
            eventually(lambda: {g.phase for g in run.status().groups} == {"running"}, WITHIN_S, "both groups train")
            before = [g.nodes for g in run.status().groups]
            lost, kept = before[1]
            shims = {node: shim(home, node) for node in (*before[0], kept)}
            os.kill(shim(home, lost), signal.SIGKILL)
            found = eventually(
                lambda: [i for i in run.incidents() if i.state == "recovered"], WITHIN_S, "the group trains again"
            )
            assert [(i.kind, i.rung, i.group, i.node) for i in found] == [(Kind.NODE_LOST, Rung.REPLACE, 1, lost)]
            now = run.status().groups
            (spare,) = {f"n{number}" for number in range(1, 6)} - {*before[0], *before[1]}
            assert [g.nodes for g in now] == [before[0], (kept, spare)]
            assert [g.generation for g in now] == [1, 2]
            assert {node: shim(home, node) for node in shims} == shims
        done = cli("down", home=home)
        assert done.returncode == 0, done.stderr
        assert up.wait(60) == 0
    finally:
        if up.poll() is None:
            cli("down", home=home)
            up.wait(120)


def shim(home: Path, node: str) -> int:
    return int((home / ".supervisor" / "nodes" / node / "shim.lock").read_text())
