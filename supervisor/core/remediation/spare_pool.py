"""Replaces allocations that are of no use any more, so that the run keeps as many as it was launched with."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.attribution import circuit_breaker
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import AllocationMemory
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy import budgets
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

RENEWED_A_ROUND = 10
"""Allocations that one round renews: two operations each; a transaction holds 120."""


def renew(r: Round) -> None:
    """Gives up allocations without a group that are of no use: a cordoned host, one that the engine took, a node that
    does not come. Asks for others while there are fewer than the run was launched with.

    A taken one is asked for again only as long after its request as an allocation may take to come. That draws on the
    budget for allocations, whose last draw is left to the groups. A job that ends at once must not be submitted for
    ever. A cordoned host is not given again.
    """
    if r.phase != "running" or r.paused or r.observed.store_stable_s < r.spec.policy.node_lease_s:
        return
    idle = _idle(r)
    if _note_unheard(r, idle):
        idle = _idle(r)
    renewed = 0
    # A run that begins, or a group without a node, needs one that can be used.
    only_seen = r.spec.policy.mode == "observe" and all(g.placed or g.phase == "finished" for g in r.groups.values())
    for allocation in idle:
        why, not_before, free = _of_no_use(r, allocation)
        if why is None:
            continue
        if r.now < not_before:
            r.look_again(not_before)
        elif only_seen and not _gone(r, allocation):
            r.wait(Reason.of(Code.SPARE_OBSERVED, allocation=allocation.key, why=why))
        elif renewed == RENEWED_A_ROUND or not r.quiet:
            r.look_again(r.now)
            return
        elif _enough_without(r, allocation):
            _give_up(r, allocation, why)
            renewed += 1
        elif not free and budgets.left(r.spent, r.spec.policy.budget, Rung.REALLOCATE, 0, r.now) <= 1:
            until = budgets.next_at(r.spent, r.spec.policy.budget, Rung.REALLOCATE, 0, r.now)
            about = Reason.of(Code.SPARE_UNPAID, allocation=allocation.key, why=why)
            r.wait(about, until=until if until > r.now else None)
        else:
            _give_up(r, allocation, why)
            if not free:
                r.draw(Rung.REALLOCATE, 0)
            instead = Reason.of(Code.IN_PLACE_OF, allocation=allocation.key, why=why)
            r.acquire(instead, rung=None if free else Rung.REALLOCATE)
            renewed += 1


def give_up_one(r: Round) -> None:
    """Releases one allocation that is of no use, if there is any: another is asked for, for a group without a node."""
    for allocation in _idle(r):
        why, not_before, _ = _of_no_use(r, allocation)
        if why is not None and (r.now >= not_before or _gone(r, allocation)):
            _give_up(r, allocation, why)
            return


def _idle(r: RoundView) -> list[AllocationMemory]:
    """Wanted allocations with no group on them and no successor."""
    held = r.held()
    found = [a for a in r.allocations.values() if a.state == "wanted" and a.key not in held and not a.successor]
    return sorted(found, key=lambda a: a.key)


def _gone(r: RoundView, allocation: AllocationMemory) -> bool:
    grant = r.observed.grants.get(allocation.key)
    return grant is not None and grant.state == "gone"


def _enough_without(r: RoundView, allocation: AllocationMemory) -> bool:
    """Returns true if the run has as many as it was launched with once this one is released."""
    others = [
        a
        for a in r.allocations.values()
        if a.state == "wanted" and a.key != allocation.key and not a.successor and not _gone(r, a)
    ]
    ended = sum(g.phase == "finished" for g in r.groups.values())
    return len(others) >= r.spec.allocation.nodes + r.spec.allocation.spares - ended


def _give_up(r: Round, allocation: AllocationMemory, why: Reason) -> None:
    grant = r.observed.grants.get(allocation.key)
    # Once it is released its node no longer reports its GPUs, and the engine would give it again.
    bad = grant is not None and grant.state == "granted" and (allocation.unheard_since is not None or _unfit(r, grant))
    if grant is not None and bad:
        r.set_allocation(replace(allocation, unheard=tuple(sorted({r.host_of(node) for node in grant.nodes}))))
    r.release(allocation.key, why)


def _note_unheard(r: Round, idle: list[AllocationMemory]) -> int:
    """Notes since when an allocation is granted and its node is not there. Returns the number of those that changed."""
    noted = 0
    for allocation in idle:
        grant = r.observed.grants.get(allocation.key)
        missing = grant is not None and grant.state == "granted" and allocation.key not in r.here()
        if missing == (allocation.unheard_since is not None):
            continue
        if noted == RENEWED_A_ROUND or not r.quiet:
            r.look_again(r.now)
            return noted
        r.set_allocation(replace(allocation, unheard_since=r.now if missing else None))
        noted += 1
    return noted


def _of_no_use(r: RoundView, allocation: AllocationMemory) -> tuple[Reason | None, float, bool]:
    """Returns why it is of no use (else None), the time before which nothing is done, and if its successor is free."""
    grant = r.observed.grants.get(allocation.key)
    timeout_s = r.spec.policy.allocation_timeout_s
    if grant is None or grant.state == "pending":
        # The engine was asked to leave that host out, and would for as long as it has nothing else to give.
        host = _free_again(r, allocation)
        return (Reason.of(Code.HOST_FREE_AGAIN, host=host) if host else None), 0.0, True
    if grant.state == "gone":
        return Reason.of(Code.ENGINE_TOOK_IT, word=grant.reason), allocation.since + timeout_s, False
    if grant.state != "granted":
        return None, 0.0, True
    if circuit_breaker.tripped(r) and circuit_breaker.unchecked(r, grant.nodes):
        return None, 0.0, True
    hosts = {r.host_of(node) for node in grant.nodes} if r.bars else set()
    if hosts and all(r.is_barred(host) for host in hosts):
        # A host that it was asked not to give it may give for ever.
        told = any(host in allocation.exclude for host in hosts)
        host = min(hosts)
        # A check that fails on every host, as for a driver or an environment, must not be tried on all of them.
        failed = any((view := r.observed.cordons.get(host)) is not None and view.failed for host in hosts)
        free = not (told or failed) or circuit_breaker.evicting(r)
        return Reason.of(Code.HOST_CORDONED, host=host, why=r.why_barred(host)), 0.0, free
    broken = _unfit(r, grant)
    if broken:
        return Reason.of(Code.TEXT, text=broken), 0.0, circuit_breaker.evicting(r)
    if allocation.unheard_since is not None:
        about = Reason.of(Code.UNREGISTERED, timeout_s=timeout_s)
        return about, allocation.unheard_since + timeout_s, False
    return None, 0.0, True


def _unfit(r: RoundView, grant: Grant) -> str:
    """Explains why its nodes can take no group: none passed its checks with usable GPUs. Else empty."""
    first = ""
    for node in grant.nodes:
        view = r.observed.nodes.get(node)
        if view is not None and view.registered:
            why = r.unfit_for(view, for_good=True)
            if not why:
                return ""
            first = first or why
    return first


def _free_again(r: RoundView, allocation: AllocationMemory) -> str:
    """Returns a host that it was asked for without, and from which nothing keeps groups away any more; else empty."""
    if not allocation.exclude:
        return ""
    unheard = {host for a in r.allocations.values() for host in a.unheard}
    return next((h for h in allocation.exclude if h not in unheard and not r.is_barred(h)), "")
