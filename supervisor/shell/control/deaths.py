"""Finds nodes that are proved dead before their leases lapse: all of a node's processes have ended.

It takes two pieces of evidence, because each alone has harmless causes. The gate reports that the node's shim has
closed all its connections and makes no other; and its agent's port refuses connections, which only a kernel that
lives and has no such process does, or a firewall: so that port must have answered this leader before. A node that is
silent, a host without power or a lost network prove nothing: their lease decides. Should a proof be wrong, the
group's old generation is shut out of the quorum as ever, before the next one steps.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from supervisor.core.model.observed import DEPARTED_S, Death, GateView, NodeView, Observed
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Registration

log = logging.getLogger(__name__)

AGAIN_S = 0.25
"""Seconds between the two refusals that it takes."""
ANSWERED_S = 5.0
"""Seconds until a node whose agent has answered is asked again."""
ANSWERS_WITHIN_S = 1.0
AT_ONCE = 32
"""Nodes that are asked at one time."""
LOOK_S = 0.05
"""Seconds until the loop looks again while a node is being asked: a refusal over a local network takes less."""
KEPT_S = 120.0
"""Seconds for which a proof outlives the registration: the failure is judged within these."""


class Deaths(Protocol):
    """The proofs that the loop needs; the simulator has its own."""

    def look(self, mirror: Mirror, observed: Observed) -> Mapping[str, Death]:
        """Returns the dead among the observed nodes, each with its proof. Begins to ask those that may be."""
        ...

    @property
    def look_after_s(self) -> float:
        """Seconds after which to look again; infinite if none is being asked."""
        ...


@dataclass(frozen=True)
class _Port:
    """An agent's port, as one version of its registration names it."""

    revision: int
    address: str
    port: int


@dataclass
class _Asked:
    """A node that departed, under one registration."""

    began: float
    revision: int
    """Revision of its newest report, by then: a later one is of a node that lives."""
    port: _Port
    answer: Future[bool]
    read: bool = False
    """True once the answer was seen."""
    death: Death | None = None


@dataclass
class RefusedPorts:
    """Implements Deaths. `answers` says whether a port takes a connection, `refuses` whether it refuses two."""

    answers: Callable[[str, int], bool] = field(default_factory=lambda: answers)
    refuses: Callable[[str, int], bool] = field(default_factory=lambda: refuses)
    monotonic: Callable[[], float] = time.monotonic
    _ports: Mapping[str, _Port] = field(default_factory=dict)
    _reached: dict[str, tuple[_Port, Future[bool]]] = field(default_factory=dict)
    """Ports that were tried while their node lived. A firewall, or a tunnel, refuses for a node that lives: only one that
    was reached from here once says something by its refusal."""
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(AT_ONCE, thread_name_prefix="deaths")
    )

    def look(self, mirror: Mirror, observed: Observed) -> Mapping[str, Death]:
        """Implements Deaths."""
        self._reach(mirror.derived(_ports, "registration"), observed)
        gate = observed.gate if observed.gate is not None and observed.gate.present else None
        for node in gate.departed if gate is not None else ():
            if (view := observed.nodes.get(node)) is not None and view.registered:
                self._ask(view, mirror)
        found = {}
        for node, asked in list(self._asked.items()):
            if self._is_over(node, asked, mirror):
                del self._asked[node]
            elif (view := observed.nodes.get(node)) is not None:
                self._read(node, asked)
                if asked.death is not None and not _heard(view, gate):
                    found[node] = asked.death
        return found

    def _reach(self, ports: Mapping[str, _Port], observed: Observed) -> None:
        """Tries the ports of nodes once while they live."""
        if ports is not self._ports:
            self._ports = ports
            self._reached = {node: of for node, of in self._reached.items() if ports.get(node) == of[0]}
        for name, node in observed.nodes.items():
            if name not in self._reached and node.registered and (port := ports.get(name)) is not None:
                self._reached[name] = port, self._threads.submit(self.answers, port.address, port.port)

    def _ask(self, node: NodeView, mirror: Mirror) -> None:
        """Asks a node that has departed, if that can prove anything."""
        asked, now = self._asked.get(node.name), self.monotonic()
        if asked is not None and (not asked.read or asked.death is not None or now - asked.began < ANSWERED_S):
            return
        port, reached = self._reached.get(node.name, (None, None))
        # a rank in the debugger has no connection to the gate, because the others must not wait for it
        in_debugger = any(rank.debugging for rank in node.ranks)
        if port is None or reached is None or not (reached.done() and reached.result()) or in_debugger:
            return
        answer = self._threads.submit(self.refuses, port.address, port.port)
        self._asked[node.name] = _Asked(now, _newest(node.name, mirror), port, answer)

    def _is_over(self, node: str, asked: _Asked, mirror: Mirror) -> bool:
        """Returns true if a proof, or a question, is of no use any more."""
        if asked.revision < _newest(node, mirror):
            if asked.death is not None:
                log.warning("node %s had seemed dead, and has reported since", node)
            return True
        if (item := mirror.items.get(keys.registration(node))) is None:
            return self.monotonic() - asked.began > KEPT_S
        return item.mod_revision != asked.port.revision

    def _read(self, node: str, asked: _Asked) -> None:
        if asked.read or not asked.answer.done():
            return
        asked.read = True
        if asked.answer.result():
            at = f"{asked.port.address}:{asked.port.port}"
            why = f"it has closed all connections to the gate, and its agent's port {at} refuses connections"
            asked.death = Death(why=why, silent_s=round(DEPARTED_S + self.monotonic() - asked.began, 3))
            log.warning("node %s is dead: %s", node, why)

    @property
    def look_after_s(self) -> float:
        """Implements Deaths."""
        until = self.monotonic() - ANSWERED_S  # one that no run shows any more is read by none
        return LOOK_S if any(not asked.read and asked.began > until for asked in self._asked.values()) else math.inf


def _ports(mirror: Mirror) -> dict[str, _Port]:
    found = {}
    for key in mirror.of_sort("registration"):
        record = mirror.record(key, Registration)
        if record is not None and record.metrics_port:
            found[record.node] = _Port(mirror.items[key].mod_revision, record.address, record.metrics_port)
    return found


def _newest(node: str, mirror: Mirror) -> int:
    items = (mirror.items.get(key) for key in (keys.observed(node), keys.health(node)))
    return max((item.mod_revision for item in items if item is not None), default=0)


def _heard(node: NodeView, gate: GateView | None) -> bool:
    """Returns true if the gate hears a group that has a rank there: whatever was proved, it lives."""
    ways = {(rank.group, rank.generation) for rank in node.ranks if rank.state != "exited"}
    return gate is not None and any(
        gate.hearing.get(g) == "beating" for g, n in gate.admitted.items() if (g, n) in ways
    )


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


def answers(address: str, port: int) -> bool:
    """Returns true if that port takes a connection."""
    try:
        with socket.create_connection((address, port), timeout=ANSWERS_WITHIN_S):
            return True
    except (OSError, ValueError):  # ValueError: the address is none
        return False


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
        except (OSError, ValueError):
            return False
    return True
