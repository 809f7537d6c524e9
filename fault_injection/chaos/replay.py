"""What a run committed, step by step, from the ranks' step records: who took part, with which samples, and what each step went on from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fault_injection.history import History, Steps
from titan_actor.twin import Flip

Key = tuple[int, int]
"""Quorum and step: groups try a step once in a quorum, as one that fails makes the next."""

BEGINNING = -1

BEFORE_ANY = 0
"""The step of a model that was never trained."""


@dataclass
class Committed:
    """One step that at least one group committed."""

    step: int
    quorum: int
    t: float
    """When the first group had."""
    losses: set[float] = field(default_factory=set)
    """As the groups told the mean: one, when they agree."""
    norms: set[float] = field(default_factory=set)
    """The same of the gradient's norm, before it was clipped."""
    states: set[str] = field(default_factory=set)
    """Hashes of the state after it, where there are: one for each rank of a group, when the groups agree."""
    participants: int = 0
    parts: dict[int, dict[int, list[list[str]]]] = field(default_factory=dict)
    """group -> rank -> its batches, each with the names of its samples; without those that only healed."""
    after: int = BEGINNING
    """Place in the order of the step whose state it goes on from."""
    flips: dict[int, list[Flip]] = field(default_factory=dict)
    """Bits that are flipped in one group's copy of the state, and not in the others'."""
    taken: int | None = None
    """A group whose copy, with its flips, is everybody's from here on: nobody else goes on."""


@dataclass(frozen=True)
class Replay:
    """In the order in which they were committed, as far as it can be told."""

    steps: tuple[Committed, ...]
    why: str = ""
    """What is missing of those that follow; empty: these are all."""
    since: float = math.inf
    """When the first of those was committed."""

    def kept(self) -> set[Key]:
        """The steps that the newest state was made by: the others were thrown away by a resume from disk."""
        found, at = set(), len(self.steps) - 1
        while at != BEGINNING:
            found.add((self.steps[at].quorum, self.steps[at].step))
            at = self.steps[at].after
        return found


@dataclass(frozen=True)
class Try:
    """One attempt at a step by one rank."""

    group: int
    rank: int
    key: Key
    batches: list[list[str]]
    committed: bool
    takes_part: bool
    after: Key | int | None
    """What its state was: of a step, of the number of a step whose checkpoint it had loaded, or None: that of its peers."""
    flips: tuple[Flip, ...] = ()
    """Made on purpose, in what it computes with."""


def tries_of(history: History) -> Iterator[Try]:
    """Every attempt at a step, of each rank; those of older generations first."""
    for steps in sorted(history.steps, key=lambda s: s.generation):
        yield from _tries(steps)


def of_history(history: History) -> Replay:
    """Of all that is committed, up to the first step of which a record is missing."""
    tries: dict[Key, list[Try]] = {}
    found: dict[Key, Committed] = {}
    for tried in tries_of(history):
        tries.setdefault(tried.key, []).append(tried)
    for steps in history.steps:
        for line in steps.committed():
            if isinstance(line.get("quorum_id"), int):
                key = (int(line["quorum_id"]), int(line["step"]))
                _note(found.setdefault(key, Committed(key[1], key[0], line["t"])), line)
    for key, value in itertools.chain.from_iterable(map(_states, history.steps)):
        if key in found:
            found[key].states.add(value)
    order = sorted(found.values(), key=lambda one: (one.t, one.step))
    ranks = history.setting.ranks if history.setting is not None else 1
    placed: dict[Key, int] = {}
    taken: set[Flip] = set()
    for at, one in enumerate(order):
        key = (one.quorum, one.step)
        why = (
            _take_part(one, tries[key], ranks)
            or _goes_on(one, tries[key], order, at, placed)
            or _flipped(one, tries[key], order, taken)
        )
        if why:
            return Replay(tuple(order[:at]), f"step {one.step}: {why}", one.t)
        placed[key] = at
    return Replay(tuple(order))


