"""When an incident happened and how long it lasted: the one answer that every command, page and report prints (docs/METRICS.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.core.model import Incident


def lasted_s(begin: float, end: float, stood: Iterable[Sequence[float]] = ()) -> float:
    """Seconds between two instants of the run clock, with those that it does not have, for it goes back to the newest memory as another
    takes the lead, however long the last leader had led since. `stood`: as Account.stood. Not the difference of two wall clocks: that
    is off by hours where one was set in between."""
    # a term begins at the newest memory: what this opened went on meanwhile, what it ended was over
    return end - begin + sum(s for at, s in stood if begin <= at < end)


def incident_s(incident: Incident, stood: Iterable[Sequence[float]] = (), now: float | None = None) -> float | None:
    """Seconds from an incident's first sign until its group committed a step with the others, or until `now` (run clock) where it has
    not. `stood`: as Account.stood. None: it has not, and `now` is not known."""
    end = incident.recovered if incident.recovered is not None else now
    return None if end is None else from_first_sign_s(incident.opened, incident.took_s, end, stood)


def from_first_sign_s(opened: float, took_s: float, end: float, stood: Iterable[Sequence[float]] = ()) -> float:
    """Seconds from the first sign of what was opened after `took_s` of it, until `end`."""
    return max(0.0, took_s + lasted_s(opened, end, stood))


def wall_clock(at: float, terms: Sequence[Sequence[float]]) -> float | None:
    """An instant of the run clock as wall clock, with the terms as Account.clocks has them; None: nothing is known. The clock stands
    still while nobody leads, so each term has its own difference."""
    return next((at + more for began, more in reversed(terms) if began < at), at + terms[0][1] if terms else None)
