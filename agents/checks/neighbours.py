"""Which other nodes a node looks for in the network."""

from __future__ import annotations

from agents.checks.network import Peer
from supervisor.ports.errors import PortError
from supervisor.ports.store import Store
from supervisor.wire import keys
from supervisor.wire.records import RecordError, Registration, decode

PEERS = 8
"""So many neighbours by name: every node is somebody's, and ten thousand that start at once do not ask one."""
KEYS_AT_ONCE = 60
"""Of a node there are a handful."""


def neighbours(store: Store, node: str) -> list[Peer]:
    """The registered nodes that follow by name, round the end. Empty where etcd does not let a node look at others (ADR 7),
    or is away: this is not what tells that."""
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
