"""Keeps a bounded history of loss and step time, and tracks how long conditions have lasted."""

from __future__ import annotations

import math
from dataclasses import dataclass

RECENT = 240
"""Newest points, all of them."""

OLDER = 240
"""Points before those: all that left `RECENT`, evenly thinned, so that they reach back to the first."""


@dataclass(frozen=True, slots=True)
class Point:
    """One observation, by this supervisor's own clock."""

    at: float
    step: int
    loss: float | None
    step_s: float
    quorum: int
    """Number of groups in the quorum."""


class History:
    """At most RECENT + OLDER points, each under a number that it keeps."""

    def __init__(self, began: float | None = None) -> None:
        """`began`: when observation began."""
        self._next = 0
        self._recent: dict[int, Point] = {}
        self._older: dict[int, Point] = {}
        self._stride = 1
        self._newest: Point | None = None
        self._moved = began

    def add(self, point: Point) -> None:
        """Adds a point, unless its step and quorum are those of the last one."""
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
        """Restarts the count of idle time: no group exists that could step, or a person has one in the debugger."""
        self._moved = at

    def points(self) -> dict[int, Point]:
        """Returns the points, oldest first."""
        return {**self._older, **self._recent}

    def still_s(self, now: float) -> float:
        """Returns the seconds, as far as was seen, for which a group could have moved the step but none did."""
        return now - self._moved if self._moved is not None else 0.0


class Since:
    """How long a condition has held; one that held at the first look has held forever."""

    def __init__(self) -> None:
        self._at: float | None = -math.inf

    def lasts_s(self, now: float) -> float:
        """Returns the seconds for which it has held; 0 if it does not hold."""
        return now - self._at if self._at is not None else 0.0

    def look(self, is_so: bool, now: float) -> None:
        """Records the current state of the condition."""
        self._at = (now if self._at is None else self._at) if is_so else None
