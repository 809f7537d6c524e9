"""Lists Prometheus's scrape targets, as its http_sd_config expects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, Registration


@dataclass(frozen=True)
class Target:
    """One listener of metrics."""

    address: str
    instance: str
    """The node's name for an agent, since a restarted agent may get another port."""
    insecure: bool = False
    """True if it is unencrypted, because its security file says so."""


def known(mirror: Mirror) -> tuple[Target, ...]:
    """Returns the leader, and the registered agents of all nodes that a run was given, and of service hosts: Prometheus
    goes where they say, with its certificate."""
    found = []
    leader = mirror.record(keys.LEADER, LeaderRecord)
    if leader is not None and leader.page:
        found.append(of_page(leader.page, leader.insecure))
    given = observe.granted(mirror)
    for key in mirror.of_sort("registration"):
        node = mirror.record(key, Registration)
        if node is not None and node.metrics_port and (node.node in given or node.role == "service"):
            host = f"[{node.address}]" if ":" in node.address else node.address
            found.append(Target(f"{host}:{node.metrics_port}", node.node, node.insecure))
    return tuple(found)


KEPT_S = 3600.0
"""Seconds for which missing targets are still scraped: an agent that is only cut off from etcd can still report it."""


@dataclass
class Kept:
    """Scrape targets over time."""

    monotonic: Callable[[], float]
    _seen: dict[str, tuple[Target, float]] = field(default_factory=dict)
    """By instance, its target and when it was last there."""

    def __call__(self, now: tuple[Target, ...]) -> tuple[Target, ...]:
        """Returns the present targets, and those that vanished less than KEPT_S ago."""
        at = self.monotonic()
        self._seen |= {target.instance: (target, at) for target in now}
        self._seen = {name: kept for name, kept in self._seen.items() if at - kept[1] <= KEPT_S}
        there = {target.instance for target in now}
        return (*now, *(target for name, (target, _) in self._seen.items() if name not in there))


def of_page(url: str, insecure: bool) -> Target:
    """Returns a supervisor's target, from its page's address."""
    address = urlsplit(url).netloc
    return Target(address, address, insecure)


def listed(targets: tuple[Target, ...], tls: bool) -> list[dict[str, Any]]:
    """Returns targets as Prometheus reads them, each once. `tls`: true if certificates are in use."""
    return [
        {
            "targets": [target.address],
            "labels": {"instance": target.instance, "__scheme__": "https" if tls and not target.insecure else "http"},
        }
        for target in dict.fromkeys(targets)
    ]
