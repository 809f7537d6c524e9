"""Leaves nodes that are about to go: the engine takes them away (ADR 8), or a person drains their host (ADR 9).

Such a node takes no group any more. A successor is asked for at once. The groups move one at a time, while another
trains that they can heal from. Where that is impossible, all are handed over through a checkpoint (`handover.py`). None
of it is a failure: no budget is drawn and no host cordoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from supervisor.core.evidence import group_failure, group_nodes
from supervisor.core.model import engines
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy import budgets
from supervisor.core.remediation import handover
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView, trains

ASKED_A_ROUND = 15
"""Successors that one round asks for: each takes two operations beside what placing costs, a transaction holds 120."""


SUCCESSORS_A_NODE = 6
"""Successors a node within the budgets' window (an hour) that are free. Hosts are drained one by one for maintenance
now and then; a time limit that is too short comes back at once."""


def leave(r: Round) -> None:
    """Decides about leaving nodes in this round."""
    if r.phase != "running":
        if r.before.handover_at_step is not None:
            r.draft = replace(r.draft, handover_at_step=None)  # the run ends: no group starts again
        return
    words = leaving_allocations(r)
    stay = [a for a in r.allocations.values() if a.leaving_since is not None and a.key not in words and _there(r, a)]
    if not words and not stay and r.handover_at_step is None:
        return
    if r.paused:
        r.wait(Reason.of(Code.PAUSED_LEAVES))
        return
    if r.observed.store_stable_s < r.spec.policy.node_lease_s:
        r.wait(Reason.of(Code.AWAY_LEAVES), until=r.now + 1.0)
        return
    if not r.quiet:
        r.look_again(r.now)  # a transaction is limited
        return
    for allocation in stay[:ASKED_A_ROUND]:
        r.set_allocation(replace(allocation, leaving_since=None))
    held = r.held()
    _ask_for_successors(r, words, held)
    _give_back(r, words, held)
    if r.handover_at_step is not None:
        handover.go_on(r)
    elif not _move(r, words):
        handover.consider(r, words)


def leaving_allocations(r: RoundView) -> dict[str, str]:
    """Wanted allocations that must be left, and why."""
    drained = {host: cordon.drain for host, cordon in r.observed.cordons.items() if cordon.drain}
    found = {}
    if drained:
        found = {n.allocation: drained.get(n.machine, "") for n in r.observed.nodes.values() if n.registered}
    found |= {n.allocation: n.leaving for n in r.observed.nodes.values() if n.leaving and n.registered}
    # the node's signal announces only its end: the engine knows why
    found |= {g.key: g.leaving for g in r.observed.grants.values() if g.leaving and g.state == "granted"}
    return {
        key: why for key, why in found.items() if why and key in r.allocations and r.allocations[key].state == "wanted"
    }


def _there(r: RoundView, allocation: AllocationMemory) -> bool:
    """True if the allocation's node is there: only then a missing notice means that it stays (a drain was undone)."""
    grant = r.observed.grants.get(allocation.key)
    if allocation.state != "wanted" or grant is None or grant.state != "granted":
        return False
    views = [r.observed.nodes.get(node) for node in grant.nodes]
    return any(view is not None and view.registered for view in views)


def _ask_for_successors(r: Round, words: Mapping[str, str], held: set[str]) -> None:
    """Asks for one successor of each, once. A successor that leaves before it got a group waits for its own. One that
    leaves soon after it was asked for is, after many of its kind, replaced at the budget of allocations. Otherwise a
    time limit not well above its warning would ask for ever more."""
    successors = {a.successor for a in r.allocations.values() if a.successor}
    asked = 0
    for key in sorted(words):
        before = r.allocations[key]
        after = before if before.leaving_since is not None else replace(before, leaving_since=r.now)
        grace_s = grant.leaves_in_s if (grant := r.observed.grants.get(key)) is not None else 0.0
        not_before = before.since + (grace_s or engines.warning_s(r.spec.allocation))
        hasty = key in successors and not before.successor and r.now < not_before
        early = hasty and key not in held
        paid = hasty and not early and _many(r, successors)
        if paid and budgets.left(r.spent, r.spec.policy.budget, Rung.REALLOCATE, 0, r.now) == 0:
            early, paid = True, False
        if early:
            about = Reason.of(Code.LEAVES_ALREADY, allocation=key, why=words[key], graced=bool(grace_s))
            r.wait(about, until=not_before)
        if asked == ASKED_A_ROUND and (after != before or not (before.successor or early)):
            r.look_again(r.now)
            return
        if not (before.successor or early):
            if paid:
                r.draw(Rung.REALLOCATE, 0)
            rung = Rung.REALLOCATE if paid else None
            leaves = Reason.of(Code.IN_PLACE_OF_LEAVING, allocation=key, why=words[key])
            after = replace(after, successor=r.acquire(leaves, rung=rung))
        if after != before:
            r.set_allocation(after)
            asked += 1


