"""Clocks that run only while their owner looks at them, and how long a mark has stood still by such a clock.

An owner that was frozen, alone or with what it watches, must look again before it judges. Standard library only: the
shim imports it.
"""

from __future__ import annotations

from collections.abc import Hashable


class AwakeClock:
    """Counts the seconds in which its owner was looking: a gap between two looks counts as at most `longest_gap_s`."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._looked_at: float | None = None
        self._now = 0.0

    def look(self, monotonic: float) -> float:
        """Returns the time by this clock, in seconds. Call it at every look."""
        if self._looked_at is not None:
            self._now += min(monotonic - self._looked_at, self._longest_gap_s)
        self._looked_at = monotonic
        return self._now


class Still:
    """Measures how long a mark (a counter, a file's time) has not moved."""

    def __init__(self) -> None:
        self._seen: tuple[Hashable, float] | None = None

    def look(self, mark: Hashable, now: float) -> float:
        """Returns the seconds since the mark was first seen with this value; 0 at the first look."""
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now)
        return now - self._seen[1]
