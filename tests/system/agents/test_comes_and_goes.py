"""Agents that come and go, and agents and gates that freeze: trainers go on, and a frozen process judges nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agents.agent.file_poller import GATE_FROZEN_S
from agents.shim import process
from agents.shim.main import AGENT_FROZEN_S
from agents.shim.process_table import Child
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import Node, Nodes, desire, kill, observed, rank, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TorchFTSpec
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.wire import keys, sockets
from supervisor.wire.records import LighthouseDesired, LighthouseObserved, Registration, decode
from tests.helpers.relay import Relay, relay
from tests.system.agents.toy_gate import Holder

FIRST = "toy.0.1.0"
GATE = "lighthouse.toy.1"
STEP_S = 0.05


PAUSE_S = 5.0
"""Longest pause in a toy's steps that a stalling disk may cause once in a while."""


def registered_agent(store: Store, node: str = "n0") -> int:
    item = store.get(keys.registration(node))
    return decode(item.value, Registration).agent_pid if item is not None else 0


def next_agent(store: Store, node: Node, old: int) -> int:
    """Waits until another agent than `old` is registered and reports; returns its pid."""
    eventually(lambda: registered_agent(store) not in (0, old), 30, "the next agent registers")
    seen = observed(store, "n0").sequence
    eventually(lambda: observed(store, "n0").sequence > seen, 10, "it reports")
    assert registered_agent(store) == node.pid("agent")
    return registered_agent(store)


def events(node: Node, event: str, name: str | None = None) -> list[dict[str, Any]]:
    return [line for line in node.history() if line["event"] == event and name in (None, line.get("name"))]


def no_step_is_missed(node: Node, name: str) -> int:
    """Returns the number of long pauses. A busy disk makes one or two."""
    steps = node.steps(name)
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    gaps = [later["t"] - earlier["t"] for earlier, later in pairwise(steps)]
    print(f"MEASURED {name}: {len(steps)} steps, median gap {statistics.median(gaps):.3f} s, longest {max(gaps):.3f} s")
    long = 20 * statistics.median(gaps)
    assert max(gaps) < max(PAUSE_S, long)
    return sum(gap > long for gap in gaps)


def elapsed(seconds: float) -> None:
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > seconds, seconds + 5)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stops the processes for the block, and continues them in the order given, each a little after the one before."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            elapsed(0.7)


# --- agents ---


@pytest.mark.long
def test_an_agent_killed_five_times_costs_no_step(nodes: Nodes, store: Store) -> None:
    node = nodes.cold()
    desire(store, "n0", trainer(toy_step_s=STEP_S))
    pid = running(store, node, 1)
    agent = eventually(lambda: registered_agent(store), 10)
    for _ in range(5):
        kill(agent)
        agent = next_agent(store, node, agent)
        found = eventually(lambda: rank(store, "n0", 1), 5)
        assert (found.pid, found.state) == (pid, "running")
    assert (node.folder / "agent.log").read_text().count(f"adopted {FIRST}") == 5
    assert [line["event"] for line in node.history() if line.get("name") == FIRST] == ["spawned"]
    assert no_step_is_missed(node, FIRST) < 5, "it would stand still each time that its agent is away"
    desire(store, "n0", trainer(generation=2))
    assert running(store, node, 2) != pid, "and the last one obeys"


def test_an_agent_of_another_version_takes_over(nodes: Nodes, store: Store, tmp_path: Path) -> None:
    """An upgrade: the agent's program has changed on disk, and the old agent is ended."""
    program = "import sys\nfrom agents.agent import main as agent\nagent.version = lambda: {version!r}\nsys.exit(agent.main())\n"
    installed = tmp_path / "installed_agent.py"
    installed.write_text(program.format(version="1.0"))
    programs = json.dumps({**TOYS, "agent": "installed_agent"})
    node = nodes.cold(SUPERVISOR_PROGRAMS=programs, PYTHONPATH=os.pathsep.join(["", str(tmp_path)]))
    desire(store, "n0", trainer(toy_step_s=STEP_S))
    pid = running(store, node, 1)
    agent = eventually(lambda: registered_agent(store), 10)
    installed.write_text(program.format(version="1.1 of tomorrow"))
    os.kill(agent, signal.SIGTERM)
    next_agent(store, node, agent)
    assert decode(store.get(keys.registration("n0")).value, Registration).version == "1.1 of tomorrow"
    assert rank(store, "n0", 1).pid == pid == node.pid(FIRST)
    no_step_is_missed(node, FIRST)


