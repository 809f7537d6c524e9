"""Unix sockets at paths of any length: the kernel takes 107 bytes, and a folder below a home may have more."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Yields a short name of the same path, through an open descriptor of its folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
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
