"""Finds which of this machine's addresses the others see, and which of its ports are free. Standard library only."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import random
import socket
import struct

from supervisor.wire.security import UNIX, host_and_port

AUTO = "auto"
"""Placeholder for the address from which the first etcd endpoint is reached."""

PORTS = range(20_000, 32_000)
"""Range of free ports, below Linux' ephemeral ones (32768 and up). So no outgoing connection of any process takes a
port before the server listens on it."""

TRIES = 200


def told(address: str, endpoint: str) -> str:
    """Returns the address, resolved if it is AUTO.

    Raises ValueError for a malformed endpoint, OSError with a sentence if the address cannot be found.
    """
    if address != AUTO:
        return address
    try:
        return towards(endpoint)
    except OSError as error:
        raise OSError(
            f"--address auto: cannot find the address of this machine from which {endpoint} is reached "
            f"({error.strerror or error}); check the name and the network, or give the --address"
        ) from error


def towards(endpoint: str) -> str:
    """Returns this machine's address from which an etcd endpoint is reached, by the routing table: nothing is sent.

    Raises ValueError for a malformed endpoint, OSError if its name does not resolve or has no route.
    """
    if endpoint.startswith(UNIX):
        return "127.0.0.1"
    host, port = host_and_port(endpoint)
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    trouble = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
                return str(probe.getsockname()[0])
            except OSError as error:
                trouble = error
    raise trouble


def interface_of(address: str) -> str:
    """Returns the name of the interface that carries an address. Raises ValueError when none does."""
    carried = dict(interfaces())
    if ":" in address:
        address = str(ipaddress.ip_address(address))
    if address in carried:
        return carried[address]
    # the loopback interface carries all of 127/8, and lists only its first address
    if address.startswith("127.") and "127.0.0.1" in carried:
        return carried["127.0.0.1"]
    raise ValueError(f"no interface of this machine has the node's address {address}: it has {sorted(carried)}")


def in_network(interface: str, network: str) -> str:
    """Returns this machine's address on the named interface, or else in the network. Raises ValueError if it has none."""
    there, inside = interfaces(), ipaddress.ip_network(network or "0.0.0.0/0", strict=False)
    for address, name in there:
        if name == interface or (not interface and ipaddress.ip_address(address) in inside):
            return address
    wanted = f"interface {interface} with an address" if interface else f"address in {network}"
    has = ", ".join(f"{address} on {name}" for address, name in there)
    raise ValueError(f"there is no {wanted} here; there is {has or 'none'}")


def interfaces() -> list[tuple[str, str]]:
    """Returns (address, interface) of all addresses of this machine, IPv4 first, without IPv6 addresses of one link."""
    found = _ipv4_interfaces()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            entries = [line.split() for line in file]
    except FileNotFoundError:
        return found  # a kernel without IPv6
    addresses = [(ipaddress.IPv6Address(bytes.fromhex(entry[0])), entry[5]) for entry in entries]
    return found + [(str(address), name) for address, name in addresses if not address.is_link_local]


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
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def taken(host: str, port: int) -> str:
    """Returns why the port cannot be listened on; '' if it can."""
    trouble = _trouble(host, port)
    return "" if trouble is None else trouble.strerror or str(trouble)


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port of PORTS at which nothing listens now.

    Raises OSError if none of TRIES is free, or the address is not this machine's.
    """
    return free_ports(1, host)[0]


def free_ports(n: int, host: str = "127.0.0.1") -> list[int]:
    """Returns `n` different ports, found as by `free_port`."""
    free: list[int] = []
    for port in random.sample(PORTS, TRIES):
        if len(free) == n:
            break
        trouble = _trouble(host, port)
        if trouble is None:
            free.append(port)
        elif trouble.errno != errno.EADDRINUSE:  # another port will not be better
            raise trouble
    if len(free) < n:
        raise OSError(
            errno.EADDRINUSE, f"no {n} free of {TRIES} ports tried from {PORTS.start} to {PORTS.stop} on {host}"
        )
    return free


def _trouble(host: str, port: int) -> OSError | None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # as Go's listeners do: a port in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
            # bind alone misses a listener that has SO_REUSEADDR too
            probe.listen(1)
        except OSError as error:
            return error
    return None
