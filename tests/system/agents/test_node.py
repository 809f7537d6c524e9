"""A node as real processes: shim, agent, warm process, toy trainers, and a real etcd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.nodes import RUN, Node, Nodes, desire, kill, observed, rank, registration, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import connect
from supervisor.shell.inspect import status
from supervisor.wire import keys, rotated
from supervisor.wire.records import CheckpointMark, Health, decode
from tests.helpers import etcd

FIRST = "toy.0.1.0"
SECOND = "toy.0.2.0"


@pytest.fixture
def cold(nodes: Nodes) -> Iterator[Node]:
    return nodes.cold()


def problems(store: Store, node: str) -> str:
    item = store.get(keys.health(node))
    return " ".join(decode(item.value, Health).problems) if item is not None else ""


def test_a_trainer_is_forked_from_the_warm_process_and_its_exit_is_seen(nodes: Nodes, store: Store) -> None:
    node = nodes.start()
    eventually(node.warm_ready, 15)
    desire(store, "n0", trainer())
    pid = running(store, node, 1)
    assert node.records()[FIRST].warm
    kill(pid)
    ended = eventually(lambda: (found := rank(store, "n0", 1)) and found.state == "exited" and found.exit, 5)
    assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)
    # it obeys generations: the same one is never begun again
    desire(store, "n0", trainer(generation=2))
    assert running(store, node, 2) != pid
    eventually(lambda: FIRST not in node.records() and rank(store, "n0", 1) is None, 5, "the first is forgotten")
    assert [line["event"] for line in node.history() if line.get("name") == FIRST] == ["spawned", "exited"]


def test_a_trainer_that_ends_at_once_is_not_lost(nodes: Nodes, store: Store) -> None:
    node = nodes.start()
    eventually(node.warm_ready, 15)
    for generation in range(1, 6):
        desire(store, "n0", trainer(generation=generation, toy_mode="exit", toy_exit_code=generation))
        found = eventually(lambda g=generation: (r := rank(store, "n0", g)) and r.state == "exited" and r, 5)
        assert found.exit.exit_code == generation
        assert found.exit.last_words == "gone at once"


def test_a_failed_rank_is_decoded_and_its_sibling_ended(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer(world_size=2, toy_fail_at=5))
    first = eventually(lambda: (r := rank(store, "n0", 1)) and r.state == "exited" and r, 15)
    assert (first.exit.exit_code, first.exit.error_file) == (3, "ToyError: asked to")
    assert first.exit.last_words == "the toy fails as it was asked to"
    assert first.progress.step == 5
    sibling = eventually(lambda: (r := rank(store, "n0", 1, rank=1)) and r.state == "exited" and r, 5)
    assert sibling.exit.signal == signal.SIGTERM


def test_a_trainer_of_the_allocation_that_had_this_node_before_is_not_started(nodes: Nodes, store: Store) -> None:
    desire(store, "n0", trainer(generation=5, allocation="toy-a1"))
    node = nodes.cold("n0", "--allocation=toy-a2")
    said = eventually(lambda: problems(store, "n0"), 15, "it reports what it leaves alone")
    assert "group 0 generation 5" in said
    assert "allocation toy-a1, but this node is of toy-a2" in said
    # the supervisor places the group again, and on this node
    desire(store, "n0", trainer(generation=6, allocation="toy-a2"))
    running(store, node, 6)
    assert rank(store, "n0", 5) is None
    spawned = [line["name"] for line in node.history() if line["event"] == "spawned" and "toy" in line["name"]]
    assert spawned == ["toy.0.6.0"]
    eventually(lambda: problems(store, "n0") == "", 10, "nothing is left to say")


def test_a_killed_agent_comes_back_and_adopts(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer())
    pid = running(store, cold, 1)
    agent = cold.pid("agent")
    before = observed(store, "n0").sequence
    kill(agent)
    eventually(lambda: cold.pid("agent") not in (0, agent), 5)
    eventually(
        lambda: (r := registration(store, "n0")) and r.agent_pid == cold.pid("agent"), 10, "it registers at once"
    )
    assert observed(store, "n0").sequence > before
    assert rank(store, "n0", 1).pid == pid == cold.pid(FIRST)
    # and it still obeys
    desire(store, "n0", trainer(generation=2))
    assert running(store, cold, 2) != pid
    assert not cold.pid(FIRST)


def test_commands_reach_the_trainer(cold: Node, store: Store) -> None:
    mark = CheckpointMark(step=7, path="/somewhere", group=0, generation=1)
    desire(store, "n0", trainer(toy_stop_at=30))
    running(store, cold, 1)
    told = cold.folder / "ranks" / FIRST / "commands.jsonl"

    def commands() -> list[dict[str, object]]:
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    desire(store, "n0", trainer(toy_stop_at=30, writer=True, checkpoint=mark))
    writer = eventually(commands, 5)[0]
    assert (writer["do"], writer["writer"]) == ("writer", True)
    assert decode(json.dumps(writer["pointer"]), CheckpointMark) == mark
    desire(store, "n0", trainer(toy_stop_at=30, writer=True, checkpoint=mark, lost=(1,)))
    # only once its step has not moved for a heartbeat timeout
    eventually(lambda: {"do": "abort", "lost": [1]} in commands(), 10)
    assert cold.progress(FIRST).step == 30
    desire(store, "n0", trainer(toy_stop_at=30, writer=True, checkpoint=mark, stop_at_step=40))
    eventually(lambda: {"do": "drain", "at_step": 40, "keep": 0} in commands(), 5)
    found = eventually(lambda: (r := rank(store, "n0", 1)) and r.state == "exited" and r, 5)
    assert (found.exit.exit_code, found.progress.phase) == (0, "finished")
    assert [command["do"] for command in commands()] == ["writer", "abort", "drain"]


def test_what_ignores_term_is_killed_after_its_grace(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer(toy_ignore_term=True, term_grace_s=0.5))
    running(store, cold, 1)
    desire(store, "n0")
    eventually(lambda: not cold.pid(FIRST), 5)
    eventually(lambda: not observed(store, "n0").trainers, 5)
    # the shim writes its history behind what it does
    events = eventually(lambda: [e for e in events_of(cold) if e[0] == "exited"] and events_of(cold), 5)
    assert events == [("spawned", None), ("signalled", 15), ("signalled", 9), ("exited", 9)]


def events_of(node: Node) -> list[tuple[str, int | None]]:
    """The events that the node's shim wrote down of the first trainer, and the signals."""
    return [(x["event"], x.get("signal")) for x in node.history() if x.get("name") == FIRST]


