"""Defines a failure as it is found, and the incident that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from supervisor.core.model.code import CodeVersion
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Reason


class Confidence(StrEnum):
    """Certainty of a kind and a culprit."""

    CERTAIN = "certain"
    """Reported by one that must know: a process's parent, the kernel, the engine, a person."""
    LIKELY = "likely"
    """No other cause of the evidence is as common."""
    SUSPECTED = "suspected"
    """Found by comparing alone."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One sign that a group failed."""

    kind: Kind
    evidence: tuple[Reason, ...]
    error: str = ""
    trace: str = ""
    same: str = ""
    """Text that is equal for two with the same end, whatever addresses or ports they name; empty: not comparable."""
    rank: int | None = None
    """Rank at fault; None: the whole group, or unknown."""
    nodes: tuple[str, ...] = ()
    """Nodes of a group on several where it was seen; empty: the whole group, or unknown."""
    confidence: Confidence = Confidence.CERTAIN
    outside: bool = False
    """True if a SIGKILL or SIGTERM ended it that neither we nor the kernel sent: it does not count against the host."""
    blameless: bool = False
    """True if another group is known to be the cause: this one is started again, charged to no budget."""
    of_the_model: Reason | None = None
    """Evidence that the model or its data is at fault: many groups computed a non-finite number. None: not so."""
    misconfigured: bool = False
    """True if the rank reported that no machine could train it with this run file."""
    causes: tuple[Kind, ...] = ()
    """Further kinds that it is a failure of: if one of these is only observed, so is this."""
    took_s: float = 0.0
    """Seconds from its first sign until it counted as a failure, by the clock of the watching process. For a silence or
    a lost node, which alone saw its last sign of life, it is at least the timeout. 0: an end, seen at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure, from its first sign to recovery or halt."""

    id: str
    kind: Kind
    group: int
    node: str
    rung: Rung
    generation_before: int
    generation_after: int
    reason: Reason | None
    """Reason for this rung; None: none was decided on."""
    evidence: tuple[Reason, ...]
    considered: tuple[Reason, ...] = ()
    """Alternatives, and why they were not chosen."""
    costs: tuple[Reason, ...] = ()
    """Cost of each alternative when it was decided, in lost group-seconds until the group steps again."""
    state: Literal["open", "acting", "recovered", "halted"] = "open"
    opened: float = 0.0
    decided: float | None = None
    acted: float | None = None
    recovered: float | None = None
    """Time when its group was first seen to have committed a step with the others (group_phases.with_the_others)."""
    step_before: int = 0
    """Newest committed step of the group when it failed."""
    error: str = ""
    """Error text that the rank left, if any."""
    shadow: bool = False
    """True if only observed: nothing was done, and `rung` is what would have been. It recovers only by itself."""
    trace: str = ""
    """Traceback of that error."""
    rank: int | None = None
    confidence: Confidence = Confidence.CERTAIN
    took_s: float = 0.0
    """This and the two before it as in Failure."""
    followed: bool = False
    """True if it had befallen the group on another host too: it is held against none."""
    outside: bool = False
    """As in Failure, for all that happened in it."""
    nodes: tuple[str, ...] = ()
    """Nodes of a group on several where it was seen, `node` among them. Empty: one node a group, or unknown."""
    resumed: Reason | None = None
    """Checkpoint that the group was started from, and those passed over. None: it healed, or was not started."""
    code: CodeVersion | None = None
    """The code that the group ran when it failed. None: what its nodes had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """An incident that is held against a host, since it made a group leave it. A record of its own, for all runs."""

    host: str
    run: str
    incident: str
    kind: Kind
    at: float
    """Time on the run clock, which is one for all runs."""
    freed: str = ""
    """Checks that the host has passed since: the incident is remembered but not held any more. Empty: it is held."""
