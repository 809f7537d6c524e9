"""etcd away in all its ways: training goes on, nothing is escalated, and afterwards the control plane works as before.

The trainers step in a real TorchFT quorum, through the gate, with collectives. Each case leaves its world as it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, world_on
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S
from supervisor.ports.errors import Retryable
from supervisor.shell.dev.etcd_server import find_server, start_etcd
from supervisor.shell.etcd import connect
from supervisor.shell.etcd.errors import OutOfSpace
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.inspect import client
from supervisor.wire import keys
from tests.helpers import etcd
from tests.helpers.relay import Relay, relay
from tests.helpers.slow_disk import slow_disk
from tests.system.integration.outage import GROUPS, HEARTBEAT_S, Outage, passes

pytestmark = pytest.mark.etcd

AWAY_S = GATE_ETCD_SILENCE_S + 1
"""Longer than the leases of nodes, supervisors (2 s) and gate (5 s), and than the gate's patience."""
FROZEN_S = 10.0
SLOW_FOR_S = 8.0
FSYNC_DELAY_S = 0.4
QUOTA_BYTES = 16 * 1024**2
FILLER = "/filler"
FILLER_BYTES = 1024**2


@pytest.fixture(scope="class")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """A single etcd, as `supervisor up` starts it, with a quota that can be filled."""
    folder = tmp_path_factory.mktemp("one")
    with ExitStack() as servers:
        server = start_etcd(folder / "etcd", quota_bytes=QUOTA_BYTES)
        servers.callback(server.stop)
        with world_on(server, folder, GROUPS, warm_torch=True) as w:
            run = Outage(w)
            run.servers = servers
            yield run


@pytest.fixture(scope="class")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """A cluster of three, with a supervisor that leads and one that stands by."""
    folder = tmp_path_factory.mktemp("three")
    with etcd.cluster(folder, find_server()) as members:
        members.leader()
        with world_on(members, folder, GROUPS, warm_torch=True) as w:
            run = Outage(w)
            w.supervisor()
            yield run


class TestOneServer:
    @staticmethod
    def start_again(one: Outage) -> None:
        port = int(one.w.etcd.endpoint.rpartition(":")[2])
        one.w.etcd = start_etcd(one.w.etcd.data_dir, port, quota_bytes=QUOTA_BYTES)
        one.servers.callback(one.w.etcd.stop)

    def test_killed_and_started_again(self, one: Outage) -> None:
        with one.nothing_happens("etcd killed"):
            etcd.kill(one.w.etcd)
            passes(AWAY_S)
            self.start_again(one)
        one.restarts_as_usual("etcd killed")

    @pytest.mark.long
    def test_frozen_for_longer_than_all_leases(self, one: Outage) -> None:
        with one.nothing_happens("etcd frozen"), frozen(one.w.etcd.pid):
            passes(FROZEN_S)
        one.restarts_as_usual("etcd frozen")

    @pytest.mark.long
    def test_out_of_space(self, one: Outage) -> None:
        with one.nothing_happens("etcd out of space"):
            _fill(one)
            passes(LEASE_S + 1)
            said = _supervisor_status(one)
            assert "NOSPACE" in said
            assert [word for word in ("compact", "defrag", "disarm") if word not in said] == []
            with pytest.raises(Retryable, match="NOSPACE"):
                one.w.store.put(FILLER, b"x")
            _make_space(one)
        assert "NOSPACE" not in _supervisor_status(one)
        one.restarts_as_usual("etcd out of space")

    @pytest.mark.long
    def test_a_slow_disk(self, one: Outage, tmp_path: Path) -> None:
        with one.nothing_happens("etcd on a slow disk"):
            with slow_disk(one.w.etcd.pid, FSYNC_DELAY_S, tmp_path / "strace.log"):
                took = _puts_for(one, SLOW_FOR_S)
            print(f"MEASURED etcd on a slow disk: a put took {median(took):.2f} s")
            assert median(took) >= FSYNC_DELAY_S, "the disk was not slow"
        one.restarts_as_usual("etcd on a slow disk")

    def test_away_while_a_group_is_lost(self, one: Outage) -> None:
        """The one case that may stall: no one knows which generation is current. It must do no harm."""
        one.together()
        before, victim = one.standing(), 1
        etcd.kill(one.w.etcd)
        passes(AWAY_S)
        killed = time.time()
        os.kill(before.pids[victim], signal.SIGKILL)
        passes(2 * HEARTBEAT_S)
        alone = one.commits(0, killed, joint=False)
        assert len(alone) <= 1, f"the survivor went on alone: {alone[:3]}"
        back = time.time()
        self.start_again(one)
        one.restarted(victim, before)
        first = min(float(line["t"]) for line in one.commits(0, back))
        print(f"MEASURED etcd away and a group lost: all step again {first - back:.2f} s after etcd is back")


