"""What nodes share (a network, a store) is away, as the ends of groups tell. It passes, and no other node cures it: once it was seen on two
hosts, those that it ends are started again in place at nobody's budget, for as long as the run is to survive without it. Of a run so large
that the breaker holds by then, and has called a person, there is no such end."""

from __future__ import annotations

from supervisor.core import breaker, outside
from supervisor.core.model import Failure, GroupMemory, Kind
from supervisor.core.reason import Code, Reason
from supervisor.core.round import Round

OF_A_FILE = "ended by SIGBUS"
"""As the kernel ends who reads a mapped file whose store is away, on every host alike."""

ENDS = 3
"""At least, before it is waited for no more: one may itself come only after a long wait, or a long start."""


def may_pass(failure: Failure) -> bool:
    """Whether an end may be the doing of what nodes share."""
    return failure.same == OF_A_FILE or outside.of_what_is_shared(failure.error)


def waited_for(r: Round, group: GroupMemory, failure: Failure) -> Reason | None:
    """Why a group is started again where it was; None when it is not for that, or has been for too long."""
    since = _since(r, group, failure)
    if since is None and may_pass(failure) and group.seen is not None and _is_shown(r, group):
        since = group.seen.outside_since
    waits = since is not None and not _too_long(r, group, since)
    return Reason.of(Code.SHARED_AWAY) if waits else None


def _is_shown(r: Round, group: GroupMemory) -> bool:
    """Whether another group has shown it on two hosts, and waits for it still: then no other node need be tried for this one. But only
    for as long as that is waited for: its own node may be at fault as well."""
    return any(
        g.seen is not None and g.seen.outside_since is not None and len(g.seen.hosts) > 1
        for g in r.groups.values()
        if g.group != group.group and not g.left_out
    )


def for_too_long(r: Round, group: GroupMemory, failure: Failure) -> Reason | None:
    """Why it is waited for no more; None while it is, or where that never began."""
    since = _since(r, group, failure)
    # while the breaker speaks for it a person was called, or has said what is to be done
    called = breaker.evicting(r) or breaker.in_place(r, failure.kind)
    if since is None or called or not _too_long(r, group, since):
        return None
    every, limit_s = since_it_ends_all(r) is not None, r.spec.torchft.quorum_timeout_ms / 1000
    return Reason.of(Code.SHARED_TOO_LONG, every=every, seconds=r.now - since, limit_s=limit_s)


def _too_long(r: Round, group: GroupMemory, since: float) -> bool:
    if breaker.tripped(r):
        return False
    # one that trains for a while in between, and ends at the same step again, has no attempts
    ends = max(group.attempts + 1, group.seen.times if group.seen is not None else 0)
    return r.now - since >= r.spec.torchft.quorum_timeout_ms / 1000 and ends >= ENDS


def _since(r: Round, group: GroupMemory, failure: Failure) -> float | None:
    """Since when it ends a group, on the run clock. None: one host alone has shown it, or this end was another."""
    seen = group.seen
    # Who was to heal from another that has ended by it too says that its peers are gone.
    if failure.kind not in (Kind.ERROR, Kind.CRASH, Kind.PEERS_GONE) or seen is None or seen.outside_since is None:
        return None
    if failure.kind != Kind.PEERS_GONE and seen.generation != group.generation:
        return None
    return seen.outside_since if len(seen.hosts) > 1 else since_it_ends_all(r)


def since_it_ends_all(r: Round) -> float | None:
    """Since when it ends every group, on two hosts at least, none of which has come past it since. None: it does not."""
    since: list[float] = []
    hosts: set[str] = set()
    for g in r.groups.values():
        if g.seen is not None and g.seen.outside_since is not None and not g.left_out:
            since.append(g.seen.outside_since)
            hosts |= set(g.seen.hosts)
        elif not g.left_out and not g.waits_for_long(r.now, r.spec.policy.hang.at_least_s):
            return None
    return max(since) if len(hosts) > 1 else None
