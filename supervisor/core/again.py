"""Compares the answer that `decide` gives today with the one that it gave once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from supervisor.core.model import Action, Decision, Incident
from supervisor.core.reason import Reason
from supervisor.core.words import say


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of a decision that is compared: its actions, and the incidents that changed."""

    actions: tuple[Action, ...] = ()
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """How two answers compare. same: word for word. words: same actions, other reasons. another: other actions."""

    verdict: Literal["same", "words", "another"]
    differences: tuple[str, ...] = ()


def answer(decision: Decision) -> Answer:
    """Returns the part of a decision that is compared. Its waits are left out: a wait does nothing."""
    return Answer(decision.actions, decision.incidents)


def compare(then: Answer, today: Answer) -> Compared:
    """Compares two answers; each difference is a sentence."""
    told, done = _differences(then, today), _differences(_without_words(then), _without_words(today))
    verdict: Literal["same", "words", "another"] = "another" if done else "words" if told else "same"
    return Compared(verdict, tuple(done or told))


def _differences(then: Answer, today: Answer) -> list[str]:
    found = _in({a.key: a for a in then.actions}, {a.key: a for a in today.actions}, "action")
    found += _in({i.id: i for i in then.incidents}, {i.id: i for i in today.incidents}, "incident")
    order = [[a.key for a in who.actions] for who in (then, today)]
    return found or ([] if order[0] == order[1] else ["the actions are in another order"])


def _in(then: Mapping[str, Action | Incident], today: Mapping[str, Action | Incident], what: str) -> list[str]:
    found = [f"{what} {name}: then, and not today" for name in then if name not in today]
    found += [f"{what} {name}: today, and not then" for name in today if name not in then]
    for name, value in then.items():
        if name in today:
            found += [
                f"{what} {name}: {f.name} was {_short(was)}, today it is {_short(now)}"
                for f in fields(value)
                if (was := _told(getattr(value, f.name))) != (now := _told(getattr(today[name], f.name)))
            ]
    return found


def _told(value: object) -> object:
    """Renders reasons as sentences: an older version recorded no other form."""
    if isinstance(value, Reason):
        return say(value)
    return tuple(map(_told, value)) if isinstance(value, tuple) else value


def _short(value: object) -> str:
    text = "; ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _without_words(given: Answer) -> Answer:
    """Drops the fields that only explain an answer."""
    incidents = (
        replace(i, reason=None, evidence=(), considered=(), costs=(), trace="", error="", took_s=0.0)
        for i in given.incidents
    )
    return Answer(tuple(replace(a, reason=Reason("")) for a in given.actions), tuple(incidents))
