from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell.etcd_server import EtcdServer
from tests.agents.nodes import Nodes
from tests.helpers.etcd import etcd_server, store

__all__ = ["etcd_server", "store"]


@pytest.fixture
def nodes(tmp_path: Path, etcd_server: EtcdServer, store: object) -> Iterator[Nodes]:
    """Starts real nodes on an empty etcd; nothing of them is left after the test."""
    with Nodes(tmp_path, etcd_server.endpoint) as made:
        yield made
