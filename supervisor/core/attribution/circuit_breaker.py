"""Circuit breaker: many groups that fail, nodes that are lost, or checks that do not pass at once have one cause. That
is a switch, a store, a power line or a driver, not the nodes. While it holds, no node is given up and no living process
is ended. Nor is a run halted because its budgets are smaller than a rack. Ended processes start again in place, which
shows when the cause has gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from supervisor.core.evidence import exit_status, gpu_faults, group_failure, group_nodes
from supervisor.core.model.incident import Failure, Incident
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Verdict
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import PolicySpec
from supervisor.core.policy import ladder
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

LIVES = that_are(Is.LIVES)
"""Kinds whose restart ends living processes, which may go on when a switch or a store is back."""

ENDED = that_are(Is.ENDED)

HELD = LIVES | ENDED | that_are(Is.LOST)
"""Kinds that a network, a store or a driver may cause everywhere. Excluded: the word of the engine or a person, which
is no guess; numbers that are not finite; slow groups."""

COUNTED = HELD | that_are(Is.MAY_COME_BACK)

OF_A_NETWORK = that_are(Is.OF_A_NETWORK)


@dataclass(frozen=True, slots=True)
class Hit:
    """The failures that may have one cause."""

    groups: Mapping[int, Kind]
    """Groups that fail, or that were started again in place and do not train yet."""
    lost: frozenset[int]
    """Groups among them whose node, or whose GPU, is lost."""
    dear: frozenset[int]
    """Groups among them that need more than a first restart in place."""
    given_up: int
    """Nodes that were given up within the window, without those whose group fails on the next one too."""
    nodes: int = 0
    """Nodes of `lost` that are lost: a group on several may lose one, or all."""

    @property
    def count(self) -> int:
        return len(self.groups) + self.given_up

    @property
    def of_nodes(self) -> bool:
        """True if only nodes are lost: then they are counted, and not their groups."""
        return self.groups.keys() <= self.lost

    @property
    def nodes_gone(self) -> int:
        return self.nodes + self.given_up


def look(r: Round, failing: Mapping[int, Failure]) -> None:
    """Trips or releases the breaker, by how many fail now or were given up within the window. A person may end it.
    `failing`: the failures that groups show now."""
    if r.observed.control.evictions > r.before.evictions_done:
        r.draft = replace(r.draft, evictions_done=r.observed.control.evictions)
        r.draft = replace(r.draft, evict_until=r.now + r.spec.policy.breaker.window_s)
        why = Reason.of(Code.PERSON_SAYS, because=r.observed.control.because)
        r.act("resume", f"evict:{r.observed.control.evictions}", why)
    hit = _hit(r, failing)
    ends = r.phase not in ("new", "running")
    holds = (_too_many(r, hit) or bool(_unchecked_too_many(r))) and not (ends or evicting(r))
    since = r.before.breaker_since
    if holds and since is None:
        r.draft = replace(r.draft, breaker_since=r.now)
        r.act("hold", f"hold:{r.before.decisions}", why_it_holds(r, failing))
    elif not holds and since is not None:
        r.draft = replace(r.draft, breaker_since=None, breaker_ended=None if evicting(r) else r.now)
        lost, others = hit.nodes_gone, len(hit.groups) - len(hit.lost)
        why = Reason.of(Code.LET_GO, lost=lost, of=_seats(r), others=others, unchecked=len(_unchecked(r)))
        r.act("let_go", f"let_go:{r.before.decisions}", why)
    if holds:
        r.wait(why_it_holds(r, failing), until=r.now + 1.0)


def over(r: Round) -> None:
    """Releases the breaker of a run that ends."""
    if r.phase not in ("new", "running") and tripped(r):
        r.draft = replace(r.draft, breaker_since=None)


def holds(r: RoundView, group: GroupMemory, kind: Kind) -> bool:
    """True if nothing is done about a failure: it ends, or its process can start again, when the cause has gone."""
    if tripped(r):
        return kind in LIVES or (kind in HELD and not _may_start_again(r, group))
    until = _patience(r, kind) if kind in LIVES else None
    if until is not None:
        r.wait(Reason.of(Code.LET_GO_JUST_NOW, kind=kind.value), until=until, group=group.group)
    return until is not None


def in_place(r: RoundView, kind: Kind) -> Reason | None:
    """Explains why an ended process starts again in place, in a hold or shortly after; None if judged as usual."""
    again = (tripped(r) and kind in HELD) or (kind in ENDED and _patience(r, kind) is not None)
    return Reason.of(Code.BREAKER_HOLDS) if again else None


def are_many(r: RoundView, count: int, of: int) -> bool:
    """Returns true if this many of the groups, or of their nodes, cannot be chance."""
    policy = r.spec.policy.breaker
    return count >= policy.at_least and count > policy.share * max(1, of)


def _seats(r: RoundView) -> int:
    return sum(group.size for group in r.groups.values())


def passes(r: RoundView, kind: Kind, known: Incident | None) -> Rung:
    """Rung where the ladder begins for what a person has given up: past a restart in place that has not mended it. For
    a living process only a restart since the person's word counts: starting it again is what that word is for."""
    if known is None or known.decided is None or known.rung < Rung.RESTART or kind not in HELD or not evicting(r):
        return Rung.RIDE_THROUGH
    said = r.before.evict_until
    by_word = said is not None and known.decided >= said - r.spec.policy.breaker.window_s
    return Rung.RIDE_THROUGH if kind in LIVES and not by_word else Rung.REPLACE


