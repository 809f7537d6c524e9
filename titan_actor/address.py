"""Makes this trainer listen at the node's own address, never at what the host's name resolves to.

Nodes may be network namespaces that share one host name, so gethostname() does not identify one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

_node: str | None = None


def node() -> str | None:
    """Returns the node's address, or None before `use`."""
    return _node


def use(node_address: str) -> None:
    """Makes this process listen at, and advertise, this address from now on.

    Gloo and NCCL take an interface, so they get the one that carries the address. Raises ValueError when no interface
    does.
    """
    global _node
    interface = interface_of(node_address)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ["NCCL_SOCKET_IFNAME"] = interface
    _node = node_address


def interface_of(node_address: str) -> str:
    """Returns the name of the interface that carries an address. Raises ValueError when none does."""
    if ":" in node_address:
        wanted = socket.inet_pton(socket.AF_INET6, node_address).hex()
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            found = [line.split()[5] for line in file if line.split()[0] == wanted]
        if found:
            return found[0]
        raise ValueError(f"no interface of this machine has the node's address {node_address}")
    carried = dict(_ipv4_interfaces())
    if node_address in carried:
        return carried[node_address]
    # the loopback interface carries all of 127/8, and lists only its first address
    if node_address.startswith("127.") and "127.0.0.1" in carried:
        return carried["127.0.0.1"]
    raise ValueError(f"no interface of this machine has the node's address {node_address}: it has {sorted(carried)}")


def _ipv4_interfaces() -> list[tuple[str, str]]:
    """Returns (address, interface) of every IPv4 address, from SIOCGIFCONF."""
    entry, room = 40, 40 * 256
    buffer = bytearray(room)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        pointer = (_address_of(buffer),)
        request = struct.pack("iP", room, *pointer)
        size = struct.unpack("iP", fcntl.ioctl(probe, 0x8912, request))[0]
    return [
        (socket.inet_ntoa(buffer[at + 20 : at + 24]), buffer[at : at + 16].split(b"\0", 1)[0].decode())
        for at in range(0, size, entry)
    ]


def _address_of(buffer: bytearray) -> int:
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


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
