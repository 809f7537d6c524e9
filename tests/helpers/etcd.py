"""A real etcd for tests. In a folder's conftest.py: `from tests.helpers.etcd import etcd_server, store` (with `__all__`)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from supervisor.ports.errors import Retryable
from supervisor.shell.etcd_server import EtcdServer, start_etcd
from supervisor.shell.store import EtcdStore, connect
from supervisor.shell.store.stubs import rpc
from tests.helpers.waiting import eventually


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server for the session, on a free port. Who kills or freezes servers starts one for itself (`running`)."""
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def store(etcd_server: EtcdServer) -> Iterator[EtcdStore]:
    """A fresh connection to an empty keyspace."""
    with connect([etcd_server.endpoint]) as fresh:
        clear(fresh)
        yield fresh


def clear(store: EtcdStore) -> None:
    """Deletes every key."""
    client = store._connection.client
    client.kvstub.DeleteRange(rpc.DeleteRangeRequest(key=b"\0", range_end=b"\0"), 5.0)


@contextlib.contextmanager
def running(data_dir: Path, client_port: int = 0, binary: Path | None = None) -> Iterator[EtcdServer]:
    """A server of one's own, ended with the block whatever was done to it. (`die_with_parent` is off: it would follow
    the thread that started it.)"""
    server = start_etcd(data_dir, client_port, binary=binary)
    try:
        yield server
    finally:
        server.stop()


def kill(server: EtcdServer) -> None:
    """SIGKILL, and waits until it has ended."""
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.alive, 5, "killed etcd ends")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP for as long as the block lasts. All threads have stopped when it begins: kill() returns before that (seen on
    a busy machine: 9 of 60 calls made right after it were still answered)."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: states(pid) <= {"T"}, 10, f"{pid} has stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def states(pid: int) -> set[str]:
    """The states of a process's threads, as in /proc."""
    return {file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")}


class Cluster:
    """Three members on loopback."""

    def __init__(self, folder: Path, binary: Path) -> None:
        ports = free_ports(6)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:3]]
        self.endpoint = ",".join(self.endpoints)
        peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        initial = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        self._commands: list[list[str]] = []
        self._folder = folder
        for n, (endpoint, peer) in enumerate(zip(self.endpoints, peers, strict=True)):
            flags = {
                "name": f"m{n}",
                "data-dir": folder / f"m{n}",
                "listen-client-urls": f"http://{endpoint}",
                "advertise-client-urls": f"http://{endpoint}",
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": initial,
                "logger": "zap",
            }
            self._commands.append([str(binary), *(f"--{name}={value}" for name, value in flags.items())])
        self.members = [self._spawn(n) for n in range(3)]

    def _spawn(self, n: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"m{n}.log").open("ab") as log:
            return subprocess.Popen(self._commands[n], stdout=log, stderr=log, start_new_session=True)

    def kill(self, n: int) -> None:
        """SIGKILL to one member; it has ended when this returns."""
        self.members[n].kill()
        self.members[n].wait()

    def start(self, n: int) -> None:
        """A member that was killed, on its old ports and data."""
        self.members[n] = self._spawn(n)

    def leader(self) -> int:
        """The member that leads, as the living ones say. Waits until they agree on one."""
        return eventually(self._leader, 20, "the members agree on a leader")[0]

    def _leader(self) -> tuple[int] | None:
        said: dict[int, int] = {}
        leaders = set()
        for n, member in enumerate(self.members):
            if member.poll() is None:
                try:
                    with connect([self.endpoints[n]], timeout_s=1.0) as store:
                        answer = store.connection.client.maintenancestub.Status(rpc.StatusRequest(), 1.0)
                except (Retryable, grpc.RpcError):
                    return None
                said[answer.header.member_id] = n
                leaders.add(answer.leader)
        return (said[leaders.pop()],) if len(leaders) == 1 and leaders <= said.keys() else None

    def stop(self) -> None:
        for member in self.members:
            if member.poll() is None:
                member.kill()
            member.wait()


@contextlib.contextmanager
def cluster(folder: Path, binary: Path) -> Iterator[Cluster]:
    """Three members, ended with the block."""
    three = Cluster(folder, binary)
    try:
        yield three
    finally:
        three.stop()


def free_ports(n: int) -> list[int]:
    """`n` different ports of loopback that nobody listened on just now."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(n):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
