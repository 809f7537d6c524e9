"""Badput ledger: every second of every group under exactly one cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Cause(StrEnum):
    """The cause that a second counts under. All but `productive` are badput."""

    PRODUCTIVE = "productive"
    """Compute and commit of a step that was committed, with waits for a slow peer inside its collectives."""
    ALLOCATE = "allocate"
    """No process yet: waiting for nodes, the lighthouse and the first decision."""
    START = "start"
    """From the birth of a process until it is built, with what it loads of a checkpoint."""
    ADMISSION = "admission"
    """Built, waiting for the gate."""
    DATA = "data"
    QUORUM = "quorum"
    """Waiting for the quorum, also for a peer that is gone until TorchFT drops it."""
    HEAL = "heal"
    FAILED_STEP = "failed_step"
    """A step that was not committed."""
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    COMPILE = "compile"
    """torch.compile, in a step or, at first, in many."""
    DIGEST = "digest"
    RECOMPUTE = "recompute"
    """A step that was committed before, and was lost with all groups that had it."""
    HUNG = "hung"
    """A group's step that stood still until something was done, and the others' waits beyond an ordinary step."""
    STRAGGLING = "straggling"
    """Time of a step beyond an ordinary one, while a group was known to be slow."""
    LOST_STEP = "lost_step"
    """The step in flight when its process ended, whatever that was doing."""
    DETECT = "detect"
    """From the end of a process, or its last sign of life, until an incident is open."""
    DECIDE = "decide"
    """Detected and not decided on: it may be heard again, the run is paused, or the breaker holds."""
    STORE_AWAY = "store_away"
    """No process, and nothing could be detected, decided or wanted, because the store was away."""
    PLACE = "place"
    """Decided, but still fencing, backing off, or waiting for a node."""
    ACT = "act"
    """From the decision to start until the process is born."""
    END = "end"
    """Finished, while others still ran."""
    OTHER = "other"


OF_EVENT: Mapping[str, Cause] = {
    "start": Cause.START,
    "imported": Cause.START,
    "constructed": Cause.START,
    "resumed": Cause.START,
    "initial_weights": Cause.START,
    "rehearsed": Cause.COMPILE,
    "built": Cause.START,
    "admitted": Cause.ADMISSION,
    "quorum": Cause.QUORUM,
    "checkpoint_start": Cause.CHECKPOINT,
    "checkpoint_wait": Cause.CHECKPOINT,
    "kept": Cause.CHECKPOINT,
    "checkpoint_end": Cause.CHECKPOINT,
    "purged": Cause.CHECKPOINT,
    "exported": Cause.CHECKPOINT,
    "evaluated": Cause.EVALUATE,
    "digest": Cause.DIGEST,
    "finished": Cause.END,
    "terminated": Cause.LOST_STEP,
    "failed": Cause.LOST_STEP,
    "peers_gone": Cause.LOST_STEP,
    "closed": Cause.END,
    "debugging": Cause.OTHER,
    "waited": Cause.OTHER,
}
"""Causes by a trainer's name for the line (`ledger.event` in titan_actor)."""

