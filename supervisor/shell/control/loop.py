"""The supervisor's loop: watch, decide, journal the intent, commit under the epoch, journal the outcome. It is thin: all judgement is in `core`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic_core import to_jsonable_python

from supervisor.core import invariants
from supervisor.core.decide import decide
from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.notifications import Notice, due, notices
from supervisor.core.report.words import said, say
from supervisor.ports.errors import Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Expect, Store, Term
from supervisor.shell.control import codes, cordons, deaths, observe, pools, projection, version_guard
from supervisor.shell.control.audit import audit
from supervisor.shell.control.build_info import program
from supervisor.shell.control.checkpoint_folders import Folders, Lister
from supervisor.shell.control.deaths import Deaths, RefusedPorts
from supervisor.shell.control.decision_inputs import lean
from supervisor.shell.control.journal import Journal
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.failpoints import reach
from supervisor.shell.metrics import clock_skew
from supervisor.shell.metrics.live_goodput import stepped_unix_s, told
from supervisor.shell.metrics.telemetry import Records, Telemetry
from supervisor.wire import keys, logged
from supervisor.wire.records import (
    Account,
    FaultsMade,
    LeaderRecord,
    NodeDesired,
    PolicySet,
    RunRecord,
    encode,
)
from supervisor.wire.version import RECORDS

log = logging.getLogger(__name__)

INVARIANT = "invariant"
"""Subject of a log record about a decision that breaks an invariant, or that no transaction holds."""

IDLE_S = 0.5
"""Longest sleep in seconds: lost leadership is seen within this."""

GATHER, GATHER_S, QUICK_S = 3, 0.25, 0.01
"""Changes are gathered after a turn for GATHER times its processor seconds, at most for GATHER_S, and not after a
quick one of less than QUICK_S: a thousand nodes' reports would keep a processor busy with turns about a few of them each."""

FREED_AT_ONCE = 40
"""Suspicions that one transaction marks as freed: an operation and an expectation each."""

ROUTINE = ("checkpoint",)
"""Actions that a healthy run takes all the time: keeping their inputs would soon crowd out all others."""

ACCOUNT_S = 30.0
"""Greatest age, in seconds, of the account that people are shown."""

TERMS = 40
"""Newest terms whose times an account keeps. Older terms are shown as if the oldest kept one had followed at once."""

SET_S = 1.0
"""A wall clock that jumped by this many seconds against the monotonic clock was set, or this machine slept."""

LAST_WORDS_S = 2.0
"""Seconds for which the end of a term waits for slow disks, for all journals together."""
SILENCE_S = 2.0
"""A watch that is silent for longer is a store outage: progress is requested every second."""


class TooLarge(ValueError):
    """A decision has more records than a transaction holds."""


class Allocator(Protocol):
    """Carries out at the engines what is wanted."""

    def offer(self, mirror: Mirror, term: Term) -> None: ...

    def word_s(self, engine: str) -> float:
        """Returns the seconds that this engine currently takes to report what it took away."""
        ...

    def listed_at(self, engine: str) -> float | None:
        """Returns the start, by time.monotonic(), of its newest list that the last offered mirror has in full."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The parts of its machine that a loop uses. The simulator has its own: virtual time, a journal in memory, and a disk."""

    monotonic: Callable[[], float] = time.monotonic
    processor: Callable[[], float] = time.thread_time
    journal: Callable[[Path], Journal] = Journal
    folders: Lister = field(default_factory=Folders)
    deaths: Deaths = field(default_factory=RefusedPorts)


