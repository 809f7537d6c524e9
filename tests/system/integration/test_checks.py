"""Checks with real processes: a node that fails them gets no group, and a host is freed by passing them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.doubles.toy_check_device import broken
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec
from supervisor.core.model.incident import Suspicion
from supervisor.wire import keys
from supervisor.wire.programs import SEAM
from supervisor.wire.records import NodeCheck, RunRecord
from tests.system.integration.test_cli import cli, fails


def agent_check(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`supervisor-agent check`, on the machine of the nodes."""
    command = [sys.executable, "-m", "agents.cli", "check", "--home", str(home), *options]
    node = {"SUPERVISOR_NODE_DIR": str(home / "nodes" / options[1])} if options[:1] == ("--node",) else {}
    environment = {**os.environ, SEAM: json.dumps(TOYS), **node}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)


def shim_events(w: World, node: str) -> list[str]:
    """Events in the journal of the node's shims so far."""
    return [json.loads(line)["event"] for line in (w.system / "nodes" / node / "shim.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_a_run_goes_round_a_node_that_fails_and_a_passed_check_frees_hosts(empty: World) -> None:
    """Four nodes, two groups and a spare: n1's device is broken, so they get n2, n3 and n4."""
    w = empty
    broken(w.system, "n1").write_text("it fell off the bus")
    record = w.launch(toy_spec())
    eventually(w.running(record, 1, 1), 60, "both groups run")
    assert "n1" not in [g.node for g in w.status(record).groups]
    why = "its checks failed on node n1 (before its first rank): device: it fell off the bus"
    # they begin once enough nodes have passed, which may be before it has failed
    eventually(lambda: w.status(record).cordons.get("n1") == why, 30, "its host is cordoned")
    left = record.spec.policy.budget.reallocate - 1
    eventually(lambda: w.status(record).budgets_left["reallocate"] == left, 30, "the stand-in is paid")
    etcd = ["--etcd", w.etcd.endpoint]
    # its allocation is given back: every process with the node's name while its shim ends, as our check is, ends with
    # it
    eventually(lambda: shim_events(w, "n1")[-1] == "shim_stopped", 30, "the node of the stand-in's host has ended")
    said = agent_check(w.system, "--node", "n1", *etcd)
    assert said.returncode == 1, said.stderr
    assert "no group is placed on host n1 until it passes" in said.stdout
    broken(w.system, "n1").unlink()
    said = agent_check(w.system, "--node", "n1", *etcd)
    assert said.returncode == 0, said.stderr
    assert "n1" not in w.status(record).cordons
    _freed_after_an_incident(w, record, etcd)
    w.check(record)


def _freed_after_an_incident(w: World, record: RunRecord, etcd: list[str]) -> None:
    lost = w.status(record).groups[1].node
    w.kill_node(lost)
    eventually(w.running(record, 1, 2), 30 + 5 * LEASE_S, "the group runs elsewhere")
    assert lost in w.status(record).cordons
    fails(agent_check(w.system, "--node", "n99", *etcd), 2, "no node n99 ran here")
    said = agent_check(w.system, "--node", lost, *etcd)
    assert f"clears the incidents held against host {lost}" in said.stdout
    eventually(lambda: lost not in w.status(record).cordons, 30, "the run lets go of it")
    (suspicion,) = [s for _, s in w.mirror().records(keys.CORDONS, Suspicion)]
    assert (suspicion.host, "by hand" in suspicion.freed) == (lost, True)
    check = w.mirror().record(keys.check(lost), NodeCheck)
    assert check is not None
    assert check.state == "passed"
    assert json.loads(cli("nodes", "--json", world=w).stdout)


def test_by_hand_without_a_system(tmp_path: Path) -> None:
    said = agent_check(tmp_path, "--json")
    assert said.returncode == 0, said.stderr
    assert {"memory", "disk", "loopback", "peers", "device"} == {r["name"] for r in json.loads(said.stdout)}
    fails(agent_check(tmp_path, "--node", "n1"), 2, "--node needs --etcd")
    fails(agent_check(tmp_path, "--etcd", "nonsense"), 2)
    fails(agent_check(tmp_path, "--etcd", "127.0.0.1:1"), 1, "no etcd answers")
