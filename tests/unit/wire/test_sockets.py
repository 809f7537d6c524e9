"""Unix sockets of ours, at which any command is obeyed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from supervisor.wire import sockets


def test_a_socket_is_its_users_alone_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the umask: a connection waits from the moment of `listen`."""
    path, modes = tmp_path / ("deep" * 40) / "command.sock", []
    path.parent.mkdir()
    listens = socket.socket.listen

    def listen(self: socket.socket, *backlog: int) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        listens(self, *backlog)

    monkeypatch.setattr(socket.socket, "listen", listen)
    before = os.umask(0)
    try:
        with sockets.listen(path), sockets.connect(path, 1.0):
            assert modes == [0o600]
        with sockets.listen(path), sockets.connect(path, 1.0):
            assert modes == [0o600, 0o600], "one that a dead process left is replaced"
    finally:
        os.umask(before)
