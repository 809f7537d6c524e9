"""Virtual time: a heap of what is to happen, and one thread that lets it happen."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Time stands still but for `run_until` and `wait`. What is due at one moment happens in the order in which it was asked for."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def read(self) -> float:
        """The virtual time in seconds: stands in for time.monotonic."""
        return self.now

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Have it done so much later."""
        heapq.heappush(self._due, (self.now + max(0.0, seconds), next(self._order), do))

    def run_until(self, end: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is due before `end`, or until `stop` says so, which is asked after each event."""
        while self._due and self._due[0][0] <= end:
            at, _, do = heapq.heappop(self._due)
            self.now = max(self.now, at)
            do()
            if stop():
                return
        self.now = max(self.now, end)

    def wait(self, seconds: float) -> None:
        """What a thread does that sleeps: everybody else goes on. May be called from within an event."""
        self.run_until(self.now + seconds)
