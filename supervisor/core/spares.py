"""Spares that are of no use any more: asked for again, so that the run keeps as many as it was launched with."""

from __future__ import annotations

from supervisor.core.model import AllocationMemory
from supervisor.core.round import Round

RENEWED_A_ROUND = 10
"""Two operations each; a transaction holds 100."""


def renew(r: Round) -> None:
    """Give up spares whose host is cordoned by now, or that the engine has taken, and ask for others.

    What was taken is asked for again only so long after it had been asked for as an allocation may take to come: a job
    that ends at once must not be submitted in a loop. A cordoned host is not given again.
    """
    if r.phase != "running" or r.paused or r.observed.store_stable_s < r.spec.policy.node_lease_s:
        return
    held = r.held()
    renewed = 0
    for allocation in sorted(r.allocations.values(), key=lambda a: a.key):
        if allocation.state != "wanted" or allocation.key in held or allocation.successor:
            continue
        why, not_before = _of_no_use(r, allocation)
        if not why:
            continue
        if r.now < not_before:
            r.look_again(not_before)
        elif renewed == RENEWED_A_ROUND or not r.quiet:
            r.look_again(r.now)
            return
        else:
            r.release(allocation.key, why)
            r.acquire(f"in the place of spare {allocation.key}: {why}")
            renewed += 1


def _of_no_use(r: Round, allocation: AllocationMemory) -> tuple[str, float]:
    """Why, and the instant before which nothing is done about it; an empty string when it is of use."""
    grant = r.observed.grants.get(allocation.key)
    if grant is None:
        return "", 0.0
    if grant.state == "gone":
        word = f": {grant.reason}" if grant.reason else ""
        return f"the engine took it{word}", allocation.since + r.spec.policy.allocation_timeout_s
    hosts = {r.host_of(node) for node in grant.nodes}
    if grant.state == "granted" and hosts and hosts <= r.cordons.keys():
        return f"its host {sorted(hosts)[0]} was cordoned meanwhile", 0.0
    return "", 0.0
