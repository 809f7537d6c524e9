"""A network namespace of the lighthouse's own: no other process of its host reaches it, but by the sockets that it hands
to its gate.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
"""linux/sched.h, linux/sockios.h, linux/if.h. Python 3.11 has no `os.unshare`."""


def enter() -> bool:
    """Moves this process to a network that has loopback alone; returns false where the kernel allows none. Call it
    before the first thread. Without root this takes a user namespace, which some distributions forbid."""
    # a try in a child: where loopback cannot be set up afterwards, there is no way back
    child = os.fork()
    if not child:
        os._exit(not _enter())
    if os.waitpid(child, 0)[1]:
        return False
    return _enter()


def _enter() -> bool:
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    except OSError:
        return False
    return True


def give_connections(doors: socket.socket, port: int) -> None:
    """Answers each byte that comes over the Unix socket with a connection to our port, from a thread. A refused one is
    answered without."""
    threading.Thread(target=_give, args=(doors, port), name="doors", daemon=True).start()


def _give(doors: socket.socket, port: int) -> None:
    while doors.recv(1):
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                socket.send_fds(doors, [b"."], [connection.fileno()])
        except OSError:
            doors.send(b".")