def test_a_frozen_agent_is_killed_by_the_shim_and_the_next_one_adopts(nodes: Nodes, store: Store) -> None:
    node = nodes.cold()
    desire(store, "n0", trainer(toy_step_s=STEP_S))
    pid = running(store, node, 1)
    agent = eventually(lambda: registered_agent(store), 10)
    frozen = time.time()
    os.kill(agent, signal.SIGSTOP)
    found = eventually(lambda: events(node, "agent_frozen"), 3 * AGENT_FROZEN_S)
    assert (found[0]["pid"], len(found)) == (agent, 1)
    assert found[0]["silent_s"] >= AGENT_FROZEN_S
    print(f"MEASURED frozen agent killed after {found[0]['t'] - frozen:.1f} s")
    next_agent(store, node, agent)
    assert rank(store, "n0", 1).pid == pid == node.pid(FIRST)
    assert f"adopted {FIRST}" in (node.folder / "agent.log").read_text()
    no_step_is_missed(node, FIRST)
    assert "it is frozen, killing it" in node.output.read_text()


@pytest.mark.long
def test_a_shim_that_was_frozen_itself_kills_no_agent(nodes: Nodes, store: Store) -> None:
    node = nodes.cold()
    agent = eventually(lambda: registered_agent(store), 10)
    # the shim thaws first: it finds no ping of the time since, as the agent was frozen too
    with stopped(node.shim.pid, agent):
        elapsed(1.2 * AGENT_FROZEN_S)
    elapsed(3.0)
    assert events(node, "agent_frozen") == []
    assert node.pid("agent") == agent


@pytest.mark.long
def test_an_agent_that_knows_no_pings_is_left_alone(nodes: Nodes) -> None:
    programs = json.dumps({**TOYS, "agent": "tests.system.agents.toy_old_agent"})
    node = nodes.cold(SUPERVISOR_PROGRAMS=programs)
    agent = eventually(lambda: node.pid("agent"), 10)
    elapsed(1.4 * AGENT_FROZEN_S)
    assert node.pid("agent") == agent
    assert events(node, "agent_frozen") == []


class PlantedShim:
    """Answers as a shim that lists one record, and keeps the requests that it gets."""

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        self._record = record
        self.asked: list[dict[str, Any]] = []
        self._listener = sockets.listen(folder / "shim.sock")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # the agent may be killed in the middle of a request
        with contextlib.suppress(OSError), client, client.makefile("rwb") as file:
            for line in file:
                request = json.loads(line)
                self.asked.append(request)
                answer: dict[str, Any] = {"ok": request["do"] in ("list", "forward", "watch", "ping")}
                answer |= {"processes": [self._record], "warm": "off", "port": 1, "error": "planted"}
                file.write(json.dumps(answer).encode() + b"\n")
                file.flush()

    def names(self, do: str) -> set[str]:
        return {request["name"] for request in self.asked if request["do"] == do}


def test_a_process_that_got_the_number_of_a_recorded_one_is_not_adopted(
    tmp_path: Path, etcd_server: EtcdServer, store: Store
) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    stat = process.stat_of(stranger.pid)
    folder = tmp_path / "nodes" / "n0"
    planted = PlantedShim(folder, Child(FIRST, stat.pid, stat.start_ticks - 1, str(folder)).record())
    arguments = ["--node=n0", f"--home={tmp_path}", f"--etcd={etcd_server.endpoint}", "--cold", "--lease-s=2"]
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "agents.agent", *arguments], stderr=log)
    try:
        found = eventually(lambda: rank(store, "n0", 1), 15)
        assert (found.state, found.pid) == ("exited", stat.pid)
        assert f"pid {stat.pid} is another process now" in (tmp_path / "agent.log").read_text()
        # that generation was used up, so only the next one is begun; and the stranger is never signalled
        desire(store, "n0", trainer())
        eventually(lambda: registered_agent(store), 10)
        desire(store, "n0", trainer(generation=2))
        eventually(lambda: planted.names("spawn"), 10)
        assert planted.names("spawn") == {"toy.0.2.0"}
        assert planted.names("signal") == set()
    finally:
        for child in (agent, stranger):
            child.kill()
            child.wait()
        planted.close()


# --- cut off ---

LIMIT_S = 3.0


@pytest.fixture
def wire(etcd_server: EtcdServer) -> Iterator[Relay]:
    """The node's network to etcd."""
    with relay(etcd_server.endpoint) as made:
        yield made


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.close()


def silence(wire: Relay) -> None:
    wire.requests.clear()
    wire.replies.clear()


