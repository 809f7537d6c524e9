"""The supervisor's own metrics, set from what the loop sees. All names are in `metrics.CATALOGUE`."""

from __future__ import annotations

from collections import Counter

from supervisor.core import budget as budgets
from supervisor.core import cordons
from supervisor.core.ledger import WITHOUT_A_PROCESS, Cause
from supervisor.core.model import Decision, GroupMemory, Incident, Kind, Memory, Observed, Rung
from supervisor.core.spec import RunSpec
from supervisor.shell.metrics import Metrics

_CAUSE = {
    "unplaced": Cause.ALLOCATE,
    "fencing": Cause.PLACE,
    "placing": Cause.PLACE,
    "starting": Cause.START,
    "running": Cause.PRODUCTIVE,
    "finished": Cause.END,
}
"""What the supervisor can tell from a group's phase. The exact ledger is made from the trainers' own records."""

PHASES = tuple(_CAUSE)


class Telemetry:
    """Metrics of one supervisor process."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._seen: dict[str, float] = {}
        self._productive: dict[str, float] = {}
        self._total: dict[str, float] = {}
        self._newest: dict[str, int] = {}
        """By run, the newest step that was ever committed."""
        self._redone: dict[tuple[str, int], tuple[int, int]] = {}
        """By group, its generation, and the newest step of the run when that was first seen."""
        self.metrics.gauge("supervisor_leader").set(0)

    def leading(self, epoch: int | None) -> None:
        """A term begins, or (None) ends."""
        # Another term's clock may have gone back, and the time between was not ours to account for.
        self._seen.clear()
        self.metrics.gauge("supervisor_leader").set(0 if epoch is None else 1)
        if epoch is not None:
            self.metrics.gauge("supervisor_epoch").set(epoch)

    def store(self, up: bool) -> None:
        """Whether etcd answers."""
        self.metrics.gauge("supervisor_store_up").set(1 if up else 0)

    def round(self, spec: RunSpec, observed: Observed, decision: Decision, decide_s: float) -> None:
        """One round of decide for one run."""
        run, memory, m = spec.name, decision.memory, self.metrics
        m.counter("supervisor_decisions_total", run=run).inc()
        m.histogram("supervisor_decide_seconds", run=run).observe(decide_s)
        for action in decision.actions:
            m.counter("supervisor_actions_total", run=run, action=action.verb).inc()
        for incident in decision.incidents:
            self._incident(run, incident)
        m.gauge("supervisor_incidents_open", run=run).set(len(memory.incidents))
        phases = Counter(str(g.phase) for g in memory.groups.values())
        for phase in PHASES:
            m.gauge("supervisor_groups", run=run, phase=phase).set(phases.get(phase, 0))
        for group in memory.groups.values():
            m.gauge("supervisor_generation", run=run, group=group.group).set(group.generation)
        m.gauge("supervisor_breaker_held", run=run).set(memory.breaker_since is not None)
        self._nodes(run, memory, observed)
        for rung in (Rung.REPLACE, Rung.REALLOCATE):
            left = budgets.left(memory.spent, spec.policy.budget, rung, 0, observed.now)
            m.gauge("supervisor_budget_left", run=run, rung=rung.name.lower()).set(left)
        lowest = [budgets.left(memory.spent, spec.policy.budget, Rung.RESTART, g, observed.now) for g in memory.groups]
        m.gauge("supervisor_budget_left", run=run, rung="restart").set(min(lowest, default=spec.policy.budget.restart))
        steps = [rank.step for node in observed.nodes.values() for rank in node.ranks]
        m.gauge("supervisor_committed_steps", run=run).set(max(steps, default=0))
        if memory.checkpoint is not None:
            m.gauge("supervisor_checkpoint_step", run=run).set(memory.checkpoint.step)
        self._account(run, memory, observed)
        for incident in decision.incidents:
            if incident.kind == Kind.HANG and incident.decided == observed.now:
                self._stood_still(run, incident.took_s)

    def _incident(self, run: str, incident: Incident) -> None:
        if incident.state not in ("recovered", "halted"):
            return
        if incident.shadow:
            return  # nothing was done: `supervisor incidents --shadow` tells of it
        kind, rung = incident.kind.value, incident.rung.name.lower()
        self.metrics.counter("supervisor_incidents_total", run=run, kind=kind, rung=rung).inc()
        spans = (
            ("decide", incident.opened, incident.decided),
            ("start", incident.decided, incident.acted),
            ("join", incident.acted, incident.recovered),
            ("total", incident.opened, incident.recovered),
        )
        for phase, begin, end in spans:
            if begin is not None and end is not None:
                self.metrics.histogram("supervisor_recovery_seconds", run=run, phase=phase).observe(end - begin)

    def _nodes(self, run: str, memory: Memory, observed: Observed) -> None:
        trainers = [n for n in observed.nodes.values() if n.role == "trainer"]
        held = {g.node for g in memory.groups.values() if g.phase != "finished"}
        alive = [n for n in trainers if n.registered]
        m = self.metrics
        m.gauge("supervisor_nodes", run=run, state="registered").set(len(alive))
        m.gauge("supervisor_nodes", run=run, state="lost").set(sum(1 for n in trainers if not n.registered))
        barred = cordons.barred(observed, memory.cordons)
        m.gauge("supervisor_nodes", run=run, state="cordoned").set(len(barred))
        m.gauge("supervisor_spare_nodes", run=run).set(
            sum(1 for n in alive if n.name not in held and n.machine not in barred and not (n.failed or n.unsure))
        )

    def _account(self, run: str, memory: Memory, observed: Observed) -> None:
        now, last = observed.now, self._seen.get(run)
        self._seen[run] = now
        steps = {(r.group, r.generation): r.step for node in observed.nodes.values() for r in node.ranks}
        newest = self._newest.get(run, 0)
        self._newest[run] = max(newest, *steps.values(), 0)
        if last is None or memory.phase in ("finished", "stopped", "halted"):
            return
        away = observed.store_stable_s < now - last
        for group in memory.groups.values():
            generation, mark = self._redone.get((run, group.group), (-1, 0))
            if generation != group.generation:
                generation, mark = self._redone[run, group.group] = (group.generation, newest)
            incident = memory.incidents.get(group.incident)
            redoing = group.resume == "disk" and steps.get((group.group, generation), mark) < mark
            cause = cause_of(group, incident, away=away, redoing=redoing)
            self._total[run] = self._total.get(run, 0.0) + now - last
            if cause == Cause.PRODUCTIVE:
                self._productive[run] = self._productive.get(run, 0.0) + now - last
            else:
                counter = self.metrics.counter("supervisor_badput_seconds_total", run=run, cause=cause.value)
                counter.inc(max(0.0, now - last))
        if self._total.get(run, 0.0) > 0:
            ratio = self._productive.get(run, 0.0) / self._total[run]
            self.metrics.gauge("supervisor_ettr_ratio", run=run).set(ratio)

    def _stood_still(self, run: str, seconds: float) -> None:
        """What was taken for training until it was known that it hung."""
        seconds = min(seconds, self._productive.get(run, 0.0))
        self._productive[run] = self._productive.get(run, 0.0) - seconds
        self.metrics.counter("supervisor_badput_seconds_total", run=run, cause=Cause.HUNG.value).inc(seconds)


def cause_of(group: GroupMemory, incident: Incident | None = None, away: bool = False, redoing: bool = False) -> Cause:
    """The ledger's cause that a group's phase stands for; one that is silent is being detected. `away`: the store was, since
    the last look. `redoing`: it has not come to the newest step yet that was committed before it began."""
    cause = _CAUSE[group.phase]
    if cause in WITHOUT_A_PROCESS and away:
        return Cause.STORE_AWAY
    if group.phase != "running":
        return cause
    if incident is not None and incident.kind == Kind.HANG:
        return Cause.HUNG
    # One that is slow, or about to leave its node, trains.
    if group.incident and (incident is None or incident.kind not in (Kind.STRAGGLER, Kind.LEAVING)):
        return Cause.DETECT
    return Cause.RECOMPUTE if redoing else cause