def _tries(steps: Steps) -> Iterator[Try]:
    batches: list[list[str]] = []
    after: Key | int | None = BEFORE_ANY
    said: dict[str, Any] = {}
    flips: tuple[Flip, ...] = ()
    for line in steps.lines:
        match line.get("event"):
            case "resumed":
                after, flips = int(line["step"]), ()
            case "heal":
                after, flips = None, ()
            case "flipped":
                place = {name: int(line[name]) for name in ("parameter", "element", "bit")}
                flips += (Flip(rank=steps.rank, t=float(line["t"]), **place),)
            case "quorum":
                said = line
            case "batch":
                batches.append(list(line["samples"]))
            case "step" if isinstance(line.get("quorum_id"), int):
                made = bool(line.get("committed"))
                key = (int(line["quorum_id"]), int(line["step"]) + (not made))
                takes_part = line.get("participating_rank") is not None
                yield Try(steps.group, steps.rank, key, batches, made, takes_part, after, flips)
                after = key if made else after
                # one that failed makes the next quorum, which has a line of its own
                batches, said = [], line if made else {}
    if batches and said:  # it ended in the middle of a step that others may have committed
        key = (int(said["quorum_id"]), int(said["step"]) + 1)
        takes_part = said.get("participating_rank") is not None
        yield Try(steps.group, steps.rank, key, batches, False, takes_part, after, flips)


def _states(steps: Steps) -> Iterator[tuple[Key, str]]:
    quorum = 0
    for line in steps.lines:
        if line.get("event") == "step" and isinstance(line.get("quorum_id"), int):
            quorum = int(line["quorum_id"])
        elif line.get("event") == "digest" and quorum:
            yield (quorum, int(line["step"])), str(line["value"])


def _note(one: Committed, line: dict[str, Any]) -> None:
    one.t = min(one.t, line["t"])
    one.participants = max(one.participants, int(line["participants"]))
    if line.get("loss") is not None:
        one.losses.add(float(line["loss"]))
    if line.get("gradient_norm") is not None:
        one.norms.add(float(line["gradient_norm"]))


def _take_part(one: Committed, tries: list[Try], ranks: int) -> str:
    """Who did; why not, when a record is missing."""
    for tried in sorted(tries, key=lambda t: t.committed):
        if tried.takes_part:
            one.parts.setdefault(tried.group, {})[tried.rank] = tried.batches
    if len(one.parts) != one.participants:
        return f"{one.participants} groups took part, and there are the records of {len(one.parts)}"
    for group, of_ranks in sorted(one.parts.items()):
        if sorted(of_ranks) != list(range(ranks)):
            return f"of group {group} there are the records of {len(of_ranks)} ranks of {ranks}"
        if not all(of_ranks.values()):
            return f"group {group} does not say which samples it read"
    return ""


def _goes_on(one: Committed, tries: list[Try], order: list[Committed], at: int, placed: dict[Key, int]) -> str:
    """From which step, of those before it in the order; why not, when those that took part do not say the same."""
    said: set[int | None] = set()
    for tried in tries:
        if tried.takes_part and tried.after is not None:
            said.add(_place(tried.after, order, at, placed))
    if len(said) > 1:
        return "the groups do not go on from the same step"
    # all have healed: from who had the newest
    after = said.pop() if said else _place(one.step - 1, order, at, placed)
    if after is None or one.step != (order[after].step if after != BEGINNING else BEFORE_ANY) + 1:
        return "the one that it goes on from is not in the records"
    one.after = after
    return ""


def _place(after: Key | int, order: list[Committed], at: int, placed: dict[Key, int]) -> int | None:
    if isinstance(after, tuple):
        return placed.get(after)
    if after == BEFORE_ANY:
        return BEGINNING
    return next((place for place in reversed(range(at)) if order[place].step == after), None)


def _flipped(one: Committed, tries: list[Try], order: list[Committed], taken: set[Flip]) -> str:
    """Which groups went on from a copy of their own, in which a bit was flipped on purpose; why that cannot be told. What is `taken` is
    in everybody's state."""
    own: dict[int, set[Flip]] = {}
    for tried in tries:
        if tried.takes_part and tried.after is not None:
            own.setdefault(tried.group, set()).update(set(tried.flips) - taken)
    resumed = any(tried.takes_part and isinstance(tried.after, int) and tried.after != BEFORE_ANY for tried in tries)
    if resumed and one.after != BEGINNING and order[one.after].flips and order[one.after].taken is None:
        return "it goes on from a checkpoint of a step after which a bit was flipped in one group and not in another"
    one.flips = {g: sorted(flips, key=lambda flip: flip.t) for g, flips in sorted(own.items()) if flips}
    if not one.flips:
        return ""
    if len(one.flips) == len(own) > 1:
        return "each group that goes on has flipped bits of its own"
    if len(one.flips) == len(own):
        (one.taken,) = one.flips
        taken.update(*one.flips.values())
    elif any(tried.after is None for tried in tries):
        return "a group healed, from one in which a bit was flipped or from another"
    return ""
