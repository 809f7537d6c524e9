"""One round of deciding: the working copy of memory that the stages of `decide` change, and what they did and why.

It is mutable, but lives only inside one call of `decide`: input and output are frozen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.core.model.decision import Action, Decision
from supervisor.core.model.incident import Failure, Incident, Suspicion
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import budgets
from supervisor.core.policy.ladder import Choice, first_rung
from supervisor.core.round.view import RoundView

NEW_A_ROUND = 40
"""Allocations, and groups, that one round of a run's start makes: one operation each."""

ROUNDED_S = 0.001
"""Precision of a failure's duration: whole milliseconds."""

ENDS = that_are(Is.TELLS_ITS_END)

MAX_GIVEN_BACK = 30
"""Allocations, or incidents, that one round of a run's end may close: one operation each."""


class Round(RoundView):
    """The working copy of one round: all that may change is changed by a method of this class, or by a new `draft`."""

    groups: dict[int, GroupMemory]
    allocations: dict[str, AllocationMemory]
    incidents: dict[str, Incident]
    cordons: dict[str, Reason]
    spent: dict[str, tuple[float, ...]]
    spent_by_kind: dict[str, tuple[float, ...]]
    restarts_done: dict[int, int]

    def __init__(self, observed: Observed, spec: RunSpec, memory: Memory) -> None:
        super().__init__(observed, spec, memory)
        self.changed: dict[str, Incident] = {}
        self.seen = memory.incidents_seen
        self.suspicions: list[Suspicion] = []
        self.acquitted: list[tuple[str, str]] = []
        self.actions: list[Action] = []

    @property
    def draft(self) -> Memory:
        return self._draft

    @draft.setter
    def draft(self, memory: Memory) -> None:
        self._draft = memory

    def act(self, verb: Any, key: str, reason: Reason, **about: Any) -> None:
        self.actions.append(Action(verb=verb, key=key, reason=reason, **about))

    def set_group(self, group: GroupMemory) -> None:
        if group != self.groups[group.group]:
            self._touched.add(group.group)
            self._held_now.update(group.nodes)
            self.groups[group.group] = group

    def drop_group(self, group: int) -> None:
        """Forgets a group that the spec has no more. Its record is deleted, and its generations are not used again."""
        self._touched.add(group)
        generation = self.groups.pop(group).generation
        self.draft = replace(self.draft, generations_above=max(self.draft.generations_above, generation))

    def set_incident(self, incident: Incident) -> None:
        self._touched.add(incident.group)
        self.changed[incident.id] = incident
        if incident.state in ("recovered", "halted"):
            self.incidents.pop(incident.id, None)
        else:
            self.incidents[incident.id] = incident

    def incident_for(self, group: GroupMemory, failure: Failure, step: int) -> Incident:
        """Returns the group's open incident, brought up to date with this failure, or a new one."""
        known = self.incidents.get(group.incident)
        if known is not None:
            if known.kind == failure.kind and known.evidence == failure.evidence:
                return known
            kept = [e for e in known.evidence if e.code != Code.SEEN_AGAIN]
            evidence = (*kept, *(e for e in failure.evidence if e not in kept))
            # An end has its own text, or none: that of an earlier one does not describe it.
            newest = failure if failure.kind in ENDS else known
            # it began with its first sign, unless this failure shows an earlier one
            took_s = failure.took_s - (self.now - known.opened)
            took_s = took_s if took_s > known.took_s + ROUNDED_S else known.took_s
            incident = replace(
                known, kind=failure.kind, node=failure.nodes[0] if failure.nodes else known.node,
                nodes=_nodes_of(known, failure, group), evidence=newest_of(evidence, group),
                error=newest.error, trace=newest.trace, rank=failure.rank, confidence=failure.confidence, took_s=took_s,
                outside=known.outside and failure.outside,
            )  # fmt: skip
            if incident == known:
                return known
        else:
            self.seen += 1
            incident = Incident(
                id=f"i{self.seen}",
                kind=failure.kind,
                group=group.group,
                node=_node_of(failure, group),
                rung=first_rung(failure.kind, self.spec.policy),
                generation_before=group.generation,
                generation_after=group.generation,
                reason=None,
                evidence=failure.evidence,
                opened=self.now,
                step_before=step,
                error=failure.error,
                trace=failure.trace,
                rank=failure.rank,
                confidence=failure.confidence,
                took_s=failure.took_s,
                outside=failure.outside,
                nodes=_nodes_of(None, failure, group),
                code=group.code,
            )
            self.set_group(replace(group, incident=incident.id))
        self.set_incident(incident)
        return incident

    def decide_incident(self, incident: Incident, choice: Choice, generation: int) -> Incident:
        """Records the choice of a rung."""
        decided = replace(
            incident,
            rung=choice.rung,
            reason=choice.reason,
            considered=(*incident.considered, *(c for c in choice.considered if c not in incident.considered)),
            generation_after=generation,
            state="acting",
            decided=self.now,
            acted=None,
        )
        self.set_incident(decided)
        return decided

    def draw(self, rung: Rung, group: int) -> None:
        self.spent = budgets.draw(self.spent, self.spec.policy.budget, rung, group, self.now)

    def draw_of_kind(self, kind: Kind, group: int) -> None:
        self.spent_by_kind = budgets.draw_of_kind(self.spent_by_kind, self.spec.policy, kind, group, self.now)

    def acquire(self, reason: Reason, *, rung: Rung | None = None, instead_of: str = "") -> str:
        """Asks for one more allocation of one node; returns its key. `rung`: the one whose budget pays, if any."""
        key = f"{self.spec.name}-a{self.before.allocations_above + len(self.allocations) + 1}"
        window_s = self.spec.policy.budget.window_s
        unheard = {
            h for a in self.allocations.values() if a.unheard and self.now - a.since < window_s for h in a.unheard
        }
        self.set_allocation(
            AllocationMemory(
                key=key,
                state="wanted",
                since=self.now,
                reason=reason,
                exclude=tuple(sorted(unheard | self.cordons.keys() | self._barred_for_all.keys())),
                instead_of=instead_of,
            )
        )
        self.act("acquire", f"acquire:{key}", reason, rung=rung)
        return key

    def set_allocation(self, allocation: AllocationMemory) -> None:
        self._records.add(allocation.key)
        self.allocations[allocation.key] = allocation

    def release(self, key: str, reason: Reason) -> None:
        """Gives an allocation back; a second time does nothing."""
        allocation = self.allocations.get(key)
        if allocation is not None and allocation.state == "wanted":
            self.set_allocation(replace(allocation, state="released", since=self.now))
            if self._candidates is not None:
                nodes = self.observed.nodes
                self._candidates = [name for name in self._candidates if nodes[name].allocation != key]
            self.act("release", f"release:{key}", reason)

    def cordon(self, host: str, node: str, incident: Incident) -> None:
        """Holds an incident against a host. Further groups of the run that fail there count as the same trouble."""
        if host not in self.cordons:
            self._records.add(f"{host} {incident.id}")
            self.suspicions.append(
                Suspicion(host=host, run=self.spec.name, incident=incident.id, kind=incident.kind, at=self.now)
            )
        held = _held(incident.id, incident.kind)
        known = self.cordons.get(host)
        self.cordons[host] = Reason.of(Code.AND, reason=known, note=held) if known is not None else held
        self.act("cordon", f"cordon:{host}:{incident.id}", held, node=node, incident=incident.id)

    def uncordon(self, host: str) -> None:
        """Lifts the cordon of a host that a person, or a passed check, has freed."""
        was = self.cordons.pop(host)
        view = self.observed.cordons.get(host)
        by = view.passed if view is not None and view.passed else "a person"
        why = Reason.of(Code.FREED_BY, host=host, by=by, was=was)
        self.act("uncordon", f"uncordon:{host}:{self.before.decisions}", why)

    def acquit(self, host: str, incident: str, kind: Kind, why: Reason) -> None:
        """Clears a host of an incident that was not its doing after all. Nothing changes if another one is held against
        it too: of several of one run on a host only the first has a record."""
        held = _held(incident, kind)
        if self.cordons.get(host, held) != held:
            return
        self._records.add(f"{host} {incident}")
        self.acquitted.append((host, incident))
        if self.cordons.pop(host, None) is not None:
            about = Reason.of(Code.NOT_TO_BLAME, host=host, was=held, why=why)
            self.act("uncordon", f"uncordon:{host}:{self.before.decisions}", about)

    def halt(self, reason: Reason, incident: Incident | None) -> None:
        """Halts the run (rung 4): what still runs is drained, then stopped, and the reason is reported."""
        if self.phase not in ("new", "running"):
            return
        self.draft = replace(
            self.draft, phase="stopping", halt_reason=reason, stop_at_step=None, stop_by=None, from_memory=0
        )
        self.act(
            "halt",
            f"halt:{self.spec.name}",
            reason,
            rung=Rung.STOP,
            incident=incident.id if incident is not None else "",
        )

    def done(self) -> Decision:
        """Freezes the working copy into a decision."""
        memory = replace(
            self.draft,
            groups=self.groups,
            allocations=self.allocations,
            incidents=self.incidents,
            incidents_seen=self.seen,
            cordons=self.cordons,
            spent=self.spent,
            spent_by_kind=self.spent_by_kind,
            restarts_done=self.restarts_done,
        )
        # anything that was due before and is not done waits for another event, which wakes us
        wake = min((at for at in self._wake if at >= self.now), default=None)
        changed = memory != self.before
        if changed:
            memory = replace(memory, clock=self.now, decisions=memory.decisions + 1)
        return Decision(
            memory=memory if changed else self.before,
            actions=tuple(self.actions),
            waits=tuple(self.waits.values()),
            incidents=tuple(self.changed.values()),
            suspicions=tuple(self.suspicions),
            acquitted=tuple(self.acquitted),
            look_again_at=wake,
        )


def _node_of(failure: Failure, group: GroupMemory) -> str:
    """Returns the node of a new incident; empty if it is one of several and no one knows which: none is accused then."""
    if failure.nodes:
        return failure.nodes[0]
    return group.first_node if group.size == 1 or failure.kind in (Kind.NODE_LOST, Kind.ALLOCATION_LOST) else ""


def _nodes_of(known: Incident | None, failure: Failure, group: GroupMemory) -> tuple[str, ...]:
    """Returns all nodes of an incident. Those of a kind that it is no longer are not accused of the new one."""
    if group.size == 1:
        return ()
    before = known.nodes if known is not None and (known.kind == failure.kind or not failure.nodes) else ()
    return tuple(dict.fromkeys((*before, *failure.nodes)))


def newest_of(evidence: tuple[Reason, ...], group: GroupMemory) -> tuple[Reason, ...]:
    """Returns the evidence that an incident keeps: 8 lines, and one more for each further node, which may all be lost."""
    return evidence[-(7 + group.size) :]


def _held(incident: str, kind: Kind) -> Reason:
    return Reason.of(Code.HOLDS_AGAINST, incident=incident, kind=kind.value)
