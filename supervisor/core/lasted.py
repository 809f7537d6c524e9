"""When an incident began and how long it lasted: the one answer that every command, page and report prints (docs/METRICS.md)."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.core.model import Incident


def lasted_s(begin: float, end: float, stood: Iterable[tuple[float, float]] = ()) -> float:
    """Seconds between two instants of the run clock, with those that it does not have, for it goes back to the newest memory as another
    takes the lead, however long the last leader had led since. `stood`: as Account.stood. Not the difference of two wall clocks: that
    is off by hours where one was set in between."""
    # a term begins at the newest memory: what this opened went on meanwhile, what it ended was over
    return end - begin + sum(s for at, s in stood if begin <= at < end)


def incident_s(incident: Incident, stood: Iterable[tuple[float, float]] = (), now: float | None = None) -> float | None:
    """Seconds from an incident's first sign until its group committed a step with the others; `now` (run clock) ends one that is open.
    `stood`: as Account.stood. None: it has not recovered, and `now` is not known."""
    end = incident.recovered if incident.recovered is not None else now
    return None if end is None else max(0.0, incident.took_s + lasted_s(incident.opened, end, stood))
