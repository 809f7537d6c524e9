"""Picks the other nodes that a node tries to reach in the network check."""

from __future__ import annotations

from agents.health.checks.network import Peer
from supervisor.ports.errors import PortError
from supervisor.ports.store import Store
from supervisor.wire import keys
from supervisor.wire.records import RecordError, Registration, decode

PEERS = 8
"""Neighbours by name. Each node has its own, so ten thousand nodes that start at once do not all ask one node."""
KEYS_AT_ONCE = 60
"""Keys in one page of the list; a node has a handful."""


def neighbours(store: Store, node: str) -> list[Peer]:
    """Returns the registered nodes that follow by name, wrapping around at the end. Empty where etcd is away, or does
    not let a node read the others (ADR 7): other parts report that."""
    try:
        behind = store.list(keys.NODES, after=f"{keys.NODES}{node}/~", limit=KEYS_AT_ONCE).items
        first = store.list(keys.NODES, limit=KEYS_AT_ONCE).items
    except PortError:
        return []
    found: dict[str, Peer] = {}
    for item in (*behind, *first):
        name, _, rest = item.key.removeprefix(keys.NODES).partition("/")
        if rest != "registration" or name == node:
            continue
        try:
            there = decode(item.value, Registration)
        except RecordError:
            continue
        if there.metrics_port:
            found.setdefault(name, Peer(name, there.address, there.metrics_port))
    return list(found.values())[:PEERS]
