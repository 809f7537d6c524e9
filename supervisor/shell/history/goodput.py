"""Accounts for a group's time from a run's files: step records while a process lives, the journal in between."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from supervisor.core.goodput.causes import (
    DIGITS,
    WITHOUT_A_PROCESS,
    Cause,
    Interval,
    Mark,
    badput,
    cover,
    during,
    ettr,
    kept_waiting,
    of_lines,
    totals,
    without,
)
from supervisor.core.model.kinds import Is, Rung, that_are
from supervisor.shell.history.files import History, Steps

HOLDS_UP_OTHERS = that_are(Is.HOLDS_UP_OTHERS)

SLACK_S = 0.05
"""Tolerance between the clock readings of two processes on one machine, in seconds."""

APART = 0.05
"""Tolerance between the leader's ETTR and that of the files. In a run of forty faults they were 0.002 apart."""

SHARE = 0.01
"""Tolerance of sums of times, as a share: times are rounded where they are written."""


@dataclass(frozen=True)
class Span:
    """The time that the ledger covers, by this machine's clock."""

    begin: float
    end: float
    halts: tuple[tuple[float, float], ...] = ()
    """Beginning and end of each time in which the run was halted. They are left out, as the leader leaves them out
    (`Accounts`): how long a person takes to look at a halted run says nothing of how well it trains."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin - self.halted_s(self.begin, self.end)

    def halted_s(self, start: float, end: float) -> float:
        """Returns how many of these seconds are left out."""
        return sum(max(0.0, min(end, resumed) - max(start, halted)) for halted, resumed in self.halts)


def of_group(history: History, group: int, span: Span) -> Span:
    """Returns the span without the times in which the run had no such group: before it was scaled up, or after it was
    scaled down."""
    if not history.sizes:
        return span
    first = history.sizes[0][0]
    there = [(span.begin, any(group in d.groups for d in history.decisions if d.t < first))]
    there += [(at, group < count) for at, count in history.sizes]
    ends = [*(at for at, _ in there[1:]), span.end]
    away = [(start, end) for (start, exists), end in zip(there, ends, strict=True) if not exists and end > start]
    for halted, resumed in span.halts:
        away = [part for start, end in away for part in ((start, min(end, halted)), (max(start, resumed), end))]
        away = [(start, end) for start, end in away if end > start]
    return replace(span, halts=tuple(sorted((*span.halts, *away))))


def ledger(history: History, group: int, span: Span) -> list[Interval]:
    """Puts every second of a group under one cause. Left out are the seconds in which the run was halted, or had no such
    group."""
    span = of_group(history, group, span)
    generations = history.of_group(group)
    ends = _generation_ends(history, group)
    processes = []
    for steps in generations:
        intervals = of_lines(steps.lines, _redone(history, steps))
        if steps.generation in ends:
            # After its last committed step, an ended or fenced process only loses time: the marks give the cause.
            kept = [i for i in intervals if i.cause != Cause.FAILED_STEP or i.end <= ends[steps.generation]]
            last = max((i.end for i in kept if i.cause in (Cause.PRODUCTIVE, Cause.RECOMPUTE)), default=0.0)
            intervals = [i for i in kept if i.end <= max(last, ends[steps.generation])]
        processes.append(intervals)
    found = cover(processes, _marks(history, group, processes), span.begin, span.end)
    for outage in history.outages:
        found = during(found, outage.start, outage.end, Cause.STORE_AWAY, WITHOUT_A_PROCESS)
    found = _waits(history, group, found)
    for halted, resumed in span.halts:
        found = without(found, halted, resumed)
    return found


@dataclass(frozen=True)
class Short:
    """A run in one line: its start, end, length and ETTR, as a reader of etcd sees them."""

    begin_unix_s: float
    end_unix_s: float
    seconds: float
    causes: Mapping[str, float]
    """Group-seconds."""
    apart: tuple[str, ...]
    """Sentences on where the files differ too much from it."""

    @property
    def ettr(self) -> float:
        return round(ettr(self.causes) or 0.0, DIGITS)

    @property
    def badput(self) -> dict[str, float]:
        return {cause: round(share, 4) for cause, share in badput(self.causes).items()}


def in_short(history: History, ledgers: Mapping[int, list[Interval]], span: Span) -> Short:
    """Sums up the leader's newest account, as shown by the page, `top` and the metrics; without one, the files."""
    causes, account = totals(i for intervals in ledgers.values() for i in intervals), history.account
    files = Short(span.begin, span.end, round(span.seconds, 3), {c.value: s for c, s in causes.items()}, ())
    if account is None or not account.ran_s:
        return files
    ended = account.ended_unix_s or account.began_unix_s + account.ran_s
    found = Short(account.began_unix_s, ended, account.ran_s, account.seconds, ())
    if not account.ended_unix_s or abs(_stepping(found.causes) - _stepping(files.causes)) <= APART:
        return found
    return replace(
        found, apart=(f"the leader has counted an ETTR of {found.ettr:.1%}, the files say {files.ettr:.1%}",)
    )