def speak(wire: Relay) -> None:
    wire.requests.set()
    wire.replies.set()


def on_a_wire(nodes: Nodes, store: Store, wire: Relay, holder: Holder) -> tuple[Node, list[int]]:
    """Two groups on a node; only the first one's policy ever stops it."""
    node = nodes.cold("n0", "--slots=2", etcd=wire.endpoint)
    gate = {"gate": holder.endpoint, "toy_step_s": STEP_S}
    desire(store, "n0", trainer(0, cut_off_stop_s=LIMIT_S, **gate), trainer(1, cut_off_stop_s=0.0, **gate))
    pids = [running(store, node, 1, group) for group in (0, 1)]
    for group in (0, 1):
        eventually(lambda g=group: rank(store, "n0", 1, g).reaches_gate, 10, "it reaches the gate")
    return node, pids


def test_etcd_away_alone_stops_nothing(nodes: Nodes, store: Store, wire: Relay, holder: Holder) -> None:
    node, pids = on_a_wire(nodes, store, wire, holder)
    silence(wire)
    eventually(lambda: not registered_agent(store), 15, "its lease lapses")
    elapsed(3 * LIMIT_S)
    assert [node.pid(FIRST), node.pid("toy.1.1.0")] == pids
    assert events(node, "signalled") == []
    before = observed(store, "n0").sequence
    speak(wire)
    eventually(lambda: registered_agent(store) and observed(store, "n0").sequence > before, 20)
    found = rank(store, "n0", 1)
    assert (found.pid, found.state, found.reaches_gate) == (pids[0], "running", True)
    no_step_is_missed(node, FIRST)


def test_the_gate_away_alone_stops_nothing_and_is_reported(
    nodes: Nodes, store: Store, wire: Relay, holder: Holder
) -> None:
    node, pids = on_a_wire(nodes, store, wire, holder)
    assert rank(store, "n0", 1).gate == holder.endpoint
    holder.close()
    eventually(lambda: rank(store, "n0", 1).reaches_gate is False, 5)
    elapsed(3 * LIMIT_S)
    assert [node.pid(FIRST), node.pid("toy.1.1.0")] == pids
    assert events(node, "signalled") == []
    holder.open()
    eventually(lambda: rank(store, "n0", 1).reaches_gate, 5)
    # a new agent does not know the old one's settings: it tells of a gate once it has made its own
    agent = registered_agent(store)
    kill(node.pid("agent"))
    next_agent(store, node, agent)
    eventually(lambda: rank(store, "n0", 1).gate == holder.endpoint, 10)


@pytest.mark.parametrize("agent_dies", [pytest.param(False, marks=pytest.mark.long), True])
def test_both_away_stop_what_the_policy_says_after_its_time_and_not_before(
    nodes: Nodes, store: Store, wire: Relay, holder: Holder, agent_dies: bool
) -> None:
    node, pids = on_a_wire(nodes, store, wire, holder)
    silence(wire)
    if agent_dies:
        kill(node.pid("agent"))
    eventually(lambda: not registered_agent(store), 15, "its lease lapses")
    elapsed(2 * LIMIT_S)
    both_away = time.time()
    holder.close()
    first = eventually(lambda: events(node, "signalled"), 5 * LIMIT_S)[0]
    assert first["name"] == FIRST
    assert first["signal"] == signal.SIGTERM
    assert "neither etcd nor the gate was reached" in first["why"]
    print(f"MEASURED stopped {first['t'] - both_away:.1f} s after both were away, policy {LIMIT_S} s")
    assert first["t"] - both_away > LIMIT_S
    eventually(lambda: not node.pid(FIRST), 5)
    elapsed(LIMIT_S)
    assert node.pid("toy.1.1.0") == pids[1], "its policy is: never"
    assert first["why"] in (node.folder / "agent.log").read_text()
    speak(wire)
    found = eventually(lambda: (r := rank(store, "n0", 1)) and r.state == "exited" and r, 20)
    assert found.exit.signal == signal.SIGTERM
    assert rank(store, "n0", 1, 1).state == "running"


# --- gates ---


def light(generation: int = 1, close: bool = False) -> LighthouseDesired:
    spec = TorchFTSpec()
    return LighthouseDesired(run="toy", generation=generation, groups=1, min_groups=1, torchft=spec, close=close)


def lighthouse(store: Store, generation: int = 1) -> LighthouseObserved | None:
    view = observed(store, "n0")
    return next((x for x in view.lighthouses if x.generation == generation), None) if view else None


