from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.nodes import Nodes
from supervisor.shell.dev.etcd_server import EtcdServer
from tests.helpers.etcd import folder, running, store

__all__ = ["store"]


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the session, on no disk. A dying node's agent has 2 s for its last report and its lease; a stalled
    disk would use them up."""
    with folder(tmp_path_factory.mktemp("etcd")) as data, running(data / "etcd") as server:
        yield server


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


@pytest.fixture
def nodes(tmp_path: Path, etcd_server: EtcdServer, store: object) -> Iterator[Nodes]:
    """Starts real nodes on an empty etcd; nothing of them is left after the test."""
    with Nodes(tmp_path, etcd_server.endpoint) as made:
        yield made
