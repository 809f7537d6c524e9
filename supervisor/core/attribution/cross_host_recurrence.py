"""Detects failures that come again on another host, and so follow the group. Its data, its ranks' work and its program
move with it, so no host is at fault. The host before is freed of the failure, and no further node is spent on it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Is, that_are
from supervisor.core.model.memory import GroupMemory, PastFailure
from supervisor.core.model.reason import Code, Reason
from supervisor.core.policy.cordons import REPEATED_S
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

WITHIN_S = REPEATED_S
"""Seconds within which failures on two hosts count as one, as two incidents of a host do; later each is its own."""

BY_KIND = that_are(Is.ALIKE)
"""Kinds that are alike whatever their words: step or factor may differ, and a hanging start reports nothing."""
BY_END = that_are(Is.ALIKE_BY_END)
"""Kinds that are alike if the exception, or the signal, is the same. A SIGKILL of unknown origin is never alike."""
KEPT = 32
"""Restarts in place that a group's history keeps, beside the newest failure of each kind: enough to find a flapping host
at a budget of 16 restarts."""


def before(r: RoundView, group: GroupMemory, failure: Failure, at: float | None = None) -> PastFailure | None:
    """Returns how this failure was seen on another host within a day, or None. `at`: when it began; None: now. In a
    group on several nodes it follows the rank: another rank is no sign that the host of the first was not at fault."""
    newest = group.newest(failure.kind)
    if newest is None or not _alike(newest, failure, group):
        return None
    at = r.now if at is None else at
    elsewhere = newest.followed or newest.host != r.its_host(group)
    return newest if elsewhere and at - newest.at <= WITHIN_S else None


def _alike(past: PastFailure, failure: Failure, group: GroupMemory) -> bool:
    if failure.kind in BY_KIND:
        return group.size == 1 or past.rank == failure.rank
    return failure.kind in BY_END and bool(failure.same) and past.same == failure.same


def told(failure: Failure, earlier: PastFailure | None) -> Failure:
    """Adds to the failure's evidence where it was seen before."""
    if earlier is None:
        return failure
    follows = Reason.of(Code.FOLLOWS, host=earlier.host, incident=earlier.incident)
    return replace(failure, evidence=(*failure.evidence, follows))


def not_finite(r: RoundView, group: GroupMemory, step: int, earlier: PastFailure) -> Reason | None:
    """Explains why a number that is not finite stops the run; None if it does not. Each one ends all groups, another
    host gets the same data, and only a person may leave some of it out. A group that has come past that data shows that
    it was not the cause: two such failures are no reason yet, three are. A group that was away for some steps reaches
    its data that much later."""
    if step > earlier.step + r.spec.titan.checkpoint_interval_steps and not earlier.followed:
        return None
    return Reason.of(
        Code.NUMBERS_FOLLOW, host=earlier.host, step=earlier.step, host_now=r.its_host(group), step_now=step,
        before=earlier.followed,
    )  # fmt: skip


def remember(r: Round, group: GroupMemory, failure: PastFailure, earlier: PastFailure | None) -> None:
    """Remembers a failure that is acted on here. If another host showed it before, that host is freed of it."""
    if earlier is not None:
        failure = replace(failure, followed=True)
        acquit(r, group, earlier)
    group = r.groups[group.group]
    history = (*group.failures, failure)
    newest = {f.kind: f for f in history}
    restarts = [f for f in history if f.restarted and r.now - f.at <= WITHIN_S][-KEPT:]
    r.set_group(replace(group, failures=tuple(f for f in history if f is newest[f.kind] or f in restarts)))


def acquit(r: Round, group: GroupMemory, earlier: PastFailure) -> None:
    """Frees the earlier host of the failure, once: what came after was held against no host."""
    if earlier.followed:
        return
    elsewhere = Reason.of(Code.BEFELL_ELSEWHERE, group=group.group, host=r.its_host(group))
    r.acquit(earlier.host, earlier.incident, earlier.kind, elsewhere)
    failures = tuple(replace(f, followed=True) if f == earlier else f for f in group.failures)
    r.set_group(replace(group, failures=failures))