def with_gate(nodes: Nodes, store: Store) -> Node:
    node = nodes.cold(SUPERVISOR_PROGRAMS=json.dumps({**TOYS, "gate": "tests.system.agents.toy_gate"}))
    desire(store, "n0", lighthouses=(light(),))
    eventually(lambda: (x := lighthouse(store)) and x.state == "running", 20, "the gate listens")
    return node


@pytest.mark.long
def test_a_frozen_gate_is_killed_but_not_by_an_agent_that_was_frozen_too(nodes: Nodes, store: Store) -> None:
    node = with_gate(nodes, store)
    gate, agent = node.pid(GATE), node.pid("agent")
    with stopped(agent, gate):
        elapsed(2 * GATE_FROZEN_S)
    elapsed(GATE_FROZEN_S)
    assert node.pid(GATE) == gate
    frozen = time.time()
    os.kill(gate, signal.SIGSTOP)
    found = eventually(lambda: (x := lighthouse(store)) and x.state == "exited" and x, 5 * GATE_FROZEN_S)
    assert found.exit.signal == signal.SIGKILL
    killed = events(node, "signalled", GATE)
    assert [line["signal"] for line in killed] == [signal.SIGKILL]
    assert "the gate is frozen" in killed[0]["why"]
    assert killed[0]["why"] in (node.folder / "agent.log").read_text()
    print(f"MEASURED frozen gate killed after {killed[0]['t'] - frozen:.1f} s")
    assert killed[0]["t"] - frozen > GATE_FROZEN_S - 1.1, "it had touched its file up to a second before"
    assert node.pid("agent") == agent


def test_a_gate_that_is_to_close_ends_and_its_end_stays_visible(nodes: Nodes, store: Store) -> None:
    node = with_gate(nodes, store)
    desire(store, "n0", lighthouses=(light(close=True),))
    found = eventually(lambda: (x := lighthouse(store)) and x.state == "exited" and x, 10)
    assert found.exit.exit_code == 0
    agent = node.pid("agent")
    kill(agent)
    next_agent(store, node, agent)
    elapsed(2.0)  # some reports
    assert lighthouse(store).state == "exited"
    assert len(events(node, "spawned", GATE)) == 1
    desire(store, "n0", lighthouses=(light(2),))
    eventually(lambda: (x := lighthouse(store, 2)) and x.state == "running", 20)
    eventually(lambda: lighthouse(store) is None, 5, "the first is forgotten")


def test_a_gate_that_is_named_no_more_is_cut_and_that_is_reported(nodes: Nodes, store: Store, holder: Holder) -> None:
    node = nodes.cold()
    desire(store, "n0", trainer(toy_step_s=STEP_S))
    pid = running(store, node, 1)
    found = eventually(lambda: (r := rank(store, "n0", 1)) and r.gate == "" and r, 5)
    assert found.reaches_gate is None, "no gate was ever tried"
    for endpoint, reached in ((holder.endpoint, True), ("", False), (holder.endpoint, True)):
        desire(store, "n0", trainer(gate=endpoint, toy_step_s=STEP_S))
        eventually(lambda r=reached: rank(store, "n0", 1).reaches_gate is r, 5)
        eventually(lambda e=endpoint: rank(store, "n0", 1).gate == e, 5)
    assert node.pid(FIRST) == pid
    assert json.loads(holder.lines[0].splitlines()[0])["group"] == 0


# --- failpoints ---


@pytest.mark.parametrize(
    "name",
    [f"agent.{at}" for at in ("before_spawn", "after_spawn", "before_signal", "before_forward", "after_forward")]
    + ["agent.reported", "agent.reported:3"],
)
def test_an_agent_killed_at_any_of_its_steps_neither_loses_nor_repeats_one(
    nodes: Nodes, store: Store, tmp_path: Path, name: str
) -> None:
    once = tmp_path / "once"
    node = nodes.cold(SUPERVISOR_FAILPOINT=name, SUPERVISOR_FAILPOINT_ONCE=str(once))
    for generation in (1, 2):
        desire(store, "n0", trainer(generation=generation, world_size=2))
        running(store, node, generation, deadline_s=30)
        eventually(lambda g=generation: (r := rank(store, "n0", g, rank=1)) and r.state == "running", 20)
    assert not node.pid(FIRST)
    assert once.exists()
    assert [line["signal"] for line in events(node, "exited", "agent")] == [signal.SIGKILL]
    names = [f"toy.0.{generation}.{number}" for generation in (1, 2) for number in (0, 1)]
    assert [len(events(node, "spawned", each)) for each in names] == [1, 1, 1, 1]
