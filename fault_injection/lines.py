"""What a line of a record has to be before a checker may count on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAY_BE_NO_NUMBER = frozenset({"loss", "gradient_norm", "within_s", "others_within_s"})
"""What a model computes, and what is promised: that such a number is none is for a checker to say."""


def not_finite(body: Any, name: str = "") -> str:
    """The name of a number in a JSON body that is none, or is infinite; empty: there is no such. JSON knows neither, Python's does."""
    if isinstance(body, float):
        return "" if math.isfinite(body) else name or "it"
    if isinstance(body, Mapping):
        found = (not_finite(value, str(key)) for key, value in body.items() if key not in MAY_BE_NO_NUMBER)
        return next(filter(None, found), "")
    if isinstance(body, list):
        return next(filter(None, (not_finite(value, name) for value in body)), "")
    return ""


def wrong_with(line: Mapping[str, Any]) -> str:
    """Why a line is none of a rank's step record, as the end of a sentence; empty: it may be one."""
    for name in ("t", "start", "step"):
        if not isinstance(line.get(name, 0), int | float):
            return f"its {name} is no number"
    if line.get("event") == "step" and line.get("committed"):
        # of who does not say its quorum, or a loss, the checkers and the twin say so
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
