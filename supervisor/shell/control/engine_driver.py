"""Carries out allocation intents at the engine, and writes the engine's grants back. Runs in its own thread, because an
engine may be slow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.report.words import say
from supervisor.ports.engine import Engine, Request, RequestDeferred, RequestRefused
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Store, Term
from supervisor.shell.control import observe
from supervisor.shell.control.blocks import blocks
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.failpoints import reach
from supervisor.wire import keys, logged
from supervisor.wire.records import Encoder, RecordError, RunRecord, decode

log = logging.getLogger(__name__)

FATAL_PAUSE_S = 10.0

BACKOFF_MAX_S = 15.0
"""Longest pause before an unavailable engine is asked again; pauses double up to this. A slurmctld that comes back has
a cluster's clients to serve, and runs wait minutes for nodes."""

REFUSED_PAUSES_S = (7.0, 14.0)
"""Pauses before a refused request is repeated; a refusal after the last one is final. An engine under load refuses what
it accepts a little later, and a finally refused request is never repeated."""

WRITE_S = 0.1
"""Seconds allowed for writing a list to etcd."""

FORGET_AFTER_S = 120.0
"""Seconds for which an allocation that was given back and is not listed may still appear: a submission whose answer was
lost takes effect late."""
FORGET_LOOK_S = 15.0
"""Seconds between looks for such an allocation, when nothing else is wanted."""


@dataclass
class _Refusal:
    """The engine's refusals of one request."""

    words: str
    times: int
    again_at: float
    """time.monotonic()"""

    @property
    def final(self) -> bool:
        return self.times > len(REFUSED_PAUSES_S)


@dataclass(frozen=True)
class _Wanted:
    """The loop's newest view: the allocations of all runs, the grants in etcd, and the leader's term."""

    allocations: tuple[tuple[Request, AllocationMemory], ...]
    grants: dict[str, bytes]
    term: Term


@dataclass(frozen=True)
class _Settled:
    """All inputs of a comparison that found nothing to do: while they stay equal, nothing needs to be done."""

    allocations: tuple[tuple[Request, AllocationMemory], ...]
    grants: dict[str, bytes]
    listed: Sequence[Grant]


