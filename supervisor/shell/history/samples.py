"""Audits the samples of a run on a token store: each position of the stream belongs to exactly one step of the model.

Each rank notes the positions that it draws, with the step and the quorum, before its gradient can reach the others. So a
step that one group committed has the samples of all that took part, also of those that were killed in it. Steps that a
resume threw away do not count.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from supervisor.shell.history.files import History

Key = tuple[int, int]
"""Quorum and step."""

Range = tuple[int, int]
"""First position, and the one after the last."""


@dataclass(frozen=True)
class Unnoted:
    """Committed steps, most often one, of which not all samples are known."""

    t: float
    missing: int
    """Groups that took part and noted nothing, or not all."""
    sentence: str
    steps: int = 1


@dataclass
class Audit:
    """Counts of positions of the stream, up to the last committed step."""

    steps: int = 0
    begin: int | None = None
    end: int = 0
    """The stream from its first position here up to this one, which comes next."""
    once: int = 0
    twice: int = 0
    never: int = 0
    """Positions that were skipped."""
    again: int = 0
    """Positions drawn in attempts that failed, or that a resume threw away: the stream came back to them."""
    twice_at: list[int] = field(default_factory=list)
    never_at: list[int] = field(default_factory=list)
    """Steps."""
    wrong: list[str] = field(default_factory=list)
    unnoted: list[Unnoted] = field(default_factory=list)


@dataclass
class _Step:
    t: float
    participants: int


@dataclass
class _Drawn:
    """The positions of an attempt at a step."""

    groups: set[int] = field(default_factory=set)
    ranges: list[Range] = field(default_factory=list)
    """Those of all ranks and rounds."""
    whole: int = 0
    """Samples that all groups together draw for it; 0: an older record without it."""


def audit(history: History) -> Audit | None:
    """Returns the counts, or None for a run whose ranks note no positions: its data is no token store."""
    drawn = _drawn(history)
    if not drawn:
        return None
    committed = _committed(history)
    kept = _kept(committed)
    first = kept[0][1] if kept else 1
    counting = _Counting(first, _began(history, first))
    for key in kept:
        counting.step(key[1], committed[key], drawn.get(key, _Drawn()))
    others = (drawn[key].ranges for key in drawn.keys() - set(kept))
    counting.found.again = sum(end - first for ranges in others for first, end in ranges)
    return counting.found


def _drawn(history: History) -> dict[Key, _Drawn]:
    """Returns the positions of each attempt."""
    found: dict[Key, _Drawn] = {}
    for steps in history.steps:
        for line in steps.lines:
            if line.get("event") == "batch" and isinstance(line.get("position"), int):
                key, first = (int(line["quorum_id"]), int(line["step"])), int(line["position"])
                drawn = found.setdefault(key, _Drawn())
                drawn.groups.add(steps.group)
                drawn.ranges.append((first, first + len(line["samples"])))
                drawn.whole = int(line.get("step_samples") or 0)
    return found


def _committed(history: History) -> dict[Key, _Step]:
    found: dict[Key, _Step] = {}
    for steps in history.steps:
        for line in steps.committed():
            if isinstance(line.get("quorum_id"), int):
                key = int(line["quorum_id"]), int(line["step"])
                one = found.setdefault(key, _Step(line["t"], int(line["participants"])))
                one.t = min(one.t, line["t"])
    return found


def _kept(committed: dict[Key, _Step]) -> list[Key]:
    """Returns the steps that made the newest state, in order. Of a step that was made again the newest counts; what
    followed the older one was thrown away."""
    found: list[Key] = []
    for key in sorted(committed, key=lambda key: (committed[key].t, key[1]), reverse=True):
        if not found or key[1] < found[-1][1]:
            found.append(key)
    return found[::-1]


def _began(history: History, first: int) -> int | None:
    """Returns the sample with which the run's stream began, where `first` is the earliest of its steps here. None: it has
    made steps before, which have no records here.

    A run that began with another run's checkpoint begins after step 1: at the place that the first start of its groups
    has loaded. Later starts load what the run itself has made."""
    if first == 1:
        return 0
    started, relaunched = history.started(), min((t for t, _ in history.sizes), default=math.inf)
    resumed = [
        line
        for steps in history.steps
        if steps.generation <= min(started.get(steps.group, [1]))
        for line in steps.lines
        if line.get("event") == "resumed" and line.get("step") == first - 1 and line["t"] < relaunched
    ]
    places = (re.fullmatch(r"sample (\d+)", str(line.get("data"))) for line in resumed)
    return next((int(place[1]) for place in places if place), None)


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


class _Counting:
    """Follows the stream from step to step."""

    def __init__(self, first: int, began: int | None) -> None:
        """`first`: the earliest step. `began`: the sample with which the stream began; None: steps before have no record."""
        self.found = Audit(begin=began, end=began or 0)
        self._last = 0 if began is None else first - 1
        self._hole = began is None
        """True after positions that no record has: where the stream goes on is not known."""

    def step(self, number: int, step: _Step, drawn: _Drawn) -> None:
        """Takes in the next step of the model."""
        found, ranges = self.found, sorted(drawn.ranges)
        found.steps += 1
        if number > self._last + 1:
            gap = number - 1 - self._last
            self._lacks(step, 1, f"no record of {_steps(self._last + 1, number - 1)} is here", gap)
        self._last = number
        missing, noted = step.participants - len(drawn.groups), sum(end - first for first, end in ranges)
        if missing:
            self._lacks(
                step, missing, f"step {number}: {step.participants} groups took part, {len(drawn.groups)} noted samples"
            )
        elif missing := int(noted < drawn.whole):  # a rank, or some of its rounds
            self._lacks(step, missing, f"step {number} has {drawn.whole:,} samples, of which {noted:,} are noted")
        if ranges and found.begin is None:
            found.begin = found.end = ranges[0][0]
        elif ranges and ranges[0][0] == 0 < found.end:
            found.wrong.append(
                f"step {number} begins a stream at its first sample, after sample {found.end - 1:,} of the one before"
            )
            found.end = 0
        for first, end in ranges:
            self._add(number, first, end)
        self._hole = missing > 0 or not ranges

    def _lacks(self, step: _Step, missing: int, sentence: str, steps: int = 1) -> None:
        self._hole = True
        self.found.unnoted.append(Unnoted(step.t, missing, sentence, steps))

    def _add(self, number: int, first: int, end: int) -> None:
        found = self.found
        if first > found.end and not self._hole:
            found.never += first - found.end
            found.never_at.append(number)
            found.wrong.append(f"step {number} skips samples {found.end:,} to {first - 1:,}")
        if again := min(found.end, end) - first if first < found.end else 0:
            found.twice += again
            found.once -= again  # they counted as used once
            found.twice_at.append(number)
            found.wrong.append(f"step {number} has samples {first:,} to {first + again - 1:,} again")
        found.once += end - first - again
        found.end = max(found.end, end)
