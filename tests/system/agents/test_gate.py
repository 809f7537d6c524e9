"""The gate and the forwarder with real TorchFT managers and TorchFT's own lighthouse."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from agents.gate.main import UNKNOWN
from agents.shim import process
from fault_injection.testbed.nodes import RUN, Node, Nodes, desire, gate, kill, observed, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S
from supervisor.core.model.spec import TorchFTSpec
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import connect
from supervisor.wire.records import Admission, LighthouseDesired, TrainerDesired
from tests.helpers import etcd
from tests.helpers.ordinary_user import as_user

TORCHFT = TorchFTSpec(
    heartbeat_timeout_ms=1000,
    join_timeout_ms=2000,
    process_group_timeout_ms=3000,
    quorum_timeout_ms=60_000,
    quorum_retries=600,
)
HEARTBEAT_S = TORCHFT.heartbeat_timeout_ms / 1000
NODE = "n0"
LISTEN = "0A"
"""linux/tcp_states.h"""


class Run:
    """A run on one node, with the test in the supervisor's place."""

    def __init__(self, store: Store, node: Node, groups: int) -> None:
        self.store, self.node, self.groups = store, node, groups
        self.generations = dict.fromkeys(range(groups), 1)
        self.options: dict[int, dict[str, object]] = {group: {} for group in range(groups)}
        self.wanted = set(range(groups))
        self.lighthouse = LighthouseDesired(run=RUN, generation=1, groups=groups, min_groups=1, torchft=TORCHFT)
        self.address = ""
        self.admitted: dict[int, Admission] = {}

    def apply(self) -> None:
        self.admitted |= {g: Admission(generation=n, node=NODE) for g, n in self.generations.items()}
        self.write()

    def admit(self, group: int, generation: int) -> None:
        self.admitted[group] = Admission(generation=generation)
        self.write()

    def write(self) -> None:
        trainers = [self._desired(group) for group in sorted(self.wanted)]
        lighthouse = replace(self.lighthouse, admitted=self.admitted)
        desire(self.store, NODE, *trainers, lighthouses=(lighthouse,))

    def _desired(self, group: int) -> TrainerDesired:
        options = {f"toy_{key}": value for key, value in self.options[group].items()}
        return trainer(
            group,
            self.generations[group],
            groups=self.groups,
            gate=self.address,
            torchft=TORCHFT,
            toy_mode="torchft",
            **options,
        )

    def restart(self, group: int, **options: object) -> None:
        self.generations[group] += 1
        self.options[group] = options
        self.apply()

    def open(self) -> None:
        self.apply()
        self.address = eventually(self.gate_address, 60, "the gate listens")
        self.apply()
        for group in self.generations:
            running(self.store, self.node, self.generations[group], group, 60)
        self.together()

    def gate_address(self) -> str:
        view = observed(self.store, NODE)
        wanted = self.lighthouse.generation
        return next((x.address for x in view.lighthouses if x.generation == wanted), "") if view else ""

    def name(self, group: int) -> str:
        return f"{RUN}.{group}.{self.generations[group]}.0"

    def pid(self, group: int) -> int:
        return self.node.pid(self.name(group))

    def commits(self, group: int, since: float = 0.0) -> list[dict[str, object]]:
        return [line for line in self.node.steps(self.name(group)) if line["committed"] and line["t"] > since]

    def next_commit(self, group: int, since: float, deadline_s: float = 20.0) -> float:
        """Seconds from `since` to the first commit after it."""
        first = eventually(lambda: self.commits(group, since), deadline_s, f"group {group} commits")[0]
        return float(first["t"]) - since

    def together(self, groups: int | None = None) -> None:
        """Waits until all groups step in one quorum."""
        expected = groups if groups is not None else self.groups
        since = time.time()
        for group in sorted(self.wanted):
            eventually(
                lambda group=group: any(c["participants"] == expected for c in self.commits(group, since)),
                30,
                f"group {group} steps with {expected}",
            )

    def hearing(self, group: int) -> tuple[int, str]:
        view = gate(self.store, NODE)
        found = [g for g in view.groups if g.group == group] if view else []
        return (found[0].generation, found[0].hearing) if found else (0, "")


