"""Engines, and what the rules need to know of each: one row an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from supervisor.core.model.spec import AllocationSpec

EngineName = Literal["local", "slurm", "pool"]
"""Engines that a run file may name. Each has a row here, and one in supervisor/shell/engines/registry.py. A pool is none:
it lends nodes that another engine gave (supervisor/core/remediation/lending.py)."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Answers to the questions that the rules ask about an engine."""

    word_s: float
    """Seconds until it reports that it took an allocation away, unless it is slower than usual
    (Observed.engine_word_s). Without that report a cancelled job looks like a lost node, whose host is cordoned."""
    warns: bool
    """True if it announces that it will take a node, as long before as its key `warn_s` states."""
    lends: bool = False
    """True for what gives nodes of the pool that allocation.pool names."""


TRAITS: Mapping[EngineName, EngineTraits] = {
    # the leader asks it every 0.25 s: within two such periods it has reported that an allocation is gone
    "local": EngineTraits(word_s=0.6, warns=False),
    # asked every second
    "slurm": EngineTraits(word_s=2.2, warns=True),
    # it lends nodes of any engine, whose word it passes on: that of the slowest is waited for
    "pool": EngineTraits(word_s=2.2, warns=False, lends=True),
}


def word_s(allocation: AllocationSpec) -> float:
    """EngineTraits.word_s of the run's engine."""
    return TRAITS[allocation.engine].word_s


def warning_s(allocation: AllocationSpec) -> float:
    """Seconds between the warning and the end of a node, unless the engine sets another time."""
    return float(allocation.slurm.warn_s)
