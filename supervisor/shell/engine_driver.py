"""Carries out allocation intents at the engine, and writes back what the engine says. A thread of its own: an engine
may take its time."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from supervisor.core.model import AllocationMemory, Grant
from supervisor.ports.engine import Engine, Request
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Store, Term
from supervisor.shell import views
from supervisor.shell.failpoints import reach
from supervisor.shell.mirror import Mirror
from supervisor.wire import keys
from supervisor.wire.records import decode, encode

log = logging.getLogger(__name__)

FATAL_PAUSE_S = 10.0

BACKOFF_MAX_S = 15.0
"""An engine that is away is asked again after a pause that doubles up to this: a slurmctld that comes back has a cluster's
clients to answer, and a run waits for nodes by minutes."""


@dataclass(frozen=True)
class _Wanted:
    """What the loop last saw: the allocations of all runs, the grants that etcd holds, and the leader's condition."""

    allocations: tuple[tuple[Request, AllocationMemory], ...]
    grants: dict[str, bytes]
    term: Term


class EngineDriver:
    """Level-triggered: compares what is wanted with what the engine has, and moves it.

    It serves the allocations of those runs that name its engine, and does not call the engine while there are none: Slurm's
    commands need not be there for a run of this machine.
    """

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine
        self._wanted: _Wanted | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._refused: dict[str, str] = {}
        self._left: set[str] = set()
        self._over: set[str] = set()
        self._away = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._engine.events(self._wake.set)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the thread has ended its call."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def offer(self, mirror: Mirror, term: Term) -> None:
        """The loop's newest view; the thread takes it up at once if something is wanted that was not before."""
        allocations = []
        grants: dict[str, bytes] = {}
        for run, record in views.runs(mirror).items():
            if record.spec.allocation.engine != self._engine.name:
                continue
            for _, allocation in mirror.records(keys.allocation(run, ""), AllocationMemory):
                request = Request(
                    key=allocation.key,
                    run=run,
                    slots=record.spec.groups.ranks_per_group,
                    lease_s=record.spec.policy.node_lease_s,
                    exclude=allocation.exclude,
                    spec=record.spec.allocation,
                )
                allocations.append((request, allocation))
            for key in mirror.keys(keys.grant(run, "")):
                grants[key] = mirror.items[key].value
        before = self._wanted
        self._wanted = _Wanted(tuple(allocations), grants, term)
        if before is None or before.allocations != self._wanted.allocations:
            self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._engine.poll_s)
            self._wake.clear()
            wanted = self._wanted
            if wanted is None or self._stop.is_set():
                continue
            try:
                pause_s = self.attempt(wanted)
            except Fenced:
                log.info("the engine driver stops: another leader has taken over")
                return
            self._stop.wait(pause_s)

    def attempt(self, wanted: _Wanted) -> float:
        """One comparison; how long to leave the engine alone after it, in seconds. Raises Fenced."""
        try:
            self.turn(wanted)
        except Retryable as error:
            log.warning("engine %s or the store is away: %s", self._engine.name, error)
            self._away += 1
            return max(error.after_s, min(BACKOFF_MAX_S, 0.5 * 2.0 ** min(self._away, 10)))
        except Fatal as error:
            # Nothing is asked of the engine until a person has mended it; the runs go on as they are.
            log.error("engine %s: %s", self._engine.name, error)
            return FATAL_PAUSE_S
        self._away = 0
        return 0.0

    def turn(self, wanted: _Wanted) -> None:
        """One comparison."""
        if all(request.key in self._over for request, _ in wanted.allocations):
            return
        known = {g.key: g for g in self._engine.list()}
        for request, allocation in wanted.allocations:
            if allocation.state == "wanted" and request.key not in known and request.key not in self._refused:
                told = _told(request, wanted)
                if told is None or _nobodys(told):
                    self._acquire(request, allocation, wanted.term)
                # else it was asked for before: the engine has forgotten it, or another engine has it (see `_write`)
            elif allocation.state == "released" and request.key in known:
                self._release(request.key, wanted.term)
        known = {g.key: g for g in self._engine.list()}
        self._write(wanted, known)
        # what was given back and is known no more can only be forgotten
        self._over = {r.key for r, a in wanted.allocations if a.state == "released" and r.key not in known}

    def _acquire(self, request: Request, allocation: AllocationMemory, term: Term) -> None:
        reach("engine.before_acquire")
        _still_leading(term)
        try:
            if allocation.instead_of:
                self._engine.replace(allocation.instead_of, request, allocation.reason)
            else:
                self._engine.acquire(request)
        except Fatal as error:
            self._refused[request.key] = str(error)
            log.error("engine %s refuses allocation %s: %s", self._engine.name, request.key, error)
        reach("engine.after_acquire")

    def _release(self, key: str, term: Term) -> None:
        reach("engine.before_release")
        _still_leading(term)
        try:
            self._engine.release(key)
        except Fatal as error:
            # the others go on: this one stays as the engine says
            log.error("engine %s does not take allocation %s back: %s", self._engine.name, key, error)
        reach("engine.after_release")

    def _write(self, wanted: _Wanted, known: dict[str, Grant]) -> None:
        """All that changed at once: whether one allocation or all of them are gone must be seen in one look."""
        puts = {}
        for request, allocation in wanted.allocations:
            key = keys.grant(request.run, request.key)
            told = _told(request, wanted) if request.key not in known else None
            if told is not None and not self._engine.knows(told):
                self._leave(allocation, told)
                continue
            value = encode(self._fact(request, allocation, known, told))
            if wanted.grants.get(key) != value:
                puts[key] = value
        changed = list(puts)
        for start in range(0, len(changed), MAX_OPERATIONS):
            part = {key: puts[key] for key in changed[start : start + MAX_OPERATIONS]}
            reach("engine.before_grant")
            self._store.commit(part, expect=[wanted.term.expect()])
            wanted.grants.update(part)
            reach("engine.after_grant")

    def _leave(self, allocation: AllocationMemory, told: Grant) -> None:
        """Another engine's: what etcd holds of it stays, for whoever leads there to go on from."""
        if allocation.state == "released" and told.state != "gone" and told.key not in self._left:
            self._left.add(told.key)
            log.warning(
                "allocation %s (%s) is not of this engine: it is given back when a supervisor leads whose engine has it",
                told.key,
                told.engine_id,
            )

    def _fact(
        self, request: Request, allocation: AllocationMemory, known: dict[str, Grant], told: Grant | None
    ) -> Grant:
        if request.key in self._refused:
            return Grant(key=request.key, state="refused", reason=self._refused[request.key])
        grant = known.get(request.key)
        if grant is not None:
            return grant
        if told is not None and told.state == "refused":
            return told  # to a leader before us
        if allocation.state == "released" or (told is not None and not _nobodys(told)):
            # Its nodes stay named: what was on them was lost with it.
            before = told or Grant(key=request.key, state="gone")
            given_back = allocation.state == "released"
            reason = "given back" if given_back else before.reason or "the engine knows it no more"
            return replace(before, state="gone", reason=reason)
        return Grant(key=request.key, state="pending")


def _told(request: Request, wanted: _Wanted) -> Grant | None:
    """What etcd holds of it."""
    value = wanted.grants.get(keys.grant(request.run, request.key))
    return decode(value, Grant) if value else None


def _nobodys(told: Grant) -> bool:
    """Whether no engine has taken it on: asking again, perhaps another engine, is what helps."""
    return told.state == "pending" and not told.engine_id


def _still_leading(term: Term) -> None:
    """A leader that was frozen and thaws must not ask for what the next one has decided otherwise. The engine cannot compare
    an epoch; all it gets is idempotent by key, so this only makes the window small."""
    if term.lapsed:
        raise Fenced(f"epoch {term.epoch} is over")
