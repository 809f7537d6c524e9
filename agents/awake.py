"""How long something has been so, by a clock that runs only while its owner looks at it.

Whoever was frozen, together with what it watches or alone, must look again before it judges. Standard library only:
the shim uses it.
"""

from __future__ import annotations

from collections.abc import Hashable


class AwakeClock:
    """Seconds during which its owner was looking: a gap between two looks counts as `longest_gap_s` at most."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._looked_at: float | None = None
        self._now = 0.0

    def look(self, monotonic: float) -> float:
        """To be called at every look; returns the time by this clock."""
        if self._looked_at is not None:
            self._now += min(monotonic - self._looked_at, self._longest_gap_s)
        self._looked_at = monotonic
        return self._now


class Still:
    """For how long a mark (a counter, the time of a file) has not moved."""

    def __init__(self) -> None:
        self._seen: tuple[Hashable, float] | None = None

    def look(self, mark: Hashable, now: float) -> float:
        """Seconds since it was first seen so; 0 at the first look."""
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now)
        return now - self._seen[1]
