"""Finds which decisions of a journal took effect.

A supervisor that dies, or loses the store, writes no outcome of its last decision. Later decisions show it, by what
they built on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Intent(Generic[T]):
    """The line before a transaction, and its outcome."""

    at: int
    """Position of the line among those read."""
    number: int
    kept: T
    """The parts of the line that the reader keeps."""
    only_waits: bool
    """True if it changed nothing; its number is then that of the decision that it found in the store."""
    outcome: Mapping[str, Any] | None = None
    went_on: bool = False
    """True if the store went away during the transaction, and the supervisor lived on."""
    given_again: bool = False
    """True if a later decision has its number: the leader that made that one did not find this one in the store."""
    left_behind: bool = False
    """True if a later decision was made on an older one."""

    @property
    def refused(self) -> str:
        """Reason for which the store refused it; empty if it did not, or if no line says so."""
        return str((self.outcome or {}).get("refused") or "")


@dataclass(slots=True)
class Outcomes(Generic[T]):
    """The intents of a journal, in order, each with its outcome."""

    intents: list[Intent[T]] = field(default_factory=list)
    named: list[tuple[int, Mapping[str, Any], Intent[T] | None]] = field(default_factory=list)
    """Position and line of each outcome, with its intent."""
    told: set[int] = field(default_factory=set)
    """Numbers of all decisions whose outcome is not a refusal."""
    reached: int = 0
    """Newest decision known to have taken effect."""

    def took_effect(self, intent: Intent[T]) -> bool | None:
        """Returns true if the intent took effect; None if the journal does not show it."""
        if intent.outcome is not None:
            return not intent.refused
        if intent.only_waits:
            return True
        known = built_on(intent.number, intent.given_again, self.told, self.reached)
        return False if known is None and intent.left_behind else known


def built_on(number: int, given_again: bool, told: AbstractSet[int], reached: int) -> bool | None:
    """Returns true if a decision without an outcome took effect: a later one was made on it, and no other has its
    number. None: no later one was made."""
    if given_again or number in told:
        return False
    return True if number <= reached else None


def of_journal(lines: Iterable[Mapping[str, Any]], keep: Callable[[Mapping[str, Any]], T]) -> Outcomes[T]:
    """Reads a journal's lines. `keep` picks what is kept of an intent's line, since a long journal exceeds memory."""
    found: Outcomes[T] = Outcomes()
    newest: dict[tuple[int, int], Intent[T]] = {}
    for at, line in enumerate(lines):
        number = int(line.get("decision", 0))
        place = (int(line.get("epoch", 0)), number)
        if line.get("entry") == "intent":
            acts = line.get("changed") or line.get("actions") or line.get("incidents")
            newest[place] = Intent(at, number, keep(line), not acts)
            found.intents.append(newest[place])
            found.reached = max(found.reached, number - 1)
        elif line.get("entry") == "outcome":
            # After a store outage the same leader may decide the same number again: the newest one owns the outcome.
            intent = newest.get(place)
            found.named.append((at, line, intent))
            if intent is not None and intent.outcome is None:
                intent.outcome = line
            if not line.get("refused"):
                found.told.add(number)
                found.reached = max(found.reached, number)
        elif line.get("event") == "outcome_unknown" and place in newest:
            newest[place].went_on = True
    _look_back(found.intents)
    return found


def _look_back(intents: list[Intent[T]]) -> None:
    """Marks intents that later ones contradict. A refused one proves nothing: its leader may have known less."""
    again: set[int] = set()
    least: int | None = None
    for intent in reversed(intents):
        intent.given_again = intent.number in again
        intent.left_behind = least is not None and intent.number > least
        if intent.refused:
            continue
        made_on = intent.number if intent.only_waits else intent.number - 1
        least = made_on if least is None else min(least, made_on)
        if not intent.only_waits:
            again.add(intent.number)
