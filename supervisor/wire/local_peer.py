"""Finds the user at the other end of a TCP connection from this machine. Standard library only."""

from __future__ import annotations

import os
import socket
import struct
import sys

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 20, 1
TCP_ESTABLISHED = 1
"""linux/netlink.h, linux/sock_diag.h, linux/tcp_states.h. A socket that its process has closed is in another state."""

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBxxI")
"""Start of inet_diag_req_v2: family, protocol, states. The two ends follow, an interface and a cookie."""
_NO_COOKIE = b"\xff" * 8
_STATE, _UID = 1, 64
"""Where inet_diag_msg has them."""


def is_ours(connection: socket.socket) -> bool:
    """Returns true if a process of our own user, or of root, has the other end open. Raises OSError if the connection is
    gone, or this kernel does not tell."""
    return _uid(connection) in (0, os.geteuid())


def is_another_users(connection: socket.socket) -> bool:
    """Returns true if the other end is of this machine, and not of our own user or of root. An end that its process has
    closed counts: it may still read. Raises OSError as `is_ours`."""
    own, other = connection.getsockname()[:2], connection.getpeername()[:2]
    found = _ask(connection.family, other, own)
    return found is not None and (found[0] != TCP_ESTABLISHED or found[1] not in (0, os.geteuid()))


def _uid(connection: socket.socket) -> int | None:
    """Returns the user of the other end; None if no process of this network has it open."""
    own, other = connection.getsockname()[:2], connection.getpeername()[:2]
    found = _ask(connection.family, other, own)
    if found is None and _ask(connection.family, own, other) is None:
        # our own end is there: so the kernel has no sock_diag
        return _listed(connection.family, other, own)
    return found[1] if found is not None and found[0] == TCP_ESTABLISHED else None


def _ask(family: int, local: tuple[str, int], remote: tuple[str, int]) -> tuple[int, int] | None:
    """Asks the kernel for one socket: its state, and the user who has it open."""
    ends = struct.pack("!HH", local[1], remote[1]) + b"".join(
        socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (local, remote)
    )
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0xFFFFFFFF) + ends + bytes(4) + _NO_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + body)
        answer = kernel.recv(4096)
    kind, found = _HEADER.unpack_from(answer)[1], answer[_HEADER.size :]
    return (found[_STATE], *struct.unpack_from("=I", found, _UID)) if kind == SOCK_DIAG_BY_FAMILY else None


def _listed(family: int, local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Does the same by /proc, line by line."""
    ends = f"{_as_listed(family, *local)} {_as_listed(family, *remote)} {TCP_ESTABLISHED:02X} "
    with open(f"/proc/self/net/{'tcp6' if family == socket.AF_INET6 else 'tcp'}", encoding="ascii") as file:
        return next((int(line.split()[7]) for line in file if ends in line), None)


def _as_listed(family: int, host: str, port: int) -> str:
    """Returns an end as /proc/net/tcp writes it: an address as 32-bit words of this machine's byte order."""
    packed = socket.inet_pton(family, host)
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
