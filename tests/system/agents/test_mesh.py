"""A node's part of a Monarch mesh beside ranks, by a real agent; the worker is a toy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import Node, Nodes, desire, kill, observed, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.shell.inspect.asking import Said
from supervisor.wire import keys, monarch, node_requests, programs
from supervisor.wire.node_requests import UNTIL_CLOSED_S, NodeRequest

WORKER = json.dumps({**TOYS, "mesh_worker": "fault_injection.doubles.toy_mesh_worker"})


@contextmanager
def meshed(store: Store, by: str = "ann@desk") -> Iterator[list[Said]]:
    """Asks node n0 for a mesh, until the end of the block, and collects what it says."""
    request = NodeRequest(
        node="n0", what="mesh", by=by, limit_s=UNTIL_CLOSED_S, pems=dict.fromkeys(monarch.PEMS, "a file\n")
    )
    said: list[Said] = []
    over, mirror = threading.Event(), Mirror(store.list(keys.PREFIX))
    follow = threading.Thread(target=lambda: said.extend(asking.ask(store, mirror, {"n0": request}, 15, over)))
    follow.start()
    try:
        yield said
    finally:
        over.set()
        follow.join(20)
        assert not follow.is_alive()


def held(store: Store) -> str:
    return observed(store, "n0").mesh


def worker(node: Node) -> int:
    """Pid of the worker of the one mesh there."""
    stat = process.stat_of(int((node.folder / "mesh" / "files" / "child").read_text()))
    assert stat is not None
    return stat.parent


def start(nodes: Nodes, store: Store, **environment: str) -> Node:
    node = nodes.cold(**{programs.SEAM: WORKER}, **environment)
    eventually(lambda: store.get(keys.registration("n0")), 15, "it registers")
    return node


def test_a_run_that_was_sent_here_at_the_same_moment_gets_the_node(nodes: Nodes, store: Store) -> None:
    """A pool lends no node with a mesh. An older supervisor does, and one that has not seen it yet."""
    node = start(nodes, store, TOY_MESH_STAYS="1")
    with meshed(store) as said:
        eventually(lambda: said and said[0].items, 30, "it listens")
        eventually(lambda: held(store) == "ann@desk", 10, "it is reported")
        pid = worker(node)
        desire(store, "n0", trainer())
        running(store, node, 1)  # a worker that ignores TERM is there for 2 s more
        assert process.stat_of(pid) is None, "the mesh has ended before the rank began"
        eventually(lambda: said[-1].last, 10, "who asked learns why")
        assert said[-1].error == "run toy has got the node"
        eventually(lambda: not held(store), 10, "it is over")
    with meshed(store) as again:
        eventually(lambda: again and again[-1].last, 20, "it is refused")
        assert [(each.items, each.error) for each in again] == [((), "run toy has the node")]


@pytest.mark.long  # by day: the worker of an agent that is killed, in tests/unit/agents/requests/test_mesh.py
def test_a_mesh_ends_with_its_agent_and_the_next_agent_gives_another(nodes: Nodes, store: Store) -> None:
    node = start(nodes, store)
    with meshed(store) as said:
        eventually(lambda: said and said[0].items, 30, "it listens")
        pid, agent = worker(node), node.pid("agent")
        kill(agent)
        eventually(lambda: process.stat_of(pid) is None, 10, "the worker ends with it")
        eventually(lambda: node.pid("agent") not in (0, agent), 10, "the shim starts another")
        eventually(lambda: said[-1].last, 60, "who asked learns of it")
    eventually(lambda: store.list(node_requests.PREFIX).items == (), 40, "nothing of it is left")
    with meshed(store, "bob@desk") as again:
        eventually(lambda: again and again[0].items, 30, "the next one is given")
        eventually(lambda: held(store) == "bob@desk", 10, "it is reported")
    eventually(lambda: not held(store), 10, "it is over")
    assert not list((node.folder / "mesh").glob("*/key.pem")), "no key is left"


def test_a_service_host_has_no_place_for_one(nodes: Nodes, store: Store) -> None:
    nodes.cold("n0", "--role=service", "--slots=0", **{programs.SEAM: WORKER})
    eventually(lambda: store.get(keys.registration("n0")), 15, "it registers")
    with meshed(store) as said:
        eventually(lambda: said and said[-1].last, 20, "it is refused")
    assert said[-1].error == "it is a service host, and has no place for a mesh"