class Loop:
    """One leadership term over all runs under the prefix."""

    def __init__(
        self,
        store: Store,
        term: Term,
        engine: Allocator,
        telemetry: Telemetry,
        tell: Callable[[Notice, str], None] | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`tell` sends a notice to the URL in a file, and returns at once."""
        machine = machine or Machine()
        self._store = store
        self._term = term
        self._engine = engine
        self._telemetry = telemetry
        self._monotonic, self._processor = machine.monotonic, machine.processor
        self._open_journal = machine.journal
        self._tell = tell
        self._folders = machine.folders
        self._deaths = machine.deaths
        self._mirror = Mirror(store.list(keys.PREFIX))
        self.epoch = observe.epochs_before(self._mirror) + term.epoch
        """The epoch as reported: it grows even when a restored etcd counts its revisions from 1 again."""
        self.stands_down = ""
        """Reason for standing down though no one took over: the state is of a newer program."""
        self._watch = store.watch(keys.PREFIX, self._mirror.revision)
        self._began = self._monotonic()
        runs = observe.readable(self._mirror)
        self._base = max((max(memory.clock, self._account_of(run).clock) for run, memory in runs), default=0.0)
        """The newest run clock that a leader wrote."""
        self._clocks = [(self._base, round(time.time() - self.now(), 3))]
        """Clocks of this term, as in Account.clocks, for people alone."""
        self._stood: dict[str, tuple[tuple[float, float], ...]] = {}
        """Standstills of the run clock by run, as in Account.stood, including the one before this term."""
        self._stable_since = self._began
        self._made: dict[str, projection.Made] = {}
        self._store_up = True
        self._journals: dict[str, Journal] = {}
        self._said: dict[str, tuple[str, ...]] = {}
        self._reported: set[str] = set()
        self._gathers_until = 0.0
        """Until when changes are gathered (`monotonic`)."""
        self._look_again: dict[str, float] = {}
        self._accounted: dict[str, float] = {}
        self._policies: dict[str, int] = {}
        """Version of the last journaled policy, by run."""
        self._specs: dict[str, int] = {}
        """Number of the last journaled spec, by run."""
        self._codes: dict[str, str] = {}
        """Version of the last journaled code, by run."""
        self._launched: dict[str, int] = {}
        """Revision at which each run was created: another run may have the name of a removed one."""
        self._notified: set[str] = set()
        """Runs whose standing notices were all sent; later ones are sent as they arise."""
        leader = self._mirror.record(keys.LEADER, LeaderRecord)
        self._host = leader.host if leader is not None else ""

    def run(self, stop: threading.Event) -> None:
        """Runs turns until `stop` is set, the term is lost, or the loop stands down."""
        try:
            while not stop.is_set() and not self._term.lost and not self.stands_down:
                self.step()
        except Fenced as error:
            log.warning("no longer the leader (epoch %d): %s", self.epoch, error)
        finally:
            self._watch.close()
            until = time.monotonic() + LAST_WORDS_S
            for journal in self._journals.values():
                journal.close(max(0.0, until - time.monotonic()))

    def now(self) -> float:
        """Returns the run clock, which continues from the newest memory or account by the monotonic clock (ADR 3)."""
        return self._base + self._monotonic() - self._began

    def _on_run_clock(self, at: float | None) -> float | None:
        return None if at is None else self._base + at - self._began

    def step(self) -> None:
        """Takes in changes, and makes one turn."""
        wake = min(self._look_again.values(), default=float("inf")) - self.now()
        until = min(self._gathers_until, self._monotonic() + wake)  # a turn that is due waits for no more
        changes = self._watch.poll(max(0.0, min(IDLE_S, wake)))
        while changes is not None:
            self._mirror.apply(changes)
            changes = self._watch.poll(max(0.0, until - self._monotonic()))
        began = self._processor()
        self._turn()
        took = self._processor() - began
        self._gathers_until = self._monotonic() + (min(GATHER_S, GATHER * took) if took > QUICK_S else 0.0)

    def _turn(self) -> None:
        self._telemetry.turned(self._watch.silent_s)
        self._note_clock()
        changed = self._mirror.fresh()
        self.stands_down = version_guard.why_not(self._mirror, changed)
        if self.stands_down:
            return
        if self._watch.silent_s > SILENCE_S:
            self._stable_since = self._monotonic()
        self._forget_removed()
        try:
            self._engine.offer(self._mirror, self._term)
            self._free_checked()
            for name, record in observe.runs(self._mirror).items():
                self._round(name, record)
        except Retryable as error:
            log.warning("the store is away: %s", error)
            self._stable_since = self._monotonic()
            self._note_store(False)
            self._resynchronise()
        self._note_store(self._watch.silent_s <= SILENCE_S)
        self._report_unreadable(changed)

    def _forget_removed(self) -> None:
        """Forgets each run that was removed, so that the next one of its name gets a journal and numbers of its own."""
        there = {run: self._mirror.items[keys.spec(run)].create_revision for run in observe.runs(self._mirror)}
        for run in [run for run, revision in self._launched.items() if there.get(run) != revision]:
            if run in self._journals:
                self._journals.pop(run).close(0.0)
            by_run: tuple[dict[str, Any], ...] = (
                self._stood, self._made, self._said, self._look_again, self._accounted, self._policies,
                self._specs, self._codes,
            )  # fmt: skip
            for known in by_run:
                known.pop(run, None)
            self._notified.discard(run)
            self._telemetry.forget(run)
            self._folders.forget(run)
        self._launched = there

    def _note_clock(self) -> None:
        """Notes a jump of the wall clock before anything is decided, so that later events are shown by the new clock,
        like the journal's lines."""
        more = time.time() - self.now()
        if abs(more - self._clocks[-1][1]) >= SET_S:
            began, *others = self._clocks
            self._clocks = [began, *others[2 - TERMS :], (self.now(), round(more, 3))]

    def _note_store(self, up: bool) -> None:
        """Journals when etcd stops answering or answers again."""
        if up != self._store_up:
            self._store_up = up
            for journal in self._journals.values():
                journal.event("store", up=up, silent_s=round(self._watch.silent_s, 2))

    def _free_checked(self) -> None:
        """Marks suspicions as freed whose hosts have passed their checks since (ADR 9)."""
        freed = list(cordons.freed_by_checks(self._mirror).items())[:FREED_AT_ONCE]
        if not freed:
            return
        as_it_is = [Expect(key, mod_revision=self._mirror.items[key].mod_revision) for key, _ in freed]
        puts = {key: encode(suspicion) for key, suspicion in freed}
        try:
            revision = self._store.commit(puts, (), [self._term.expect(), *as_it_is])
        except Fenced:
            return  # a person freed it meanwhile; or the term is lost, which the next write will show
        self._mirror.wrote(puts, revision)
        for _, suspicion in freed:
            run, incident = suspicion.run, suspicion.incident
            about = logged.about(run=run, incident=incident)
            log.info(
                "host %s is free of incident %s of run %s: %s",
                suspicion.host,
                incident,
                run,
                suspicion.freed,
                extra=about,
            )

    def _round(self, run: str, record: RunRecord) -> None:
        try:
            memory = observe.memory(self._mirror, run)
        except observe.Unreadable as error:
            self._report(f"memory:{run}", str(error), run)
            self._telemetry.undecided(run, True)
            return
        self._note_policy(run, record)
        self._note_spec(run, record)
        self._note_code(run, record)
        stable, now = self._monotonic() - self._stable_since, self.now()
        goes_on, engine = memory.phase not in ENDED, observe.engine_of(self._mirror, record.spec)
        seen = observe.observed(self._mirror, run, memory, now, stable)
        observed = replace(
            deaths.apply(seen, self._deaths.look(self._mirror, seen)),
            disk=self._folders.look(run, record.run_dir, memory.groups, now) if goes_on else None,
            engine_word_s=self._engine.word_s(engine),
            engine_listed_at=self._on_run_clock(self._engine.listed_at(engine)),
        )
        reach("observed")
        began = self._monotonic()
        decision = decide(observed, record.spec, memory)
        took = self._monotonic() - began
        if not record.spec.is_pool:  # no metric is about one: it makes no steps
            self._telemetry.round(record.spec, observed, decision, took, self._records(run, record))
        reach("decided")
        again = decision.look_again_at if decision.look_again_at is not None else float("inf")
        self._look_again[run] = min(again, now + self._deaths.look_after_s)
        broken = invariants.violations(memory, decision.memory, observed, record.spec)
        if broken:
            self._journal(run, record).event("invariant", violations=broken)
            sentence = f"run {run}: refusing a decision that breaks an invariant: {broken}"
            self._report(f"{INVARIANT}:{run}", sentence, run, about=INVARIANT)
            self._telemetry.undecided(run, True)
            return
        try:
            self._commit(run, record, memory, observed, decision)
        except TooLarge as error:  # of this run: the supervisor goes on with the others
            self._report(f"{INVARIANT}:{run}", f"run {run}: refusing {error}", run, about=INVARIANT)
            self._telemetry.undecided(run, True)
            return
        self._telemetry.undecided(run, False)
        self._notify(run, record, memory, decision)

    def _notify(self, run: str, record: RunRecord, memory: Memory, decision: Decision) -> None:
        """Sends new notices. In its first call for a run, and after an unknown outcome, it sends all that stand, since
        they may never have been sent."""
        if self._tell is None or not record.spec.policy.webhook_file:
            return
        if run in self._notified:
            found = due(run, memory, decision) if decision.memory is not memory else []
        else:
            kept = [incident for _, incident in self._mirror.records(keys.incident(run, ""), Incident)]
            found = notices(run, decision, kept)
            self._notified.add(run)
        for notice in found:
            self._tell(notice, record.spec.policy.webhook_file)

    def _records(self, run: str, record: RunRecord) -> Records:
        """Returns the records of a run that only metrics need."""
        return Records(
            told=lambda: told(self._mirror, run),
            incidents=lambda: (i for _, i in self._mirror.records(keys.incident(run, ""), Incident)),
            faults=lambda: made.made if (made := self._mirror.record(keys.faults(run), FaultsMade)) else {},
            launched_unix_s=record.launched_unix_s,
            account=lambda: self._account_of(run),
            stood=lambda: self._stood_still(run),
        )

    def _stood_still(self, run: str) -> tuple[tuple[float, float], ...]:
        """Returns the standstills of the run clock as in Account.stood, with the one before this term. Only the term's
        first look sees the previous term's clock."""
        if run not in self._stood:
            known = self._account_of(run)
            before = [more - known.off_s for began, more in known.clocks if began < self._base]
            since = self._clocks[0][1] - clock_skew.leader_off_s(self._mirror, time.time())
            own = [(self._base, round(max(0.0, since - before[-1]), 3))] if before else []
            self._stood[run] = (*(s for s in known.stood if s[0] < self._base), *own)[-TERMS:]
        return self._stood[run]

    def _note_spec(self, run: str, record: RunRecord) -> None:
        """Journals each spec that a relaunch has put into force, and again at the start of a term: the leader that did so
        may have died before it could."""
        if record.number > self._specs.get(run, 1):
            about = {"number": record.number, "because": record.because, "groups": record.spec.groups.count}
            spec = to_jsonable_python(lean(record.spec))
            self._journal(run, record).event("relaunch", epoch=self.epoch, **about, spec=spec)
        self._specs[run] = record.number

    def _note_code(self, run: str, record: RunRecord) -> None:
        """Journals each version of the code that the next start takes, once in a term."""
        found = observe.synced(self._mirror, run)
        if found is not None and found.newest.version != self._codes.get(run):
            self._codes[run] = found.newest.version
            self._journal(run, record).event("code", epoch=self.epoch, **to_jsonable_python(found.newest))

    def _note_policy(self, run: str, record: RunRecord) -> None:
        """Journals each policy that a person set, once in a term, including those replaced unseen."""
        found = self._mirror.record(keys.policy(run), PolicySet)
        known = self._policies.get(run, 0)
        if found is not None and known != found.version:
            self._policies[run] = found.version
            journal = self._journal(run, record)
            for was in found.earlier:
                if was.version > known:
                    about = {"epoch": self.epoch, "version": was.version, "because": was.because}
                    journal.event("policy", **about, changes=was.changes, replaced=True)
            about = {"epoch": self.epoch, "version": found.version, "because": found.because}
            journal.event("policy", **about, changes=found.changes, policy=to_jsonable_python(found.policy))
            log.info(
                "%s: policy version %d holds, because: %s",
                run,
                found.version,
                found.because,
                extra=logged.about(run=run),
            )

    def _commit(self, run: str, record: RunRecord, memory: Memory, observed: Observed, decision: Decision) -> None:
        journal = self._journal(run, record)
        changed = decision.memory is not memory
        wanted: dict[str, bytes] = {}
        if changed:
            wanted |= projection.memory_records(record.spec, decision.memory, decision.incidents, memory)
            wanted |= projection.suspicion_records(decision.suspicions)
        told = changed and (decision.incidents or any(a.verb not in ROUTINE for a in decision.actions))
        given = journal.take(observed, record.spec, memory) if told else None
        policy = self._policies.get(run, 0)
        if given is not None:
            by = projection.Decider(self.epoch, self._host, program(), policy)
            wanted |= projection.digest_record(run, decision, by, given.digest)
        made = self._made.setdefault(run, projection.Made())
        spread = codes.spread(self._mirror, record.spec, observed)
        spares = projection.spares(record.spec, decision.memory, observed)
        intents = projection.intent_records(record.spec, record.run_dir, decision.memory, made, spread, spares)
        wanted |= self._relaunched(run, memory, decision.memory)
        deletes = [*projection.acquitted(run, decision.acquitted), *projection.dropped(run, memory, decision.memory)]
        deletes = [key for key in deletes if key in self._mirror.items]
        account = self._account(run, memory, decision.memory)
        intents |= {keys.account(run): encode(account)} if account is not None else {}
        puts, later = self._difference(run, wanted, intents, MAX_OPERATIONS - len(deletes))
        waits = said(decision.waits)
        if changed or (waits and waits != self._said.get(run)):
            journal.intent(self.epoch, observed, decision, memory, given, policy)
            for action in decision.actions:
                about = logged.about(
                    run=run,
                    group=action.group,
                    generation=action.generation,
                    incident=action.incident,
                    node=action.node,
                )
                log.info("%s: %s: %s", run, action.key, say(action.reason), extra=about)
            if record.spec.is_pool and waits != self._said.get(run):
                pools.report(run, decision.waits)
            self._said[run] = waits
        if not puts:
            return
        reach("journaled")
        own = keys.memory(run, "run")
        known = self._mirror.items.get(own)
        expect = [self._term.expect(), Expect(own, mod_revision=known.mod_revision if known is not None else 0)]
        began = self._monotonic()
        try:
            revision = self._store.commit(puts, deletes, expect)
        except Fenced as error:
            journal.outcome(self.epoch, decision.memory.decisions, None, refused=str(error))
            raise
        except Retryable as error:
            journal.event("outcome_unknown", epoch=self.epoch, decision=decision.memory.decisions, why=str(error))
            if given is not None:
                journal.keep(given)
            self._telemetry.outcome_unknown(run, self._monotonic() - began)
            raise
        self._telemetry.committed(run, decision, self._monotonic() - began)
        reach("committed")
        if any(group.phase == "fencing" for group in decision.memory.groups.values()):
            reach("fencing")
        self._mirror.wrote(puts, revision)
        if changed:
            journal.outcome(self.epoch, decision.memory.decisions, revision)
        if account is not None and keys.account(run) in puts | later:
            journal.event("account", epoch=self.epoch, account=to_jsonable_python(account))
        if given is not None:
            journal.keep(given)
        reach("recorded")
        self._write_further(later)

    def _relaunched(self, run: str, before: Memory, now: Memory) -> dict[str, bytes]:
        """Returns the records with which a relaunch takes effect: they are written with the memory that decided it."""
        asked, record = observe.asked_relaunch(self._mirror, run), self._mirror.record(keys.spec(run), RunRecord)
        if asked is None or record is None or now.relaunches == before.relaunches:
            return {}
        after = replace(
            record, spec=asked.spec, number=asked.number, relaunched_unix_s=asked.asked_unix_s, because=asked.because
        )
        return {keys.spec(run): encode(after), keys.earlier_spec(run, record.number): encode(record)}

    def _write_further(self, intents: dict[str, bytes]) -> None:
        """Writes the intents that the decision's transaction did not hold, in further ones: what a lost one held is
        derived from memory again."""
        left = [*intents.items()]
        while left:
            batch, left = dict(left[:MAX_OPERATIONS]), left[MAX_OPERATIONS:]
            self._mirror.wrote(batch, self._store.commit(batch, (), [self._term.expect()]))

    def _account(self, run: str, memory: Memory, now: Memory) -> Account | None:
        """Returns where the time went, over all terms; None if it is not due. It is due with each change, and every
        ACCOUNT_S while the run goes on. `now`: the memory that was decided."""
        late = self.now() - self._accounted.get(run, self._base) >= ACCOUNT_S and memory.phase not in ENDED
        term = self._telemetry.accounts(run)
        seconds = {cause: round(value, 3) for cause, value in term.since_launch.items()}
        pool = now.held_since is not None  # its groups have no seconds, and its clock must go on in the next term too
        if not (seconds or pool) or not (now is not memory or late):
            return None
        self._accounted[run] = self.now()
        known = self._account_of(run)
        stepped = max(known.stepped_unix_s, stepped_unix_s(self._mirror, run))
        began = known.began_unix_s if known.seconds or term.began is None else round(self._wall(term.began), 3)
        ended = round(self._wall(term.last or self.now()), 3) if now.phase in ENDED else 0.0
        # a term that began no earlier left no memory: no instant of its clock is stored anywhere
        terms = (*(c for c in known.clocks if c[0] < self._base), *self._clocks)[-TERMS:]
        stood = self._stood_still(run)
        return Account(
            step=term.step, stepped_unix_s=stepped, seconds=seconds, clocks=terms, stood=stood,
            clock=round(term.last or (self.now() if pool else 0.0), 3), began_unix_s=began, ended_unix_s=ended and (known.ended_unix_s or ended), ran_s=round(term.ran_s, 3),
            off_s=round(clock_skew.leader_off_s(self._mirror, time.time())), held=term.held,
        )  # fmt: skip

    def _wall(self, at: float) -> float:
        """Returns the wall time of an instant of this term on the run clock, by this machine's clock as it then was."""
        return at + next((more for since, more in reversed(self._clocks) if since <= at), self._clocks[0][1])

    def _difference(
        self, run: str, memory: dict[str, bytes], intents: dict[str, bytes], at_most: int
    ) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Returns what to write at once, memory first, and the intents for which there is no room."""

        def differs(key: str, value: bytes) -> bool:
            item = self._mirror.items.get(key)
            return item is None or item.value != value

        puts = {k: v for k, v in memory.items() if differs(k, v)}
        if len(puts) > at_most:
            raise TooLarge(f"a decision of {len(puts)} records: a transaction holds {at_most}")
        # A node on which nothing is wanted any more gets an empty record: a missing key has no meaning (a wiped etcd).
        told = [key for key in self._mirror.keys(keys.DESIRED) if key.endswith(f"/{run}")]
        # So does a node that runs a part of it without a record: it came after the backup that was restored.
        ending = {*told, *(keys.desired(node, run) for node in observe.runs_on(self._mirror, run))}
        # Empty ones first: an agent that returns to its old record would begin what has been moved away from it.
        ordered = {key: _nothing(key) for key in sorted(ending - intents.keys())} | intents
        asked = {key: value for key, value in ordered.items() if differs(key, value)}
        first = [*asked][: at_most - len(puts)]
        return puts | {key: asked.pop(key) for key in first}, asked

    def _resynchronise(self) -> None:
        """Reads everything again after an unknown outcome, before anything is decided."""
        self._notified.clear()
        self._watch.close()
        while not self._term.lost:
            try:
                self._mirror = Mirror(self._store.list(keys.PREFIX))
                self._watch = self._store.watch(keys.PREFIX, self._mirror.revision)
                return
            except Retryable as error:
                threading.Event().wait(min(error.after_s, 1.0))

    def _account_of(self, run: str) -> Account:
        return self._mirror.record(keys.account(run), Account) or Account()

    def _journal(self, run: str, record: RunRecord) -> Journal:
        if run not in self._journals:
            self._journals[run] = self._open_journal(Path(record.run_dir) / "journal.jsonl")
            self._journals[run].event(
                "term", epoch=self.epoch, elected=self._term.epoch, program=program(), schema=RECORDS
            )
        return self._journals[run]

    def _report_unreadable(self, changed: set[str]) -> None:
        for key, why in audit(self._mirror, changed).items():
            self._report(key, f"{key} is left alone: {why}")

    def _report(self, key: str, sentence: str, run: str = "", about: str = "") -> None:
        """Logs a sentence once."""
        if (key + sentence) not in self._reported:
            self._reported.add(key + sentence)
            log.error(sentence, extra={**logged.about(run=run), "reported": about})


@lru_cache(maxsize=1 << 14)
def _nothing(key: str) -> bytes:
    """Encodes that nothing must run on the node of this key."""
    return encode(NodeDesired(node=key[len(keys.DESIRED) :].split("/", 1)[0]))