def tripped(r: RoundView) -> bool:
    """Returns true if the breaker holds now."""
    since: float | None = r.draft.breaker_since
    return since is not None


def unchecked(r: RoundView, nodes: Iterable[str]) -> list[str]:
    """Returns those of the nodes that the run holds and whose checks do not pass, unless a group runs there."""
    found = []
    for name in nodes:
        view = r.observed.nodes.get(name)
        if view is not None and view.registered and (view.failed or view.unsure):
            allocation = r.allocations.get(view.allocation)
            found += [name] if allocation is not None and allocation.state == "wanted" else []
    runs = {n for g in r.groups.values() if g.phase in ("starting", "running") for n in g.nodes} if found else set()
    return sorted(set(found) - runs)


def evicting(r: RoundView) -> bool:
    """Returns true while a person's word holds that lost nodes are given up, charged to no budget."""
    until: float | None = r.draft.evict_until
    return until is not None and r.now < until


def why_it_holds(r: RoundView, failing: Mapping[int, Failure] | None = None) -> Reason:
    """Returns one of reason.BREAKER. `failing`: as for look; None: as incidents have it."""
    run, window_s, hit = r.spec.name, r.spec.policy.breaker.window_s, _hit(r, failing)
    if found := _unchecked_too_many(r):
        view = r.observed.nodes[found[0]]
        return Reason.of(
            Code.CHECKS_OF_MANY, run=run, failed=len(found), of=_asked_for(r), given_up=hit.given_up, window_s=window_s,
            fact=view.failed or view.unsure,
        )  # fmt: skip
    if hit.of_nodes:
        return Reason.of(Code.NODES_OF_MANY, run=run, lost=hit.nodes_gone, of=_seats(r), window_s=window_s)
    kinds = Counter(kind.value for kind in hit.groups.values()).most_common()
    return Reason.of(
        Code.GROUPS_OF_MANY, run=run, failing=len(hit.groups), of=len(r.groups), kinds=tuple(kind for kind, _ in kinds),
        times=tuple(n for _, n in kinds), given_up=hit.given_up, evidence=_first_seen(r, hit, failing or {}),
    )  # fmt: skip


def _first_seen(r: RoundView, hit: Hit, failing: Mapping[int, Failure]) -> Reason | None:
    for g in sorted(hit.dear) or sorted(hit.groups):
        incident = r.incidents.get(r.groups[g].incident)
        evidence = failing[g].evidence if g in failing else incident.evidence if incident is not None else ()
        if evidence:
            return evidence[0]
    return None


def _patience(r: RoundView, kind: Kind) -> float | None:
    """Time until which late groups, after a release, get as long as they had before. None: it is past."""
    ended: float | None = r.draft.breaker_ended
    until = ended + _patience_s(kind, r.spec.policy) if ended is not None and not evicting(r) else r.now
    return until if r.now < until else None


def _patience_s(kind: Kind, policy: PolicySpec) -> float:
    if kind == Kind.HANG:
        return policy.hang.at_least_s
    if kind == Kind.START_TIMEOUT:
        return policy.start_timeout_s
    return policy.silent_timeout_s if kind == Kind.STALLED else policy.breaker.window_s


