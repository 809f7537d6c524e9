"""A real etcd for tests. In conftest.py: `from tests.helpers.etcd import etcd_server, store` (with `__all__`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.etcds import Cluster, cluster
from fault_injection.testbed.waiting import eventually
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.etcd.stubs import rpc

__all__ = ["Cluster", "cluster"]


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server for the session, on a free port. A test that kills or freezes servers starts its own (`running`)."""
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def store(etcd_server: EtcdServer) -> Iterator[EtcdStore]:
    """A fresh connection to an empty keyspace."""
    with connect([etcd_server.endpoint]) as fresh:
        clear(fresh)
        yield fresh


MEMORY = Path("/dev/shm")
MEMORY_BYTES = 512 << 20
"""Four times the size of an etcd that was just started: it preallocates its log."""


@contextlib.contextmanager
def folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory, so that no disk stalls an etcd there; `otherwise` where there is too little memory."""
    if not MEMORY.is_mount() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="etcd-", dir=MEMORY) as made:
        yield Path(made)


def clear(store: EtcdStore) -> None:
    """Deletes every key."""
    client = store._connection.client
    client.kvstub.DeleteRange(rpc.DeleteRangeRequest(key=b"\0", range_end=b"\0"), 5.0)


@contextlib.contextmanager
def running(data_dir: Path, client_port: int = 0, binary: Path | None = None) -> Iterator[EtcdServer]:
    """Yields a server for one test, ended with the block in any state. (`die_with_parent` is off: it would follow the
    thread that started it.)"""
    server = start_etcd(data_dir, client_port, binary=binary)
    try:
        yield server
    finally:
        server.stop()


def kill(server: EtcdServer) -> None:
    """Sends SIGKILL, and waits until the server has ended."""
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.alive, 5, "killed etcd ends")