class EngineDriver:
    """Level-triggered driver: compares what is wanted with what the engine has, and changes the engine to match.

    It serves the runs that name its engine, and does not call the engine while there are none. So Slurm's commands need
    not exist on a machine without Slurm runs.
    """

    def __init__(self, store: Store, engine: Engine, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._engine = engine
        self._monotonic = monotonic
        self._wanted: _Wanted | None = None
        self._settled: _Settled | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._refused: dict[str, _Refusal] = {}
        self._full: dict[str, tuple[str, float]] = {}
        """Runs of which the engine takes no more requests for now: why, and until when none is made (`monotonic`)."""
        self._left: set[str] = set()
        self._again: dict[str, str] = {}
        """Allocations that the engine would give a second time, with the reason to report."""
        self._missing: dict[str, float] = {}
        """Allocations that were given back and are not listed, with the time since when."""
        self._over: set[str] = set()
        self._looked = 0.0
        self._away = 0
        self._listed_at: float | None = None
        self._newest: tuple[float, int] | None = None
        """When the newest written list began, and the revision at which all of it was written."""
        self._wrote_at = 0
        self._encoder = Encoder()
        self._requests: dict[str, tuple[RunRecord, tuple[Request, AllocationMemory]]] = {}
        """Requests by allocation, as last offered."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def word_s(self, engine: str) -> float:
        """Returns the seconds within which etcd shows what this engine took away: two polls and the write. 0 for
        another engine."""
        return 2 * self._engine.poll_s + WRITE_S if engine == self._engine.name else 0.0

    def listed_at(self, engine: str) -> float | None:
        """Returns the start, by time.monotonic(), of this engine's newest list that the last offered view has in full.
        None if there is none, or for another engine."""
        return self._listed_at if engine == self._engine.name else None

    def start(self) -> None:
        self._engine.events(self._wake.set)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. Waits up to 10 s for it to end its call."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def offer(self, mirror: Mirror, term: Term) -> None:
        """Takes the loop's newest view. The thread handles it at once if the allocations have changed."""
        offered: dict[str, tuple[RunRecord, tuple[Request, AllocationMemory]]] = {}
        grants: dict[str, bytes] = {}
        for run, record in observe.runs(mirror).items():
            if record.spec.allocation.engine != self._engine.name:
                continue
            of_run = mirror.table(keys.allocation(run, ""), AllocationMemory).values()
            memory = mirror.record(keys.memory(run, "run"), Memory) or Memory()
            together = blocks(record.spec, memory, of_run)
            for allocation in of_run:
                others = together.get(allocation.key, ())
                if others is None:
                    continue
                known = self._requests.get(allocation.key)
                if (
                    known is None
                    or known[0] is not record
                    or known[1][1] is not allocation
                    or known[1][0].together != others
                ):
                    known = (record, (_request(run, record, allocation, others), allocation))
                offered[allocation.key] = known
            grants |= {key: mirror.items[key].value for key in mirror.keys(keys.grant(run, ""))}
        newest = self._newest
        if newest is not None and mirror.revision >= newest[1]:
            self._listed_at = newest[0]
        self._requests = offered
        allocations = tuple(each for _, each in offered.values())
        before = self._wanted
        self._wanted = _Wanted(allocations, grants, term)
        if before is None or before.allocations != self._wanted.allocations:
            self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._engine.poll_s)
            self._wake.clear()
            if self._stop.is_set():
                continue
            try:
                pause_s = self.attempt()
            except Fenced:
                log.info("the engine driver stops: another leader has taken over")
                return
            self._stop.wait(pause_s)

    def attempt(self) -> float:
        """Compares once what was last offered. Returns the pause for the engine, in seconds. Raises Fenced."""
        wanted = self._wanted
        if wanted is None:
            return 0.0
        try:
            self.turn(wanted)
        except Retryable as error:
            log.warning("engine %s or the store is away: %s", self._engine.name, error)
            self._away += 1
            return max(error.after_s, min(BACKOFF_MAX_S, 0.5 * 2.0 ** min(self._away, 10)))
        except Fatal as error:
            # The engine is left alone for a while, since a person must repair it; the runs go on as they are.
            log.error("engine %s: %s", self._engine.name, error)
            return FATAL_PAUSE_S
        except Fenced:
            raise
        except Exception:
            log.exception("engine %s: an internal error of the supervisor, which goes on", self._engine.name)
            return FATAL_PAUSE_S
        self._away = 0
        return 0.0

    def turn(self, wanted: _Wanted) -> None:
        """Compares once, asks the engine for changes, and writes its grants."""
        if all(request.key in self._over for request, _ in wanted.allocations):
            return
        nothing_else = all(request.key in self._missing for request, _ in wanted.allocations)
        if nothing_else and self._monotonic() < self._looked + min(FORGET_LOOK_S, FORGET_AFTER_S):
            return
        began = self._monotonic()
        listed = self._engine.list()
        now = _Settled(wanted.allocations, dict(wanted.grants), listed)
        if now != self._settled or self._refused or self._full:  # these depend on time as well
            self._settled = None
            in_etcd = {request.key: _told(request, wanted) for request, _ in wanted.allocations}
            moved = self._move(wanted, listed, in_etcd)
            began = self._monotonic()
            again = self._engine.list()
            wrote = self._write(wanted, {g.key: g for g in again}, in_etcd)
            if not (moved or wrote) and again == listed and in_etcd.keys() <= {g.key for g in listed}:
                self._settled = now
            listed = again
        self._newest = (began, self._wrote_at)
        self._forget(wanted, {g.key for g in listed})

    def _move(self, wanted: _Wanted, listed: Sequence[Grant], in_etcd: dict[str, Grant | None]) -> bool:
        """Asks for what is missing and gives back what is not wanted. Returns true if it called the engine."""
        known, moved = {g.key: g for g in listed}, False
        self._full = {run: (why, until) for run, (why, until) in self._full.items() if self._monotonic() < until}
        for request, allocation in wanted.allocations:
            told, grant = in_etcd[request.key], known.get(request.key)
            if told is not None and grant is not None and _is_queued_again(told, grant):
                self._again[request.key] = f"it was granted and is pending again ({grant.reason}): released"
            if grant is not None and (allocation.state == "released" or request.key in self._again):
                self._release(request, wanted.term)
                moved = True
            elif allocation.state == "wanted" and grant is None and self._may_ask(request, told):
                self._acquire(request, allocation, wanted.term)
                moved = True
        return moved

    def _forget(self, wanted: _Wanted, known: Collection[str]) -> None:
        """Marks allocations as over that were given back and have been missing for a while."""
        now = self._looked = self._monotonic()
        missing = [r.key for r, a in wanted.allocations if a.state == "released" and r.key not in known]
        self._missing = {key: self._missing.get(key, now) for key in missing}
        self._over = {key for key, since in self._missing.items() if now >= since + FORGET_AFTER_S}

    def _may_ask(self, request: Request, told: Grant | None) -> bool:
        if told is not None and not _nobodys(told):
            return False  # requested before: the engine forgot it, or another engine has it (see `_write`)
        if request.run in self._full:
            return False
        said = self._refused.get(request.key)
        return said is None or (not said.final and self._monotonic() >= said.again_at)

    def _acquire(self, request: Request, allocation: AllocationMemory, term: Term) -> None:
        reach("engine.before_acquire")
        _still_leading(term)
        try:
            if allocation.instead_of:
                self._engine.replace(allocation.instead_of, request, say(allocation.reason))
            else:
                self._engine.acquire(request)
        except RequestDeferred as error:
            self._full[request.run] = str(error), self._monotonic() + error.after_s
            log.info("engine %s: allocation %s is %s", self._engine.name, request.key, error)
        except RequestRefused as error:
            before = self._refused.get(request.key)
            times = 1 + (before.times if before else 0)
            pause_s = (*REFUSED_PAUSES_S, 0.0)[times - 1]
            said = self._refused[request.key] = _Refusal(str(error), times, self._monotonic() + pause_s)
            then = "" if said.final else f" (asking again in {pause_s:g} s)"
            about = logged.about(run=request.run)
            log.error("engine %s refuses allocation %s: %s%s", self._engine.name, request.key, error, then, extra=about)
        reach("engine.after_acquire")

    def _release(self, request: Request, term: Term) -> None:
        reach("engine.before_release")
        _still_leading(term)
        try:
            self._engine.release(request.key)
        except Fatal as error:
            # the others go on: this allocation stays as the engine lists it
            about = logged.about(run=request.run)
            log.error(
                "engine %s does not release allocation %s: %s", self._engine.name, request.key, error, extra=about
            )
        reach("engine.after_release")

    def _write(self, wanted: _Wanted, known: dict[str, Grant], in_etcd: dict[str, Grant | None]) -> bool:
        """Writes all changed grants together: one look must show if one or all are gone. Returns true if any had."""
        puts = {}
        for request, allocation in wanted.allocations:
            key = keys.grant(request.run, request.key)
            told = in_etcd[request.key]
            if told is not None and request.key not in known and not self._engine.knows(told):
                self._leave(request, allocation, told)
                continue
            value = self._encoder(key, self._fact(request, allocation, known, told))
            if wanted.grants.get(key) != value:
                puts[key] = value
        changed = list(puts)
        for start in range(0, len(changed), MAX_OPERATIONS):
            part = {key: puts[key] for key in changed[start : start + MAX_OPERATIONS]}
            reach("engine.before_grant")
            self._wrote_at = self._store.commit(part, expect=[wanted.term.expect()])
            wanted.grants.update(part)
            reach("engine.after_grant")
        return bool(changed)

    def _leave(self, request: Request, allocation: AllocationMemory, told: Grant) -> None:
        """Leaves an allocation of another engine as etcd holds it, for the leader that has that engine."""
        if allocation.state == "released" and told.state != "gone" and told.key not in self._left:
            self._left.add(told.key)
            log.warning(
                "allocation %s (%s) is not of this engine: it is released when a supervisor with its engine leads",
                told.key,
                told.engine_id,
                extra=logged.about(run=request.run),
            )

    def _fact(
        self, request: Request, allocation: AllocationMemory, known: dict[str, Grant], told: Grant | None
    ) -> Grant:
        grant, said = known.get(request.key), self._refused.get(request.key)
        if said is not None and (said.final if grant is None else grant.state == "refused"):
            return Grant(key=request.key, state="refused", reason=said.words)
        if told is not None and request.key in self._again:
            return told if told.state == "gone" else replace(told, state="gone", reason=self._again[request.key])
        if grant is not None:
            self._refused.pop(request.key, None)  # accepted after all
            return grant
        if told is not None and told.state == "refused":
            return told  # an earlier leader got the refusal
        if allocation.state == "released" or (told is not None and not _nobodys(told)):
            # The grant keeps its nodes: what ran on them was lost with it.
            before = told or Grant(key=request.key, state="gone")
            given_back = allocation.state == "released"
            reason = "given back" if given_back else before.reason or "the engine no longer knows it"
            return replace(before, state="gone", reason=reason)
        full, _ = self._full.get(request.run, ("", 0.0))
        why = f"refused, and requested again: {said.words}" if said else full
        return Grant(key=request.key, state="pending", reason=why)


