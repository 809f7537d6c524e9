"""Virtual time: a heap of events, which one thread makes happen."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Time passes only in `run_until` and `wait`. Events due at one moment happen in the order of scheduling."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def read(self) -> float:
        """Returns the virtual time in seconds: stands in for time.monotonic."""
        return self.now

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Schedules a call after that many seconds."""
        heapq.heappush(self._due, (self.now + max(0.0, seconds), next(self._order), do))

    def run_until(self, end: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Makes everything happen that is due before `end`, or until `stop` returns true after an event."""
        while self._due and self._due[0][0] <= end:
            at, _, do = heapq.heappop(self._due)
            self.now = max(self.now, at)
            do()
            if stop():
                return
        self.now = max(self.now, end)

    def wait(self, seconds: float) -> None:
        """Stands for a thread that sleeps while all others go on. May be called from within an event."""
        self.run_until(self.now + seconds)
