"""How long things take in the simulator, from data files."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

Span = tuple[float, float]
"""Least and most, in seconds: drawn evenly."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """In seconds. The files: data/pace/."""

    step_s: float
    """From one committed step to the next."""
    start_s: Span
    """From its start until a trainer is built, where its group ran before."""
    move_s: Span
    """The same on another node: of what was read there is nothing in memory, and the next spare gets ready meanwhile."""
    term_s: Span
    """From TERM to the end of a trainer that lives."""
    lag_s: Span
    """From a change to the agent's turn."""
    delay_s: Span
    """From a write to its watchers."""
    turn_s: float
    """From a change to the loop's turn."""
    turn_s_a_node: float
    """The same, for each node more: what comes within is seen at once. The real loop waits for nothing, but a turn over 500 nodes
    takes it some hundredths of a second, and longer on a busy machine."""
    idle_s: float
    """Longest sleep of the loop."""
    poll_s: float
    """How often the scheduler is asked."""
    queue_s: Span
    """From asking for an allocation until it is granted."""
    boot_s: Span
    """From a grant until the node's agent takes its first turn."""
    kill_s: Span
    """From the end of an allocation until its processes are ended."""
    gate_tick_s: float
    """How often the gate looks at its connections; the heartbeat timeout of a model's run is at least twice this."""
    heal_s: Span
    """So much longer a step takes all its members in which one of them heals: a new process group, and the state's way."""
    rejoin_s: float
    """From the opening of a new gate until those who wait for it step again, less what remains of a step."""
    back_s: Span
    """From the death of a supervisor to its next process."""


def pace(path: Path | None = None) -> Pace:
    """Of a file, or the one that the seeds are played with; raises ValueError for a file that is none."""
    text = (
        (resources.files("fault_injection.sim") / "data/pace/seeds.toml").read_text()
        if path is None
        else path.read_text()
    )
    body: dict[str, Any] = tomllib.loads(text)
    if wrong := {f.name for f in fields(Pace)} ^ body.keys():
        raise ValueError(f"{path}: {', '.join(sorted(wrong))} missing, or not known")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
    return Pace(**given)
