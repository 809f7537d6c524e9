"""Defines what a round decides: actions, the next memory, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.model.incident import Incident, Suspicion
from supervisor.core.model.kinds import Rung, Verb
from supervisor.core.model.memory import Memory
from supervisor.core.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing done about the cluster. `key` is the same however often it is decided again from the same memory."""

    verb: Verb
    key: str
    reason: Reason
    group: int | None = None
    generation: int | None = None
    node: str = ""
    nodes: tuple[str, ...] = ()
    """All nodes of a group on several that is started."""
    rung: Rung | None = None
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Result of a round: what to remember, what was done and why, what is waited for, and when to look again."""

    memory: Memory
    actions: tuple[Action, ...] = ()
    waits: tuple[Reason, ...] = ()
    """One for each thing that is not done yet."""
    incidents: tuple[Incident, ...] = ()
    """Incidents that changed."""
    suspicions: tuple[Suspicion, ...] = ()
    """New suspicions."""
    acquitted: tuple[tuple[str, str], ...] = ()
    """Host and incident of suspicions that were not the host's doing after all: they are held no more."""
    look_again_at: float | None = None
