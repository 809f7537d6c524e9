"""How long the gate or etcd takes to answer, in classes: the jitter of a link is no news. Part of the shim: nothing heavy is
imported."""

from __future__ import annotations

import math
from collections import deque

KEPT = 15
"""Of so many the median counts: one answer that a busy processor or disk has delayed says nothing of the way."""


class Trip:
    """To one of them."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self.ms = 0.0
        """There and back, rounded up to a power of two; 0: not measured yet."""

    def note(self, seconds: float) -> bool:
        """One more; True when that changes the class."""
        self._seconds.append(seconds)
        median = sorted(self._seconds)[len(self._seconds) // 2]
        before, self.ms = self.ms, 2.0 ** math.ceil(math.log2(max(1000 * median, 0.001)))
        return self.ms != before
