"""Reconstructs from the step records what a run committed: each step's groups, samples and predecessor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor.shell.history.files import FaultDone, History, Steps
from titan_actor.twin import Flip

Key = tuple[int, int]
"""Quorum and step. Groups try a step once in a quorum, for a failed one makes the next."""

BEGINNING = -1

BEFORE_ANY = 0
"""The step of a model that was never trained."""


@dataclass
class Committed:
    """One step that at least one group committed."""

    step: int
    quorum: int
    t: float
    """When the first group had committed it."""
    losses: set[float] = field(default_factory=set)
    """The mean losses that the groups report: one value if they agree."""
    norms: set[float] = field(default_factory=set)
    """The same of the gradient's norm before clipping."""
    logged: bool = False
    """True if a group that did not heal in it reports the norm. A healing group may report it at any step."""
    states: dict[tuple[int, int], str] = field(default_factory=dict)
    """Hashes of the state after it, where there are any, by group and rank."""
    participants: int = 0
    parts: dict[int, dict[int, list[list[str]]]] = field(default_factory=dict)
    """Maps group and rank to its batches, each a list of sample names; without groups that only healed."""
    after: int = BEGINNING
    """Place, in the order, of the step whose state it continues."""
    flips: dict[int, list[Flip]] = field(default_factory=dict)
    """Bits that are flipped in one group's copy of the state, and not in the others'."""
    taken: int | None = None
    """The group whose copy, with its flips, is everyone's from here on, for no other group continues."""


@dataclass(frozen=True)
class Replay:
    """The committed steps in their order, as far as the records show them."""

    steps: tuple[Committed, ...]
    why: str = ""
    """The records that are missing of the following steps; empty: these are all."""
    since: float = math.inf
    """When the first of the missing steps was committed."""
    lacks: frozenset[int] = frozenset()
    """Groups whose part in that step, if they had one, is not in the records."""
    missing: int = 0
    """Number of groups whose part is missing."""
    whose: str = ""
    """Why the records do not show, from the step at `whose_at` on, in whose state a bit is flipped; empty: they do."""
    whose_at: int = 0

    def for_twin(self) -> Replay:
        """Returns the steps that can be trained again."""
        return replace(self, steps=self.steps[: self.whose_at], why=self.whose) if self.whose else self

    def kept(self) -> set[Key]:
        """Returns the steps that made the newest state; a resume from disk threw the others away."""
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
    """Where its state came from: a step, the number of a step whose checkpoint it loaded, or None for its peers."""
    flips: tuple[Flip, ...] = ()
    """Bits flipped on purpose in what it computes with."""
    unclear: bool = False
    """True if a bit was flipped between a heal and the next step: no record shows whether this state has it."""


def tries_of(history: History) -> Iterator[Try]:
    """Yields every attempt at a step by each rank, those of older generations first."""
    for steps in sorted(history.steps, key=lambda s: s.generation):
        yield from _tries(steps)


def of_history(history: History) -> Replay:
    """Reconstructs all that is committed, up to the first step of which a record is missing."""
    tries: dict[Key, list[Try]] = {}
    found: dict[Key, Committed] = {}
    for tried in tries_of(history):
        tries.setdefault(tried.key, []).append(tried)
    for steps in history.steps:
        for line in steps.committed():
            if isinstance(line.get("quorum_id"), int):
                key = (int(line["quorum_id"]), int(line["step"]))
                _note(found.setdefault(key, Committed(key[1], key[0], line["t"])), line)
    for steps in history.steps:
        for key, value in _states(steps):
            if key in found:
                found[key].states[steps.group, steps.rank] = value
    order = sorted(found.values(), key=lambda one: (one.t, one.step))
    ranks = history.setting.ranks if history.setting is not None else 1
    placed: dict[Key, int] = {}
    for at, one in enumerate(order):
        key = (one.quorum, one.step)
        hole = _take_part(one, tries[key], ranks)
        why = hole or _goes_on(one, tries[key], order, at, placed)
        if why:
            so_far = Replay(tuple(order[:at]), f"step {one.step}: {why}", one.t)
            if hole:
                whole = {group for group, of_ranks in one.parts.items() if _is_whole(of_ranks, ranks)}
                lacks = {tried.group for of in tries.values() for tried in of} - whole
                so_far = replace(so_far, lacks=frozenset(lacks), missing=one.participants - len(whole))
            return _told_whose(so_far, tries, history)
        placed[key] = at
    return _told_whose(Replay(tuple(order)), tries, history)


