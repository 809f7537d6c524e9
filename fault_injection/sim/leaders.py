"""Runs two supervisor processes in virtual time: the real election, the real loop, the real engine driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault_injection.sim.store import SimStore
from supervisor.core.model.decision import Decision
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Death, Observed
from supervisor.core.model.spec import RunSpec
from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import LEASE_S
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.journal import Journal
from supervisor.shell.control.loop import INVARIANT, Loop, Machine
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import Election
from supervisor.shell.etcd.election import Leadership
from supervisor.shell.metrics.live_goodput import Accounts
from supervisor.shell.metrics.telemetry import Records, Telemetry
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, encode

if TYPE_CHECKING:
    from fault_injection.sim.world import World

PROVED_S = 0.8
"""Seconds from the loss of a node, or of its links, until a leader may hold a proof of its death."""

LOOK_S = 0.5
"""Seconds after which a standby looks again whether no supervisor leads."""


class Killed(BaseException):
    """Raised where the supervisor's process dies. No handler of its own catches it."""


class _Once(threading.Event):
    """Lets a campaign make one attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def is_set(self) -> bool:
        asked, self._asked = self._asked, True
        return asked

    def wait(self, timeout: float | None = None) -> bool:
        return True


class _Quiet(Telemetry):
    """Records no metrics, but hands each decision to the checks."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def leading(self, epoch: int | None) -> None: ...

    def undecided(self, run: str, so: bool) -> None: ...

    def turned(self, silent_s: float) -> None: ...

    def committed(self, run: str, decision: Decision, seconds: float) -> None: ...

    def accounts(self, run: str) -> Accounts:
        return Accounts()

    def outcome_unknown(self, run: str, seconds: float) -> None: ...

    def round(
        self, spec: RunSpec, observed: Observed, decision: Decision, decide_s: float, records: Records | None = None
    ) -> None:
        self._supervisor.decided = (observed, decision)
        self._supervisor.decided_at = self._supervisor.world.clock.now
        self._supervisor.world.checks.decided(decision)


class _Unlisted:
    """A leader that lists no folder: it knows only the checkpoints that are reported to it."""

    def look(self, run: str, run_dir: str, groups: Mapping[int, GroupMemory], now: float) -> None:
        return None

    def forget(self, run: str) -> None:
        """Implements Lister; no run is removed here."""


class _Proofs:
    """The proofs of death that a leader has, right or wrong."""

    look_after_s = float("inf")

    def __init__(self, world: World) -> None:
        self._world = world

    def look(self, mirror: Mirror, observed: Observed) -> Mapping[str, Death]:
        """Implements Deaths."""
        gate, nodes = observed.gate, self._world.nodes
        if gate is None or not gate.present:
            return {}
        silent = {way for way in gate.admitted.items() if gate.hearing.get(way[0]) == "silent"}
        proved = (
            name
            for name, view in observed.nodes.items()
            if view.registered
            and name in nodes
            and nodes[name].proved
            and any((r.group, r.generation) in silent for r in view.ranks)
        )
        return {name: Death(why="so the simulator says", silent_s=PROVED_S) for name in proved}


class _Kept(Journal):
    """Collects the lines of all leaders in one list, by virtual time."""

    def __init__(self, world: World) -> None:
        super().__init__(Path("journal.jsonl"))
        self._world = world

    def take(self, observed: Observed, spec: RunSpec, memory: Memory) -> None:
        """Records nothing: the seed gives the same inputs again."""

    def _append(self, line: dict[str, Any]) -> None:
        self._world.journal.append({"t": self._world.clock.now, **line})


class Supervisor:
    """One process: stands by, leads and stands by again, until it is killed. Then it calls `ended`."""

    def __init__(self, world: World, name: str, ended: Callable[[], None]) -> None:
        self.world, self.name = world, name
        self.store = SimStore(world.etcd, name, idle=lambda seconds: None)
        allocation = world.spec.allocation
        turn_s = world.pace.turn_s + world.pace.turn_s_a_node * (allocation.nodes + allocation.spares)
        self.store.woken = lambda: self._again(turn_s)
        self.loop: Loop | None = None
        self.term: Leadership | None = None
        self.decided: tuple[Observed, Decision] | None = None
        self.decided_at = 0.0
        self.dead = False
        self._ended = ended
        self._driver: EngineDriver | None = None
        self._election = Election(self.store, keys.LEADER, encode(LeaderRecord(host=name, pid=1, home="")), LEASE_S)
        self._busy = False
        self._due_at = float("inf")
        self._again(LOOK_S * world.dice.random())

    @property
    def leads(self) -> bool:
        return not self.dead and self.term is not None and not self.term.lapsed

    def kill(self) -> None:
        if not self.dead:
            self.dead = True
            self.store.leave()
            self._ended()

    # --- its time ---

    def _again(self, after_s: float) -> None:
        at = self.world.clock.now + after_s
        if at >= self._due_at > self.world.clock.now:
            return
        self._due_at = at

        def due() -> None:
            if not self.dead and self._due_at == at:
                self._due_at = float("inf")
                self._take_turn()

        self.world.clock.after(after_s, due)

    def _take_turn(self) -> None:
        if self._busy:  # it waits inside a call, and the world goes on around it
            self._again(self.world.pace.turn_s)
            return
        self._busy = True
        try:
            if self.loop is None:
                self._campaign()
            else:
                self._step()
        except Killed:
            self.kill()
        self._busy = False

    def _step(self) -> None:
        assert self.loop is not None
        assert self.term is not None
        try:
            if self.term.lost:
                raise Fenced("the term is over")
            self.loop.step()
        except (Fenced, Retryable):
            self._stand_by()
            return
        self._again(self.world.pace.idle_s)

    def _campaign(self) -> None:
        self._again(LOOK_S)
        if not self.store.reaches or keys.LEADER in self.world.etcd.items:
            return
        self.term = self._election.campaign(_Once())
        if self.term is None:
            return
        clock, world = self.world.clock, self.world
        self._driver = EngineDriver(self.store, world.engine, clock.read)
        try:
            machine = Machine(
                monotonic=clock.read,
                processor=clock.read,
                journal=lambda path: _Kept(world),
                folders=_Unlisted(),
                deaths=_Proofs(world),
            )
            self.loop = Loop(self.store, self.term, self._driver, _Quiet(self), machine=machine)
        except Retryable:
            self._stand_by()
            return
        self._poll_engine(self._driver)

    def _stand_by(self) -> None:
        if self.term is not None:
            self.term.resign()
        self.loop = self.term = self._driver = None
        self._again(LOOK_S)

    def _poll_engine(self, driver: EngineDriver) -> None:
        """Runs the driver's thread."""
        if self.dead or self._driver is not driver:
            return
        try:
            pause_s = driver.attempt()
        except Fenced:
            return
        except Killed:
            self.kill()
            return
        self.world.clock.after(self.world.engine.poll_s + pause_s, lambda: self._poll_engine(driver))


class Said(logging.Handler):
    """Reports what the supervisor's code logs as an error of its own, or as a decision that breaks an invariant."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None or getattr(record, "reported", "") == INVARIANT:
            self._world.checks.broke(f"the supervisor says: {text} {record.exc_info and record.exc_info[1]!r}")