def _may_start_again(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if the group's process has ended, and another may be started there."""
    nodes = group_nodes.views(group, r.observed)
    if not group_nodes.all_answer(group, r.observed) or any(n.failed or gpu_faults.unfit(n, r.spec) for n in nodes):
        return False
    return exit_status.ended(group_nodes.ranks_of(group, r.observed)) is not None


def _too_many(r: RoundView, hit: Hit) -> bool:
    unpaid = len(hit.dear) > r.left(Rung.REPLACE, 0) + r.left(Rung.REALLOCATE, 0)
    unpaid = unpaid and len(hit.dear) + hit.given_up >= r.spec.policy.breaker.at_least
    many = are_many(r, hit.nodes_gone, _seats(r)) if hit.of_nodes else are_many(r, hit.count, len(r.groups))
    return bool(hit.dear) and (unpaid or _would_halt(r, hit) or many)


def _would_halt(r: RoundView, hit: Hit) -> bool:
    """True if several nodes are lost at once, more than the run may replace, and too few groups train on to suspend the
    rest. If held, the nodes may come back; else the last of them would halt the run. A lost GPU does not come back."""
    nodes = [r.groups[g] for g in hit.lost if hit.groups[g] == Kind.NODE_LOST]
    on = sum(g.phase == "running" and g.group not in hit.groups and not g.left_out for g in r.groups.values())
    if sum(_nodes_lost(r, group) for group in nodes) < 2 or on >= max(1, r.spec.groups.min_groups):
        return False
    spares, by_spare = len(r.spares()), 0
    for needs in sorted(_nodes_lost(r, group) for group in nodes):
        spares -= needs
        by_spare += spares >= 0
    return len(nodes) > min(r.left(Rung.REPLACE, 0), by_spare) + r.left(Rung.REALLOCATE, 0)


def _nodes_lost(r: RoundView, group: GroupMemory) -> int:
    """Number of the group's nodes that do not answer; 1 if a GPU of it is lost."""
    return max(1, len(group.seats) - len(group_nodes.answering(group, r.observed)))


def _hit(r: RoundView, failing: Mapping[int, Failure] | None) -> Hit:
    lost, held, found, again = _lost(r), tripped(r), {}, {}
    dear: set[int] = set()
    for g, group in r.groups.items():
        if group.left_out:
            continue
        incident = r.incidents.get(group.incident)
        kind = lost.get(g) or _fails(g, incident, failing)
        if kind is not None and not (_only_seen(r, incident) or _is_left_so(r, kind, (failing or {}).get(g))):
            found[g] = kind
            dear |= {g} if _is_dear(r, g, kind, incident) else set()
        elif incident is not None and _is_restarted(incident):
            again[g] = incident
    if held:
        dear |= {g for g, incident in again.items() if _was_dear(incident)}
    window_s = r.spec.policy.breaker.window_s
    began = [r.incidents[i].opened for g in sorted(dear) if (i := r.groups[g].incident) in r.incidents] or [r.now]
    outside = any(_by_what_is_shared(r.groups[g]) for g in dear)
    for g, incident in again.items():
        # failures of one cause begin at one time, however long their restarts take
        together = min(began) - window_s <= incident.opened <= max(began) + window_s
        if held or together or (outside and _by_what_is_shared(r.groups[g])):
            found[g] = incident.kind
    if not {found[g] for g in dear} & OF_A_NETWORK:
        found = {g: kind for g, kind in found.items() if kind != Kind.SILENT}  # hiccups, as long as none of them lasts
    again_elsewhere = sum(_has_moved(r, r.groups[g]) for g in found.keys() - lost.keys())
    given_up = max(0, _given_up(r) - again_elsewhere)
    gone = frozenset(lost.keys() & found.keys())
    return Hit(found, gone, frozenset(dear), given_up, sum(_nodes_lost(r, r.groups[g]) for g in gone))


def _by_what_is_shared(group: GroupMemory) -> bool:
    """True if a shared outage ended the group, and it has not come past that: one cause, however far apart the ends."""
    return group.seen is not None and group.seen.outside_since is not None


def _has_moved(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if the group has left its node for a failure that it still shows."""
    incident = r.incidents.get(group.incident)
    if incident is None or not group.placed:
        return False
    if incident.node:
        return not group.holds(incident.node)
    return incident.decided is not None and incident.rung > Rung.RESTART


def _fails(group: int, incident: Incident | None, failing: Mapping[int, Failure] | None) -> Kind | None:
    """Kind of the failure that a group shows now, if it counts."""
    if failing is None:
        open_ = incident is not None and (incident.decided is None or incident.rung == Rung.RIDE_THROUGH)
        return incident.kind if incident is not None and open_ and incident.kind in COUNTED else None
    failure = failing.get(group)
    if failure is None or failure.blameless or Kind.NUMERICS in failure.causes:
        return None
    return failure.kind if failure.kind in COUNTED else None


def _is_restarted(incident: Incident) -> bool:
    """Returns true if the group was started again in place for the incident, and does not train yet."""
    acted = incident.decided is not None and incident.rung == Rung.RESTART and incident.kind in COUNTED
    return acted and _code(incident) != Code.ANOTHERS_FAULT


def _was_dear(incident: Incident) -> bool:
    """Returns true if it was not the first restart, or one that no budget would have paid."""
    return incident.generation_after > incident.generation_before + 1 or _code(incident) == Code.BREAKER_HOLDS


def _code(incident: Incident) -> str:
    return incident.reason.code if incident.reason is not None else ""


def _only_seen(r: RoundView, incident: Incident | None) -> bool:
    """Returns true if nothing is done about it because the policy only observes, and has for a while."""
    window_s = r.spec.policy.breaker.window_s
    return incident is not None and incident.shadow and r.now - incident.opened > window_s


def _is_left_so(r: RoundView, kind: Kind, failure: Failure | None) -> bool:
    """Returns true if the kind is only observed while others are acted on: it must not keep those from being mended. In
    observe mode it counts, since no node is given up for it."""
    kinds = {kind, *(failure.causes if failure is not None else ())}
    return r.spec.policy.mode != "observe" and any(k.value in r.spec.policy.observe for k in kinds)


def _is_dear(r: RoundView, group: int, kind: Kind, incident: Incident | None) -> bool:
    """Returns true if a node would be left for it, a living process ended, or a restart in place has not mended it."""
    if kind not in ENDED:
        return kind != Kind.SILENT
    tried = incident is not None and incident.decided is not None and incident.rung >= Rung.RESTART
    return tried or (ladder.first_rung(kind, r.spec.policy) < Rung.STOP and r.choose(kind, group).rung > Rung.RESTART)


def _unchecked_too_many(r: RoundView) -> list[str]:
    """Nodes whose checks do not pass, if with those given up lately they are too many to be at fault; else none."""
    policy, found = r.spec.policy.breaker, _unchecked(r)
    count = len(found) + _given_up(r)
    return found if count >= policy.at_least and count > policy.share * _asked_for(r) else []


def _unchecked(r: RoundView) -> list[str]:
    return unchecked(r, [node.name for node in r.observed.nodes.values() if node.failed or node.unsure])


def _asked_for(r: RoundView) -> int:
    return r.spec.allocation.nodes + r.spec.allocation.spares


def _lost(r: RoundView) -> dict[int, Kind]:
    """Groups whose node, or GPU, is lost now. A node counts before the engine has had its time to claim it."""
    found = {}
    for g, group in r.groups.items():
        if group.phase not in ("starting", "running") or not group.seats:
            continue
        if group_nodes.all_answer(group, r.observed):
            if gpu_faults.at_once(group, r.observed, r.spec) is not None:
                found[g] = Kind.GPU
            continue
        grants = (r.observed.grants.get(seat.allocation) for seat in group.seats)
        by_engine = any(grant is not None and grant.state == "gone" for grant in grants)
        verdict, _ = group_failure.verdict_on(group, r.observed, r.spec)
        if verdict == Verdict.DEAD and not by_engine:
            found[g] = Kind.NODE_LOST
    return found


def _given_up(r: RoundView) -> int:
    since = r.now - r.spec.policy.breaker.window_s
    spent = (r.before.spent.get(rung.name.lower(), ()) for rung in (Rung.REPLACE, Rung.REALLOCATE))
    return sum(at > since for draws in spent for at in draws)
