"""Reads the codes and values of reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from supervisor.core.model.kinds import Kind
from supervisor.core.model.reason import Code, Reason, strings

STARTS = Reason.of(Code.RUN_STARTS)
WITHOUT_SPARE = frozenset({Code.NO_SPARE, Code.SPARE_ILL, Code.SPARE_GONE})
"""Codes for which the move to a spare was passed over."""
SEGFAULT = Reason.of(Code.ENDED_BY_SIGNAL, rank=0, name="SIGSEGV", signal=11)


def text(sentence: str) -> Reason:
    """Returns a sentence as a reason, as one of an older version is read."""
    return Reason.of(Code.TEXT, text=sentence)


def held_against(incident: str, kind: Kind) -> Reason:
    """Returns the reason for which a host is cordoned."""
    return Reason.of(Code.HOLDS_AGAINST, incident=incident, kind=kind.value)


def codes(*reasons: Reason | None) -> set[str]:
    """All codes in these reasons: their own, and those of the reasons that they are about."""
    found: set[str] = set()
    for reason in reasons:
        if reason is not None:
            found.add(reason.code)
            for value in reason.about.values():
                each = value if isinstance(value, tuple) else (value,)
                found |= codes(*(one for one in each if isinstance(one, Reason)))
    return found


def passed(considered: Iterable[Reason]) -> list[str]:
    """Rungs that were passed over, in order; an empty name for a reason that is not about passing over one."""
    return ["replace" if reason.code in WITHOUT_SPARE else str(reason.about.get("rung", "")) for reason in considered]


def spent(rung: str, allowed: int = 1, window_s: float = 3600.0) -> Reason:
    return Reason.of(Code.BUDGET_SPENT, rung=rung, allowed=allowed, window_s=window_s)


def texts(*reasons: Reason | None) -> str:
    """All texts among the reasons' values, which came from outside."""
    return " ".join(strings(reason for reason in reasons if reason is not None))


def values(reasons: Iterable[Reason | None], code: Code) -> list[dict[str, Any]]:
    """The values of each reason of this code, in order, also of those inside others. The group of an ABOUT_GROUP is a
    value of all that it holds."""
    return list(_values(reasons, code, {}))


def _values(reasons: Iterable[Any], code: Code, group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for reason in reasons:
        if isinstance(reason, Reason):
            if reason.code == code:
                yield {**group, **reason.about}
            inside = {"group": reason.about["group"]} if reason.code == Code.ABOUT_GROUP else group
            for value in reason.about.values():
                yield from _values(value if isinstance(value, tuple) else (value,), code, inside)