def _tries(steps: Steps) -> Iterator[Try]:
    batches: list[list[str]] = []
    after: Key | int | None = BEFORE_ANY
    said: dict[str, Any] = {}
    flips: tuple[Flip, ...] = ()
    unclear = False
    for line in steps.lines:
        match line.get("event"):
            case "resumed":
                after, flips = int(line["step"]), ()
            case "heal":
                after, flips, unclear = None, (), False
            case "flipped":
                place = {name: int(line[name]) for name in ("parameter", "element", "bit")}
                flips += (Flip(rank=steps.rank, t=float(line["t"]), **place),)
                unclear = after is None
            case "quorum":
                said = line
            case "batch":
                batches.append(list(line["samples"]))
            case "step" if isinstance(line.get("quorum_id"), int):
                made = bool(line.get("committed"))
                key = (int(line["quorum_id"]), int(line["step"]) + (not made))
                takes_part = line.get("participating_rank") is not None
                yield Try(steps.group, steps.rank, key, batches, made, takes_part, after, flips, unclear)
                after = key if made else after
                unclear = unclear and not made
                # a failed attempt makes the next quorum, which has its own line
                batches, said = [], line if made else {}
    if batches and said:  # the process ended within a step that others may have committed
        key = (int(said["quorum_id"]), int(said["step"]) + 1)
        takes_part = said.get("participating_rank") is not None
        yield Try(steps.group, steps.rank, key, batches, False, takes_part, after, flips, unclear)


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
        one.logged = one.logged or not line.get("healed")


def _take_part(one: Committed, tries: list[Try], ranks: int) -> str:
    """Notes the groups that took part; returns why that cannot be known, where a record is missing."""
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


def _is_whole(of_ranks: dict[int, list[list[str]]], ranks: int) -> bool:
    return sorted(of_ranks) == list(range(ranks)) and all(of_ranks.values())


def _goes_on(one: Committed, tries: list[Try], order: list[Committed], at: int, placed: dict[Key, int]) -> str:
    """Notes which earlier step it continues; returns why that cannot be known, where the groups disagree."""
    said: set[int | None] = set()
    for tried in tries:
        if tried.takes_part and tried.after is not None:
            said.add(_place(tried.after, order, at, placed))
    if len(said) > 1:
        return "the groups do not go on from the same step"
    # all have healed, from the group that had the newest state
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


def _told_whose(replay: Replay, tries: dict[Key, list[Try]], history: History) -> Replay:
    """Notes in whose state which bit is flipped, as far as the records show it."""
    taken: set[Flip] = set()
    silent = [f for f in history.faults if f.drifts and f.made is not None and not _left_its_bit(f, history)]
    for at, one in enumerate(replay.steps):
        why = _flipped(one, tries[one.quorum, one.step], replay.steps, at, taken)
        for fault in silent:
            if fault.made is not None and fault.made < one.t:
                why = why or f"which bit {fault.name} flipped in group {fault.group} was not written down"
        if why:
            return replace(replay, whose=f"step {one.step}: {why}", whose_at=at)
    return replay


def _left_its_bit(fault: FaultDone, history: History) -> bool:
    of = [s for s in history.steps if (s.group, s.generation) == (fault.group, fault.generation)]
    return any(line.get("event") == "flipped" for steps in of for line in steps.lines)


def _flipped(one: Committed, tries: list[Try], order: Sequence[Committed], at: int, taken: set[Flip]) -> str:
    """Notes which groups continued from a copy of their own in which a bit was flipped on purpose; returns why that
    cannot be known. The bits in `taken` are in everyone's state."""
    own: dict[int, set[Flip]] = {}
    for tried in tries:
        if tried.takes_part and tried.after is not None:
            own.setdefault(tried.group, set()).update(set(tried.flips) - taken)
    before = order[at - 1] if at else None
    split = one.after != BEGINNING and bool(order[one.after].flips) and order[one.after].taken is None
    if split and any(tried.takes_part and isinstance(tried.after, int) for tried in tries):
        return "it goes on from a checkpoint of a step after which a bit was flipped in one group and not in another"
    if split and one.after != at - 1:
        return "it goes back to a step after which a bit was flipped in one group and not in another"
    # where one group alone went on without a heal, the others have its state
    if split and len(own) != 1 and any(tried.takes_part and tried.after is None for tried in tries):
        return "a group goes on that healed, from one in which a bit was flipped or from another"
    if any(tried.unclear for tried in tries):
        return "a bit was flipped in the step in which its group healed"
    one.flips = {g: sorted(flips, key=lambda flip: flip.t) for g, flips in sorted(own.items()) if flips}
    if not one.flips:
        return ""
    heals = any(tried.after is None for tried in tries)
    known = set().union(*before.flips.values()) if before is not None else set()
    if heals and not known >= set().union(*one.flips.values()):
        return "a bit was flipped in the step in which another group healed"
    if len(one.flips) == len(own) > 1:
        return "each group that goes on has flipped bits of its own"
    if len(one.flips) == len(own):
        (one.taken,) = one.flips
        taken.update(*one.flips.values())
    elif heals:
        return "a group healed, from one in which a bit was flipped or from another"
    return ""
