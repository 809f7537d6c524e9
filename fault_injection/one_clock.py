"""A journal by the clock of the nodes, where that of its leader was another one.

A leader's lines carry its wall clock and the run clock. Between two changes of their difference its wall clock was off by one amount, and
what follows from what bounds that: a process is born after the decision to start it and before that in which its steps are seen, and it
ends before the decision about its end. Nothing is changed where the two clocks may be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from supervisor.shell.clocks import OFF_S

if TYPE_CHECKING:
    from fault_injection.history import Process

SET_S = 1.0
"""A wall clock that has moved by so much against the run clock was set. As the leader has it (supervisor/shell/loop.py)."""

STARTS = ("start", "place")

SEEN_ENDING = ("crash", "oom", "error")
"""Kinds of incidents that only the end of a process opens."""

Generation = tuple[int, int]


@dataclass
class _Stretch:
    """Lines of one term between two settings of its leader's clock."""

    epoch: int
    offset: float
    """What is added to the run clock to make the leader's wall clock."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    least: float = -inf
    most: float = inf
    """Bounds of what has to be added to its times."""

    @property
    def begins(self) -> float:
        return float(self.lines[0]["t"])

    def shift_s(self) -> float | None:
        """What to add; None: nothing bounds it, or the bounds contradict each other (nodes whose clocks differ)."""
        if (self.least, self.most) == (-inf, inf) or self.least > self.most + SET_S:
            return None
        nearest = min(max(0.0, self.least), max(self.most, self.least))
        return nearest if abs(nearest) >= OFF_S else 0.0


def retimed(
    lines: Iterable[Mapping[str, Any]], processes: Sequence[Process], newest: float = inf
) -> list[dict[str, Any]]:
    """The lines of a journal, those of a leader with another clock by the nodes'. `newest`: the newest time that a node's file has."""
    stretches = list(_stretches(dict(line) for line in lines))
    born, ended = _of_ranks(processes)
    for stretch in stretches:
        _bound(stretch, born, ended)
    before: tuple[_Stretch, float] | None = None
    for stretch in stretches:
        shift_s = stretch.shift_s()
        if (
            shift_s is None
            and before is not None
            and before[0].epoch == stretch.epoch
            and stretch.begins > newest + SET_S
        ):
            # no node has lived until then: only the leader's clock was set
            shift_s = before[0].offset + before[1] - stretch.offset
        for line in stretch.lines if shift_s else ():
            line["t"] = round(float(line["t"]) + (shift_s or 0.0), 4)
        before = (stretch, shift_s or 0.0)
    return [line for stretch in stretches for line in stretch.lines]


def _stretches(lines: Iterable[dict[str, Any]]) -> Iterator[_Stretch]:
    """A line that does not say the run clock is in the stretch of the one before it, and the first ones of a term in that of the next."""
    open_: _Stretch | None = None
    first: list[dict[str, Any]] = []
    for line in lines:
        if line.get("event") == "term" and open_ is not None:
            yield open_
            open_ = None
        if not isinstance(line.get("now"), int | float) or not isinstance(line.get("t"), int | float):
            (first if open_ is None else open_.lines).append(line)
            continue
        offset = float(line["t"]) - float(line["now"])
        if open_ is not None and abs(offset - open_.offset) >= SET_S:
            yield open_
            open_ = _Stretch(open_.epoch, offset)
        elif open_ is None:
            open_, first = _Stretch(int(line.get("epoch", 0)), offset, first), []
        open_.lines.append(line)
    if open_ is not None:
        yield open_
    elif first:
        yield _Stretch(0, 0.0, first)


def _of_ranks(processes: Iterable[Process]) -> tuple[dict[Generation, float], dict[Generation, float]]:
    """By group and generation, when its first process was born, and when one had ended first."""
    born: dict[Generation, float] = {}
    ended: dict[Generation, float] = {}
    for process in processes:
        name = (process.group, process.generation)
        born[name] = min(process.spawned, born.get(name, inf))
        if process.exited is not None:
            ended[name] = min(process.exited, ended.get(name, inf))
    return born, ended


def _bound(stretch: _Stretch, born: Mapping[Generation, float], ended: Mapping[Generation, float]) -> None:
    opened: set[str] = set()
    for line in stretch.lines:
        if line.get("entry") != "intent" or "now" not in line:
            continue
        at = float(line["t"])
        for action in line.get("actions", ()):
            name = (action.get("group"), action.get("generation"))
            if action.get("verb") in STARTS and name in born:
                stretch.most = min(stretch.most, born[name] - at)
        for group, says in line.get("groups", {}).items():
            name = (int(group), int(says.get("generation", 0)))
            if says.get("phase") in ("running", "finished") and name in born:
                stretch.least = max(stretch.least, born[name] - at)
            if says.get("phase") == "finished" and name in ended:
                stretch.least = max(stretch.least, ended[name] - at)
        for incident in line.get("incidents", ()):
            name = (incident["group"], incident.get("generation_before", 0))
            if incident["id"] not in opened and incident.get("kind") in SEEN_ENDING and name in ended:
                stretch.least = max(stretch.least, ended[name] - at)
            opened.add(incident["id"])
