"""Frees a gloo collective that waits for a lost peer.

In torch 2.13 gloo's abort and shutdown return at once and free nothing. TorchFT's abort then drops the last reference
to the group. The group's destructor waits for the collective while it holds the GIL, so the whole process hangs.
Shutting down the group's own connections makes the collective fail at once, as if the peer's process had died.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from titan_actor import torchft_names

Sockets = dict[int, str]
"""Descriptor -> inode: a descriptor alone may have been closed and reused since."""


def open_sockets() -> Sockets:
    """Returns this process's sockets."""
    found: Sockets = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def shut_down(sockets: Sockets, listening: set[int]) -> int:
    """Shuts down those TCP connections that are still open; returns how many.

    `listening` are ports of this group's servers: connections from or to them are not the collective's.
    """
    now, count = open_sockets(), 0
    for descriptor, inode in sockets.items():
        if now.get(descriptor) != inode:
            continue
        try:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                ends = {connection.getsockname()[1], connection.getpeername()[1]}
                if not ends & listening:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        except OSError:
            # not connected, or closed meanwhile
            continue
    return count


def mend() -> None:
    """Gives torchft.ProcessGroupGloo an abort that works. Idempotent."""
    from torchft import ProcessGroupGloo

    if hasattr(ProcessGroupGloo, "supervisor_listening"):
        return

    def remembering(create: Callable[..., Any]) -> Callable[..., Any]:
        def create_and_remember(self: Any, *args: Any) -> Any:
            before = open_sockets()
            group = create(self, *args)
            self.supervisor_sockets = {d: inode for d, inode in open_sockets().items() if before.get(d) != inode}
            return group

        return create_and_remember

    def freeing(abort: Callable[..., None]) -> Callable[..., None]:
        def abort_connections(self: Any, errored: bool = True) -> None:
            if not errored:
                # before a reconfiguration: nothing runs, and the old group must go
                abort(self, errored=False)
                return
            shut_down(getattr(self, "supervisor_sockets", {}), self.supervisor_listening)

        return abort_connections

    torchft_names.wrap_gloo(remembering, freeing)
    ProcessGroupGloo.supervisor_listening = set()


def servers_of(manager: Any, lighthouse: str, store_port: int) -> set[int]:
    """Returns the ports on which this group's manager, store and heal server listen, and the lighthouse's."""
    return {store_port, *map(_port, (*torchft_names.addresses(manager), lighthouse))}


def _port(address: str) -> int:
    return int(address.removeprefix("http://").split("/")[0].rpartition(":")[2])
