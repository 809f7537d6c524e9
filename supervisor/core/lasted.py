"""How long things lasted, over changes of leader."""

from __future__ import annotations

from collections.abc import Iterable


def lasted_s(begin: float, end: float, stood: Iterable[tuple[float, float]] = ()) -> float:
    """Seconds between two instants of the run clock, with those that it does not have, for it goes back to the newest memory as another
    takes the lead, however long the last leader had led since. `stood`: as Account.stood. Not the difference of two wall clocks: that
    is off by hours where one was set in between."""
    # a term begins at the newest memory: what this opened went on meanwhile, what it ended was over
    return end - begin + sum(s for at, s in stood if begin <= at < end)
