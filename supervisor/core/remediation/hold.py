"""Ends a pool when its time is over, and warns while no run uses it. Neither takes a node from a run."""

from __future__ import annotations

import math
from dataclasses import replace

from supervisor.core.model.reason import Code, Reason
from supervisor.core.round.draft import Round


def hold(r: Round) -> None:
    """Notes since when the pool holds its nodes, and since when no run uses it. Once its time is over, or a person
    releases it, it waits for the runs that use it, and ends."""
    if r.phase not in ("new", "running"):
        return
    users, about, stop = r.observed.users, r.spec.hold, r.observed.control.stop
    since = r.now if r.draft.held_since is None else r.draft.held_since
    idle_since = r.now if r.draft.idle_since is None else r.draft.idle_since
    over_at = since + about.for_s if about.for_s else math.inf
    over = r.now >= over_at
    r.draft = replace(r.draft, held_since=since, idle_since=None if users or over or stop else idle_since)
    if users and (over or stop):
        r.wait(Reason.of(Code.POOL_STILL_USED, runs=users))
    elif over:
        r.draft = replace(r.draft, phase="stopping")
        r.act("stop", f"stop:{r.spec.name}", Reason.of(Code.POOL_OVER, for_s=about.for_s))
    elif over_at < math.inf:
        r.look_again(over_at)
    if r.draft.idle_since is not None and about.warn_idle_s:
        times = int((r.now - idle_since) / about.warn_idle_s)
        if times:
            r.wait(Reason.of(Code.POOL_IDLE, run=r.spec.name, seconds=times * about.warn_idle_s))
        r.look_again(idle_since + (times + 1) * about.warn_idle_s)
