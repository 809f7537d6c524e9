"""Defines a row of the table of timeouts, and the arithmetic of bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bound:
    value: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One timeout. All its values are in `unit`."""

    key: str
    """Name in the run file; "the engine's word" is the one row without."""
    unit: Literal["ms", "s", ""]
    value: float
    least: Bound
    best: Bound
    most: Bound | None = None
    measured: str = ""
    """Source of `best` and `least`, or that they are not measured yet; empty for a choice that needs no measurement."""

    @property
    def state(self) -> Literal["unsafe", "tight", "fits"]:
        if self.value < self.least.value or (self.most is not None and self.value > self.most.value):
            return "unsafe"
        return "tight" if self.value < self.best.value else "fits"

    @property
    def settable(self) -> bool:
        return "." in self.key

    @property
    def sentence(self) -> str:
        """The problem with the value; empty if it fits."""
        unit = f" {self.unit}" if self.unit else ""
        if self.value < self.least.value:
            least = f"{self.least.value:.10g}"
            return f"{self.key} = {self.value:.10g} is below {least}{unit}: {self.least.why}; at least {least}"
        if self.most is not None and self.value > self.most.value:
            most = f"{self.most.value:.10g}"
            return f"{self.key} = {self.value:.10g} is above {most}{unit}: {self.most.why}; at most {most}"
        if self.state == "tight":
            return f"{self.key} = {self.value:.10g} is safe but short: {self.best.why}; better {self.best.value:.10g}"
        return ""


def made(*, least: Bound, best: Bound, **rest: Any) -> Row:
    """Makes a row whose best value is never below the least safe one."""
    return Row(least=least, best=highest(best, least), **rest)


def top(row: Row) -> float:
    """The value that rows above must reckon with: this one may still be raised to its best."""
    return max(row.value, row.best.value)


def highest(*bounds: Bound) -> Bound:
    """Returns the highest bound; of equal ones the first."""
    return max(bounds, key=lambda bound: bound.value)


def in_ms(seconds: float) -> int:
    return math.ceil(1000 * seconds)


def above_ms(seconds: float) -> int:
    return math.floor(1000 * seconds) + 1 if seconds else 0


def up(seconds: float) -> float:
    """Rounds up to the next tenth."""
    return math.ceil(round(10 * seconds, 6)) / 10


def said(what: str, seconds: float) -> str:
    return f"{what} {seconds:.3g} s" if seconds else f"{what}: not measured yet"
