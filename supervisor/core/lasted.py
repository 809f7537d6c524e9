"""How long things lasted, over changes of leader."""

from __future__ import annotations

from collections.abc import Iterable


def lasted_s(begin: float, end: float, stood: Iterable[tuple[float, float]] = ()) -> float:
    """Seconds between two instants of the run clock, those without a leader too. `stood`: as Account.stood. Not the difference of two
    wall clocks: that is off by hours where one was set in between."""
    # a term begins at the newest memory: what this opened went on without a leader, what it ended was over
    return end - begin + sum(s for at, s in stood if begin <= at < end)
