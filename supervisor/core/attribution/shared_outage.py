"""Detects a transient shared outage (a network, a store) from the ends of groups. No other node cures it. Once it was
seen on two hosts, the groups that it ends restart in place, charged to no budget, until `quorum_timeout_ms` has passed.
There is no such limit while the breaker holds: it has called a person."""

from __future__ import annotations

from supervisor.core.attribution import circuit_breaker
from supervisor.core.evidence import transient_errors
from supervisor.core.evidence.exit_status import SIGBUS
from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Is, Kind, that_are
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.reason import Code, Reason
from supervisor.core.round.view import RoundView

OF_AN_OUTAGE = that_are(Is.OF_AN_OUTAGE)

ENDS = 3
"""Ends that it takes before the outage counts as too long: one end may come only after a long wait, or a long start."""


def may_pass(failure: Failure) -> bool:
    """Returns true if a shared outage may have caused this end."""
    # a mapped file's store is away on every host alike
    of_a_file = any(e.code == Code.ENDED_BY_SIGNAL and e.about["signal"] == SIGBUS for e in failure.evidence)
    return of_a_file or transient_errors.of_what_is_shared(failure.error)


def waited_for(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Explains why a group restarts where it was; None if no shared outage ended it, or if that has lasted too long."""
    since = _since(r, group, failure)
    if since is None and may_pass(failure) and group.seen is not None and _is_shown(r, group):
        since = group.seen.outside_since
    waits = since is not None and not _too_long(r, group, since)
    return Reason.of(Code.SHARED_AWAY) if waits else None


def _is_shown(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if another group has shown the outage on two hosts, and still waits for it. Then no other node need
    be tried for this group either. That ends with the other's wait: its own node may be at fault as well."""
    return any(
        g.seen is not None and g.seen.outside_since is not None and len(g.seen.hosts) > 1
        for g in r.groups.values()
        if g.group != group.group and not g.left_out
    )


def for_too_long(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Explains why the outage is waited for no more; None while it is, or if there was none."""
    since = _since(r, group, failure)
    # the breaker has called a person, or a person has decided already
    called = circuit_breaker.evicting(r) or circuit_breaker.in_place(r, failure.kind)
    if since is None or called or not _too_long(r, group, since):
        return None
    every, limit_s = since_it_ends_all(r) is not None, r.spec.torchft.quorum_timeout_ms / 1000
    return Reason.of(Code.SHARED_TOO_LONG, every=every, seconds=r.now - since, limit_s=limit_s)


def _too_long(r: RoundView, group: GroupMemory, since: float) -> bool:
    if circuit_breaker.tripped(r):
        return False
    # a group that trains for a while in between, and ends at the same step again, has no attempts
    ends = max(group.attempts + 1, group.seen.times if group.seen is not None else 0)
    return r.now - since >= r.spec.torchft.quorum_timeout_ms / 1000 and ends >= ENDS


def _since(r: RoundView, group: GroupMemory, failure: Failure) -> float | None:
    """Run-clock time since when the outage ends a group. None: only one host has shown it, or the cause is another."""
    seen = group.seen
    # A group that was healing from a peer that the outage ended reports that its peers are gone.
    if failure.kind not in OF_AN_OUTAGE or seen is None or seen.outside_since is None:
        return None
    if failure.kind != Kind.PEERS_GONE and seen.generation != group.generation:
        return None
    return seen.outside_since if len(seen.hosts) > 1 else since_it_ends_all(r)


def since_it_ends_all(r: RoundView) -> float | None:
    """Run-clock time since when the outage ends every group, on at least two hosts. None: some group came past it."""
    since: list[float] = []
    hosts: set[str] = set()
    for g in r.groups.values():
        if g.seen is not None and g.seen.outside_since is not None and not g.left_out:
            since.append(g.seen.outside_since)
            hosts |= set(g.seen.hosts)
        elif not g.left_out and not g.waits_for_long(r.now, r.spec.policy.hang.at_least_s):
            return None
    return max(since) if len(hosts) > 1 else None
