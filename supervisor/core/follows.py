"""A failure that comes again when its group is on another host: it follows the group. What moves with a group is its data, its
ranks' work and its program, so no host is to blame, the one before is not held to it, and no further node is spent on it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.cordons import REPEATED_S
from supervisor.core.kinds import Is, that_are
from supervisor.core.model import Failure, GroupMemory, Kind, Shown
from supervisor.core.reason import Code, Reason
from supervisor.core.round import Round

WITHIN_S = REPEATED_S
"""After a day two hosts may each have had a trouble of their own; as long as two incidents of one host count as repeated."""

BY_KIND = that_are(Is.ALIKE)
"""Alike whatever was said of them: at another step, by another factor; a start that hangs says nothing at all."""
BY_END = that_are(Is.ALIKE_BY_END)
"""Alike when they are the same exception, or the same signal. Of a SIGKILL that nobody owns to nothing is known."""


def before(r: Round, group: GroupMemory, kind: Kind, same: str = "", at: float | None = None) -> Shown | None:
    """How this failure was seen on another host within a day; None: it was not. `at`: when it began. None: now."""
    if kind not in BY_KIND and not (kind in BY_END and same):
        return None
    host, at = r.host_of(group.node), r.now if at is None else at
    for shown in group.shown:
        known = (shown.kind, shown.same) == (kind, same if kind in BY_END else "")
        if known and at - shown.at <= WITHIN_S and (shown.followed or shown.host != host):
            return shown
    return None


def told(failure: Failure, earlier: Shown | None) -> Failure:
    """The failure, with where it was seen before."""
    if earlier is None:
        return failure
    follows = Reason.of(Code.FOLLOWS, host=earlier.host, incident=earlier.incident)
    return replace(failure, evidence=(*failure.evidence, follows))


def not_finite(r: Round, group: GroupMemory, step: int, earlier: Shown) -> Reason | None:
    """Why a number that is not finite stops the run; None: it does not. Each one ends all groups, another host gets the same
    data, and to leave some of it out is for a person to say. Who has come past that data has shown that it was not the cause: two
    such are no reason yet, three are. A group that was away for some steps comes to its data so much later."""
    if step > earlier.step + r.spec.titan.checkpoint_interval_steps and not earlier.followed:
        return None
    return Reason.of(
        Code.NUMBERS_FOLLOW, host=earlier.host, step=earlier.step, host_now=r.host_of(group.node), step_now=step,
        before=earlier.followed,
    )  # fmt: skip


def remember(r: Round, group: GroupMemory, shown: Shown, earlier: Shown | None) -> None:
    """Something is done about a failure here. If it was seen on another host before, that one is free of it."""
    if shown.kind not in BY_KIND | BY_END:
        return
    shown = replace(shown, same=shown.same if shown.kind in BY_END else "")
    if earlier is not None:
        shown = replace(shown, followed=True)
        acquit(r, group, earlier)
    group = r.groups[group.group]
    r.set_group(replace(group, shown=(*(s for s in group.shown if s.kind != shown.kind), shown)))


def acquit(r: Round, group: GroupMemory, earlier: Shown) -> None:
    """Once: what came after the first was held against nobody."""
    if earlier.followed:
        return
    r.acquit(
        earlier.host, earlier.incident, earlier.kind, f"the same befell group {group.group} on {r.host_of(group.node)}"
    )
    shown = tuple(replace(s, followed=True) if s == earlier else s for s in group.shown)
    r.set_group(replace(group, shown=shown))
