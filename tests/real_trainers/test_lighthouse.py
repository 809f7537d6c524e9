"""A lighthouse that dies, freezes or is lost is replaced, and training goes on: no trainer dies, no committed step is
lost, no group commits alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.shim import process
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.spec import RunSpec, TitanSpec
from supervisor.shell.processes import is_running
from supervisor.wire.records import RunRecord
from tests.helpers.measure import measured

pytestmark = pytest.mark.etcd


def quorum_spec(groups: int, mode: str = "torchft") -> RunSpec:
    """Toys that step in a real TorchFT quorum, through the real gate and lighthouse."""
    spec = toy_spec(groups=groups)
    return replace(spec, titan=TitanSpec(steps=10**6, overrides={"toy.mode": mode}), torchft=TORCHFT)


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def trains(w: World, spec: RunSpec) -> RunRecord:
    """Waits until all groups step in one quorum."""
    w.supervisor()
    record = w.launch(spec)
    eventually(w.running(record, *[1] * spec.groups.count), 90, "all groups run")
    joint(w, record, time.time())
    return record


def commits(w: World, record: RunRecord, since: float) -> list[tuple[int, dict[str, Any]]]:
    """(group, line) of all committed steps since then, by time."""
    found = [(s.group, line) for s in w.history(record).steps for line in s.committed() if line["t"] > since]
    return sorted(found, key=lambda each: each[1]["t"])


def joint(w: World, record: RunRecord, since: float, above: int = -1, deadline_s: float = 60) -> float:
    """Seconds from `since` until every group has committed a step with all others, in a quorum above that id."""
    count = record.spec.groups.count

    def all_together() -> list[float]:
        first: dict[int, float] = {}
        for group, line in commits(w, record, since):
            if line["participants"] == count and line["quorum_id"] > above:
                first.setdefault(group, line["t"])
        return list(first.values()) if len(first) == count else []

    return max(eventually(all_together, deadline_s, "all groups step together")) - since


def pids(w: World, record: RunRecord) -> list[int]:
    return [w.trainer(record, g).pid for g in range(record.spec.groups.count)]


def seat(w: World, record: RunRecord) -> tuple[str, int]:
    """(host, generation) of the lighthouse that is up; an empty host while none is."""
    found = w.status(record).lighthouse
    return (found.node, found.generation) if found.state == "open" else ("", 0)


def gate_pid(w: World, record: RunRecord) -> int:
    host, generation = seat(w, record)
    path = w.system / "nodes" / host / "processes" / f"lighthouse.{record.spec.name}.{generation}.json"
    return int(json.loads(path.read_text())["pid"])


def lighthouse_pid(w: World, record: RunRecord) -> int:
    parent = gate_pid(w, record)
    return next(stat.pid for stat in process.all_processes() if stat.parent == parent)


def moved_on(w: World, record: RunRecord, before: list[int], fault: float, host: str, what: str) -> None:
    """Checks that the next lighthouse is open on that host, and that nothing else changed wrongly."""
    eventually(lambda: seat(w, record) == (host, 2), 60, "the next lighthouse is open")
    opened = time.time()
    count = record.spec.groups.count
    old = max(line["quorum_id"] for _, line in commits(w, record, 0.0) if line["t"] <= fault)
    took = joint(w, record, fault, above=old)
    assert pids(w, record) == before, "no trainer died"
    assert w.incidents(record) == []
    lines = commits(w, record, fault)
    fresh = [(g, line) for g, line in lines if line["quorum_id"] > old]
    assert {line["participants"] for _, line in fresh} == {count}, "nobody committed alone"
    steps = [line["step"] for _, line in lines]
    assert steps == sorted(steps), "no committed step was made twice"
    gap = min(line["t"] for _, line in fresh) - max(
        [line["t"] for _, line in lines if line["quorum_id"] <= old] + [fault]
    )
    measured(f"stall, {what}", gap, groups=count)
    if fault + took > opened:  # else it was open long before we looked
        measured(f"first joint step after the next lighthouse is open, {what}", fault + took - opened, groups=count)
    w.check(record)


@pytest.mark.long
@pytest.mark.parametrize("groups", [2, 3])
def test_a_lighthouse_that_is_killed_is_replaced(w: World, groups: int) -> None:
    record = trains(w, quorum_spec(groups))
    before, fault = pids(w, record), time.time()
    os.kill(lighthouse_pid(w, record), signal.SIGKILL)
    moved_on(w, record, before, fault, "host", "lighthouse killed")


@pytest.mark.long
def test_a_gate_that_is_killed_is_replaced(w: World) -> None:
    record = trains(w, quorum_spec(2))
    before, fault = pids(w, record), time.time()
    os.kill(gate_pid(w, record), signal.SIGKILL)
    moved_on(w, record, before, fault, "host", "gate killed")


@pytest.mark.parametrize(
    "which", [pytest.param(gate_pid, marks=pytest.mark.long, id="gate"), pytest.param(lighthouse_pid, id="lighthouse")]
)
def test_a_frozen_one_never_serves_again(w: World, which: Any) -> None:
    record = trains(w, quorum_spec(2))
    before, fault = pids(w, record), time.time()
    pid = which(w, record)
    ticks = process.stat_of(pid).start_ticks  # type: ignore[union-attr]
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: not is_running(pid, ticks), 30, "it is ended while it is frozen")
    moved_on(w, record, before, fault, "host", f"{which.__name__.removesuffix('_pid')} frozen")


@pytest.mark.long
def test_a_gate_that_stood_still_ends_by_itself_when_it_thaws(w: World) -> None:
    """Its agent is frozen too and cannot end it: the gate must not pass another byte."""
    record = trains(w, quorum_spec(2))
    before, fault = pids(w, record), time.time()
    pid, agent = gate_pid(w, record), _agent_pid(w, "host")
    ticks = process.stat_of(pid).start_ticks  # type: ignore[union-attr]
    os.kill(agent, signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: time.time() - fault > 4, 6)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: not is_running(pid, ticks), 5, "it has ended by itself")
    os.kill(agent, signal.SIGCONT)
    log = (w.system / "nodes" / "host" / "lighthouse" / "toy.1" / "output.log").read_text()
    assert "stood still" in log
    moved_on(w, record, before, fault, "host", "gate and its agent frozen")


@pytest.mark.long
def test_a_service_host_that_hangs_is_followed_by_another_and_never_serves_again(w: World) -> None:
    """Its kernel keeps the connections alive, but no process on it answers."""
    w.second_host()
    record = trains(w, quorum_spec(2))
    host, _ = seat(w, record)
    other = {"host": "other", "other": "host"}[host]
    before, fault = pids(w, record), time.time()
    gate = gate_pid(w, record)
    ticks = process.stat_of(gate).start_ticks  # type: ignore[union-attr]
    everything = [w.shim_pid(host), _agent_pid(w, host), gate, lighthouse_pid(w, record)]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: seat(w, record) == (other, 2), 60, "another host has it")
        joint(w, record, time.time())
    finally:
        for pid in reversed(everything):
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: not is_running(gate, ticks), 10, "thawed, the old gate ends")
    moved_on(w, record, before, fault, other, "service host hangs")


@pytest.mark.long
def test_a_lost_service_host_is_followed_by_another(w: World) -> None:
    w.second_host()
    record = trains(w, quorum_spec(2))
    host, _ = seat(w, record)
    other = {"host": "other", "other": "host"}[host]
    before, fault = pids(w, record), time.time()
    w.kill_node(host)
    moved_on(w, record, before, fault, other, "service host lost")


@pytest.mark.long
def test_a_leader_killed_in_the_middle_of_it_changes_nothing(w: World) -> None:
    """The lighthouse and the gate outlive the leader; the next leader adopts them, or ends what the old one began."""
    record = trains(w, quorum_spec(2))
    before, fault = pids(w, record), time.time()
    gate = gate_pid(w, record)
    w.supervisors[0].kill()
    w.supervisor()
    eventually(w.led, 30, "the next one leads")
    joint(w, record, time.time())
    assert gate_pid(w, record) == gate, "adopted, not replaced"
    w.supervisors[1].terminate()
    w.supervisors[1].wait(15)
    doomed = w.supervisor(failpoint="committed:1")
    os.kill(gate, signal.SIGKILL)
    eventually(lambda: doomed.poll() is not None, 30, "it died when it had decided on the next one")
    w.supervisor()
    moved_on(w, record, before, fault, "host", "gate killed and a leader with it")


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(1800)
def test_real_trainers_ride_through_the_loss_of_their_lighthouse(tmp_path: Path) -> None:
    """TorchTitan on TorchFT: no trainer dies, no committed step is lost, and the replicas are equal afterwards."""
    titan = TitanSpec(
        recipe="tests.real_trainers.titan.recipes:that_rests_between_steps",
        steps=100_000,
        checkpoint_interval_steps=1000,
        digest_interval_steps=5,
    )
    spec = replace(toy_spec(name="real", spares=0, start_timeout_s=300.0), titan=titan, torchft=TORCHFT)
    with world(tmp_path, toys=False) as w:
        w.supervisor()
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), 240, "both groups train")
        eventually(lambda: min(g.step for g in w.status(record).groups) >= 5, 60, "they have made steps")
        before, fault = pids(w, record), time.time()
        os.kill(lighthouse_pid(w, record), signal.SIGKILL)
        moved_on(w, record, before, fault, "host", "lighthouse killed, real trainers")
        eventually(lambda: len(equal_digests(w, record, fault)) >= 2, 60, "their digests are equal afterwards")


def _agent_pid(w: World, node: str) -> int:
    return int(json.loads((w.system / "nodes" / node / "processes" / "agent.json").read_text())["pid"])
