"""The port on which a supervisor serves its page."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from supervisor.ports.errors import Fatal
from supervisor.shell import service
from supervisor.shell.control import leader
from supervisor.wire.security import Security


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    """Starts the page's server, in one home; returns its port."""
    servers = []

    def serve(port: int = 0, home: Path = tmp_path / "home") -> int:
        page: Any = None
        servers.append(service._served(CollectorRegistry(), page, ("127.0.0.1", port), Security(), home))
        return int(servers[-1].server_port)

    def stop() -> None:
        for server in servers:
            server.shutdown()
            server.server_close()
        servers.clear()

    serve.stop = stop  # type: ignore[attr-defined]
    yield serve
    stop()


def test_each_start_in_a_home_has_the_same_port(served: Any, tmp_path: Path) -> None:
    first = served()
    served.stop()
    assert served() == first
    assert served(home=tmp_path / "other") != first


def test_while_another_has_it_any_other_is_taken_and_the_next_start_has_it_again(served: Any) -> None:
    first = served()
    second = served()
    assert second not in (0, first)
    served.stop()
    assert served() == first


def test_a_port_that_is_given_is_that_or_none(served: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Fatal, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            served(port)
    assert served(port) == port
    assert leader.kept_port(tmp_path / "home") == 0, "it was asked for, and is not kept"


@pytest.mark.parametrize("wrote", ["", "x", "70000", "-1"])
def test_what_is_no_port_is_none(served: Any, tmp_path: Path, wrote: str) -> None:
    leader.keep_port(tmp_path / "home", 1)
    (file,) = (tmp_path / "home").iterdir()
    file.write_text(wrote)
    assert served() > 0
