"""Sets the supervisor's own metrics from what the loop sees. The catalogue has the names; ADR 14 says who exports
what."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.core.attribution.stragglers import stragglers
from supervisor.core.evidence import checkpoint_lag, stopped_ranks
from supervisor.core.evidence.group_failure import node_verdict
from supervisor.core.goodput.causes import Cause
from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed, Verdict
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import budgets, cordons
from supervisor.core.report.durations import incident_s, lasted_s
from supervisor.core.round.view import RoundView
from supervisor.shell.metrics.catalogue import CATALOGUE, CAUSES, GROUP_PHASES, KINDS, RECOVERY, RUN_PHASES, RUNGS
from supervisor.shell.metrics.live_goodput import Accounts, Told
from supervisor.shell.metrics.registry import Metrics
from supervisor.wire.expiry import first_expiry_unix_s
from supervisor.wire.records import Account
from supervisor.wire.security import Security
from supervisor.wire.version import version

OVER = ("finished", "stopped")
"""Phases of runs that will do no more."""

OVER_S = 3600.0
"""Seconds for which an ended run keeps all its metrics: by then every reader has its last numbers."""

FOR_A_DAY = ("supervisor_node_incidents_total", "supervisor_run_launched_timestamp_seconds")
"""Metrics that are read over a day (the alert FlappingNode), and so kept for one."""

_STAYS = (*FOR_A_DAY, "supervisor_run_phase")
_DROPS = (
    (OVER_S, tuple(m.name for m in CATALOGUE if "run" in m.labels and m.name not in _STAYS)),
    (cordons.REPEATED_S, FOR_A_DAY),
)

FAULTS = 64
"""Most kinds of injected faults exported: more than there are."""


LOOK_S = 1.0
"""Seconds between looks at all groups and nodes without a decision: a thousand agents cause constant rounds."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """Parts of a run that only its records hold, each read on demand."""

    told: Callable[[], Told] = dict
    incidents: Callable[[], Iterable[Incident]] = tuple
    """All incidents of the run in etcd."""
    faults: Callable[[], Mapping[str, int]] = dict
    """How often `supervisor chaos` has made each fault."""
    launched_unix_s: float = 0.0
    account: Callable[[], Account] = Account
    """The account of earlier terms, read in the first round of a term."""
    stood: Callable[[], Sequence[tuple[float, float]]] = tuple
    """As Account.stood, with this term's; read with the account."""


@dataclass
class _Run:
    """The metrics' state of one run in one term."""

    over: bool
    """True if it ended before this term, or so long ago that only its phase is exported."""
    ended: float | None = None
    """Run clock at which its end was first seen."""
    drops: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    """Seconds after the end, each with the metrics dropped then."""
    decisions: int = -1
    looked: float = 0.0
    """Run clock of the last look."""
    accounts: Accounts = field(default_factory=Accounts)
    stood: Sequence[tuple[float, float]] = ()
    counted: dict[Cause, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)


