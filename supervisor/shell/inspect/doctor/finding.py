"""The doctor's result for one thing that it examined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing examined: its level, a sentence, and what to do."""

    level: Literal["good", "note", "bad"]
    what: str
    do: str = ""


def good(what: str) -> Finding:
    return Finding(level="good", what=what)


def note(what: str, do: str) -> Finding:
    return Finding(level="note", what=what, do=do)


def bad(what: str, do: str) -> Finding:
    return Finding(level="bad", what=what, do=do)
