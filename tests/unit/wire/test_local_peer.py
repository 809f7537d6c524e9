"""Finds the user at the other end of a connection over loopback."""

from __future__ import annotations

import os
import socket

import pytest

from supervisor.wire import local_peer
from supervisor.wire.local_peer import is_ours


@pytest.mark.parametrize("way", ["sock_diag", "proc"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.3", "::1"])
def test_a_connection_of_our_own_is_ours_until_its_end_is_closed(
    host: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "proc":
        monkeypatch.setattr(local_peer, "_ask", lambda *_: None)
    else:
        monkeypatch.setattr(local_peer, "_listed", lambda *_: pytest.fail("this kernel has no sock_diag"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
        with accepted:
            assert is_ours(accepted)
            client.close()
            # who has left cannot be seen any more: the kernel lists its socket as root's
            assert not is_ours(accepted)


def test_the_user_is_that_of_the_process_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            # root may connect everywhere
            assert is_ours(accepted) == (os.getuid() == 0)
            assert client.getsockname() == accepted.getpeername()
