"""Checks which address `--address auto` would pick here, and if a node could listen on it."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.wire.address import interface_of, interfaces, taken, towards
from supervisor.wire.security import host_and_port, is_loopback


def examine(endpoint: str) -> Iterator[Finding]:
    """Checks against the first etcd endpoint. Finds nothing if etcd is on loopback, since its nodes then are too."""
    try:
        if is_loopback(host_and_port(endpoint)[0]):
            return
        address = towards(endpoint)
    except ValueError:
        return  # reported where etcd is asked
    except OSError as error:
        yield bad(
            f"no route from here to {endpoint}: {error.strerror or error}",
            "check the name and the network; `supervisor-agent --address auto` needs the same",
        )
        return
    yield listens(address)


def listens(address: str) -> Finding:
    """Checks if a node here could be reached at this address."""
    if is_loopback(address):
        return note(
            f"--address auto is {address} here: no other machine reaches a node at that address",
            "give etcd's endpoint by an address other than loopback, or give --address",
        )
    if why := taken(address, 0):
        return bad(f"--address auto is {address} here, where no process can listen: {why}", "give --address")
    where = interface_of(address)
    others = sorted({name for _, name in interfaces()} - {where, "lo"})
    more = f"; there is also {', '.join(others)}, which [network] of a run file may name" if others else ""
    return good(f"--address auto is {address} on {where} here, and a node can listen there{more}")
