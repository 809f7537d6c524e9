"""A model scheduler behind the allocator port: a queue, hosts, and what it notices of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from supervisor.core.model.observed import Grant
from supervisor.ports.engine import Request
from supervisor.ports.errors import Retryable

if TYPE_CHECKING:
    from fault_injection.sim.world import World


SHARED = ".1"
"""Ends every node's name, as HOST.JOB does at Slurm's shared hosts."""


def host_of(node: str) -> str:
    """Returns the host of a node, of which each has its own, under another name than its node's."""
    return node.removesuffix(SHARED)


@dataclass
class Held:
    """One allocation, as the scheduler has it."""

    request: Request
    state: Literal["pending", "granted", "gone"] = "pending"
    host: str = ""
    reason: str = ""
    dead: bool = False
    """True if the scheduler has written the host off: no one can report that its processes have ended."""
    said: Grant | None = None
    """The grant as it was listed last."""


class SimEngine:
    """Implements ports.engine.Engine."""

    name = "slurm"

    def __init__(self, world: World, hosts: int) -> None:
        self.world = world
        self.poll_s = world.pace.poll_s
        self.free = [f"n{number:04}{SHARED}" for number in range(hosts)]
        self.held: dict[str, Held] = {}
        self.away = False
        self.stalled = False
        """True while it accepts requests and grants nothing."""

    def takes_away(self, key: str) -> bool:
        """Returns true once it has announced when it ends an allocation: the seeds' ends come without a notice."""
        return False

    # --- the port ---

    def acquire(self, request: Request) -> None:
        self._answer()
        if request.key not in self.held:
            self.held[request.key] = Held(request)
            self._later(self.world.pace.queue_s, lambda: self._grant(request.key))

    def replace(self, key: str, request: Request, because: str) -> None:
        self.release(key)
        self.acquire(request)

    def release(self, key: str) -> None:
        self._answer()
        self.end(key, "given back")

    def list(self) -> Sequence[Grant]:
        self._answer()
        return [self._fact(key, held) for key, held in self.held.items()]

    def events(self, changed: Callable[[], None]) -> None: ...

    def knows(self, grant: Grant) -> bool:
        return True

    # --- the world's side ---

    def end(self, key: str, reason: str, notices: bool = True) -> None:
        """Ends an allocation: its processes are killed where the scheduler reaches them."""
        held = self.held.get(key)
        if held is None or held.state == "gone":
            return
        before, held.state, held.reason = held.state, "gone", reason
        held.dead = not notices
        if before == "granted":
            self._later(self.world.pace.kill_s, lambda: self.world.give_up(held.host, key))

    def lose_all(self, reason: str) -> None:
        """Ends everything that was granted, and stops answering."""
        self.away = True
        for key, held in self.held.items():
            if held.state == "granted":
                held.state, held.reason = "gone", reason
                self.world.give_up(held.host, key)

    def _answer(self) -> None:
        if self.away:
            raise Retryable("the scheduler does not answer")

    def _grant(self, key: str) -> None:
        held = self.held[key]
        if held.state != "pending":
            return
        host = next((host for host in self.free if host_of(host) not in held.request.exclude), None)
        if self.stalled or host is None:
            self._later(self.world.pace.queue_s, lambda: self._grant(key))
            return
        held.state, held.host = "granted", host
        self.free.remove(host)
        self._later(self.world.pace.boot_s, lambda: self._boot(held))

    def _boot(self, held: Held) -> None:
        if held.state == "granted":
            self.world.add_node(held.host, held.request.key)

    def _fact(self, key: str, held: Held) -> Grant:
        ended = held.state == "gone" and not held.dead and not self.world.lives(held.host, key)
        said = held.said
        if said is None or (said.state, said.reason, said.ended) != (held.state, held.reason, ended):
            nodes = (held.host,) if held.host else ()
            said = held.said = Grant(
                key=key, state=held.state, nodes=nodes, engine_id=f"e-{key}", reason=held.reason, ended=ended
            )
        return said

    def _later(self, between: tuple[float, float], do: Callable[[], None]) -> None:
        self.world.clock.after(self.world.dice.uniform(*between), do)
