"""The local engine, with `sleep` in the place of a node's shim."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.stopping import stop
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.ports.engine import Request, RequestRefused
from supervisor.ports.errors import Fatal
from supervisor.shell.engines import local
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.processes import is_running, start_ticks
from tests.system.contract.places import grants, request


class Died(BaseException):
    """Raised where the supervisor was killed."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Pool(nodes=(PoolNode("n1"), PoolNode("n2")), etcd="127.0.0.1:1").save(tmp_path)
    return tmp_path


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The commands of the nodes that were started; each is a sleeping process."""
    commands: list[list[str]] = []
    processes = []
    real = subprocess.Popen

    def start(command: list[str], **about: Any) -> Any:
        commands.append(command)
        processes.append(real(["sleep", "600"], **about))
        return processes[-1]

    monkeypatch.setattr(local.subprocess, "Popen", start)
    yield commands
    for process in processes:
        process.kill()
        process.wait()


def pid_of(engine: LocalEngine, key: str) -> int:
    return int(grants(engine)[key].engine_id.rpartition(":")[2])


def ends(pid: int) -> Callable[[], bool]:
    ticks = start_ticks(pid)
    return lambda: ticks is None or not is_running(pid, ticks)


def test_without_a_pool_it_says_what_to_do_and_gives_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = LocalEngine(tmp_path)
    engine.acquire(request("a1"))
    assert grants(engine) == {}
    engine.release("a1")
    assert ["supervisor up" in r.message for r in caplog.records] == [True], "it is said once"
    assert list(tmp_path.iterdir()) == [], "nothing is left that a pool of later would give"


def test_a_pool_that_is_made_later_is_found(tmp_path: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(tmp_path)
    engine.acquire(request("a1"))
    Pool(nodes=(PoolNode("n1"),), etcd="127.0.0.1:1").save(tmp_path)
    engine.acquire(request("a1"))
    assert grants(engine)["a1"].state == "granted"


def test_it_knows_the_allocations_of_its_own_home_only(tmp_path: Path, home: Path, spawned: list[list[str]]) -> None:
    other = tmp_path / "other"
    Pool(nodes=(PoolNode("n1"),), etcd="127.0.0.1:1").save(other)
    mine, others = LocalEngine(home), LocalEngine(other)
    for key in ("a1", "a2", "a3"):
        mine.acquire(request(key))
    assert [g.state for g in grants(mine).values()] == ["granted", "granted", "pending"]
    for grant in grants(mine).values():
        assert (mine.knows(grant), others.knows(grant)) == (True, False), "the pending one too"
        assert LocalEngine(home).knows(grant), "whichever process asks"
    for written_before in ("local-77", ""):
        assert others.knows(Grant(key="a1", state="granted", engine_id=written_before))
    assert not mine.knows(Grant(key="a1", state="granted", engine_id="4711")), "another scheduler's job"


def test_the_same_home_on_another_machine_is_another_engine(
    home: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[list[str]]
) -> None:
    """The disk is shared: that machine must neither start these nodes nor take them for ended."""
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    before = grants(engine)
    with monkeypatch.context() as patch:
        patch.setattr(local.socket, "gethostname", lambda: "elsewhere")
        there = LocalEngine(home)
        assert not there.knows(before["a1"])
        there.acquire(request("a2"))
        there.release("a1")
        assert grants(there) == {}
        assert there.stop_all(0.1) == []
    assert grants(engine) == before
    assert len(spawned) == 1


def test_an_allocation_is_a_started_node(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1", slots=4, lease_s=7))
    grant = grants(engine)["a1"]
    assert (grant.state, grant.nodes) == ("granted", ("n1",))
    assert start_ticks(pid_of(engine, "a1")) is not None
    command = " ".join(spawned[0])
    for part in ("--node n1", "--allocation a1", "--slots 4", "--lease-s 7", "--etcd 127.0.0.1:1", f"--home {home}"):
        assert part in command


def test_asking_twice_gives_one(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    engine.acquire(request("a1"))
    LocalEngine(home).acquire(request("a1"))
    assert (len(spawned), len(grants(engine))) == (1, 1)


def test_an_excluded_node_is_not_given(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1", exclude=("n1",)))
    assert grants(engine)["a1"].nodes == ("n2",)
    engine.acquire(request("a2", exclude=("n1",)))
    assert grants(engine)["a2"].state == "pending", "n1 is free, but excluded"


def test_an_exhausted_pool_keeps_it_pending_and_serves_it_later(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    for key in ("a1", "a2", "a3"):
        engine.acquire(request(key))
    assert [(g.state, g.nodes) for g in grants(engine).values()] == [
        ("granted", ("n1",)),
        ("granted", ("n2",)),
        ("pending", ()),
    ]
    engine.release("a1")
    found = eventually(lambda: (g := grants(engine)["a3"]).state == "granted" and g, 10, "a3 is served")
    assert isinstance(found, Grant)
    assert found.nodes == ("n1",)


def test_the_pending_are_served_in_the_order_of_their_keys(home: Path, spawned: list[list[str]]) -> None:
    """No two of them get the same node."""
    engine = LocalEngine(home)
    for key in ("a1", "a2", "a3", "a4"):
        engine.acquire(request(key))
    engine.release("a1")
    engine.release("a2")
    eventually(lambda: all(grants(engine)[k].state == "granted" for k in ("a3", "a4")), 10)
    assert {grants(engine)[k].nodes for k in ("a3", "a4")} == {("n1",), ("n2",)}


def test_release_ends_the_node_and_forgets_it(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    ended = ends(pid_of(engine, "a1"))
    engine.release("a1")
    eventually(ended, 10, "TERM ends it")
    eventually(lambda: engine.release("a1") or "a1" not in grants(engine), 10, "and then it is unknown")
    engine.release("a1")
    engine.release("never-there")


def test_release_of_a_pending_one_starts_nothing(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    for key in ("a1", "a2", "a3"):
        engine.acquire(request(key))
    engine.release("a3")
    engine.release("a1")
    eventually(lambda: engine.release("a1") or set(grants(engine)) == {"a2"}, 10)
    assert len(spawned) == 2


def test_a_node_that_ends_by_itself_is_a_lost_node_not_a_lost_allocation(home: Path, spawned: list[list[str]]) -> None:
    """Its lease shows it; its name is free again once it is released."""
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    engine.acquire(request("a9"))
    pid = pid_of(engine, "a1")
    ended = ends(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(ended, 10)
    assert grants(engine)["a1"].state == "granted"
    assert len(spawned) == 2, "nobody asked for another"
    engine.release("a1")
    assert set(grants(engine)) == {"a9"}
    engine.acquire(request("a2"))
    assert grants(engine)["a2"].nodes == ("n1",)


def test_nodes_that_have_all_ended_were_stopped_and_their_allocations_are_gone(
    home: Path, spawned: list[list[str]]
) -> None:
    """After a power loss, for example, their processes are proven to have ended. So there is nothing to wait for, and
    no host is blamed."""
    engine = LocalEngine(home)
    for key in ("a1", "a2"):
        engine.acquire(request(key))
    pids = [pid_of(engine, key) for key in ("a1", "a2")]
    ended = [ends(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(end() for end in ended), 10)
    again = LocalEngine(home)
    found = grants(again)
    assert {(g.state, g.reason, g.ended) for g in found.values()} == {("gone", local.STOPPED, True)}
    assert {key: g.nodes for key, g in found.items()} == {"a1": ("n1",), "a2": ("n2",)}
    again.acquire(request("a3"))
    assert grants(again)["a3"].state == "granted"
    assert grants(again)["a1"].state == "gone", "what is given then brings the old ones back no more"


def test_take_away_is_gone_at_once_and_ends_the_node(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    ended = ends(pid_of(engine, "a1"))
    engine.take_away("a1", "preempted")
    assert (grants(engine)["a1"].state, grants(engine)["a1"].reason) == ("gone", "preempted")
    eventually(ended, 10)
    with pytest.raises(Fatal):
        engine.take_away("never-there", "x")


def test_while_the_nodes_are_withheld_what_is_asked_for_is_pending(home: Path, spawned: list[list[str]]) -> None:
    engine, other = LocalEngine(home), LocalEngine(home)
    engine.acquire(request("a1"))
    other.withhold("all are somebody else's")
    engine.acquire(request("a2"))
    assert [(g.state, g.reason) for g in engine.list()] == [("granted", ""), ("pending", "all are somebody else's")]
    assert len(spawned) == 1
    with pytest.raises(Fatal, match="withheld already: all are"):
        engine.withhold("for another reason")
    other.give_again()
    assert (grants(engine)["a2"].state, grants(engine)["a2"].nodes) == ("granted", ("n2",))
    other.give_again()


def test_nodes_are_withheld_no_longer_than_who_does_so_lives(home: Path, request: pytest.FixtureRequest) -> None:
    code = "import sys; from pathlib import Path; from supervisor.shell.engines.local import LocalEngine; "
    code += "LocalEngine(Path(sys.argv[1])).withhold('taken')"
    subprocess.run([sys.executable, "-c", code, str(home)], check=True)
    assert (home / "local" / local.WITHHELD).exists()
    request.getfixturevalue("spawned")  # from here on each started process is a `sleep`
    engine = LocalEngine(home)
    engine.acquire(Request(key="a1", run="run", slots=1, lease_s=5))
    assert grants(engine)["a1"].state == "granted"


def test_an_allocation_of_several_nodes_is_refused(home: Path) -> None:
    engine = LocalEngine(home)
    with pytest.raises(RequestRefused, match="request an allocation for each node"):
        engine.acquire(Request(key="a1", run="run", slots=1, lease_s=5, nodes=2))
    assert grants(engine) == {}


def test_a_node_that_ignores_term_is_killed(
    home: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[list[str]]
) -> None:
    monkeypatch.setattr(local, "KILL_AFTER_S", 0.1)
    real = local.subprocess.Popen
    started: list[Any] = []

    def stubborn(command: list[str], **about: Any) -> Any:
        process = real(command, **about)
        stop(process.pid)  # TERM waits for it to go on; KILL does not
        started.append(process)
        return process

    monkeypatch.setattr(local.subprocess, "Popen", stubborn)
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    ended = ends(pid_of(engine, "a1"))
    engine.release("a1")
    assert not ended()
    eventually(lambda: engine.release("a1") or ended(), 10, "KILL follows TERM")


def test_a_new_engine_object_finds_what_runs(home: Path, spawned: list[list[str]]) -> None:
    LocalEngine(home).acquire(request("a1"))
    again = LocalEngine(home)
    assert grants(again)["a1"].state == "granted"
    ended = ends(pid_of(again, "a1"))
    again.release("a1")
    eventually(ended, 10)
    assert len(spawned) == 1


def test_a_recycled_pid_is_not_taken_for_the_node(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    engine.acquire(request("a1"))
    path = home / "local" / "allocation-a1.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "ticks": body["ticks"] - 1}))
    engine.release("a1")
    assert grants(engine) == {}
    assert start_ticks(body["pid"]) == body["ticks"], "somebody else's process is left alone"


def test_killed_between_the_name_and_the_start_the_next_starts_the_same_node(
    home: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[list[str]]
) -> None:
    engine = LocalEngine(home)

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "_start", die)
        with pytest.raises(Died):
            engine.acquire(request("a1"))
    assert spawned == []
    again = LocalEngine(home)
    again.acquire(request("a2"))
    found = grants(again)
    assert (found["a1"].state, found["a1"].nodes) == ("granted", ("n1",))
    assert (found["a2"].state, found["a2"].nodes) == ("granted", ("n2",))
    assert len(spawned) == 2


def test_killed_before_the_start_was_noted_the_shim_that_holds_the_lock_is_adopted(
    home: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[list[str]]
) -> None:
    """Two shims of one node: the second cannot get the lock and ends; the first is the node."""
    engine = LocalEngine(home)
    save = LocalEngine._save
    unnoted: list[int] = []

    def die_after_start(self: LocalEngine, allocation: Any) -> None:
        if allocation.pid:
            unnoted.append(allocation.pid)
            raise Died
        save(self, allocation)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "_save", die_after_start)
        with pytest.raises(Died):
            engine.acquire(request("a1"))
    (first,) = unnoted
    with (home / "nodes" / "n1" / "shim.lock").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the first shim would
        lock.write(str(first))
        lock.flush()
        again = LocalEngine(home)
        assert grants(again)["a1"].state == "granted"
        second = pid_of(again, "a1")
        assert second != first
        ended, look = ends(second), LocalEngine._with_its_shim

        def ends_once_looked_at(self: LocalEngine, allocation: Any) -> Any:
            found = look(self, allocation)
            os.kill(second, signal.SIGKILL)
            eventually(ended, 10, "the second shim has ended")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(LocalEngine, "_with_its_shim", ends_once_looked_at)
            assert grants(again)["a1"].state == "granted"
        assert pid_of(again, "a1") == first, "the lock's holder is the node"
        assert grants(again)["a1"].state == "granted"


def test_the_pool_is_saved_and_loaded(tmp_path: Path) -> None:
    pool = Pool(nodes=(PoolNode("n1", "10.0.0.1", "ns1"),), etcd="h:1", report_s=0.5, cold=True)
    pool.save(tmp_path)
    assert Pool.load(tmp_path) == pool


def test_a_node_in_a_namespace_is_started_there(tmp_path: Path, spawned: list[list[str]]) -> None:
    Pool(nodes=(PoolNode("n1", "10.0.0.1", "ns1"),), etcd="h:1", cold=True).save(tmp_path)
    LocalEngine(tmp_path).acquire(request("a1"))
    assert spawned[0][:2] == ["nsenter", "--net=/run/netns/ns1"]
    assert spawned[0][-1] == "--cold"


def test_it_says_that_it_has_no_more_and_gives_what_is_added_to_the_pool(home: Path, spawned: list[list[str]]) -> None:
    engine = LocalEngine(home)
    for key in ("a1", "a2", "a3"):
        engine.acquire(request(key))
    pending = grants(engine)["a3"]
    assert (pending.state, pending.exhausted, engine.free()) == ("pending", True, 0)
    assert "`supervisor up --nodes 3`" in pending.reason
    engine.acquire(request("a4"))
    assert {"`supervisor up --nodes 4`" in grants(engine)[key].reason for key in ("a3", "a4")} == {True}
    engine.release("a4")
    engine.withhold("the test")
    assert not grants(engine)["a3"].exhausted, "as in a queue"
    engine.give_again()
    pool = Pool.load(home)
    assert pool is not None
    replace(pool, nodes=(*pool.nodes, PoolNode("n3"))).save(home)
    assert (grants(engine)["a3"].state, grants(engine)["a3"].nodes) == ("granted", ("n3",))
    assert set(engine.alive()) == {"n1", "n2", "n3"}
