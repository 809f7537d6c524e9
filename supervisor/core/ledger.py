"""The badput ledger: every second of every group under exactly one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Where a second went. All but `productive` are badput."""

    PRODUCTIVE = "productive"
    """Compute and commit of a step that was committed; waiting for a slow peer inside its collectives is in it."""
    ALLOCATE = "allocate"
    """No process yet: waiting for nodes, the lighthouse and the first decision."""
    START = "start"
    """From the birth of a process until it is built."""
    ADMISSION = "admission"
    """Built, waiting for the gate."""
    DATA = "data"
    QUORUM = "quorum"
    """Waiting for the quorum: also for a peer that is gone until TorchFT drops it."""
    HEAL = "heal"
    FAILED_STEP = "failed_step"
    """A step that was not committed."""
    CHECKPOINT = "checkpoint"
    DIGEST = "digest"
    LOST_STEP = "lost_step"
    """The step in flight when its process ended."""
    DETECT = "detect"
    """From the end of a process, or its last sign of life, until an incident is open."""
    DECIDE = "decide"
    PLACE = "place"
    """Decided, but still fencing, backing off, or waiting for a node."""
    ACT = "act"
    """From the decision to start until the process is born."""
    END = "end"
    """Finished, while others still ran."""
    OTHER = "other"


_OF_EVENT: Mapping[str, Cause] = {
    "start": Cause.START,
    "imported": Cause.START,
    "constructed": Cause.START,
    "resuming": Cause.START,
    "built": Cause.START,
    "admitted": Cause.ADMISSION,
    "quorum": Cause.QUORUM,
    "checkpoint_start": Cause.CHECKPOINT,
    "checkpoint_wait": Cause.CHECKPOINT,
    "checkpoint_end": Cause.CHECKPOINT,
    "purged": Cause.CHECKPOINT,
    "digest": Cause.DIGEST,
    "finished": Cause.END,
    "terminated": Cause.LOST_STEP,
    "closed": Cause.END,
}

_OF_PART: Mapping[str, Cause] = {
    "data": Cause.DATA,
    "quorum": Cause.QUORUM,
    "heal": Cause.HEAL,
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
    """From `at` on, a group without a working process is under this cause."""

    at: float
    cause: Cause


def of_lines(lines: Iterable[Mapping[str, object]]) -> list[Interval]:
    """The intervals of one process, from the lines of its steps.jsonl that do not overlap."""
    found: list[Interval] = []
    for line in lines:
        start, end = line.get("start"), line.get("t")
        if line.get("overlaps") or not isinstance(start, int | float) or not isinstance(end, int | float):
            continue
        if line.get("event") != "step":
            found.append(Interval(start, end, _OF_EVENT.get(str(line.get("event")), Cause.OTHER)))
        elif not line.get("committed"):
            found.append(Interval(start, end, Cause.FAILED_STEP))
        else:
            found += _parts(start, end, line.get("seconds"))
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
    """One group's whole time, each second once.

    `processes` are the intervals of its generations, oldest first; a later one wins where two overlap (a fenced process
    may live on). What no process covers is under the newest mark before it; before the first mark it is ALLOCATE.
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


def totals(intervals: Iterable[Interval]) -> dict[Cause, float]:
    """Seconds by cause."""
    found: dict[Cause, float] = {}
    for interval in intervals:
        found[interval.cause] = found.get(interval.cause, 0.0) + interval.seconds
    return found


def ratios(groups: Iterable[Iterable[Interval]]) -> tuple[float, dict[str, float]]:
    """(ETTR, badput by cause) of the whole run, as shares of all group-seconds: they add up to 1."""
    seconds: dict[Cause, float] = {}
    for group in groups:
        for cause, value in totals(group).items():
            seconds[cause] = seconds.get(cause, 0.0) + value
    whole = sum(seconds.values())
    if whole <= 0:
        return 0.0, {}
    badput = {c.value: v / whole for c, v in sorted(seconds.items()) if c != Cause.PRODUCTIVE}
    return seconds.get(Cause.PRODUCTIVE, 0.0) / whole, badput