class Telemetry:
    """The metrics of one supervisor process."""

    def __init__(self, security: Security | None = None) -> None:
        self.metrics = Metrics()
        self._runs: dict[str, _Run] = {}
        self._closed: dict[str, set[tuple[str, bool]]] = {}
        """Counted incidents, by run."""
        self.metrics.gauge("supervisor_info", version=version()).set(1)
        self.metrics.gauge("supervisor_leader").set(0)
        self.metrics.gauge("supervisor_epoch").set(0)
        self._heard_at: float | None = None
        """When the leading loop last heard from etcd, by time.monotonic(). None if this process does not lead."""
        self.metrics.gauge("supervisor_loop_silent_seconds").set_function(self._loop_silent_s)
        expiry = self.metrics.gauge("supervisor_certificate_expiry_timestamp_seconds")
        expiry.set_function(lambda: first_expiry_unix_s(security or Security()))

    def leading(self, epoch: int | None) -> None:
        """Begins a term, or ends it (None): then other supervisors export the runs."""
        self._runs.clear()
        self._closed.clear()
        self.metrics.drop("supervisor_", run=None)
        self._heard_at = time.monotonic() if epoch is not None else None
        self.metrics.gauge("supervisor_leader").set(0 if epoch is None else 1)
        if epoch is not None:
            self.metrics.gauge("supervisor_epoch").set(epoch)

    def forget(self, run: str) -> None:
        """Drops everything about a run that was removed."""
        self._runs.pop(run, None)
        self._closed.pop(run, None)
        self.metrics.drop("supervisor_", run=run)

    def undecided(self, run: str, so: bool) -> None:
        """Notes whether nothing can be decided about a run."""
        if not self._is_over(run):
            self.metrics.gauge("supervisor_undecided", run=run).set(so)

    def turned(self, silent_s: float) -> None:
        """Notes a turn of the leading loop, whose watch has been silent for `silent_s`. The lease has its own thread:
        without turns, this process would keep leading, and no one would replace it."""
        self._heard_at = time.monotonic() - silent_s

    def _loop_silent_s(self) -> float:
        heard_at = self._heard_at  # read once: any thread may call this
        return time.monotonic() - heard_at if heard_at is not None else 0.0

    def round(
        self, spec: RunSpec, observed: Observed, decision: Decision, decide_s: float, records: Records | None = None
    ) -> None:
        """Exports one round of decide for one run."""
        run, memory, m = spec.name, decision.memory, self.metrics
        records = records or Records()
        known = self._runs.get(run)
        if known is None or (known.ended is not None and memory.phase not in OVER):
            before = records.account()
            accounts = Accounts(
                before.step, before=before.seconds, ran_s=before.ran_s, last=before.clock or None, stood=records.stood(),
                held_before=before.held, _ended=before.ended_unix_s > 0.0,
            )  # fmt: skip
            over = memory.phase in OVER
            drops = [] if over else [*_DROPS]
            known = self._runs[run] = _Run(over, drops=drops, accounts=accounts, stood=records.stood())
        for phase in RUN_PHASES:
            m.gauge("supervisor_run_phase", run=run, phase=phase).set(phase == memory.phase)
        if memory.phase in OVER and self._has_gone(run, known, observed.now):
            return
        self._replay(run, records)
        m.counter("supervisor_decisions_total", run=run).inc()
        m.histogram("supervisor_decide_seconds", run=run).observe(decide_s)
        if known.decisions == memory.decisions and 0.0 <= observed.now - known.looked < LOOK_S:
            return
        known.decisions, known.looked = memory.decisions, observed.now
        m.gauge("supervisor_run_launched_timestamp_seconds", run=run).set(records.launched_unix_s)
        self._look(spec, observed, memory, known)
        known.accounts.look(memory, observed, records.told(), stragglers(memory.groups, observed, spec))
        self._account(run, known)
        self._faults(run, known, records.faults())

    def _has_gone(self, run: str, known: _Run, now: float) -> bool:
        """Returns true if only the phase of an ended run is exported by now. Drops other metrics when due, or a
        long-lived leader would export all its runs forever."""
        if known.ended is None:
            known.ended = now
        while known.drops and now - known.ended >= known.drops[0][0]:
            for name in known.drops.pop(0)[1]:
                self.metrics.drop(name, run=run)
            self._closed.pop(run, None)
            known.over = True
        return known.over

    def _look(self, spec: RunSpec, observed: Observed, memory: Memory, known: _Run) -> None:
        run, m = spec.name, self.metrics
        m.gauge("supervisor_paused", run=run).set(observed.control.paused)
        m.gauge("supervisor_observe", run=run).set(spec.policy.mode == "observe")
        m.gauge("supervisor_reports_steps", run=run).set(not spec.trainer.plain)
        m.gauge("supervisor_incidents_open", run=run).set(sum(not i.shadow for i in memory.incidents.values()))
        m.gauge("supervisor_breaker_held", run=run).set(memory.breaker_since is not None)
        if memory.checkpoint is not None:
            m.gauge("supervisor_checkpoint_step", run=run).set(memory.checkpoint.step)
        m.gauge("supervisor_checkpoint_interval_steps", run=run).set(spec.titan.checkpoint_interval_steps)
        behind = checkpoint_lag.steps(memory.groups, memory.checkpoint, observed)
        if behind is not None:  # None while no one trains: then no step is added or saved
            m.gauge("supervisor_unsaved_steps", run=run).set(behind)
        newest = max((rank.step for node in observed.nodes.values() for rank in node.ranks), default=0)
        if newest:  # the last value stands while no rank reports a step: coming and going is no progress
            m.gauge("supervisor_committed_steps", run=run).set(newest)
        self._groups(run, known, memory)
        debugged = [group for group in memory.groups.values() if stopped_ranks.debugged(group, observed)]
        m.gauge("supervisor_debugged_groups", run=run).set(len(debugged))
        self._nodes(spec, memory, observed)
        self._budgets(spec, memory, observed.now)

    def accounts(self, run: str) -> Accounts:
        """Returns this term's accounts of a run so far."""
        known = self._runs.get(run)
        return known.accounts if known is not None else Accounts()

    def committed(self, run: str, decision: Decision, seconds: float) -> None:
        """Counts a committed decision, whose commit took `seconds`."""
        if self._is_over(run):
            return
        self.metrics.histogram("supervisor_commit_seconds", run=run).observe(seconds)
        for action in decision.actions:
            self.metrics.counter("supervisor_actions_total", run=run, action=action.verb).inc()
        for incident in decision.incidents:
            self._incident(run, incident)

    def outcome_unknown(self, run: str, seconds: float) -> None:
        """Handles a commit whose outcome was still unknown after `seconds`: counts the incidents in etcd again."""
        self._closed.clear()
        if not self._is_over(run):
            self.metrics.histogram("supervisor_commit_seconds", run=run).observe(seconds)

    def _is_over(self, run: str) -> bool:
        known = self._runs.get(run)
        return known is not None and known.over

    def _replay(self, run: str, records: Records) -> None:
        """Counts all incidents in etcd, so that every leader exports the same numbers."""
        if run in self._closed:
            return
        self._closed[run] = set()
        m = self.metrics
        for name in ("incidents_total", "node_incidents_total", "shadow_incidents_total", "recovery_seconds"):
            m.drop(f"supervisor_{name}", run=run)
        # starts from 0, so that the first incident is seen as an increase
        for rung in RUNGS:
            m.counter("supervisor_shadow_incidents_total", run=run, rung=rung)
            for kind in KINDS:
                m.counter("supervisor_incidents_total", run=run, kind=kind, rung=rung)
        for phase in RECOVERY:
            m.histogram("supervisor_recovery_seconds", run=run, phase=phase)
        for incident in records.incidents():
            self._incident(run, incident, exemplar=False)  # its exemplar would carry the current time

    def _incident(self, run: str, incident: Incident, exemplar: bool = True) -> None:
        rung, m = incident.rung.name.lower(), self.metrics
        about = {"incident": incident.id} if exemplar else None
        closed = self._closed.setdefault(run, set())
        # an observed one may stay open forever: it counts once it is known what would have been done
        over = incident.shadow or incident.state in ("recovered", "halted")
        if not over or (incident.id, incident.shadow) in closed:
            return
        closed.add((incident.id, incident.shadow))
        if incident.shadow:
            m.counter("supervisor_shadow_incidents_total", run=run, rung=rung).inc(exemplar=about)
            return
        kind = incident.kind.value
        m.counter("supervisor_incidents_total", run=run, kind=kind, rung=rung).inc(exemplar=about)
        if cordons.accuses(incident):
            for node in incident.nodes or (incident.node,):
                m.counter("supervisor_node_incidents_total", run=run, node=node).inc(exemplar=about)
        known = self._runs.get(run)
        stood = known.stood if known is not None else ()
        m.histogram("supervisor_recovery_seconds", run=run, phase="detect").observe(incident.took_s, about)
        spans = (
            ("decide", incident.opened, incident.decided),
            ("act", incident.decided, incident.acted),
            ("rejoin", incident.acted, incident.recovered),
        )
        for phase, begin, end in spans:
            if begin is not None and end is not None:
                seconds = lasted_s(begin, end, stood)
                m.histogram("supervisor_recovery_seconds", run=run, phase=phase).observe(seconds, about)
        total_s = incident_s(incident, stood)
        if total_s is not None:
            m.histogram("supervisor_recovery_seconds", run=run, phase="total").observe(total_s, about)

    def _groups(self, run: str, known: _Run, memory: Memory) -> None:
        phases = Counter(str(g.phase) for g in memory.groups.values())
        for phase in GROUP_PHASES:
            self.metrics.gauge("supervisor_groups", run=run, phase=phase).set(phases[phase])
        for group in memory.groups.values():
            if known.generations.get(group.group) != group.generation:
                known.generations[group.group] = group.generation
                self.metrics.gauge("supervisor_generation", run=run, group=group.group).set(group.generation)

    def _nodes(self, spec: RunSpec, memory: Memory, observed: Observed) -> None:
        run, m = spec.name, self.metrics
        trainers = [n for n in observed.nodes.values() if n.role == "trainer"]
        holders = {node: g for g in memory.groups.values() if g.phase != "finished" for node in g.nodes}
        barred = memory.cordons.keys() | cordons.barred(observed, {}).keys()
        verdicts = Counter(node_verdict(n.name, holders.get(n.name), observed, spec)[0] for n in trainers)
        for verdict in Verdict:
            m.gauge("supervisor_nodes", run=run, verdict=verdict.value).set(verdicts[verdict])
        m.gauge("supervisor_cordoned_hosts", run=run).set(len(barred))
        m.gauge("supervisor_spare_nodes", run=run).set(len(RoundView(observed, spec, memory).spares()))
        m.gauge("supervisor_spare_nodes_wanted", run=run).set(spec.allocation.spares)

    def _budgets(self, spec: RunSpec, memory: Memory, now: float) -> None:
        budget, m = spec.policy.budget, self.metrics
        for rung in (Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE):
            allowed = budgets.allowed(budget, rung)
            groups = memory.groups if rung == Rung.RESTART else (0,)
            left = min((budgets.left(memory.spent, budget, rung, g, now) for g in groups), default=allowed)
            m.gauge("supervisor_budget_left", run=spec.name, rung=rung.name.lower()).set(left)
            m.gauge("supervisor_budget_allowed", run=spec.name, rung=rung.name.lower()).set(allowed)

    def _account(self, run: str, known: _Run) -> None:
        if not known.counted:
            for name in CAUSES:  # starts from 0, so that the first second is seen as an increase
                self.metrics.counter("supervisor_group_seconds_total", run=run, cause=name)
            known.counted = dict.fromkeys(Cause, 0.0)
        for cause, seconds in known.accounts.seconds.items():
            more = seconds - known.counted[cause]
            if more > 0:
                self.metrics.counter("supervisor_group_seconds_total", run=run, cause=cause.value).inc(more)
                known.counted[cause] = seconds
        if known.accounts.ettr is not None:
            self.metrics.gauge("supervisor_ettr_ratio", run=run).set(known.accounts.ettr)

    def _faults(self, run: str, known: _Run, faults: Mapping[str, int]) -> None:
        """Exports the faults that etcd counts."""
        for name, made in sorted(faults.items()):
            more = made - known.faults.get(name, 0)
            if more > 0 and (name in known.faults or len(known.faults) < FAULTS):
                self.metrics.counter("supervisor_injected_faults_total", run=run, fault=name).inc(more)
                known.faults[name] = made
