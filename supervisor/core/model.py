"""The values that `decide` reads and writes. All are frozen; times are seconds on the run clock (ADR 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from supervisor.core.kinds import PLANNED as PLANNED
from supervisor.core.kinds import Kind as Kind
from supervisor.core.kinds import Rung as Rung
from supervisor.core.measured import NOTHING, Measured
from supervisor.core.reason import Reason


class Confidence(StrEnum):
    """Certainty of a kind and a culprit."""

    CERTAIN = "certain"
    """Reported by one that must know: a process's parent, the kernel, the engine, a person."""
    LIKELY = "likely"
    """No other cause of the evidence is as common."""
    SUSPECTED = "suspected"
    """Found by comparing alone."""


class Verdict(StrEnum):
    """Health of a node by the evidence."""

    HEALTHY = "healthy"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk, with the generation that wrote it."""

    step: int
    path: str
    group: int
    generation: int


# --- observed ---


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckView:
    """As `supervisor.wire.records.Stuck`."""

    activity: str
    activity_s: float = 0.0
    bound_s: float = 0.0
    usual_s: float = 0.0
    process: str = ""
    stack: str = ""
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeView:
    """As `supervisor.wire.records.LossSpike`."""

    step: int
    loss: float
    usual: float
    spreads: float
    own: float
    own_usual: float
    own_spreads: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank as its node's agent reports it."""

    group: int
    generation: int
    rank: int
    state: Literal["starting", "running", "exited"]
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    """Type and message of the exception that ended it, as far as it left them."""
    trace: str = ""
    """Newest frames of that exception's traceback."""
    last_words: str = ""
    """Last words of its log."""
    told: str | None = None
    """Reason why the node's own supervisor sent the signal that ended it; empty: it sent none. None: unknown."""
    oom: bool | None = None
    """True if the kernel killed for memory where it ran, shortly before its end. None: unknown."""
    kernel: str = ""
    """Words of the kernel's log about that kill."""
    ended_s: float = 0.0
    """Time by its node's clock, which orders the ends of the node's ranks. 0: unknown."""
    disk: str = ""
    """Reason why nothing could be written on its node when it ended; empty: something could, or unknown."""
    phase: str = "starting"
    step: int = 0
    commits: int = 0
    step_s: float = 0.0
    checkpoint: Checkpoint | None = None
    save_failed: str = ""
    """Reason why its newest checkpoint failed, while it runs; empty: it did not."""
    heal_failed: str = ""
    """Sentence about its heals that fail again and again; empty: they do not."""
    quorum_id: int = -1
    participants: int = 0
    """Number of groups that made its newest step; 0: unknown. A group that heals in a step is not among them."""
    healed: bool | None = None
    """True if this process has loaded its peers' state, and so stepped with them. None: unknown (an older input)."""
    gate: str | None = None
    """Address to which its forwarder passes on; empty: it has cut. None: not reported by its agent."""
    reaches_gate: bool | None = None
    numerics: str = ""
    """Set if a number that is not finite ended it; as `supervisor.wire.records.Progress.numerics`."""
    spike: SpikeView | None = None
    """Loss above the usual, in one of its last steps."""
    compute_s: float = 0.0
    """Median time that its last steps took it alone, without its data and waits for others; 0: not known yet."""
    data_s: float = 0.0
    """As compute_s, for its data."""
    compute_past_s: float = 0.0
    """compute_s when this generation began; 0: not known yet."""
    data_past_s: float = 0.0
    stuck: StuckView | None = None
    """Set if its step has taken longer than its agent has learned that it may."""
    stopped: str = ""
    """Reason why the kernel lets it do nothing, as the end of a sentence; empty: it may run, or unknown."""
    stopped_s: float = 0.0
    measured: Measured = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """Fact that a node's agent reports about one of its GPUs."""

    kind: str
    """Name in `supervisor.core.gpu`."""
    evidence: str
    """Sentence that names the GPU."""
    xid: int = 0
    rank: int | None = None
    """Local rank that uses it; None: unknown."""
    during: frozenset[tuple[int, int]] | None = None
    """(group, generation) of this run that ran on the node when it happened. None: it holds now, for all there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. `registered` is true while its agent's lease lives."""

    name: str
    registered: bool
    host: str = ""
    """Machine, as its engine names it; empty: the same name."""
    leaving: str = ""
    """Reason why the scheduler will end the node soon, as it has announced there; empty: it has not."""
    allocation: str = ""
    role: Literal["trainer", "service"] = "trainer"
    slots: int = 1
    warm: bool = False
    """True if its warm process is ready: a group starts there without importing anything first."""
    ranks: tuple[RankView, ...] = ()
    checking: bool = False
    """True while its machine is being checked: no group is started there before that has ended."""
    failed: str = ""
    """Sentence about its own newest checks that failed: no group is started there any more, not even in place."""
    unsure: str = ""
    """Reason why its checks could not be done. No group is placed there, but one may be started again in place."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Other conditions of the machine now, as its agent reports them: kind -> a sentence."""
    gpus: tuple[GpuFact, ...] = ()
    lighthouses_ended: tuple[int, ...] = ()
    """Generations of the run's lighthouse that ran here and have ended."""
    store_ms: float = 0.0
    """Usual time of etcd's answer to a report of its agent; 0: unknown."""

    @property
    def machine(self) -> str:
        """Name of its host, to which cordons apply."""
        return self.host or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """The gate of the seat: per group, the generation that it admits (all older ones are cut) and what it hears."""

    node: str
    generation: int
    address: str
    present: bool = True
    """True if its lease lives. Its record outlives it: an admission never goes back."""
    admitted: Mapping[int, int] = field(default_factory=dict)
    hearing: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Status of an allocation that we asked for, as the engine reports it."""

    key: str
    state: Literal["pending", "granted", "gone", "refused"]
    nodes: tuple[str, ...] = ()
    engine_id: str = ""
    reason: str = ""
    """Reason for this state, in the engine's own words."""
    leaving: str = ""
    """Reason why the engine is about to take a granted allocation away; empty: it is not."""
    leaves_in_s: float = 0.0
    """Seconds from that notice until it takes it away (preempted, with a grace); 0: unstated."""
    ended: bool = False
    """Gone, and the engine reports that its processes have ended: not so after a failed host, or while it ends them."""
    exhausted: bool = False
    """Pending without a queue: the engine has no node left to give until a person adds some, or one is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """Requests of a person."""

    paused: bool = False
    stop: bool = False
    restarts: Mapping[int, int] = field(default_factory=dict)
    resumes: int = 0
    because: str = ""
    down: int = 0
    """Times that a person declared a lost lighthouse's host, and the trainers on its side, to be down."""
    evictions: int = 0
    """Times that a person gave lost nodes up, however many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonView:
    """Reasons that keep groups away from a host."""

    why: str = ""
    """Reason why it is barred for every run; empty: it is not."""
    drain: str = ""
    """Reason why its groups must leave it; empty: they may stay."""
    ours: bool = False
    """True if an incident of this run is held against it."""
    passed: str = ""
    """Checks that passed there, after which an incident of this run is held no more; empty: none."""
    failed: bool = False
    """True if its own checks failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """The run's folder of checkpoints, as the leader's host sees it."""

    at: float
    """Time when the newest listing began, on the run clock; -1 before the first one has ended."""
    complete: tuple[Checkpoint, ...] = ()
    """Complete checkpoints, the newest first."""
    others: tuple[str, ...] = ()
    """A sentence for each entry that is no complete checkpoint of the run: torn, or foreign."""
    unseen: str = ""
    """Reason why the folder cannot be listed from here; empty: it was listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One etcd revision, and the time at which it was looked at."""

    revision: int
    now: float
    store_stable_s: float
    """Seconds for which the store has answered without a gap. Below one lease nothing is escalated: leases that lapse
    right after an outage of the store prove nothing about the nodes."""
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    gate: GateView | None = None
    grants: Mapping[str, Grant] = field(default_factory=dict)
    engine_listed_at: float | None = None
    """Time when the engine's newest written list began, on the run clock; None: unknown."""
    engine_word_s: float = 0.0
    """Seconds that the run's engine takes now to report that it took an allocation away, if slower than usual."""
    control: ControlView = field(default_factory=ControlView)
    cordons: Mapping[str, CordonView] = field(default_factory=dict)
    """By host: cordons by a person, and by the incidents of any run."""
    disk: DiskView | None = None
    """None: no one lists the folder of checkpoints."""


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


