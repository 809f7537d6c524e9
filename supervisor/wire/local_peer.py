"""Tells which user of this machine is at the other end of a TCP connection over loopback. Standard library only."""

from __future__ import annotations

import os
import socket
import sys

ESTABLISHED = "01"
"""linux/tcp_states.h. A socket that its process has closed is in another state, and counts as root's there."""


def is_ours(connection: socket.socket) -> bool:
    """Returns true if a process of our own user, or of root, has the other end open. Reads a line for each connection of
    this network, so ask once the other end has sent something. Raises OSError if the connection is gone."""
    return _uid(connection) in (0, os.geteuid())


def _uid(connection: socket.socket) -> int | None:
    """Returns the user of the other end; None if no process of this network has it open."""
    ends = " ".join(_as_listed(*end[:2]) for end in (connection.getpeername(), connection.getsockname()))
    table = "tcp6" if connection.family == socket.AF_INET6 else "tcp"
    with open(f"/proc/self/net/{table}", encoding="ascii") as file:
        for line in file:
            if ends in line and (fields := line.split())[3] == ESTABLISHED:
                return int(fields[7])
    return None


def _as_listed(host: str, port: int) -> str:
    """Returns an end as /proc/net/tcp writes it: an address as 32-bit words of this machine's byte order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
