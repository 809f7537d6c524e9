"""Measures how long the gate or etcd takes to answer, in classes: the jitter of a link is no news. The shim imports
this, so it imports nothing heavy."""

from __future__ import annotations

import math
from collections import deque

KEPT = 15
"""Answers whose median counts: one that a busy processor or disk delayed proves nothing about the link."""


class Trip:
    """Times the way to the gate or to etcd."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self.ms = 0.0
        """Round trip, rounded up to a power of two; 0: not measured yet."""

    def note(self, seconds: float) -> bool:
        """Adds a measurement; true when that changes the class."""
        self._seconds.append(seconds)
        median = sorted(self._seconds)[len(self._seconds) // 2]
        before, self.ms = self.ms, 2.0 ** math.ceil(math.log2(max(1000 * median, 0.001)))
        return self.ms != before