def _many(r: RoundView, successors: Set[str]) -> bool:
    """Returns true if more successors were asked for lately than drains and long time limits need."""
    since = r.now - r.spec.policy.budget.window_s
    lately = sum(a.since > since for a in r.allocations.values() if a.key in successors)
    return lately >= SUCCESSORS_A_NODE * (r.spec.allocation.nodes + r.spec.allocation.spares)


def _give_back(r: Round, words: Mapping[str, str], held: set[str]) -> None:
    """Gives back leaving allocations without a group. One without a successor is kept, or it would never get one."""
    free = [key for key in sorted(words) if key not in held and r.allocations[key].successor]
    for key in free[:ASKED_A_ROUND]:
        r.release(key, Reason.of(Code.LEFT_EMPTY, why=words[key]))
    if len(free) > ASKED_A_ROUND:
        r.look_again(r.now)


def _move(r: Round, words: Mapping[str, str]) -> bool:
    """Moves the next group to a node that stays, or reports why not yet. Returns true if one moved."""
    there = [g for g in r.groups.values() if g.phase == "running" and r.word_on(g, words)]
    if not there:
        return False
    there.sort(key=lambda g: (handover.notice_s(r, g), g.group))
    group = next((g for g in there if not r.busy(g)), there[0])
    why = r.word_on(group, words)
    spares = r.spares()
    if (
        len(spares) < len(r.seats_to_leave(group))
        and r.refused()
        and not r.pending()
        and not r.checking()
        and _has_a_deadline(r, group)
    ):
        spares = r.last_resort()
    busy = [
        g for g in r.groups.values() if g.phase in ("unplaced", "fencing", "placing", "starting") and not g.left_out
    ]
    leaves = r.seats_to_leave(group)
    about = {"node": leaves[0].node, "why": why}
    if len(spares) < len(leaves):
        r.wait(Reason.of(Code.NO_OTHER_YET, **about, **_coming(r, group)), group=group.group)
    elif r.busy(group):
        r.wait(Reason.of(Code.FIRST_ITS_INCIDENT, **about, incident=group.incident), group=group.group)
    elif (said_by := _says_why_by(r, group)) > r.now:
        r.wait(Reason.of(Code.ENGINE_IS_ASKED, **about), until=said_by, group=group.group)
    elif busy:
        r.wait(Reason.of(Code.ONE_AT_A_TIME, **about, other=busy[0].group), group=group.group)
    elif not any(_healthy(r, g) for g in r.groups.values() if g.group != group.group):
        r.wait(Reason.of(Code.NO_ONE_TO_HEAL_FROM, **about), group=group.group)
    else:
        handover.off(r, group, Reason.of(Code.NODE_LEAVING, **about))
        moved = r.groups[group.group]
        r.act(
            "move", f"move:{group.group}:{moved.generation}", Reason.of(Code.MOVES_BEFORE, why=why),
            group=group.group, generation=moved.generation, node=leaves[0].node, incident=moved.incident,
        )  # fmt: skip
        return True
    return False


def _says_why_by(r: RoundView, group: GroupMemory) -> float:
    """Time when the engine has been asked about the nodes' notices: preemptions and time limits send the same signal."""
    return max(_seat_explained_by(r, seat) for seat in group.seats)


def _seat_explained_by(r: RoundView, seat: Seat) -> float:
    node, grant = r.observed.nodes.get(seat.node), r.observed.grants.get(r.given_by(seat))
    if node is None or not node.leaving or (grant is not None and grant.leaving):
        return r.now
    asked, since = r.observed.engine_listed_at, r.allocations[r.given_by(seat)].leaving_since
    if asked is None or since is None or asked >= since:
        return r.now
    return since + group_failure.engine_word_s(r.observed, r.spec)


def _has_a_deadline(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if a node of it will be taken away: one that a person drains may stay until another is there."""
    nodes, grants = group_nodes.views(group, r.observed), r.grants_of(group)
    return any(node.leaving for node in nodes) or any(grant.leaving for grant in grants)


def _coming(r: RoundView, group: GroupMemory) -> dict[str, str]:
    key = next((a.successor for a in r.allocations_of(group) if a.successor), "")
    grant = r.observed.grants.get(key)
    return {"allocation": key, "state": grant.state if grant is not None else "pending", "word": r.engines_word(key)}


def _healthy(r: RoundView, group: GroupMemory) -> bool:
    if not trains(group, r.incidents):
        return False
    if r.spec.trainer.plain:
        return True  # it is in no quorum, and heals from no one
    gate = group_failure.listening(r.observed)
    return (
        gate is not None
        and gate.admitted.get(group.group) == group.generation
        and gate.hearing.get(group.group) == "beating"
    )
