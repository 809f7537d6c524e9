"""Whom Prometheus is to scrape, in the form of its http_sd_config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from supervisor.shell.mirror import Mirror
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, Registration


@dataclass(frozen=True)
class Target:
    """One listener of metrics."""

    address: str
    instance: str
    """An agent's is its node's name: one that is started again may get another port."""
    insecure: bool = False
    """It talks in plain, because its security file says so."""


def known(mirror: Mirror) -> tuple[Target, ...]:
    """The leader, and all agents that are registered."""
    found = []
    leader = mirror.record(keys.LEADER, LeaderRecord)
    if leader is not None and leader.page:
        found.append(of_page(leader.page, leader.insecure))
    for key in mirror.of_sort("registration"):
        node = mirror.record(key, Registration)
        if node is not None and node.metrics_port:
            host = f"[{node.address}]" if ":" in node.address else node.address
            found.append(Target(f"{host}:{node.metrics_port}", node.node, node.insecure))
    return tuple(found)


KEPT_S = 3600.0
"""For so long those are asked that are there no more, in seconds: an agent that is cut off from etcd alone can still say so."""


@dataclass
class Kept:
    """Whom Prometheus is to scrape, as time goes on."""

    monotonic: Callable[[], float]
    _seen: dict[str, tuple[Target, float]] = field(default_factory=dict)
    """By instance, when it was there last."""

    def __call__(self, now: tuple[Target, ...]) -> tuple[Target, ...]:
        """Those that are there, and those that were until not long ago."""
        at = self.monotonic()
        self._seen |= {target.instance: (target, at) for target in now}
        self._seen = {name: kept for name, kept in self._seen.items() if at - kept[1] <= KEPT_S}
        there = {target.instance for target in now}
        return (*now, *(target for name, (target, _) in self._seen.items() if name not in there))


def of_page(url: str, insecure: bool) -> Target:
    """A supervisor, by the address of its page."""
    address = urlsplit(url).netloc
    return Target(address, address, insecure)


def listed(targets: tuple[Target, ...], tls: bool) -> list[dict[str, Any]]:
    """As Prometheus reads it, each once. `tls`: whether there are certificates."""
    return [
        {
            "targets": [target.address],
            "labels": {"instance": target.instance, "__scheme__": "https" if tls and not target.insecure else "http"},
        }
        for target in dict.fromkeys(targets)
    ]
