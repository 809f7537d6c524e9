"""Listeners, and Unix sockets at paths of any length: the kernel takes 107 bytes, and a folder below a home may have
more."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.wire.security import host_and_port, socket_of

BACKLOG = 1024
"""Connections that may wait to be accepted. The kernel's net.core.somaxconn may allow fewer."""


def opened(folder: Path) -> int:
    """Returns a descriptor of a folder, to be closed, through which `short` names what is in it. Raises OSError."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Yields a short name of the same path, through an open descriptor of its folder."""
    folder = opened(path.parent)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """Returns a listening socket at `path`, which replaces one that a dead process left. For this user only."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short(path) as name:
        listener.bind(name)
        os.chmod(name, 0o600)
    listener.listen()
    return listener


def listen_at(host: str) -> socket.socket:
    """Returns a TCP listener at a free port of this machine's address, for an event loop. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host.strip("[]"), 0), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Returns a connected socket. Raises OSError when no process listens there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout_s)
    try:
        with short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        raise
    return client


def http_connection(endpoint: str, timeout_s: float) -> http.client.HTTPConnection:
    """Returns a connection for plain HTTP to an etcd endpoint, of a socket too. Raises OSError if no process listens at that."""
    path = socket_of(endpoint)
    if path is None:
        host, port = host_and_port(endpoint)
        return http.client.HTTPConnection(host.strip("[]"), port, timeout=timeout_s)
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = connect(path, timeout_s)
    return connection
