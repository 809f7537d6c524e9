"""A node's part of a mesh: its place, its worker, and every way in which it ends. The worker is a toy."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from agents.requests import mesh
from agents.requests.mesh import Seat
from agents.shim import process
from fault_injection.testbed.waiting import eventually
from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire import marks, monarch, programs
from supervisor.wire.node_requests import UNTIL_CLOSED_S, NodeRequest

PEMS = {name: f"{name} of ann\n" for name in monarch.PEMS}


class Node:
    """A node with a place for a mesh."""

    def __init__(self) -> None:
        self.run = ""
        self.changes: list[str] = []
        self.seat = Seat("127.0.0.1", lambda: self.run, lambda _: self.changes.append(self.seat.holder))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv(programs.SEAM, json.dumps({"mesh_worker": "fault_injection.doubles.toy_mesh_worker"}))
    return Node()


J1 = f"j1-{os.getpid()}"
"""Another process that runs these tests must not kill what is marked with it."""


def job(by: str = "ann@desk", name: str = J1) -> Job:
    request = NodeRequest(node="n1", what="mesh", by=by, limit_s=UNTIL_CLOSED_S, pems=PEMS)
    return Job(name, request, time.monotonic() + 60.0)


def begun(answer: Answer) -> dict[str, str]:
    """Goes on until the worker listens."""
    return next(item for item in answer if item is not None)


def gone(pid: int) -> bool:
    stat = process.stat_of(pid)
    return stat is None or not stat.running


def test_a_worker_listens_as_long_as_its_asker_is_there(node: Node, tmp_path: Path) -> None:
    asked = job()
    answer = mesh.hold(node.seat, tmp_path, asked)
    said = begun(answer)
    assert said["address"].startswith("tls://127.0.0.1:")
    assert said["release"] == monarch.RELEASE
    assert node.seat.holder == "ann@desk"
    child = int((tmp_path / mesh.FILES / "child").read_text())
    assert marks.of(child) == f"mesh.n1.{J1}"
    environment = (tmp_path / mesh.FILES / "environment").read_text().splitlines()
    assert f"HYPERACTOR_TLS_KEY={tmp_path}/files/key.pem" in environment
    assert "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY=1s" in environment
    assert "EVERSTEP_NODE_ADDRESS=127.0.0.1" in environment
    key = tmp_path / mesh.FILES / "key.pem"
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("key of ann\n", 0o600)
    assert (tmp_path / mesh.FILES).stat().st_mode & 0o777 == 0o700
    assert next(answer) is None
    asked.gone.set()
    assert list(answer) == []
    assert gone(child), "what it started in another session ends too"
    assert not (tmp_path / mesh.FILES).exists(), "its key goes"
    assert node.changes == ["ann@desk", ""]


def test_what_the_user_has_set_counts(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERACTOR_MESH_ORPHAN_TIMEOUT", "7s")
    answer = mesh.hold(node.seat, tmp_path, job())
    begun(answer)
    assert "HYPERACTOR_MESH_ORPHAN_TIMEOUT=7s" in (tmp_path / mesh.FILES / "environment").read_text().splitlines()
    answer.close()


def test_a_run_that_comes_ends_it(node: Node, tmp_path: Path) -> None:
    answer = mesh.hold(node.seat, tmp_path, job())
    begun(answer)
    child = int((tmp_path / mesh.FILES / "child").read_text())
    node.run = "big"
    with pytest.raises(CannotDo, match="run big has got the node"):
        list(answer)
    assert gone(child)
    assert node.seat.holder == "", "its ranks may start"


def test_a_node_has_one_mesh_and_none_beside_a_run(node: Node, tmp_path: Path) -> None:
    answer = mesh.hold(node.seat, tmp_path, job())
    begun(answer)
    with pytest.raises(CannotDo, match="ann@desk has a mesh there: a node has one at most"):
        next(mesh.hold(node.seat, tmp_path, job("bob@desk", "j2")))
    assert node.seat.holder == "ann@desk"
    answer.close()
    node.run = "big"
    with pytest.raises(CannotDo, match="run big has the node"):
        next(mesh.hold(node.seat, tmp_path, job()))
    assert node.seat.holder == ""


def test_a_worker_that_ends_is_named_with_its_log(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = mesh.hold(node.seat, tmp_path, job())
    begun(answer)
    worker = process.stat_of(int((tmp_path / mesh.FILES / "child").read_text()))
    assert worker is not None
    os.kill(worker.parent, signal.SIGKILL)
    with pytest.raises(CannotDo, match=rf"its Monarch worker has ended \(SIGKILL\): see {tmp_path}/output.log"):
        list(answer)
    assert gone(worker.pid)
    monkeypatch.setattr(mesh, "free_port", lambda address: 1)
    with pytest.raises(CannotDo, match=r"its Monarch worker has ended \(exit code 3\)"):
        list(mesh.hold(node.seat, tmp_path, job()))


def test_a_worker_ends_with_an_agent_that_is_killed(node: Node, tmp_path: Path) -> None:
    """The kernel closes the agent's end of the pipe."""
    answer = mesh.hold(node.seat, tmp_path, job())
    begun(answer)
    child = int((tmp_path / mesh.FILES / "child").read_text())
    stat = process.stat_of(child)
    assert stat is not None
    reader = Path(f"/proc/{stat.parent}/fd/0").readlink()
    (ours,) = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and fd.readlink() == reader]
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, int(ours.name))  # closes it, as the death of the agent does
    eventually(lambda: gone(stat.parent), 10, "it ends")
    os.close(devnull)
    answer.close()
    assert gone(child)


def test_without_monarch_it_is_a_sentence(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "free_port", lambda address: 2)
    with pytest.raises(CannotDo) as refused:
        list(mesh.hold(node.seat, tmp_path, job()))
    assert str(refused.value) == "a mesh needs monarch, which is not installed: pip install 'everstep[monarch]' there"