def _request(run: str, record: RunRecord, allocation: AllocationMemory, together: tuple[str, ...]) -> Request:
    return Request(
        key=allocation.key,
        run=run,
        slots=record.spec.groups.slots,
        lease_s=record.spec.policy.node_lease_s,
        nodes=allocation.nodes,
        exclude=allocation.exclude,
        spec=record.spec.allocation,
        together=together,
    )


def _told(request: Request, wanted: _Wanted) -> Grant | None:
    """Returns the grant that etcd holds. An unreadable grant counts as taken: it is never requested again, and the
    engine that lists it repairs it."""
    value = wanted.grants.get(keys.grant(request.run, request.key))
    try:
        return _read(value) if value is not None else None
    except RecordError:  # the audit reports it
        return Grant(key=request.key, state="granted", engine_id="its grant cannot be read")


@lru_cache(maxsize=1 << 15)
def _read(value: bytes) -> Grant:
    """Decodes a grant. Cached, because most stay equal for hours and are read every second."""
    return decode(value, Grant)


def _nobodys(told: Grant) -> bool:
    """Returns true if no engine has accepted it yet, so that asking again helps, perhaps at another engine."""
    return told.state == "pending" and not told.engine_id


def _is_queued_again(told: Grant, listed: Grant) -> bool:
    """Returns true if the engine would give a second time what it gave before, as after a controller lost its memory. A
    lost node must not come back under the same key."""
    return told.engine_id == listed.engine_id and listed.state == "pending" and told.state in ("granted", "gone")


def _still_leading(term: Term) -> None:
    """Raises Fenced if the term is over: a thawed leader must not undo what the next one decided. The engine cannot
    compare an epoch, and all requests are idempotent by key, so this only narrows the window."""
    if term.lapsed:
        raise Fenced(f"epoch {term.epoch} is over")
