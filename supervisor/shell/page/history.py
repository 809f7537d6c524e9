"""Loss and step time of the last hours, within bounds; and since when something has been so."""

from __future__ import annotations

import math
from dataclasses import dataclass

RECENT = 240
"""Newest points, as close as they came."""

OLDER = 240
"""Points before those: of all that has left `RECENT`, evenly thinned, so that they reach back to the first."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one moment, by this supervisor's own clock."""

    at: float
    step: int
    loss: float | None
    step_s: float
    quorum: int
    """Groups in it."""


class History:
    """At most RECENT + OLDER points, each under a number that it keeps."""

    def __init__(self, began: float | None = None) -> None:
        """`began`: when somebody began to look."""
        self._next = 0
        self._recent: dict[int, Point] = {}
        self._older: dict[int, Point] = {}
        self._stride = 1
        self._newest: Point | None = None
        self._moved = began

    def add(self, point: Point) -> None:
        """A point that says nothing new (the step is the same) is left out."""
        before = self._newest
        if before is not None and (point.step, point.quorum) == (before.step, before.quorum):
            return
        if before is None or point.step != before.step:
            self._moved = point.at
        self._newest = point
        self._recent[self._next] = point
        self._next += 1
        if len(self._recent) > RECENT:
            number = next(iter(self._recent))
            leaves = self._recent.pop(number)
            if number % self._stride == 0:
                self._older[number] = leaves
        if len(self._older) > OLDER:
            self._stride *= 2
            self._older = {n: p for n, p in self._older.items() if n % self._stride == 0}

    def nothing_to_step(self, at: float) -> None:
        """No group is there that could: what the step does not do until now says nothing."""
        self._moved = at

    def points(self) -> dict[int, Point]:
        """Oldest first."""
        return {**self._older, **self._recent}

    def still_s(self, now: float) -> float:
        """How long the step has not moved, or no group that could has made one, as far as was seen, in seconds."""
        return now - self._moved if self._moved is not None else 0.0


class Since:
    """Since when something has been so; what was so at the first look has been so for ever."""

    def __init__(self) -> None:
        self._at: float | None = -math.inf

    def lasts_s(self, now: float) -> float:
        """In seconds; 0: it is not so."""
        return now - self._at if self._at is not None else 0.0

    def look(self, is_so: bool, now: float) -> None:
        """What holds now."""
        self._at = (now if self._at is None else self._at) if is_so else None