def _stepping(seconds: Mapping[str, float]) -> float:
    """Returns the share of productive seconds, with those of a slow group that ended before they were an incident: the
    leader sees it while it lasts, and the files have only incidents."""
    straggling = seconds.get(Cause.STRAGGLING.value, 0.0)
    productive = seconds.get(Cause.PRODUCTIVE.value, 0.0) + straggling
    return ettr({**seconds, Cause.PRODUCTIVE.value: productive, Cause.STRAGGLING.value: 0.0}) or 0.0


@dataclass(frozen=True)
class Window:
    """The time of an incident: its first sign, when its group was given up, and its end. Infinite: never."""

    incident: dict[str, Any]
    began: float
    acted: float
    over: float


def windows(history: History) -> list[Window]:
    """Returns the windows of all incidents, in the order in which they were opened."""
    found: dict[str, Window] = {}
    for decision in history.committed():
        at = decision.committed_at or decision.t
        for incident in decision.incidents:
            known = found.get(incident["id"])
            began = decision.t - float(incident.get("took_s") or 0.0)
            ended = incident.get("state") in ("recovered", "halted")
            # A group that was only waited for keeps its generation.
            acted = ended or incident["generation_after"] > incident["generation_before"]
            found[incident["id"]] = Window(
                incident,
                min(began, known.began) if known else began,
                min(known.acted if known else float("inf"), at if acted else float("inf")),
                at if ended else float("inf"),
            )
    return list(found.values())


def does_not_add_up(history: History, found: Mapping[int, list[Interval]], span: Span) -> list[str]:
    """Returns what contradicts the ledgers: seconds under two causes or none, and records that were cut to fit."""
    wrong, whole = list(_cut_to_fit(history)), span
    for group, intervals in found.items():
        span = of_group(history, group, whole)
        length = span.seconds
        seconds = sum(interval.seconds for interval in intervals)
        if abs(seconds - length) > SHARE * length:
            wrong.append(f"group {group}: {seconds:.1f} s of {length:.1f} s are under a cause")
        pairs = itertools.pairwise(intervals)
        apart = [(a, b) for a, b in pairs if abs(b.start - a.end - span.halted_s(a.end, b.start)) > SLACK_S]
        wrong += [f"group {group}: from {a.end:.2f} to {b.start:.2f} twice, or under no cause" for a, b in apart[:3]]
    return wrong


def _cut_to_fit(history: History) -> Iterator[str]:
    """Finds lines of one process that overlap, and parts that do not add up to their step's length."""
    for steps in history.steps:
        lines = sorted(
            (x for x in steps.lines if "start" in x and not x.get("overlaps")), key=lambda x: (x["start"], x["t"])
        )
        for one, two in itertools.pairwise(lines):
            if two["start"] < one["t"] - SLACK_S:
                yield f"{steps.name}: from {two['start']:.2f} to {one['t']:.2f} twice"
        for line in lines:
            if "seconds" not in line:
                continue  # a rank that does not report parts: all of it counts as computing
            seconds, length = line["seconds"], line["t"] - line["start"]
            parts, slack = sum(seconds.values()), length * SHARE + SLACK_S
            if below := [name for name, part in seconds.items() if part < 0]:
                yield f"{steps.name}: step {line.get('step')} has {seconds[below[0]]:g} s of {below[0]}"
            # computing is the rest that the other parts leave, so the parts add up, also in a step that was not
            # committed
            if abs(parts - length) > slack:
                yield f"{steps.name}: step {line.get('step')} took {length:.2f} s, and its parts {parts:.2f} s"


