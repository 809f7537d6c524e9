"""Validates lines of records before a checker may rely on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from supervisor.wire.records import Account

MAY_BE_NO_NUMBER = frozenset({"loss", "gradient_norm", "within_s", "others_within_s"})
"""Computed by a model, or promised: a checker judges whether such a number is finite."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Group = Annotated[str, Field(pattern="^[0-9]{1,5}$")]
"""A name in JSON: a number below MAX_GROUPS."""


@checked(kw_only=True)
class _Intent:
    t: Number
    epoch: StrictInt
    decision: StrictInt
    actions: list[dict[str, Any]] = Field(default_factory=list)
    incidents: list[dict[str, Any]] = Field(default_factory=list)
    groups: dict[Group, dict[str, Any]] = Field(default_factory=dict)


@checked(kw_only=True)
class _Outcome:
    t: Number
    epoch: StrictInt
    decision: StrictInt
    revision: StrictInt | None = None
    refused: StrictStr = ""


@checked(kw_only=True)
class _Event:
    t: Number
    silent_s: Number | None = None


@checked(kw_only=True)
class _Term(_Event):
    epoch: StrictInt


@checked(kw_only=True)
class _Relaunched(_Event):
    groups: StrictInt


@checked(kw_only=True)
class _Accounted(_Event):
    account: Account


@checked(kw_only=True)
class _Shim:
    t: Number
    event: StrictStr = ""


@checked(kw_only=True)
class _OfProcess(_Shim):
    name: StrictStr
    pid: StrictInt
    exit_code: StrictInt | None = None


@checked(kw_only=True)
class _Ended(_OfProcess):
    signal: StrictInt | None = None


@checked(kw_only=True)
class _Signalled(_OfProcess):
    signal: StrictInt
    cut_off_s: Number | None = None


_JOURNAL: Mapping[str, TypeAdapter[Any]] = {"intent": TypeAdapter(_Intent), "outcome": TypeAdapter(_Outcome)}
_EVENT: TypeAdapter[Any] = TypeAdapter(_Event)
_EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "term": TypeAdapter(_Term),
    "relaunch": TypeAdapter(_Relaunched),
    "account": TypeAdapter(_Accounted),
}
_SHIM: TypeAdapter[Any] = TypeAdapter(_Shim)
_ENDED: TypeAdapter[Any] = TypeAdapter(_Ended)
_SIGNALLED: TypeAdapter[Any] = TypeAdapter(_Signalled)


def not_finite(body: Any, name: str = "") -> str:
    """Returns the name of a number in a JSON body that is not finite; empty: all are. Python's JSON allows them."""
    if isinstance(body, float):
        return "" if math.isfinite(body) else name or "it"
    if isinstance(body, Mapping):
        found = (not_finite(value, str(key)) for key, value in body.items() if key not in MAY_BE_NO_NUMBER)
        return next(filter(None, found), "")
    if isinstance(body, list):
        return next(filter(None, (not_finite(value, name) for value in body)), "")
    return ""


def wrong_with(line: Mapping[str, Any]) -> str:
    """Returns why a line cannot be part of a rank's step record, as the end of a sentence; empty: it can."""
    for name in ("t", "start", "step"):
        if not isinstance(line.get(name, 0), int | float):
            return f"its {name} is no number"
    if line.get("event") == "step" and line.get("committed"):
        # where a quorum or a loss is missing, the checkers and the twin report it
        needs = ("t", "step", *(("participants",) if line.get("quorum_id") is not None else ()))
        if missing := [name for name in needs if line.get(name) is None]:
            return f"it is of a committed step, and has no {missing[0]}"
        for name, kind in (
            ("quorum_id", int),
            ("participants", int),
            ("loss", int | float),
            ("gradient_norm", int | float),
        ):
            if line.get(name) is not None and not isinstance(line[name], kind):
                return f"its {name} is no {'whole ' if kind is int else ''}number"
    seconds = line.get("seconds", {})
    if not isinstance(seconds, Mapping) or not all(isinstance(each, int | float) for each in seconds.values()):
        return "its seconds are not numbers by name"
    infinite = not_finite(line)
    return f"its {infinite} is no finite number" if infinite else ""


def wrong_with_journal(line: Mapping[str, Any]) -> str:
    """Returns why a line cannot be part of a journal, as the end of a sentence; empty: it can."""
    event = _EVENTS.get(str(line.get("event")), _EVENT)
    return wrong_by(_JOURNAL.get(str(line.get("entry")), event), line)


def wrong_with_shim(line: Mapping[str, Any]) -> str:
    """Returns why a line cannot be part of a shim's history, as the end of a sentence; empty: it can."""
    named = _SIGNALLED if line.get("event") == "signalled" else _ENDED
    return wrong_by(named if line.get("name") else _SHIM, line)


def wrong_by(shape: TypeAdapter[Any], line: Mapping[str, Any]) -> str:
    """Returns what it lacks of a shape, or has wrong, as the end of a sentence; empty: nothing."""
    try:
        shape.validate_python(line)
    except ValidationError as error:
        return first_of(error)
    return ""


def first_of(error: ValidationError) -> str:
    """Returns the first error, with its place."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
