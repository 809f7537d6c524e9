"""Durations that a run was seen to take, for which its timeouts must leave room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

CLASS = 2.0
"""Factor by which a measurement must differ from the known one to be written: a step that goes well writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured durations; 0: not measured (yet)."""

    step_s: float = 0.0
    """Ordinary step: the median of the slowest rank's last ones."""
    longest_step_s: float = 0.0
    """Longest of the same steps."""
    collective_s: float = 0.0
    """Longest time of a rank inside a collective of a step that it committed; seen five times a second."""
    apart_s: float = 0.0
    """Longest checkpoint or heal."""
    pause_s: float = 0.0
    """Longest time that the evaluations, or the compiles, of one step took."""
    start_s: float = 0.0
    """Longest time from a rank's start to its first commit, without waits for a lighthouse that was away."""
    gate_ms: float = 0.0
    """Round trip from a forwarder to the gate: the median of the slowest's last ones, rounded up to a power of two."""
    store_ms: float = 0.0
    """Time of etcd's answer to an agent's report; as `gate_ms`."""
    engine_word_s: float = 0.0
    """Longest time that the engine took to report that an allocation is gone."""


NOTHING = Measured()
USUAL = ("step_s", "gate_ms", "store_ms")


def together(found: Iterable[Measured]) -> Measured:
    """Takes the longest of each."""
    told = [each for each in found if each is not NOTHING] or [NOTHING]
    return Measured(**{name: max([getattr(each, name) for each in told]) for name in _NAMES})


def remembered(known: Measured, seen: Measured) -> Measured:
    """Merges new measurements into the known ones. Longest times only grow; usual ones may become shorter."""
    return Measured(**{name: _kept(name, getattr(known, name), getattr(seen, name)) for name in _NAMES})


def _kept(name: str, known: float, seen: float) -> float:
    grown = seen > CLASS * known
    shrunk = name in USUAL and 0 < seen < known / CLASS
    return seen if grown or shrunk else known


_NAMES = tuple(field.name for field in fields(Measured))