def _waits(history: History, group: int, found: list[Interval]) -> list[Interval]:
    """Moves the time that a hung or slow group cost this one to its cause."""
    all_of_them = windows(history)
    held = [w for w in all_of_them if w.incident["kind"] in HOLDS_UP_OTHERS]
    ordinary_s = _ordinary_s(history, group, held) if held else 0.0
    for window in held:
        if window.incident["kind"] == "straggler":
            found = kept_waiting(found, window.began, window.over, Cause.STRAGGLING, ordinary_s)
        elif window.incident["group"] == group:
            found = during(found, window.began, window.acted, Cause.HUNG)
        else:
            found = kept_waiting(found, window.began, window.acted, Cause.HUNG, ordinary_s)
    return found


def _ordinary_s(history: History, group: int, held: list[Window]) -> float:
    """Returns the median time that this group computed a step while no other kept it waiting; 0: no such step."""
    steps = (
        line
        for s in history.of_group(group)
        for line in s.committed()
        if "start" in line and isinstance(line.get("seconds"), dict)
    )
    free = [
        float(line["seconds"].get("compute", 0.0))
        for line in steps
        if not any(w.began < line["t"] and line["start"] < w.over for w in held)
    ]
    return median(free) if free else 0.0


def _redone(history: History, steps: Steps) -> int:
    """Returns the newest step that any group had committed when this process started."""
    born = min((line["start"] for line in steps.lines if "start" in line and not line.get("overlaps")), default=0.0)
    before = (line["step"] for s in history.steps for line in s.committed() if line["t"] <= born)
    return max(before, default=0)


def _generation_ends(history: History, group: int) -> dict[int, float]:
    """Maps each generation to the time at which an incident that ended it was opened."""
    ends: dict[int, float] = {}
    for decision in history.committed():
        for incident in decision.incidents:
            if incident["group"] == group and incident["generation_after"] > incident["generation_before"]:
                ends.setdefault(incident["generation_before"], decision.committed_at or decision.t)
    return ends


def _generations_opened(history: History, group: int) -> dict[int, float]:
    """Maps each generation to the time at which the incident that ended it was first seen."""
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
            # The supervisor gave it up before it ended, so the time of its end has no meaning.
            marks += [Mark(last, Cause.DETECT)] if last < known else []
        elif process.exited is not None and process.exit_code != 0:
            marks += [Mark(last, Cause.LOST_STEP), Mark(max(last, process.exited), Cause.DETECT)]
        elif process.exit_code == 0:
            marks.append(Mark(last, Cause.END))
        marks.append(Mark(process.spawned, Cause.START))
    for decision in history.committed():
        at = decision.committed_at or decision.t
        for incident in decision.incidents:
            if incident["group"] == group and incident.get("state") == "open":
                marks.append(Mark(at, Cause.DECIDE))
            if incident["group"] == group and incident.get("state") == "acting" and incident.get("acted") is None:
                waited = incident["rung"] == Rung.RIDE_THROUGH  # until the lighthouse hears it again, or it gets worse
                marks.append(Mark(at, Cause.DECIDE if waited else Cause.PLACE))
        for action in decision.actions:
            if action.get("group") == group and action["verb"] in ("start", "place"):
                marks.append(Mark(at, Cause.ACT))
            if action["verb"] in (
                "resume",
                "relaunch",
            ):  # every group waits for a node again, whatever it waited for before the halt
                marks.append(Mark(decision.t, Cause.ALLOCATE))
    for steps, lived in zip(history.of_group(group), processes, strict=True):
        silent = not any(p.generation == steps.generation and p.group == group and p.exited for p in history.processes)
        if lived and silent:
            # The end of a process that was given up is unknown. One that has made no step yet may be in a long first
            # step.
            begins = not steps.committed() and steps.generation not in opened
            marks.append(Mark(max(i.end for i in lived), Cause.START if begins else Cause.DETECT))
    return marks