def test_a_desired_record_that_cannot_be_read_changes_nothing(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer())
    pid = running(store, cold, 1)
    for corrupt in (b"{", b'{"kind":"NodeDesired","version":99,"node":"n0"}'):
        store.put(keys.desired("n0", RUN), corrupt)
        eventually(lambda: "desired record" in problems(store, "n0"), 5)
        agent = cold.pid("agent")
        kill(agent)  # nor does it for an agent that has never read a good one
        eventually(lambda old=agent: (r := registration(store, "n0")) and r.agent_pid != old, 10)
        eventually(lambda: "desired record" in problems(store, "n0"), 5)
        assert cold.pid(FIRST) == pid
    desire(store, "n0", trainer(generation=2))
    assert running(store, cold, 2) != pid
    eventually(lambda: not problems(store, "n0"), 5)


def test_a_deleted_record_stops_nothing_and_an_empty_one_does(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer())
    pid = running(store, cold, 1)
    # an etcd that was wiped holds no record at all: nothing is stopped for that
    store.commit({}, deletes=[keys.desired("n0", RUN)])
    eventually(lambda: "no desired record for it" in problems(store, "n0"), 5)
    assert cold.pid(FIRST) == pid
    desire(store, "n0")
    eventually(lambda: not cold.pid(FIRST), 5)
    eventually(lambda: not problems(store, "n0"), 5)


