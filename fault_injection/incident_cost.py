"""What each incident cost: of the seconds that did not train, those that are its own. No second is of two incidents.

Of its group: all from the last step that was committed before it until it was over, and what is computed again of the steps that were
lost with it. Of the others: the steps that failed and the waits for a quorum meanwhile, what they stood still for one that hung, and
what they waited for one that was slow. Where two may have a second, the one that began last has it, and not before it began: a group that
waits for another one has not committed a step since, and what befalls it later has none of that wait.

One for which nothing was started, as one that was only observed, has seconds until its group commits again: from then on it trains. What
an ordinary step brings with it is nobody's.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fault_injection.badput import Window, windows
from fault_injection.history import History
from supervisor.core.kinds import TRAINS_ON
from supervisor.core.ledger import LONGER, Cause, Interval
from supervisor.core.model import Kind

ROUTINE = (Cause.DATA, Cause.CHECKPOINT, Cause.EVALUATE, Cause.DIGEST)
"""What a step brings with it, or follows it, whatever befalls the group then."""

IN_ANY_STEP = (*ROUTINE, Cause.QUORUM, Cause.OTHER)
"""What a committed step of usual length takes beside computing."""

WAITED = (Cause.QUORUM, Cause.FAILED_STEP)
"""What a group costs the others that go on."""

HELD_UP: Mapping[Cause, Kind] = {Cause.HUNG: Kind.HANG, Cause.STRAGGLING: Kind.STRAGGLER}
"""What a group costs itself and the others by an incident of this kind alone."""


@dataclass(frozen=True)
class _Share:
    """An incident, and since when and until when its group did not train for it; since infinite: it trained on."""

    window: Window
    since: float
    over: float

    @property
    def id(self) -> str:
        return str(self.window.incident["id"])

    @property
    def begins(self) -> float:
        """Since when it costs anybody more than the step that was under way."""
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
    """By incident, in the order in which they were opened: group-seconds by cause."""
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
    """From when until when a group made each committed step that took no longer than an ordinary one."""
    steps = [(x["start"], x["t"]) for s in history.of_group(group) for x in s.committed() if "start" in x]
    ordinary_s = median(end - start for start, end in steps) if steps else 0.0
    return sorted((start, end) for start, end in steps if end - start <= LONGER * ordinary_s)


def _is_usual(interval: Interval, steps: Sequence[tuple[float, float]]) -> bool:
    """Whether it would have been there without any incident."""
    if interval.cause not in IN_ANY_STEP:
        return False
    at = (interval.start + interval.end) / 2
    before = bisect(steps, (at, float("inf")))
    return before > 0 and at < steps[before - 1][1]


def _cut(intervals: Iterable[Interval], own: Sequence[_Share], shares: Sequence[_Share]) -> Iterator[Interval]:
    """The same seconds, so that an incident which may have an interval has all of it, or none: one of the group, or, of what the
    others may have cost it, any."""
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
    """Whose an interval is; None: no incident's."""
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
        # where none has begun, the step that was under way is of the first that did
        return _newest(s for s in begun if s.group == group) or _newest(begun) or min(there, key=_began, default=None)
    mine = _newest(s for s in own if s.is_at(at))
    return None if mine is None or (cause in ROUTINE and at < mine.window.began) else mine


def _began(share: _Share) -> float:
    return share.window.began


def _newest(shares: Iterable[_Share]) -> _Share | None:
    """The one that began last."""
    return max(shares, key=lambda s: s.begins, default=None)