# --- memory ---


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
class Shown:
    """A failure that was acted on, and where the group was."""

    kind: Kind
    host: str
    incident: str
    at: float
    """Time on the run clock."""
    step: int
    same: str = ""
    """As in Failure; empty if all of the kind are alike."""
    followed: bool = False
    """True if it has come again on another host: no host is at fault."""


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


RunPhase = Literal["new", "running", "stopping", "stopped", "finished", "halted", "resuming"]

GroupPhase = Literal["unplaced", "fencing", "placing", "starting", "running", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """One replica group, as we want it.

    unplaced: never started. fencing: the old generation must be proved gone or shut out first. placing: it is, and a
    node is looked for. starting: a node has it, no commit yet. running: it has committed. finished: ended cleanly.
    """

    group: int
    generation: int = 0
    node: str = ""
    host: str = ""
    """Machine of the node, kept beyond the node's registration. Empty: the node's name."""
    allocation: str = ""
    """Key of the allocation that placed it, kept until it is placed again: the node may be another's by then."""
    phase: GroupPhase = "unplaced"
    since: float = 0.0
    incident: str = ""
    """Open incident of this group, if any."""
    attempts: int = 0
    """Recoveries in a row without a healthy stretch between."""
    not_before: float = 0.0
    """Earliest time of the next start (backoff)."""
    old_node: str = ""
    """Node of the generation that is being fenced."""
    checkpoint: Checkpoint | None = None
    """Checkpoint that the current generation was started with."""
    resume: Literal["disk", "peers"] = "disk"
    seen: Seen | None = None
    oom_at: float | None = None
    """Time when it was last killed for memory, on the run clock. None: never since a person resumed the run."""
    oom_host: str = ""
    restarts_here: tuple[float, ...] = ()
    """Times of restarts in place that may be its host's fault, on the run clock; the newest are kept."""
    restarts_host: str = ""
    """Host of those restarts."""
    shown: tuple[Shown, ...] = ()
    """Newest failure of each kind that may follow it to another host."""
    left_out: Reason | None = None
    """Reason why it is suspended, until a person asks for it or a budget has one left. None: it is not."""

    def waits_for_long(self, now: float, for_s: float) -> bool:
        """Returns true if it has had no node for that many seconds. Its allocation may take hours. No group waits for
        it any more in a quorum or a collective, and none ends by its loss."""
        return not self.node and self.phase in ("unplaced", "placing") and now - self.since >= for_s


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
    costs: tuple[str, ...] = ()
    """Cost of each alternative when it was decided, in lost group-seconds until the group steps again."""
    state: Literal["open", "acting", "recovered", "halted"] = "open"
    opened: float = 0.0
    decided: float | None = None
    acted: float | None = None
    recovered: float | None = None
    """Time when its group was first seen to have committed a step with the others (follow.with_the_others)."""
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
    resumed: str = ""
    """Checkpoint that the group was started from, and those passed over. Empty: it healed, or was not started."""


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

    said: str
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
    stop_by: float | None = None
    """Time when groups that have not ended after that step are ended, on the run clock. None: it is not stopping."""
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
    """Keys of signs (core/signs.py) -> since when."""
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
    measured: Measured = NOTHING
    """Durations for which its timeouts must leave room."""


# --- decision ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing done about the cluster. `key` is the same however often it is decided again from the same memory."""

    verb: Literal[
        "start",
        "fence",
        "place",
        "cordon",
        "uncordon",
        "acquire",
        "release",
        "lighthouse",
        "close_lighthouse",
        "ride_through",
        "stop",
        "halt",
        "resume",
        "checkpoint",
        "load",
        "move",
        "hand_over",
        "observe",
        "hold",
        "let_go",
    ]
    key: str
    reason: Reason
    group: int | None = None
    generation: int | None = None
    node: str = ""
    rung: Rung | None = None
    incident: str = ""


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
