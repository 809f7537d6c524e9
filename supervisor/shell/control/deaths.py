"""Finds nodes that are proved dead before their leases lapse: all of a node's processes have ended.

Two of its processes must be known to have ended, of which neither ends because of the other. The gate reports that the
node's shim has closed all its connections and makes no other; and its agent's port refuses connections, which only a
kernel that lives and has no such process does. A node that is silent, a host without power or a lost network prove
nothing: their lease decides. Should a proof be wrong, the group's old generation is shut out of the quorum as ever, before
the next one steps.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from supervisor.core.model.observed import DEPARTED_S, Death, Observed
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Registration

log = logging.getLogger(__name__)

AGAIN_S = 0.25
"""Seconds between the two refusals that it takes, and from one that was none to the next try."""
ANSWERS_WITHIN_S = 1.0
AT_ONCE = 32
"""Nodes that are asked at one time."""
LOOK_S = 0.05
"""Seconds until the loop looks again while a node is being asked: a refusal over a local network takes less."""


class Deaths(Protocol):
    """The proofs that the loop needs; the simulator has its own."""

    def look(self, mirror: Mirror, observed: Observed) -> Mapping[str, Death]:
        """Returns the dead among the observed nodes, each with its proof. Begins to ask those that may be."""
        ...

    @property
    def look_after_s(self) -> float:
        """Seconds after which to look again; infinite if none is being asked."""
        ...


@dataclass
class _Asked:
    """A node with one registration."""

    began: float
    revision: int
    """Revision of its newest report, by then: a later one is of a node that lives."""
    answer: Future[bool]
    death: Death | None = None


@dataclass
class RefusedPorts:
    """Implements Deaths. `refuses` says whether a port refuses connections, twice."""

    refuses: Callable[[str, int], bool] = field(default_factory=lambda: refuses)
    monotonic: Callable[[], float] = time.monotonic
    _asked: dict[tuple[str, int], _Asked] = field(default_factory=dict)
    """By node, and the revision at which its registration was created."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(AT_ONCE, thread_name_prefix="deaths")
    )

    def look(self, mirror: Mirror, observed: Observed) -> Mapping[str, Death]:
        """Implements Deaths."""
        gate, found = observed.gate, dict[str, Death]()
        departed = gate.departed if gate is not None and gate.present else frozenset()
        for node in departed | {node for node, _ in self._asked}:
            item, registration = mirror.items.get(keys.registration(node)), None
            if node in observed.nodes and observed.nodes[node].registered:
                registration = mirror.record(keys.registration(node), Registration)
            if item is None or registration is None or not registration.metrics_port:
                continue
            asked = self._about(node, item.create_revision, mirror, registration, node in departed)
            if asked is not None and asked.death is not None:
                found[node] = asked.death
        there = {
            (node, item.create_revision)
            for node, _ in self._asked
            if (item := mirror.items.get(keys.registration(node)))
        }
        self._asked = {way: asked for way, asked in self._asked.items() if way in there}
        return found

    def _about(
        self, node: str, created: int, mirror: Mirror, registration: Registration, departed: bool
    ) -> _Asked | None:
        newest = max(
            (item.mod_revision for key in (keys.observed(node), keys.health(node)) if (item := mirror.items.get(key))),
            default=0,
        )
        asked, now = self._asked.get((node, created)), self.monotonic()
        if asked is not None and asked.revision < newest:
            if asked.death is not None:
                log.warning("node %s had seemed dead, and has reported since", node)
            del self._asked[node, created]
            asked = None
        if asked is None and departed:
            answer = self._threads.submit(self.refuses, registration.address, registration.metrics_port)
            asked = self._asked[node, created] = _Asked(now, newest, answer)
        if asked is not None and asked.death is None and asked.answer.done():
            if not asked.answer.result():
                del self._asked[node, created]  # asked again while the gate reports it departed
                return None
            at = f"{registration.address}:{registration.metrics_port}"
            why = f"it has closed all connections to the gate, and its agent's port {at} refuses connections"
            asked.death = Death(why=why, silent_s=round(DEPARTED_S + now - asked.began, 3))
            log.warning("node %s is dead: %s", node, why)
        return asked

    @property
    def look_after_s(self) -> float:
        """Implements Deaths."""
        return LOOK_S if any(asked.death is None for asked in self._asked.values()) else float("inf")


def apply(observed: Observed, deaths: Mapping[str, Death]) -> Observed:
    """Returns what is observed, with the dead not registered any more."""
    if not deaths:
        return observed
    dead = {
        name: replace(
            observed.nodes[name], registered=False, death=death, warm=False, store="", leaving="", checking=False
        )
        for name, death in deaths.items()
    }
    return replace(observed, nodes={**observed.nodes, **dead})


def refuses(address: str, port: int) -> bool:
    """Returns true if that port refuses two connections in turn: an agent that is started again listens meanwhile."""
    for turn in range(2):
        if turn:
            time.sleep(AGAIN_S)
        try:
            with socket.create_connection((address, port), timeout=ANSWERS_WITHIN_S):
                return False
        except ConnectionRefusedError:
            continue
        except OSError:
            break
    else:
        return True
    time.sleep(AGAIN_S)
    return False
