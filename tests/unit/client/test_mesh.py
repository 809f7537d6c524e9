"""A mesh before anything of Monarch is loaded: its needs, its nodes, and how it learns of what is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

import supervisor.client as everstep
from fault_injection.doubles.memory_store import MemoryStore
from supervisor.client import mesh
from supervisor.ports.errors import Retryable
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.shell.inspect.asking import Said
from supervisor.shell.inspect.pools import PoolNodeStatus, PoolStatus
from supervisor.wire import monarch
from supervisor.wire.node_requests import NodeRequest

MIRROR = Mirror(MemoryStore().list(""))


def pool(*nodes: tuple[str, str, str]) -> PoolStatus:
    """A pool of nodes, each with its state, its run and who has a mesh on it."""
    rows = tuple(
        PoolNodeStatus(node=f"n{i}", allocation=f"lab-a{i}", state=state, host=f"n{i}", run=run, mesh=by)
        for i, (state, run, by) in enumerate(nodes, 1)
    )
    about: dict[str, Any] = dict.fromkeys(("idle_since_unix_s", "ends_unix_s"))
    about |= {"used_by": {}, "waiting": (), "cordons": {}, "leaving": {}, "warnings": (), "problems": ()}
    return PoolStatus(pool="lab", phase="running", engine="local", wanted=len(rows), nodes=rows, **about)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "version_of", lambda name: monarch.RELEASE)


def test_without_monarch_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(mesh, "version_of", lacks)
    with pytest.raises(everstep.EverstepError) as refused:
        mesh.made(MemoryStore(), MIRROR, pool(("granted", "", "")), None)
    assert str(refused.value) == "a mesh needs monarch, which is not installed: pip install 'everstep[monarch]'"
    monkeypatch.setattr(mesh, "version_of", lambda name: "0.8.0")
    with pytest.raises(everstep.EverstepError) as refused:
        mesh.made(MemoryStore(), MIRROR, pool(("granted", "", "")), None)
    assert str(refused.value) == (
        "torchmonarch 0.8.0 is installed, and only 0.7.0 fits: pip install 'everstep[monarch]'"
    )


@pytest.mark.parametrize(
    ("nodes", "count", "why"),
    [
        ((("granted", "big", ""), ("granted", "", "ann@desk")), None,
         "pool lab does not have a free node for a mesh (nodes: 2; free: 0; n1: run big; n2: a mesh of ann@desk)"),
        ((("granted", "", ""), ("silent", "", "")), 2,
         "pool lab does not have 2 nodes free for a mesh (nodes: 2; free: 1)"),
        ((("granted", "", ""),), 0, "a mesh of 0 nodes: it has one at least"),
        ((("granted", "", ""),), None, "node n1 is not registered: its agent does not run, or does not reach etcd"),
    ],
)  # fmt: skip
def test_too_few_nodes_are_a_sentence(nodes: tuple[tuple[str, str, str], ...], count: int | None, why: str) -> None:
    with pytest.raises(everstep.EverstepError) as refused:
        mesh.made(MemoryStore(), MIRROR, pool(*nodes), count)
    assert str(refused.value) == why


def test_a_program_has_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def init(self: Any, address: str) -> None:
        made.append(address)
        time.sleep(0.05)  # long enough for the others to come
        self.address = address

    monkeypatch.setattr(mesh._Client, "__init__", init)
    monkeypatch.setattr(mesh._Client, "_made", None)
    with ThreadPoolExecutor(4) as pool_of_threads:
        found = list(pool_of_threads.map(mesh._Client.of_this_process, ["10.0.0.1"] * 4))
    assert len(set(map(id, found))) == 1
    with pytest.raises(everstep.EverstepError) as refused:
        mesh._Client.of_this_process("10.1.0.1")
    assert str(refused.value) == (
        "this program's first mesh goes by its address 10.0.0.1, and these nodes are reached from 10.1.0.1: Monarch binds "
        "one address in a program, so make this mesh in another one"
    )
    assert made == ["10.0.0.1"]


class Agents:
    """Answers in the place of agents: what is put here they say, until the mesh is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says: list[Said | Exception] = []
        self.some = threading.Condition()
        monkeypatch.setattr(asking, "ask", self.ask)

    def say(self, what: Said | Exception) -> None:
        with self.some:
            self.says.append(what)
            self.some.notify_all()

    def ask(self, store: Any, mirror: Any, requests: Any, lease_s: int, over: threading.Event) -> Iterator[Said]:
        assert lease_s == mesh.LEASE_S
        while not over.is_set():
            with self.some:
                self.some.wait_for(lambda: self.says, 0.02)
                said = self.says.pop(0) if self.says else None
            if isinstance(said, Exception):
                raise said
            if said is not None:
                yield said


def listens(node: str, release: str = monarch.RELEASE) -> Said:
    return Said(node, ({"address": f"tls://{node}:1", "release": release},))


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(monkeypatch)


@pytest.fixture
def made(agents: Agents) -> Iterator[mesh.Mesh]:
    requests = {n: NodeRequest(node=n, what="mesh", by="ann@desk", limit_s=1.0) for n in ("n1", "n2")}
    found = mesh.Mesh(MemoryStore(), MIRROR, requests)
    yield found
    found.close()
    assert not found._thread.is_alive()


def test_the_hosts_are_in_the_order_of_the_nodes(agents: Agents, made: mesh.Mesh) -> None:
    agents.say(listens("n2"))
    agents.say(listens("n1"))
    assert made.wait_for_workers() == ["tls://n1:1", "tls://n2:1"]
    assert (made.nodes, made.lost) == (("n1", "n2"), {})


def test_a_node_that_cannot_is_named(agents: Agents, made: mesh.Mesh) -> None:
    agents.say(listens("n2"))
    agents.say(Said("n1", last=True, error="run big has the node"))
    with pytest.raises(everstep.EverstepError, match=r"^n1: run big has the node$"):
        made.wait_for_workers()


def test_a_node_with_another_monarch_is_named(agents: Agents, made: mesh.Mesh) -> None:
    agents.say(listens("n1", "0.6.0"))
    with pytest.raises(everstep.EverstepError, match=r"^n1: it has torchmonarch 0\.6\.0, and this program 0\.7\.0$"):
        made.wait_for_workers()


def test_workers_that_do_not_come_are_named(agents: Agents, made: mesh.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "BEGINS_WITHIN_S", 0.1)
    agents.say(listens("n1"))
    with pytest.raises(everstep.EverstepError, match=r"^no worker listens on n2 after 0\.1 s: see its agent's log$"):
        made.wait_for_workers()


def test_what_ends_later_is_lost_and_etcd_away_loses_all(agents: Agents, made: mesh.Mesh) -> None:
    for node in made.nodes:
        agents.say(listens(node))
    made.wait_for_workers()
    agents.say(Said("n2", last=True, error="run big has got the node"))
    with made._news:
        made._news.wait_for(lambda: made._lost, 10)
    assert made.lost == {"n2": "run big has got the node"}
    agents.say(Retryable("etcd is away", 1.0))
    with made._news:
        made._news.wait_for(lambda: len(made._lost) == 2, 10)
    assert made.lost == {"n1": "etcd is away", "n2": "run big has got the node"}