_OF_PART: Mapping[str, Cause] = {
    "data": Cause.DATA,
    "quorum": Cause.QUORUM,
    "heal": Cause.HEAL,
    "compile": Cause.COMPILE,
    "compute": Cause.PRODUCTIVE,
    "commit": Cause.PRODUCTIVE,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds of one group, on one machine's wall clock."""

    start: float
    end: float
    cause: Cause

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of cause: from `at` on, a group without a working process is under it."""

    at: float
    cause: Cause


WITHOUT_A_PROCESS = frozenset({Cause.ALLOCATE, Cause.DETECT, Cause.DECIDE, Cause.PLACE, Cause.ACT})

IN_A_STEP = frozenset({Cause.PRODUCTIVE, Cause.FAILED_STEP, Cause.RECOMPUTE})

LONGER = 1.25
"""Times an ordinary step beyond which a step was kept waiting."""


def of_lines(lines: Iterable[Mapping[str, object]], redone: int = 0) -> list[Interval]:
    """Returns the intervals of one process, from the lines of its steps.jsonl that do not overlap. Steps up to `redone`
    were committed by an earlier one."""
    found: list[Interval] = []
    for line in lines:
        start, end = line.get("start"), line.get("t")
        if line.get("overlaps") or not isinstance(start, int | float) or not isinstance(end, int | float):
            continue
        if line.get("event") != "step":
            found.append(Interval(start, end, OF_EVENT.get(str(line.get("event")), Cause.OTHER)))
        elif not line.get("committed"):
            found.append(Interval(start, end, Cause.FAILED_STEP))
        else:
            parts = _parts(start, end, line.get("seconds"))
            step = line.get("step")
            again = isinstance(step, int) and step <= redone
            found += [replace(i, cause=Cause.RECOMPUTE) if again and i.cause == Cause.PRODUCTIVE else i for i in parts]
    return found


def _parts(start: float, end: float, seconds: object) -> list[Interval]:
    shares = seconds if isinstance(seconds, Mapping) else {"compute": end - start}
    total = sum(float(v) for v in shares.values()) or 1.0
    found, at = [], start
    for name, value in shares.items():
        until = at + (end - start) * float(value) / total
        found.append(Interval(at, until, _OF_PART.get(str(name), Cause.OTHER)))
        at = until
    return found


def cover(processes: Sequence[Sequence[Interval]], marks: Sequence[Mark], begin: float, end: float) -> list[Interval]:
    """Covers one group's whole time, each second once.

    `processes` are the intervals of its generations, oldest first; a later one wins where two overlap (a fenced process
    may live on). Time without a process is under the newest mark before it; before the first mark it is ALLOCATE.
    """
    covered: list[Interval] = []
    limit = end
    for intervals in reversed(processes):
        kept = [Interval(max(i.start, begin), min(i.end, limit), i.cause) for i in intervals if i.start < limit]
        kept = [i for i in kept if i.seconds > 0]
        covered = kept + covered
        if kept:
            limit = min(limit, kept[0].start)
    found: list[Interval] = []
    at = begin
    for interval in covered:
        found += _gap(at, interval.start, marks)
        start = max(at, interval.start)
        if interval.end > start:
            found.append(Interval(start, interval.end, interval.cause))
            at = interval.end
    return found + _gap(at, end, marks)


def _gap(start: float, end: float, marks: Sequence[Mark]) -> list[Interval]:
    if end <= start:
        return []
    ordered = sorted(marks, key=lambda m: m.at)
    cause = next((m.cause for m in reversed(ordered) if m.at <= start), Cause.ALLOCATE)
    found, at = [], start
    for mark in ordered:
        if start < mark.at < end:
            found.append(Interval(at, mark.at, cause))
            at, cause = mark.at, mark.cause
    return [i for i in (*found, Interval(at, end, cause)) if i.seconds > 0]


def during(
    intervals: Iterable[Interval], start: float, end: float, cause: Cause, only: Collection[Cause] | None = None
) -> list[Interval]:
    """Puts the seconds between start and end that are under one of `only` (None: any) under `cause`."""
    found = []
    for i in intervals:
        first, last = max(i.start, start), min(i.end, end)
        if first >= last or (only is not None and i.cause not in only):
            found.append(i)
        else:
            cut = (Interval(i.start, first, i.cause), Interval(first, last, cause), Interval(last, i.end, i.cause))
            found += [part for part in cut if part.seconds > 0]
    return found


def without(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """Drops the seconds between start and end."""
    cut = (part for i in intervals for part in (replace(i, end=min(i.end, start)), replace(i, start=max(i.start, end))))
    return [part for part in cut if part.seconds > 0]


def kept_waiting(
    intervals: Iterable[Interval], start: float, end: float, cause: Cause, ordinary_s: float
) -> list[Interval]:
    """Puts waits under `cause`: the rest of a step that touches start..end and took clearly longer than an ordinary
    one. `ordinary_s`: seconds of an ordinary step; 0: unknown, nothing is changed."""
    found = []
    for i in intervals:
        beyond = i.start + ordinary_s
        waited = i.cause in IN_A_STEP and i.seconds > LONGER * ordinary_s > 0 and i.start < end and i.end > start
        found += [Interval(i.start, beyond, i.cause), Interval(beyond, i.end, cause)] if waited else [i]
    return found


def totals(intervals: Iterable[Interval]) -> dict[Cause, float]:
    """Seconds by cause."""
    found: dict[Cause, float] = {}
    for interval in intervals:
        found[interval.cause] = found.get(interval.cause, 0.0) + interval.seconds
    return found


def ratios(groups: Iterable[Iterable[Interval]]) -> tuple[float, dict[str, float]]:
    """Returns (ETTR, badput by cause) of the whole run, as shares of all group-seconds: they add up to 1."""
    seconds = totals(interval for group in groups for interval in group)
    return ettr(seconds) or 0.0, badput(seconds)


DIGITS = 3
"""Digits of an ETTR: it is known to a tenth of a percent, and rounded once, so that all outputs are the same."""

Seconds = Mapping[str, float] | Mapping[Cause, float]
"""Seconds by cause."""


def ettr(seconds: Seconds) -> float | None:
    """Share of productive seconds, by cause; None if there are no seconds. Every output of an ETTR comes from here."""
    whole = sum(seconds.values())
    return seconds.get(Cause.PRODUCTIVE, 0.0) / whole if whole > 0 else None


def badput(seconds: Seconds) -> dict[str, float]:
    """Returns all other shares, by cause; with the ETTR they add up to 1."""
    whole = sum(seconds.values())
    return {str(c): v / whole for c, v in sorted(seconds.items()) if c != Cause.PRODUCTIVE} if whole > 0 else {}
