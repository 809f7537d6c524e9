"""Converts a journal to the nodes' clock, where its leader had another one.

A leader's lines carry its wall clock and the run clock. While their difference is constant, its wall clock is off by
one amount. Causality bounds that amount. A process is born after the decision to start it, and before the one in which
its steps are seen. It ends before the decision about its end. Nothing changes where the two clocks may be one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from supervisor.shell.metrics.clock_skew import OFF_S

if TYPE_CHECKING:
    from supervisor.shell.history.files import Process

SET_S = 1.0
"""A wall clock that moved by this many seconds against the run clock was set; the leader uses the same
(supervisor/shell/control/loop.py)."""

STARTS = ("start", "place")

SEEN_ENDING = ("crash", "oom", "error")
"""Kinds of incidents that only the end of a process opens."""

Generation = tuple[int, int]


@dataclass
class _Stretch:
    """Lines of one term between two settings of its leader's clock."""

    epoch: int
    offset: float
    """The leader's wall clock minus the run clock."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    least: float = -inf
    most: float = inf
    """Bounds of the seconds that must be added to its times."""

    @property
    def begins(self) -> float:
        return float(self.lines[0]["t"])

    def shift_s(self) -> float:
        """Returns the seconds to add: the middle of the bounds. 0: its clock may be the nodes', or the bounds
        contradict each other (nodes whose clocks differ)."""
        if self.least - OFF_S < 0.0 < self.most + OFF_S or self.least > self.most + SET_S:
            return 0.0
        known = [bound for bound in (self.least, self.most) if abs(bound) != inf]
        return sum(known) / len(known)

    def allows(self, shift_s: float) -> bool:
        return self.least - SET_S <= shift_s <= self.most + SET_S


def retimed(
    lines: Iterable[Mapping[str, Any]], processes: Sequence[Process], newest: float = inf
) -> list[dict[str, Any]]:
    """Returns a journal's lines, all by the nodes' clock. `newest`: the newest time in a node's file."""
    stretches = list(_stretches(dict(line) for line in lines))
    born, ended = _of_ranks(processes)
    for stretch in stretches:
        _bound(stretch, born, ended)
    before: tuple[_Stretch, float] | None = None
    for stretch in stretches:
        shift_s = stretch.shift_s()
        if not shift_s and before is not None and before[0].epoch == stretch.epoch and stretch.begins > newest + OFF_S:
            # no node has lived until then, so only the leader's clock was set
            goes_on = before[0].offset + before[1] - stretch.offset
            shift_s = goes_on if stretch.allows(goes_on) else 0.0
        for line in stretch.lines if shift_s else ():
            line["t"] = round(float(line["t"]) + shift_s, 4)
        before = (stretch, shift_s)
    return [line for stretch in stretches for line in stretch.lines]


def _stretches(lines: Iterable[dict[str, Any]]) -> Iterator[_Stretch]:
    """Splits lines into stretches. A line without the run clock belongs to the stretch before it; the first such lines
    of a term belong to the next."""
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
    """Returns, by group and generation, when its first process was born, and when the first one ended."""
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
    asked: list[Generation] = []
    for line in stretch.lines:
        at = float(line["t"])
        if line.get("entry") == "outcome":  # nothing is started before
            stretch.most = min([stretch.most, *(born[name] - at for name in asked if name in born)])
            asked = []
        if line.get("entry") != "intent" or "now" not in line:
            continue
        actions = [action for action in line.get("actions", ()) if action.get("verb") in STARTS]
        asked = [(action.get("group", -1), action.get("generation", 0)) for action in actions]
        was_before = [*_before(line, born, ended)]
        for incident in line.get("incidents", ()):
            if incident["id"] not in opened and incident.get("kind") in SEEN_ENDING:
                was_before.append(ended.get((incident["group"], incident.get("generation_before", 0)), -inf))
            opened.add(incident["id"])
        stretch.least = max([stretch.least, *(then - at for then in was_before)])


def _before(
    line: Mapping[str, Any], born: Mapping[Generation, float], ended: Mapping[Generation, float]
) -> Iterator[float]:
    """Yields when the groups' running processes were born, and when those that finished had ended, by a decision."""
    for group, says in line.get("groups", {}).items():
        name = (int(group), int(says.get("generation", 0)))
        if says.get("phase") in ("running", "finished"):
            yield born.get(name, -inf)
        if says.get("phase") == "finished":
            yield ended.get(name, -inf)
