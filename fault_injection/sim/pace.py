"""Defines how long things take in the simulator, from data files."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

Span = tuple[float, float]
"""Least and most seconds, drawn uniformly."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Durations in seconds. The files: data/pace/."""

    step_s: float
    """From one committed step to the next."""
    start_s: Span
    """From a trainer's start until it is built, where its group ran before."""
    move_s: Span
    """The same on another node: nothing read before is in its memory, and the next spare gets ready meanwhile."""
    term_s: Span
    """From TERM to the end of a trainer that lives."""
    lag_s: Span
    """From a change to the agent's turn."""
    delay_s: Span
    """From a write to its watchers."""
    turn_s: float
    """From a change to the loop's round."""
    turn_s_a_node: float
    """The same, added for each node; changes within it are seen at once. The real loop waits for nothing. A round over
    500 nodes takes it some hundredths of a second, and longer on a busy machine."""
    idle_s: float
    """Longest sleep of the loop."""
    poll_s: float
    """How often the scheduler is polled."""
    queue_s: Span
    """From the request for an allocation until it is granted."""
    boot_s: Span
    """From a grant until the node's agent takes its first turn."""
    kill_s: Span
    """From the end of an allocation until its processes are ended."""
    gate_tick_s: float
    """How often the gate looks at its connections; the heartbeat timeout of a model's run is at least twice this."""
    heal_s: Span
    """The time that a heal adds to the step of all members: a new process group, and the transfer of the state."""
    rejoin_s: float
    """From the opening of a new gate until the groups that wait for it step again, less the rest of a step."""
    back_s: Span
    """From the death of a supervisor to its next process."""


def pace(path: Path | None = None) -> Pace:
    """Returns the pace of a file, or the default of the seeds. Raises ValueError for a file that holds none."""
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
