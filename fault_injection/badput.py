"""Where a group's time went, from the files of a run: step records for what a process did, the journal for the time between two."""

from __future__ import annotations

from dataclasses import dataclass

from fault_injection.history import History
from supervisor.core.ledger import Cause, Interval, Mark, cover, of_lines


@dataclass(frozen=True)
class Span:
    """The time that the ledger covers; this machine's clock."""

    begin: float
    end: float


def ledger(history: History, group: int, span: Span) -> list[Interval]:
    """Every second of a group, once."""
    generations = history.of_group(group)
    ends = _generation_ends(history, group)
    processes = []
    for steps in generations:
        intervals = of_lines(steps.lines)
        if steps.generation in ends:
            # What an ended or fenced process did after its last committed step is lost time: the marks say of which kind.
            kept = [i for i in intervals if i.cause != Cause.FAILED_STEP or i.end <= ends[steps.generation]]
            last = max((i.end for i in kept if i.cause == Cause.PRODUCTIVE), default=0.0)
            intervals = [i for i in kept if i.end <= max(last, ends[steps.generation])]
        processes.append(intervals)
    return cover(processes, _marks(history, group, processes), span.begin, span.end)


def _generation_ends(history: History, group: int) -> dict[int, float]:
    """generation -> when an incident that ended it was opened."""
    ends: dict[int, float] = {}
    for decision in history.committed():
        for incident in decision.incidents:
            if incident["group"] == group and incident["generation_after"] > incident["generation_before"]:
                ends.setdefault(incident["generation_before"], decision.committed_at or decision.t)
    return ends


def _generations_opened(history: History, group: int) -> dict[int, float]:
    """generation -> when the incident that ended it was first there."""
    first: dict[str, float] = {}
    opened: dict[int, float] = {}
    for decision in history.committed():
        for incident in decision.incidents:
            first.setdefault(incident["id"], decision.committed_at or decision.t)
            if incident["group"] == group and incident["generation_after"] > incident["generation_before"]:
                opened.setdefault(incident["generation_before"], first[incident["id"]])
    return opened


def _marks(history: History, group: int, processes: list[list[Interval]]) -> list[Mark]:
    marks = []
    opened = _generations_opened(history, group)
    for process in history.processes:
        if process.group != group or process.rank != 0:
            continue
        lived = next(
            (p for p, s in zip(processes, history.of_group(group), strict=True) if s.generation == process.generation),
            [],
        )
        last = max((i.end for i in lived), default=process.spawned)
        known = opened.get(process.generation, float("inf"))
        if process.exited is not None and process.exit_code != 0 and process.exited > known:
            # It was given up before it ended: when it ends says nothing any more.
            marks += [Mark(last, Cause.DETECT)] if last < known else []
        elif process.exited is not None and process.exit_code != 0:
            marks += [Mark(last, Cause.LOST_STEP), Mark(max(last, process.exited), Cause.DETECT)]
        elif process.exit_code == 0:
            marks.append(Mark(last, Cause.END))
        marks.append(Mark(process.spawned, Cause.START))
    for decision in history.committed():
        at = decision.committed_at or decision.t
        for incident in decision.incidents:
            if incident["group"] == group and incident.get("state") == "acting" and incident.get("acted") is None:
                marks.append(Mark(at, Cause.PLACE))
        for action in decision.actions:
            if action.get("group") == group and action["verb"] in ("start", "place"):
                marks.append(Mark(at, Cause.ACT))
    for steps, lived in zip(history.of_group(group), processes, strict=True):
        silent = not any(p.generation == steps.generation and p.group == group and p.exited for p in history.processes)
        if lived and silent:
            marks.append(Mark(max(i.end for i in lived), Cause.DETECT))
    return marks
