"""Suspends a group while the others train; a person is notified. One that ends right after each start, on two hosts,
or by too long a shared outage, waits until a person asks for it. If its budgets are spent the others are not
halted, and it is tried again once a budget has one left."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.attribution import circuit_breaker, recurrence, shared_outage
from supervisor.core.model.incident import Failure, Incident
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy import budgets
from supervisor.core.policy.ladder import Choice, first_rung, name
from supervisor.core.remediation import apply, recovery_cost
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView


def why(r: RoundView, group: GroupMemory, failure: Failure, choice: Choice) -> Reason | None:
    """Explains why a group is suspended from now on; None if something else may mend it, or too few would be left to
    step. `choice`: the alternative."""
    if not observe_mode.trains_beside(r, group) or recovery_cost.idle_groups(r, group) > 1:
        return None
    if shared_outage.may_pass(failure) and (too_long := shared_outage.for_too_long(r, group, failure)):
        return too_long
    seen = None if shared_outage.may_pass(failure) else recurrence.again(group, failure.kind)
    if seen is not None and not seen.trained and seen.times >= recurrence.TRIED and len(seen.hosts) > 1:
        return Reason.of(Code.NO_NODE_CURES, times=seen.times, hosts=seen.hosts)
    return choice.reason if choice.reason.code == Code.NOTHING_LEFT else None


def leave_out(r: Round, group: GroupMemory, incident: Incident, reason: Reason, choice: Choice) -> None:
    """Suspends a group: nothing more is started or asked for. Its node is a spare from now on, unless the failure
    counts against it. `choice`: the alternative."""
    kind, policy, spent = incident.kind, r.spec.policy, reason.code == Code.NOTHING_LEFT
    passed = range(first_rung(kind, policy), Rung.STOP)
    considered = choice.considered if spent else tuple(Reason.of(Code.SAME_END, rung=name(Rung(p))) for p in passed)
    after = group.generation + 1
    choice = Choice(Rung.RIDE_THROUGH, Reason.of(Code.LEFT_OUT, reason=reason), considered)
    incident = r.decide_incident(incident, choice, after)
    r.act(
        "ride_through", f"leave_out:{group.group}:{after}", choice.reason, group=group.group, generation=after, node=group.failed_node,
        rung=choice.rung, incident=incident.id,
    )  # fmt: skip
    if spent and not incident.followed:
        apply.give_up_nodes(r, group, incident, choice.reason)
    r.set_group(
        replace(
            group, phase="fencing", seats=(), left=group.seats, generation=after, since=r.now, left_out=reason,
        )
    )  # fmt: skip


def about(group: GroupMemory) -> Reason:
    """States that the group is suspended, and what a person can do."""
    assert group.left_out is not None
    spent = group.left_out.code == Code.NOTHING_LEFT
    return Reason.of(Code.STAYS_OUT, group=group.group, reason=group.left_out, incident=group.incident, spent=spent)


def stays_out(r: Round, group: GroupMemory) -> bool:
    """True if the group was suspended. If a person asks for it, it begins again with its past forgotten."""
    if not group.left_out:
        return False
    asked, full = r.observed.control.restarts.get(group.group, 0), r.full(group.group)
    if asked > r.restarts_done.get(group.group, 0) and not full:
        r.restarts_done[group.group] = asked
        r.set_group(_anew(group))
        r.look_again(r.now)
    elif full or not _tried_again(r, group):
        dear = (Rung.REPLACE, Rung.REALLOCATE)
        until = [budgets.next_at(r.spent, r.spec.policy.budget, rung, group.group, r.now) for rung in dear]
        r.wait(about(group), until=min((at for at in until if at > r.now), default=None))
    return True


def _anew(group: GroupMemory) -> GroupMemory:
    return replace(group.without_history(), left_out=None, attempts=0)


def _tried_again(r: Round, group: GroupMemory) -> bool:
    """Starts a group again that was suspended for want of budget, if a budget has one left. Returns true if it did."""
    incident = r.incidents.get(group.incident)
    if incident is None or group.left_out is None or group.left_out.code != Code.NOTHING_LEFT:
        return False
    if circuit_breaker.tripped(r) or r.observed.store_stable_s < r.spec.policy.node_lease_s:
        return False
    if r.before.groups[group.group].phase == "fencing":
        r.look_again(r.now)  # its generation of this round must hold
        return False
    choice = r.choose(incident.kind, group.group, Rung.REPLACE, Reason.of(Code.BUDGET_BACK))
    if choice.rung == Rung.STOP:
        return False
    apply.apply(r, _anew(group), incident, choice)
    wanted = sum(a.state == "wanted" for a in r.allocations.values())
    if choice.rung == Rung.REPLACE and wanted < r.spec.allocation.nodes + r.spec.allocation.spares:
        for_it = Reason.of(Code.FOR_INCIDENT, incident=incident.id, reason=choice.reason)
        r.acquire(for_it, rung=choice.rung)  # for the spare that it takes
    return True
