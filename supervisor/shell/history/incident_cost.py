"""Attributes lost group-seconds to incidents. No second belongs to two.

An incident costs its own group all seconds from the last step committed before it until it was over. The seconds in
which lost steps are made again count too. It costs the others failed steps and quorum waits meanwhile, and the waits
for a group that hung or was slow.

Where two may have a second, the one that began last has it, if it had begun by then. A group that waits for another has
committed no step since. A later failure of it gets nothing of that wait.

If no new generation was started, as in observe mode, the incident costs seconds until its group commits again: from
then on it trains. An ordinary step's own overhead belongs to no incident."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from supervisor.core.kinds import TRAINS_ON
from supervisor.core.ledger import LONGER, Cause, Interval
from supervisor.core.model import Kind
from supervisor.shell.history.files import History
from supervisor.shell.history.goodput import Window, windows

ROUTINE = (Cause.DATA, Cause.CHECKPOINT, Cause.EVALUATE, Cause.DIGEST)
"""Causes that accompany or follow any step, whatever befalls the group then."""

IN_ANY_STEP = (*ROUTINE, Cause.QUORUM, Cause.OTHER)
"""Causes in a committed step of usual length besides computing."""

WAITED = (Cause.QUORUM, Cause.FAILED_STEP)
"""Causes that a group's incident brings to the others that go on."""

HELD_UP: Mapping[Cause, Kind] = {Cause.HUNG: Kind.HANG, Cause.STRAGGLING: Kind.STRAGGLER}
"""Causes that an incident of this kind alone brings to its own group and the others."""


@dataclass(frozen=True)
class _Share:
    """An incident, and the time in which its group did not train because of it; infinite `since`: it trained on."""

    window: Window
    since: float
    over: float

    @property
    def id(self) -> str:
        return str(self.window.incident["id"])

    @property
    def begins(self) -> float:
        """Returns when it begins to cost more than the step that was under way."""
        return max(self.since, self.window.began)

    @property
    def group(self) -> int:
        return int(self.window.incident["group"])

    @property
    def restarted(self) -> bool:
        return _restarted(self.window.incident)

    def is_at(self, at: float) -> bool:
        return self.since <= at < self.over


def of_incidents(history: History, ledgers: Mapping[int, Sequence[Interval]]) -> dict[str, dict[Cause, float]]:
    """Returns group-seconds by cause for each incident, in the order in which they were opened."""
    shares = [_share(history, window) for window in windows(history)]
    found: dict[str, dict[Cause, float]] = {share.id: {} for share in shares}
    for group, intervals in ledgers.items():
        own = [share for share in shares if share.group == group]
        usual = _usual_steps(history, group)
        for interval in _cut(intervals, own, shares):
            whose = None if _is_usual(interval, usual) else _whose(interval, group, own, shares)
            if whose is not None:
                seconds = found[whose.id]
                seconds[interval.cause] = seconds.get(interval.cause, 0.0) + interval.seconds
    return found


def _share(history: History, window: Window) -> _Share:
    incident = window.incident
    first = window.acted if incident["kind"] in TRAINS_ON else window.began
    if first == float("inf"):
        return _Share(window, first, window.over)
    of_group = history.of_group(incident["group"])
    commits = [(line["t"], steps.generation) for steps in of_group for line in steps.committed()]
    since = max((t for t, n in commits if n == incident["generation_before"] and t <= first), default=first)
    again = () if _restarted(incident) else (t for t, _ in commits if t > first)
    return _Share(window, since, min((window.over, *again)))


def _restarted(incident: Mapping[str, Any]) -> bool:
    return bool(incident["generation_after"] > incident["generation_before"])


def _usual_steps(history: History, group: int) -> list[tuple[float, float]]:
    """Returns the beginning and end of each committed step of a group that took no longer than an ordinary one."""
    steps = [(x["start"], x["t"]) for s in history.of_group(group) for x in s.committed() if "start" in x]
    ordinary_s = median(end - start for start, end in steps) if steps else 0.0
    return sorted((start, end) for start, end in steps if end - start <= LONGER * ordinary_s)


def _is_usual(interval: Interval, steps: Sequence[tuple[float, float]]) -> bool:
    """Returns true if it would have been there without any incident."""
    if interval.cause not in IN_ANY_STEP:
        return False
    at = (interval.start + interval.end) / 2
    before = bisect(steps, (at, float("inf")))
    return before > 0 and at < steps[before - 1][1]


def _cut(intervals: Iterable[Interval], own: Sequence[_Share], shares: Sequence[_Share]) -> Iterator[Interval]:
    """Splits intervals at the boundaries of incidents, so that an incident has all of a part or none. Other groups'
    incidents count only where they may have cost it something."""
    of_own, of_any = _ends(own), _ends(shares)
    for interval in intervals:
        ends, start = of_any if interval.cause in (*WAITED, *HELD_UP) else of_own, interval.start
        for at in ends[bisect(ends, interval.start) : bisect_left(ends, interval.end)]:
            yield Interval(start, at, interval.cause)
            start = at
        yield Interval(start, interval.end, interval.cause)


def _ends(shares: Iterable[_Share]) -> list[float]:
    return sorted({at for s in shares for at in (s.since, s.window.began, s.over, s.window.over)})


def _whose(interval: Interval, group: int, own: Sequence[_Share], shares: Sequence[_Share]) -> _Share | None:
    """Returns the incident to which an interval belongs; None: none."""
    at, cause = (interval.start + interval.end) / 2, interval.cause
    if cause == Cause.PRODUCTIVE:
        return None
    if cause in HELD_UP:
        held = [s for s in shares if s.window.incident["kind"] == HELD_UP[cause]]
        there = [s for s in held if min(s.since, s.window.began) <= at < s.window.over]
        begun = [s for s in there if s.window.began <= at]
        past = (s for s in held if s.window.began <= at)  # the rest of a step that was under way when it was over
        return (
            max(begun, key=_began, default=None)
            or min(there, key=_began, default=None)
            or max(past, key=_began, default=None)
        )
    if cause == Cause.RECOMPUTE:
        restarts = [s for s in shares if s.restarted and s.since <= at]
        return _newest(s for s in restarts if s.group == group) or _newest(restarts)
    if cause in WAITED:
        there = [s for s in shares if s.is_at(at)]
        begun = [s for s in there if s.begins <= at]
        # where none has begun, the step that was under way belongs to the first that did
        return _newest(s for s in begun if s.group == group) or _newest(begun) or min(there, key=_began, default=None)
    mine = _newest(s for s in own if s.is_at(at))
    return None if mine is None or (cause in ROUTINE and at < mine.window.began) else mine


def _began(share: _Share) -> float:
    return share.window.began


def _newest(shares: Iterable[_Share]) -> _Share | None:
    """Returns the share that began last."""
    return max(shares, key=lambda s: s.begins, default=None)