def start(nodes: Nodes, store: Store, groups: int) -> Run:
    node = nodes.start(NODE, "--slots=3", TOY_TORCHFT="1")
    eventually(node.warm_ready, 60)
    made = Run(store, node, groups)
    made.open()
    return made


@pytest.fixture(scope="module")
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd.running(tmp_path_factory.mktemp("gate-etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, own_etcd: EtcdServer) -> Iterator[Run]:
    """Two groups that step together; every test leaves them so."""
    home = tmp_path_factory.mktemp("gate")
    with connect([own_etcd.endpoint]) as store, Nodes(home, own_etcd.endpoint) as nodes:
        yield start(nodes, store, 2)


def longest_gap(run: Run, group: int, since: float) -> float:
    times = [since, *(float(line["t"]) for line in run.commits(group, since))]
    return max(later - earlier for earlier, later in pairwise(times))


def kill_and_build_for_long(run: Run, last: int) -> float:
    killed = time.time()
    kill(run.pid(last))
    stalls = [run.next_commit(group, killed) for group in range(last)]
    assert max(stalls) < 2 * HEARTBEAT_S
    run.restart(last, build_s=20.0)
    eventually(lambda: run.hearing(last) == (2, "holding"), 10)
    held = time.time()
    # its manager calls from the first moment on, and the others never wait for it
    eventually(lambda: len(run.commits(0, held)) > 60, 20)
    assert run.hearing(last) == (2, "holding")
    assert longest_gap(run, 0, killed) < 2 * HEARTBEAT_S
    print(f"MEASURED {last + 1} groups: survivors' next commit after SIGKILL {stalls} s")
    return killed


def test_three_groups_never_wait_for_one_that_builds(nodes: Nodes, store: Store) -> None:
    kill_and_build_for_long(start(nodes, store, 3), last=2)


@pytest.mark.long
def test_two_groups_never_wait_for_one_that_builds_and_then_take_it_in(two: Run) -> None:
    killed = kill_and_build_for_long(two, last=1)
    eventually(lambda: two.hearing(1) == (2, "beating"), 30)
    two.together()
    print(f"MEASURED longest gap of the survivor over kill, 20 s build and join: {longest_gap(two, 0, killed):.2f} s")
    assert longest_gap(two, 0, killed) < 2 * HEARTBEAT_S


def test_the_gate_reports_the_newest_quorum(two: Run) -> None:
    newest = max(int(str(line["quorum_id"])) for line in two.commits(0))
    eventually(lambda: gate(two.store, NODE).quorum_id >= newest, 5)
    assert gate(two.store, NODE).quorum_id <= max(int(str(line["quorum_id"])) for line in two.commits(0)) + 1


def test_a_stopped_trainer_is_dropped_by_its_silence_and_comes_back(two: Run) -> None:
    stopped, pid = time.time(), two.pid(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: two.hearing(1)[1] == "silent", 10)
        # inside a collective the survivor is freed by the process group's timeout at the latest
        stall = two.next_commit(0, stopped + 0.2)
        print(f"MEASURED survivor's next commit after SIGSTOP {stall:.2f} s")
        assert stall < TORCHFT.process_group_timeout_ms / 1000 + 2 * HEARTBEAT_S
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: two.hearing(1)[1] == "beating", 10)
    two.together()
    assert two.pid(1) == pid


def test_a_stale_generation_is_cut_and_can_never_come_back(two: Run) -> None:
    stale, pid, generation = two.name(1), two.pid(1), two.generations[1]
    two.admit(1, generation + 1)
    eventually(lambda: two.hearing(1) == (generation + 1, "absent"), 5)
    fenced = time.time()
    # a survivor that was already given a quorum with it is freed by the process group's timeout (or by `abort`)
    assert two.next_commit(0, fenced) < TORCHFT.process_group_timeout_ms / 1000 + 2 * HEARTBEAT_S
    # from the acknowledgement on, only the step that was on its way may still end
    eventually(lambda: len([c for c in two.commits(0, fenced) if c["participants"] == 1]) > 40, 20)
    late = [c for c in two.node.steps(stale) if c["committed"] and c["t"] > fenced]
    assert len(late) <= 1
    # not even when a later order names it again: an admission never goes back
    two.admit(1, generation)
    again = time.time()
    eventually(lambda: len([c for c in two.commits(0, again) if c["participants"] == 1]) > 20, 20)
    assert two.hearing(1) == (generation + 1, "absent")
    assert two.pid(1) == pid, "the gate alone keeps it out: its process still runs"
    two.restart(1)
    eventually(lambda: not two.node.pid(stale), 10, "its agent ends the stale one")
    running(two.store, two.node, generation + 1, 1)
    two.together()


@pytest.mark.parametrize("word", [b"GONE\n", b'BUILT {"replica_id": "forged"}\n'], ids=["gone", "built"])
def test_a_node_has_no_word_in_another_groups_next_generation(two: Run, word: bytes) -> None:
    """Before that generation is admitted the gate does not know its nodes."""
    who = {"node": "n9", "run": RUN, "group": 1, "generation": two.generations[1] + 1}
    host, _, port = two.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as forger:
        forger.sendall(json.dumps(who).encode() + b"\n")
        time.sleep(0.5)  # the gate reads a word by itself
        forger.sendall(word)
        forger.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            assert forger.recv(10) == b"", "it is taken"
        two.restart(1)
        two.together()
        assert two.hearing(1) == (two.generations[1], "beating")


def way(run: Run, group: int) -> tuple[str, int]:
    """Returns the loopback address by which a group's processes reach the gate."""
    launch = json.loads((run.node.folder / "ranks" / run.name(group) / "launch.json").read_bytes())
    host, _, port = launch["lighthouse"].rpartition(":")
    return host, int(port)


def test_a_group_cannot_have_another_one_killed(two: Run) -> None:
    """TorchFT's lighthouse kills any manager if it is asked to."""
    victim, since = two.pid(1), time.time()
    replica_id = re.findall(rf"group 1 generation {two.generations[1]} is built: (\S+)", log(two))[-1].strip('"')
    asked = http.client.HTTPConnection(*way(two, 0), timeout=10.0)
    with contextlib.closing(asked):
        asked.request("POST", f"/replica/{replica_id}/kill")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            asked.getresponse()
    eventually(lambda: "does not speak HTTP/2: b'POST /replica/" in log(two), 5)
    eventually(lambda: len(two.commits(1, since)) > 20, 20)
    assert two.pid(1) == victim


def test_no_process_of_the_host_reaches_the_lighthouse(two: Run) -> None:
    """But its gate, by sockets that the lighthouse makes for it."""
    lighthouse = next(
        p.pid
        for p in process.all_processes()
        if p.parent == two.node.pid(f"lighthouse.toy.{two.lighthouse.generation}")
    )
    sockets = {os.readlink(entry) for entry in Path(f"/proc/{lighthouse}/fd").iterdir()}
    listening = {
        network: {
            f"socket:[{fields[9]}]"
            for table in ("tcp", "tcp6")
            for fields in map(str.split, Path(f"/proc/{of}/net/{table}").read_text().splitlines())
            if fields[3] == LISTEN
        }
        for network, of in (("its own", lighthouse), ("the host's", os.getpid()))
    }
    assert len(listening["its own"] & sockets) == 1
    assert not listening["the host's"] & sockets


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("where", ["way", "gate"])
def test_another_user_of_the_host_says_nothing_for_a_group(two: Run, where: str) -> None:
    who = {"node": NODE, "run": RUN, "group": 1, "generation": two.generations[1]}
    first = json.dumps(who) + "\n" if where == "gate" else ""
    host, port = (
        way(two, 1) if where == "way" else (two.address.rpartition(":")[0], int(two.address.rpartition(":")[2]))
    )
    say = (
        "import socket, sys, time\n"
        "to = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)\n"
        "print('connected', flush=True)\n"
        "to.sendall(sys.argv[3].encode())\n"
        "time.sleep(0.5)\n"  # the gate reads a word by itself
        "to.sendall(b'GONE\\n')\n"
        "print(to.recv(10))\n"
    )
    since = time.time()
    forger = as_user(sys.executable, "-c", say, host, str(port), first)
    found = subprocess.run(forger, capture_output=True, text=True, check=False, timeout=30)
    assert "connected" in found.stdout, found.stderr
    assert "OK" not in found.stdout
    eventually(lambda: any(c["participants"] == 2 for c in two.commits(0, since + 1.0)), 20)
    assert two.hearing(1) == (two.generations[1], "beating")


def test_a_thousand_silent_connections_keep_no_group_out(two: Run) -> None:
    host, _, port = two.address.rpartition(":")
    with contextlib.ExitStack() as held:
        since = time.time()
        for _ in range(1000):
            held.enter_context(socket.create_connection((host, int(port)), timeout=10.0))
        kill(two.pid(1))
        two.restart(1)
        two.together()
        print(
            f"MEASURED longest gap of the survivor, with 1,000 silent connections: {longest_gap(two, 0, since):.2f} s"
        )
        assert longest_gap(two, 0, since) < 2 * HEARTBEAT_S
        gate_pid = two.node.pid(f"lighthouse.toy.{two.lighthouse.generation}")
        assert len(os.listdir(f"/proc/{gate_pid}/fd")) < UNKNOWN + 50


def test_a_lighthouse_that_died_is_replaced_and_the_trainers_go_on(two: Run) -> None:
    """The forwarders hold meanwhile, and send the new gate what they had sent to the old one."""
    pids = [two.pid(group) for group in (0, 1)]
    gate_pid = two.node.pid("lighthouse.toy.1")
    lighthouse = next(stat for stat in process.all_processes() if stat.parent == gate_pid)
    died = time.time()
    kill(lighthouse.pid)
    found = eventually(lambda: (seen := observed(two.store, NODE).lighthouses[0]).state == "exited" and seen, 5)
    assert found.exit.exit_code == 1
    assert "the lighthouse ended" in found.exit.last_words
    newest = max(int(str(line["quorum_id"])) for line in two.commits(0))
    two.lighthouse = replace(two.lighthouse, generation=2, quorum_ids_above=newest + 100)
    two.address = ""
    two.apply()
    two.address = eventually(two.gate_address, 20, "the next gate listens")
    two.apply()
    listening = time.time()
    first = [two.commits(group, two.next_commit(group, listening) + listening - 0.001)[0] for group in (0, 1)]
    # no group was alone in the new quorum, and its id was never used before
    before = max(int(str(line["quorum_id"])) for line in two.commits(0) if float(str(line["t"])) < died)
    assert min(int(str(commit["quorum_id"])) for commit in first) > before
    assert [commit["participants"] for commit in first] == [2, 2]
    print(f"MEASURED lighthouse killed: stall {longest_gap(two, 0, died):.2f} s")
    two.together()
    assert [two.pid(group) for group in (0, 1)] == pids
    assert gate(two.store, NODE).generation == 2


def test_a_group_that_speaks_under_another_id_is_held(two: Run) -> None:
    """Heartbeats under an id that never asks for a quorum would block everyone for ever."""
    kill(two.pid(1))
    two.restart(1, mistyped="x")
    eventually(lambda: "is built" in log(two).rpartition("is gone")[2], 10)
    since = time.time()
    eventually(lambda: "does not use the replica id that it gave" in log(two), 10)
    assert two.hearing(1) == (two.generations[1], "holding")
    assert longest_gap(two, 0, since) < 2 * HEARTBEAT_S
    two.restart(1)
    running(two.store, two.node, two.generations[1], 1)
    two.together()


def log(run: Run) -> str:
    folder = run.node.folder / "lighthouse" / f"{RUN}.{run.lighthouse.generation}"
    return (folder / "output.log").read_text()


def test_without_etcd_training_goes_on_until_a_group_is_lost(two: Run, own_etcd: EtcdServer) -> None:
    etcd.kill(own_etcd)
    away = time.time()
    # longer than the gate's patience with a silent etcd
    eventually(lambda: time.time() - away > GATE_ETCD_SILENCE_S + 1, GATE_ETCD_SILENCE_S + 3)
    since = time.time()
    eventually(lambda: any(c["participants"] == 2 for c in two.commits(0, since)), 10)
    second = two.pid(1)
    lost = time.time()
    kill(second)
    # it is unknown if the lost group was started elsewhere: the gate closes, and at most the step on its way ends
    eventually(lambda: time.time() - lost > 4, 6)
    assert len(two.commits(0, lost)) <= 1
    with etcd.running(own_etcd.data_dir, int(own_etcd.endpoint.rpartition(":")[2])):
        back = time.time()
        print(f"MEASURED survivor's next commit after etcd is back {two.next_commit(0, back):.2f} s")
        two.restart(1)
        running(two.store, two.node, two.generations[1], 1, 30)
        two.together()
