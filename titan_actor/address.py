"""Makes this trainer listen at the node's own address, never at what the host's name resolves to.

Nodes may be network namespaces that share one host name, so gethostname() does not identify one.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from supervisor.wire import environment
from supervisor.wire.address import interface_of
from supervisor.wire.records import TrainerLaunch

_node: str | None = None


def node() -> str | None:
    """Returns the node's address, or None before `use`."""
    return _node


def use(node_address: str) -> None:
    """Makes this process listen at, and advertise, this address from now on.

    Gloo and NCCL take an interface, so they get the one that carries the address, unless the user has named another.
    Raises ValueError when no interface does.
    """
    global _node
    interface = interface_of(node_address)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, interface)
    _node = node_address


def meet(launch: TrainerLaunch) -> None:
    """Has this rank listen at its node, meet its group, and find its way to the lighthouse."""
    use(launch.node_address)
    # rank 0 serves the store itself, only at the node's address
    os.environ.update({**environment.meeting_point(launch), "TORCHELASTIC_USE_AGENT_STORE": "True"})


def serve_store(node_address: str, port: int, timeout_s: float) -> Any:
    """Returns the group's TCPStore, which listens only at the node's address (torch's own listens on every one).

    Keep the result for as long as the group lives. Raises OSError when the port is taken.
    """
    from datetime import timedelta

    import torch.distributed as dist

    family = socket.AF_INET6 if ":" in node_address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((node_address, port))
    listener.listen(1024)
    store = dist.TCPStore(
        host_name=node_address,
        port=port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.fileno(),
    )
    # the store owns the descriptor from here on
    listener.detach()
    return store
