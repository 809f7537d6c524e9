"""Computes when an incident happened and how long it lasted, for every command, page and report (docs/METRICS.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.core.model.incident import Incident


def lasted_s(begin: float, end: float, stood: Iterable[Sequence[float]] = ()) -> float:
    """Seconds between two instants of the run clock, with those that it lacks (`stood`: as Account.stood). The run
    clock goes back to the newest memory when another supervisor takes the lead, however long the last one had led
    since. Two wall clocks would not do: their difference is off by hours if one was set in between."""
    # a term begins at the newest memory: what that opened went on meanwhile, what it ended was over
    return end - begin + sum(s for at, s in stood if begin <= at < end)


def incident_s(incident: Incident, stood: Iterable[Sequence[float]] = (), now: float | None = None) -> float | None:
    """Seconds from an incident's first sign until its group committed a step with the others, or until `now` (run
    clock) if it has not. `stood`: as Account.stood. None: it has not, and `now` is unknown."""
    end = incident.recovered if incident.recovered is not None else now
    return None if end is None else from_first_sign_s(incident.opened, incident.took_s, end, stood)


def from_first_sign_s(opened: float, took_s: float, end: float, stood: Iterable[Sequence[float]] = ()) -> float:
    """Seconds until `end` from the first sign, which came `took_s` before the opening."""
    return max(0.0, took_s + lasted_s(opened, end, stood))


def wall_clock(at: float, terms: Sequence[Sequence[float]]) -> float | None:
    """Converts an instant of the run clock to the wall clock, by the terms of Account.clocks; None if there are none.
    The run clock stands still while no one leads, so each term has its own difference."""
    return next((at + more for began, more in reversed(terms) if began < at), at + terms[0][1] if terms else None)
