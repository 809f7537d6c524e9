"""Defines what a run remembers from round to round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from supervisor.core.model.code import CodeVersion
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import GroupPhase, Kind, RunPhase
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.reason import Reason
from supervisor.core.model.seats import Seat, seated


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Last end of a group, and how often it came in a row. Forgotten when the group commits a step past it."""

    same: str
    """As in Failure."""
    step: int
    """Newest committed step, or that of the checkpoint it began with."""
    generation: int
    trained: bool
    """True if it had committed by itself, the last time or one before."""
    times: int = 1
    hosts: tuple[str, ...] = ()
    """Hosts of these ends, each once, in order."""
    outside_since: float | None = None
    """Time since when a shared outage ends it, again and again, on the run clock. None: this end was another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """A failure that was acted on, and where the group was."""

    kind: Kind
    host: str
    incident: str
    at: float
    """Time on the run clock."""
    step: int
    same: str = ""
    """As in Failure."""
    rank: int | None = None
    """Rank at fault, in a group on several nodes: another of its ranks that fails alike has other data and work."""
    followed: bool = False
    """True if it has come again on another host: no host is at fault."""
    restarted: bool = False
    """True if the group was started again in place, and its host may be at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSince:
    """Time since when a group keeps the others waiting."""

    generation: int
    since: float
    """Time on the run clock."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Step of the others when a group began to wait though they had gone on, or when they left it behind, unseen."""

    generation: int
    step: int
    since: float = 0.0
    """Time when that began, on the run clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A start that is late, and waits in its first quorum for others that are at something long."""

    generation: int
    step: int
    """Step of the others at the last look."""
    since: float | None
    """Time of that look, on the run clock. None: it does not wait now."""
    excused_s: float = 0.0
    """Seconds that it had waited before that look while they made no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """One replica group, as we want it.

    unplaced: never started. fencing: it moves, and the old generation must be proved gone or shut out first. placing: a
    node is looked for; where it starts again in place, the agent ends the old generation first. starting: a node has it, no commit yet. running: it has committed. finished: ended cleanly.
    """

    group: int
    generation: int = 0
    size: int = 1
    """Number of nodes that it takes: it runs on all of them or on none."""
    seats: tuple[Seat, ...] = ()
    """Its nodes, in the order of its ranks. Fewer than `size`: it is not placed, and keeps these until it is."""
    left: tuple[Seat, ...] = ()
    """Seats of the generation before, until it is placed again: the one that is fenced, or that ends there."""
    at_fault: tuple[str, ...] = ()
    """Nodes at which its newest failure was seen, if it has several. Empty: the whole group, or unknown."""
    store: str = ""
    """host:port of the store at which the ranks of this generation meet, new for each. Empty: its node chooses one."""
    phase: GroupPhase = "unplaced"
    since: float = 0.0
    incident: str = ""
    """Open incident of this group, if any."""
    attempts: int = 0
    """Recoveries in a row without a healthy stretch between."""
    not_before: float = 0.0
    """Earliest time of the next start (backoff)."""
    checkpoint: Checkpoint | None = None
    """Checkpoint that the current generation was started with."""
    resume: Literal["disk", "peers"] = "disk"
    seen: Seen | None = None
    """Its last end, acted on or not, if it may say something of the program (ADR 21)."""
    failures: tuple[PastFailure, ...] = ()
    """Its failures that were acted on, the oldest first: the newest of each kind, and those that ended in a restart in
    place on one host. Forgotten when a person restarts the group or resumes the run."""
    left_out: Reason | None = None
    """Reason why it is suspended, until a person asks for it or a budget has one left. None: it is not."""
    code: CodeVersion | None = None
    """The code with which the current generation was started. None: what its nodes have, or it was not started yet."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple([seat.node for seat in self.seats])

    @property
    def placed(self) -> bool:
        """True if it has all of its nodes."""
        return bool(self.seats) and len(self.seats) >= self.size

    @property
    def first_node(self) -> str:
        """Names the node of its first ranks, where a record or a text has room for one. Empty: it is not placed."""
        return self.seats[0].node if self.seats else ""

    @property
    def failed_node(self) -> str:
        """Names the first node at which its newest failure was seen, or its first node. Empty: it is not placed."""
        return self.at_fault[0] if self.at_fault else self.first_node

    @property
    def last_node(self) -> str:
        """Names its first node, or the first that it left. Empty: it was never placed."""
        return self.last_seats[0].node if self.last_seats else ""

    @property
    def last_seats(self) -> tuple[Seat, ...]:
        """Its seats, and those that it left and that are not proved empty."""
        if self.placed:
            return self.seats
        return (*self.seats, *(seat for seat in self.left if seat.node not in self.nodes))

    def holds(self, node: str) -> bool:
        return node in self.nodes

    def waits_for_long(self, now: float, for_s: float) -> bool:
        """Returns true if it has lacked a node for that many seconds. Its allocation may take hours. No group waits for
        it any more in a quorum or a collective, and none ends by its loss."""
        return not self.placed and self.phase in ("unplaced", "placing") and now - self.since >= for_s

    def newest(self, kind: Kind) -> PastFailure | None:
        """Returns its newest failure of a kind that was acted on, if any."""
        return next((failure for failure in reversed(self.failures) if failure.kind == kind), None)

    def without_history(self) -> GroupMemory:
        """Returns the group with none of its failures: a person who asks for it has looked."""
        return replace(self, seen=None, failures=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Describes its JSON: that of its fields. The forms of versions 2 and 4 are read too."""
        read = {"type": "no-info", "function": _of_an_earlier_version}
        return {"type": "function-before", "function": read, "schema": handler(source)}


def _of_an_earlier_version(value: Any) -> Any:
    """Reads a group of version 4, which kept the times of restarts in place apart from the newest failure of each kind
    (`shown`); or of version 2 (`seated`)."""
    if not isinstance(value, Mapping) or "failures" in value:
        return value
    times, shown = value.get("restarts_here", []), value.get("shown", [])
    if not isinstance(times, list | tuple) or not isinstance(shown, list | tuple):
        raise ValueError("its failures are no lists")
    # their kinds were not kept; no rule asks for an earlier stall
    stalled = {"kind": Kind.STALLED, "host": value.get("restarts_host"), "incident": "", "step": 0, "restarted": True}
    return {**seated(value), "failures": (*({**stalled, "at": at} for at in times), *shown)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A remedy that was tried: how long it took, and whether that was the end of the failure."""

    seconds: float
    mended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationMemory:
    """An allocation that we want or have given back."""

    key: str
    state: Literal["wanted", "released"]
    since: float
    reason: Reason
    nodes: int = 1
    """Number of nodes, all of which it brings at once."""
    exclude: tuple[str, ...] = ()
    """Hosts that the engine must not give."""
    instead_of: str = ""
    """Key of the allocation whose place it takes, if that one's host is suspect: the engine's `replace`."""
    leaving_since: float | None = None
    """Time when a notice was first seen that it will be taken away."""
    successor: str = ""
    """Key of the one allocation asked for because this one is leaving."""
    late: bool = False
    """True if it was pending beyond `policy.allocation_timeout_s` while a group waited: the run goes on without."""
    unheard_since: float | None = None
    """Run-clock time since when it is granted without its node. None: the node is there, or nothing was granted."""
    unheard: tuple[str, ...] = ()
    """Hosts for which it was released: their nodes did not register, or have an unusable GPU. Others are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lighthouse:
    """The one seat of the run's lighthouse and gate (ADR 6)."""

    node: str = ""
    generation: int = 0
    address: str = ""
    """Address of its gate, once that listens; empty again while it is being closed."""
    opened: float = 0.0
    """Time when that was reported."""
    closing: bool = False
    """True while it must become unreachable, and that is not proved yet."""
    mute_since: float | None = None
    """Time since when its gate's lease is gone, on the run clock."""
    cut_since: float | None = None
    """Time since when all live nodes have reported that their forwarders have cut."""
    quorum_ids_above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The newest start of groups from disk."""

    said: Reason | None
    """As Incident.resumed."""
    generations: Mapping[int, int] = field(default_factory=dict)
    """Group -> its generation then, unless the first. What older ones save later is of steps that were given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that the supervisor remembers of a run."""

    clock: float = 0.0
    """Run clock when this was written."""
    decisions: int = 0
    """Number of decisions that changed this memory; it names each of them."""
    phase: RunPhase = "new"
    halt_reason: Reason | None = None
    """Reason why the run is halted; None: it is not."""
    stop_at_step: int | None = None
    """Step after which all groups end; while it runs, those that a smaller spec has no more. None: no group ends."""
    stop_by: float | None = None
    """Time when groups that have not ended after that step are ended, on the run clock. None: it is not stopping."""
    relaunching: bool = False
    """True if it stops in order to start again by its next spec, on the nodes that it has."""
    from_memory: int = 0
    """Number of the relaunch for which groups keep their state in memory: while they drain, and until one trains again.
    0: none."""
    relaunches: int = 0
    """Number of the newest spec that took the place of the one before (RunRecord.number). 0: there was one alone."""
    surplus: int = 0
    """Allocations to give back, once they are idle: the spec wants fewer than the one before."""
    generations_above: int = 0
    """Highest generation of the groups that a smaller spec has dropped: one of their number begins above it."""
    handover_at_step: int | None = None
    """Step after which all groups end, to start again from its checkpoint: their nodes are leaving. None: none."""
    handover_since: float = 0.0
    groups: Mapping[int, GroupMemory] = field(default_factory=dict)
    allocations: Mapping[str, AllocationMemory] = field(default_factory=dict)
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """Open ones only; the others live in their records."""
    incidents_seen: int = 0
    cordons: Mapping[str, Reason] = field(default_factory=dict)
    """Host -> the incidents for which it gets no group of this run any more, until it is freed."""
    spent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Budget scope -> instants of its draws."""
    spent_by_kind: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """As `spent`, for the kinds that have a budget of their own."""
    tried: Mapping[str, tuple[Tried, ...]] = field(default_factory=dict)
    """Remedy -> its newest tries: a rung, until the group trains or fails again; or the wait for an allocation."""
    all_lost_at: float | None = None
    """Time when the engine last took every allocation of the run, on the run clock."""
    allocations_above: int = 0
    """Number above which allocation keys count, since a backup does not know the lower ones."""
    restarts_done: Mapping[int, int] = field(default_factory=dict)
    resumes_done: int = 0
    downs_done: int = 0
    evictions_done: int = 0
    evict_until: float | None = None
    """Time until which held nodes are given up, however many, by a person's word."""
    breaker_since: float | None = None
    """Time since when the breaker holds; None: it does not."""
    breaker_ended: float | None = None
    """Time when the breaker last let go by itself."""
    lighthouse: Lighthouse = field(default_factory=Lighthouse)
    checkpoint: Checkpoint | None = None
    """Newest complete one that is known: a hint, since more may lie on disk."""
    resumed: Resumed | None = None
    """None: no group was started from disk yet, or no one lists the folder."""
    suspects: Mapping[str, float] = field(default_factory=dict)
    """Keys of signs (core/model/signs.py) -> since when."""
    held_hang: Reason | None = None
    """Reason why nothing is done about a hang. None: there is none, or something is done."""
    slow: Mapping[int, SlowSince] = field(default_factory=dict)
    """Groups that take longer for a step than the others, if the policy acts on it."""
    behind: Mapping[int, Behind] = field(default_factory=dict)
    """Groups that take too long for a step, in a wait for others that are ahead of them."""
    waited: Mapping[int, Waited] = field(default_factory=dict)
    """Groups whose start is late, and has waited for others."""
    silent: tuple[int, ...] = ()
    """Groups that the gate no longer hears: the agents of the others free their ranks from collectives with these."""
    debugged: tuple[int, ...] = ()
    """Groups for which the others wait, since a person has a rank of them in the debugger (`policy.at_breakpoint`)."""
    measured: Measured = NOTHING
    """Durations for which its timeouts must leave room."""
    held_since: float | None = None
    """Time since when a pool holds its nodes, on the run clock. None: it is a run, or a pool that has not begun."""
    idle_since: float | None = None
    """Time since when no run uses the pool, on the run clock. None: one does."""