def test_another_home_cannot_take_the_name_of_a_living_node(nodes: Nodes, store: Store) -> None:
    first = nodes.cold()
    mine = eventually(lambda: registration(store, "n0"), 10)
    other = Nodes(nodes.home / "other", nodes.etcd)
    (nodes.home / "other").mkdir()
    with other:
        second = other.cold()
        log = second.folder / "agent.log"
        eventually(lambda: log.exists() and "another agent is registered" in log.read_text(), 10)
        assert registration(store, "n0") == mine
        desire(store, "n0", trainer())
        running(store, first, 1)
        eventually(lambda: store.get(keys.second("n0")), 15, "it says that it is there")
        (row,) = status.node_status(Mirror(store.list(keys.PREFIX)))
        assert f"a second agent with this name is idle: pid {second.pid('agent')} on " in row.problems[0]
        assert str(second.folder) in row.problems[0]
        eventually(lambda: "at 127.0.0.1) is registered as node n0, and lives" in second.output.read_text(), 5)
        assert second.output.read_text().count("and lives") == 1
        assert FIRST not in second.records()


def test_metrics(cold: Node, store: Store) -> None:
    desire(store, "n0", trainer())
    running(store, cold, 1)
    port = registration(store, "n0").metrics_port

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()

    eventually(lambda: 'trainer_up{group="0",rank="0",run="toy"} 1.0' in page(), 10)
    assert 'agent_process_starts_total{how="cold",kind="trainer",node="n0"} 1.0' in page()
    assert 'agent_lease_held{node="n0"} 1.0' in page()


def test_etcd_away_stops_nothing_and_is_told_of_everything_afterwards(tmp_path: Path) -> None:
    data = tmp_path / "etcd"
    with etcd.running(data) as server, Nodes(tmp_path, server.endpoint) as nodes:
        node = nodes.cold()
        with connect([server.endpoint]) as store:
            desire(store, "n0", trainer(0), trainer(1))
            pids = [running(store, node, 1, group) for group in (0, 1)]
        etcd.kill(server)
        kill(pids[1])
        eventually(lambda: node.records()["toy.1.1.0"].exited, 5)
        away = node.progress(FIRST).step
        output = node.folder / "ranks" / FIRST / "output.log"
        os.truncate(output, rotated.LIMIT_BYTES + 1)  # as if it had printed so much
        # longer than the lease
        eventually(lambda: node.progress(FIRST).step > away + 60, 20)
        port = int(server.endpoint.rpartition(":")[2])
        with etcd.running(data, port) as again, connect([again.endpoint]) as store:
            found = eventually(lambda: (r := rank(store, "n0", 1, 1)) and r.state == "exited" and r, 15)
            assert found.exit.signal == signal.SIGKILL
            eventually(lambda: registration(store, "n0"), 10)
            assert node.pid(FIRST) == pids[0]
            (part,) = eventually(lambda: rotated.parts(output), 10, "its log is kept within a size")
            assert part.stat().st_size > rotated.LIMIT_BYTES > output.stat().st_size
            desire(store, "n0", trainer(0, 2), trainer(1, 2))
            assert running(store, node, 2) not in pids
        log = (node.folder / "agent.log").read_text()
        assert log.count("WARNING") <= 6, log


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    import sys

    return subprocess.run(
        [sys.executable, "-m", "agents.cli", "run", *arguments], capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--node=a/b", "--etcd=127.0.0.1:1"], 2, "--node 'a/b'"),
        (["--node=n0", "--etcd=somewhere"], 2, "each endpoint is HOST:PORT"),
        (["--node=n0", "--etcd=127.0.0.1:1", "--role=boss"], 2, "it must be trainer or service"),
        (["--node=n0", "--etcd=127.0.0.1:1", "--address=203.0.113.7"], 2, "at 203.0.113.7 is off loopback"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, sentence: str) -> None:
    done = run_cli(f"--home={tmp_path}", *arguments)
    assert done.returncode == code
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