class TestThreeMembers:
    """A cluster of three: the loss of one member must not be noticed, of two is an outage."""

    @pytest.mark.long
    def test_a_follower_lost(self, three: Outage) -> None:
        follower = (three.w.etcd.leader() + 1) % 3
        with three.nothing_happens("a follower of three lost", hold_s=AWAY_S):
            three.w.etcd.kill(follower)
        three.restarts_as_usual("a follower of three lost")
        three.w.etcd.start(follower)

    @pytest.mark.long
    def test_the_leader_lost(self, three: Outage) -> None:
        leader = three.w.etcd.leader()
        with three.nothing_happens("the leader of three lost", hold_s=AWAY_S):
            three.w.etcd.kill(leader)
        three.restarts_as_usual("the leader of three lost")
        three.w.etcd.start(leader)

    @pytest.mark.long
    def test_the_leader_frozen(self, three: Outage) -> None:
        """The others elect another, but its own connections stay open and silent."""
        with three.nothing_happens("the leader of three frozen"):
            leader = three.w.etcd.members[three.w.etcd.leader()]
            with frozen(leader.pid):
                eventually(three.acts, 30, "the supervisor acts while the old leader is frozen")
                passes(LEASE_S + 1)
        three.restarts_as_usual("the leader of three frozen")

    @pytest.mark.long
    def test_the_quorum_lost(self, three: Outage) -> None:
        two = (three.w.etcd.leader(), (three.w.etcd.leader() + 1) % 3)
        with three.nothing_happens("two of three lost"):
            for member in two:
                three.w.etcd.kill(member)
            passes(AWAY_S)
            for member in two:
                three.w.etcd.start(member)
        three.restarts_as_usual("two of three lost")


@pytest.fixture(scope="class")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """The nodes, with gate and agents, reach etcd through one relay and the supervisor through another. No collectives
    here: trainers ask for real quorums and start fast."""
    folder = tmp_path_factory.mktemp("apart")
    with ExitStack() as after:
        server = after.enter_context(etcd.running(folder / "etcd"))
        nodes = after.enter_context(relay(server.endpoint))
        leader = after.enter_context(relay(server.endpoint))
        w = after.enter_context(world_on(replace(server, endpoint=nodes.endpoint), folder, GROUPS))
        w.store.close()
        w.store = connect([server.endpoint])
        yield Apart(Outage(w, "quorum", etcd=leader.endpoint), nodes, leader)


@dataclass(frozen=True)
class Apart:
    run: Outage
    nodes: Relay
    leader: Relay


class TestApart:
    """The store lives, but some parts cannot reach it."""

    @pytest.mark.long
    def test_compacted_beyond_the_watches(self, apart: Apart) -> None:
        """Connections are silent while the store is written to and compacted, and are then lost. The client finds what
        it missed by listing, and acts on it once."""
        run, nodes, leader = apart.run, apart.nodes, apart.leader
        with run.nothing_happens("compacted beyond all watches"), _missed(run, leader), _missed(run, nodes):
            pass
        before = run.standing()
        with _missed(run, leader):
            os.kill(before.pids[0], signal.SIGKILL)
            eventually(lambda: run.exited(before.pids[0]), 10, "the node says that its trainer ended")
        run.restarted(0, before)
        before = run.standing()
        with _missed(run, nodes):
            client.restart(run.w.store, run.record, 1)
            eventually(lambda: run.generation_wanted(1) == before.groups[1][1] + 1, 10, "the supervisor has decided")
        run.restarted(1, before, Kind.REQUESTED)
        run.restarts_as_usual("compacted beyond all watches")

    @pytest.mark.long
    def test_away_for_all_nodes_but_not_for_the_supervisor(self, apart: Apart) -> None:
        """Every lease lapses, the gate's too, and no process remains that could report if it still serves."""
        with apart.run.nothing_happens("etcd away for the nodes alone"):
            apart.nodes.requests.clear()
            eventually(lambda: apart.run.registered() == set(), 20, "all leases lapse, the gate's last")
            passes(LEASE_S + 1)
            apart.nodes.cut()
            apart.nodes.requests.set()
        apart.run.restarts_as_usual("etcd away for the nodes alone")


@contextlib.contextmanager
def _missed(run: Outage, way: Relay) -> Iterator[None]:
    """Clients of this relay hear nothing of the block's changes to the store, and can never read them afterwards."""
    way.replies.clear()
    try:
        yield
        for n in range(10):
            run.w.store.put(f"{keys.PREFIX}noise", str(n).encode())
        run.w.store.compact(run.w.store.list(FILLER).revision)
        came = way.accepted
        way.cut()
    finally:
        way.replies.set()
    eventually(lambda: way.accepted > came, 10, "somebody comes again")


def _fill(run: Outage) -> None:
    """Fills the store with old revisions of one key, as a program that writes too much between two compactions does."""

    def full() -> bool:
        try:
            run.w.store.put(FILLER, os.urandom(FILLER_BYTES))
        except OutOfSpace:
            return True
        return False

    eventually(full, 30, "etcd raises NOSPACE")


def _make_space(run: Outage) -> None:
    """Follows the alarm's advice: compact, defragment, disarm."""
    store = run.w.store
    store.compact(store.list(FILLER).revision)
    stub = store.connection.client.maintenancestub
    stub.Defragment(rpc.DefragmentRequest(), 20.0)
    for alarm in stub.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), 5.0).alarms:
        off = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
        stub.Alarm(off, 5.0)
    store.put(FILLER, b"")


def _supervisor_status(run: Outage) -> str:
    """The output of `supervisor status`, with its lines joined."""
    command = [sys.executable, "-m", "supervisor.cli", "status", "--run", run.record.spec.name]
    command += ["--etcd", run.w.etcd.endpoint]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return " ".join(answer.stdout.split())


def _puts_for(run: Outage, seconds: float) -> list[float]:
    """The duration of each put."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        with contextlib.suppress(Retryable):
            run.w.store.put(FILLER, b"")
        took.append(time.monotonic() - began)
    return took
