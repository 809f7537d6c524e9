"""The values that `decide` reads and writes. All frozen; times are seconds on the run clock (see ADR 3)."""

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
    """How sure a kind and a culprit are."""

    CERTAIN = "certain"
    """Who must know has said it: a process's parent, the kernel, the engine, a person."""
    LIKELY = "likely"
    """What was seen has no other cause that is as common."""
    SUSPECTED = "suspected"
    """Told apart by comparing alone."""


class Verdict(StrEnum):
    """What the evidence says of a node."""

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
    """The traceback of that, its newest frames."""
    last_words: str = ""
    """What the end of its log says."""
    told: str | None = None
    """Why the node's own supervisor sent the signal that ended it; empty: it sent none. None: not known."""
    oom: bool | None = None
    """Whether the kernel killed for memory where it ran, shortly before its end. None: not known."""
    kernel: str = ""
    """What the kernel's log says of that."""
    ended_s: float = 0.0
    """By its node's clock: says which of the node's ranks ended first. 0: not known."""
    disk: str = ""
    """Why nothing could be written on its node when it ended; empty: something could, or it is not known."""
    phase: str = "starting"
    step: int = 0
    commits: int = 0
    step_s: float = 0.0
    checkpoint: Checkpoint | None = None
    save_failed: str = ""
    """Why the newest checkpoint that it was to write failed, while it runs; empty: it did not."""
    heal_failed: str = ""
    """A sentence of its heals that fail again and again; empty: they do not."""
    quorum_id: int = -1
    participants: int = 0
    """How many groups made its newest step; 0: not known. One that heals in a step is not among them."""
    healed: bool | None = None
    """This process has loaded the state of its peers, so it has been in a step with them. None: not known (an older input)."""
    gate: str | None = None
    """Where its forwarder passes on to; empty: it has cut. None: its agent has not said."""
    reaches_gate: bool | None = None
    numerics: str = ""
    """It failed because of a number that is not finite; as `supervisor.wire.records.Progress.numerics`."""
    spike: SpikeView | None = None
    """A loss that is above what is usual, in one of its last steps."""
    compute_s: float = 0.0
    """Median of what its last steps took it alone, without its data and waits for others; 0: not known yet."""
    data_s: float = 0.0
    """As compute_s, for its data."""
    compute_past_s: float = 0.0
    """What compute_s was when this generation began; 0: not known yet."""
    data_past_s: float = 0.0
    stuck: StuckView | None = None
    """Its step has taken longer than its agent has learned that it may."""
    stopped: str = ""
    """Why the kernel lets it do nothing, as the end of a sentence; empty: it may run, or not known."""
    stopped_s: float = 0.0
    measured: Measured = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """What a node's agent says of one of its GPUs."""

    kind: str
    """As `supervisor.core.gpu` names it."""
    evidence: str
    """A sentence that names the GPU."""
    xid: int = 0
    rank: int | None = None
    """Local rank that uses it. None: not known."""
    during: frozenset[tuple[int, int]] | None = None
    """(group, generation) of this run that ran on the node when it happened. None: it holds now, for whoever runs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. `registered` is whether its agent's lease lives."""

    name: str
    registered: bool
    host: str = ""
    """The machine, as its engine names it; empty: the same name."""
    leaving: str = ""
    """The scheduler has told the node that it will end it soon, and why; empty: it has not."""
    allocation: str = ""
    role: Literal["trainer", "service"] = "trainer"
    slots: int = 1
    warm: bool = False
    """Its warm process is ready: a group starts there without importing anything first."""
    ranks: tuple[RankView, ...] = ()
    checking: bool = False
    """Its machine is being checked: no group is started there before that has ended."""
    failed: str = ""
    """What of its own newest checks failed, as a sentence: no group is started there any more, in place neither."""
    unsure: str = ""
    """Why its checks say nothing of it: they could not be done. No group is placed there, but may be started again in place."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else holds on the machine now, as its agent says: kind -> a sentence."""
    gpus: tuple[GpuFact, ...] = ()
    lighthouses_ended: tuple[int, ...] = ()
    """Generations of the run's lighthouse that ran here and have ended."""
    store_ms: float = 0.0
    """How long etcd usually takes for a report of its agent; 0: not known."""

    @property
    def machine(self) -> str:
        """Its host, by name: what a cordon is of."""
        return self.host or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """The gate of the seat: per group the generation that it admits (all older ones are cut) and what it hears of it."""

    node: str
    generation: int
    address: str
    present: bool = True
    """Whether its lease lives. What it said outlives it: an admission never goes back."""
    admitted: Mapping[int, int] = field(default_factory=dict)
    hearing: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the engine says of an allocation that we asked for."""

    key: str
    state: Literal["pending", "granted", "gone", "refused"]
    nodes: tuple[str, ...] = ()
    engine_id: str = ""
    reason: str = ""
    """Why it is in this state, in the engine's own words."""
    leaving: str = ""
    """Granted, but the engine is about to take it away: why. Empty: it is not."""
    leaves_in_s: float = 0.0
    """How long after it began to say so it takes it away (preempted, with a grace); 0: it does not say."""
    ended: bool = False
    """Gone, and the engine says that its processes have ended: not so when its host failed, or while it is being ended."""
    exhausted: bool = False
    """Pending, and not in a queue: the engine has no node left to give until a person adds some, or one is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """What a person asks for."""

    paused: bool = False
    stop: bool = False
    restarts: Mapping[int, int] = field(default_factory=dict)
    resumes: int = 0
    because: str = ""
    down: int = 0
    """How often a person said that a lost lighthouse's host, and the trainers on its side, are down."""
    evictions: int = 0
    """How often a person said that lost nodes are to be given up, however many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonView:
    """What keeps groups away from a host."""

    why: str = ""
    """Why it is barred for every run; empty: it is not."""
    drain: str = ""
    """Why what runs there is to leave it; empty: it may stay."""
    ours: bool = False
    """An incident of this run is held against it."""
    passed: str = ""
    """An incident of this run was held against it until these checks passed there; empty: none was."""
    failed: bool = False
    """Its own checks failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """The run's folder of checkpoints, as the leader's host sees it."""

    at: float
    """When the newest listing began, on the run clock; -1 before the first one has ended."""
    complete: tuple[Checkpoint, ...] = ()
    """The newest first."""
    others: tuple[str, ...] = ()
    """A sentence for each entry that is no complete checkpoint of the run: torn, or foreign."""
    unseen: str = ""
    """Why the folder cannot be listed from here; empty: it was listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One etcd revision and the time at which it was looked at."""

    revision: int
    now: float
    store_stable_s: float
    """How long the store has answered without a gap. Below one lease nothing is escalated: leases that lapse right
    after an outage of the store say nothing about the nodes."""
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    gate: GateView | None = None
    grants: Mapping[str, Grant] = field(default_factory=dict)
    engine_listed_at: float | None = None
    """When the engine's newest list that is written began, on the run clock. None: not known."""
    engine_word_s: float = 0.0
    """How long the run's engine takes now to say that it took an allocation away, when it is slower than usual."""
    control: ControlView = field(default_factory=ControlView)
    cordons: Mapping[str, CordonView] = field(default_factory=dict)
    """By host: those that a person cordoned, and those that incidents of any run are held against."""
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
    """Equal for two that ended in the same way, whatever addresses or ports they name; empty: not comparable."""
    rank: int | None = None
    """Whose it was. None: the whole group's, or not known."""
    confidence: Confidence = Confidence.CERTAIN
    outside: bool = False
    """A SIGKILL or SIGTERM ended it that neither we nor the kernel sent: it says nothing against the host."""
    blameless: bool = False
    """Another group is known to be the cause: this one is started again at no budget."""
    of_the_model: Reason | None = None
    """So many groups computed a number that is not finite that the model or its data is at fault. None: not so."""
    misconfigured: bool = False
    """The rank's own word: no machine could train it with this run file."""
    causes: tuple[Kind, ...] = ()
    """What else it is a failure of: where one of these is only observed, so is this."""
    took_s: float = 0.0
    """How long it had lasted when it counted as a failure, from its first sign: measured by the clock of whoever watched it, but for a
    silence and a lost node, whose last sign of life only they saw; there, at least what their timeout says. 0: an end, seen at once."""


# --- memory ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How a group ended last, and how often in a row. Forgotten when it commits a step past it."""

    same: str
    """As in Failure."""
    step: int
    """Newest committed step, or that of the checkpoint it began with."""
    generation: int
    trained: bool
    """It had committed by itself, the last time or one before."""
    times: int = 1
    hosts: tuple[str, ...] = ()
    """Where, each once, in order."""
    outside_since: float | None = None
    """Since when it has ended by what all nodes share, again and again, on the run clock. None: this end was another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A failure that something was done about, and where the group was."""

    kind: Kind
    host: str
    incident: str
    at: float
    """On the run clock."""
    step: int
    same: str = ""
    """As in Failure; empty where all of the kind are alike."""
    followed: bool = False
    """It has come again on another host: no host is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSince:
    """Since when a group keeps the others waiting."""

    generation: int
    since: float
    """On the run clock."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How far others were when a group had begun to wait though they had gone on, or when, its ranks unseen, they had gone on without
    it."""

    generation: int
    step: int
    since: float = 0.0
    """When that began, on the run clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A start that is late, and waits in its first quorum for others that are at something long."""

    generation: int
    step: int
    """Of the others, when it was looked at."""
    since: float | None
    """When that was looked at, on the run clock. None: it does not wait now."""
    excused_s: float = 0.0
    """How long it had waited before that while they made none."""


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
    """The node's machine: it outlives the node's registration. Empty: the node's name."""
    allocation: str = ""
    """Key of the allocation by which it was placed, kept until it is placed anew: the node may be another's by then."""
    phase: GroupPhase = "unplaced"
    since: float = 0.0
    incident: str = ""
    """Open incident of this group, if any."""
    attempts: int = 0
    """Recoveries in a row without a healthy stretch between."""
    not_before: float = 0.0
    """Backoff: no start before this."""
    old_node: str = ""
    """Where the generation lives that is being fenced."""
    checkpoint: Checkpoint | None = None
    """What the current generation was started with."""
    resume: Literal["disk", "peers"] = "disk"
    seen: Seen | None = None
    oom_at: float | None = None
    """When it was last killed for memory, on the run clock. None: never since a person resumed the run."""
    oom_host: str = ""
    restarts_here: tuple[float, ...] = ()
    """When it was started again in place for what may be its host's doing, on the run clock; the newest are kept."""
    restarts_host: str = ""
    """Where that was."""
    shown: tuple[Shown, ...] = ()
    """The newest of each kind that may follow it to another host."""
    left_out: Reason | None = None
    """Why it is not started again until a person asks for it, or a budget has one left. None: it is."""

    def waits_for_long(self, now: float, for_s: float) -> bool:
        """Whether it has had no node for so many seconds: its allocation may take hours, nobody waits for it any more in a
        quorum or a collective, and nobody ends by its loss."""
        return not self.node and self.phase in ("unplaced", "placing") and now - self.since >= for_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A thing that was done, how long it took, and whether that was the end of it."""

    seconds: float
    mended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationMemory:
    """An allocation that we want or have given back."""

    key: str
    state: Literal["wanted", "released"]
    since: float
    reason: str
    exclude: tuple[str, ...] = ()
    """Hosts that the engine must not give."""
    instead_of: str = ""
    """Key of the allocation whose place it takes, if its host is suspect: the engine's `replace`."""
    leaving_since: float | None = None
    """When it was first seen that the engine is about to take it away."""
    successor: str = ""
    """Key of the one allocation that was asked for because this one is leaving."""
    late: bool = False
    """It was pending for longer than `policy.allocation_timeout_s` while a group waited: the run goes on without."""
    unheard_since: float | None = None
    """Since when it is granted and its node is not there, on the run clock. None: it is there, or nothing was granted."""
    unheard: tuple[str, ...] = ()
    """Released, because these hosts' nodes did not register or have a GPU that cannot be used: others are asked for."""


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
    """Why this rung. None: none was decided on."""
    evidence: tuple[Reason, ...]
    considered: tuple[Reason, ...] = ()
    """What else could have been done, and why it was not."""
    costs: tuple[str, ...] = ()
    """What each thing that could be done would cost, in lost group-seconds until it steps again, when it was decided."""
    state: Literal["open", "acting", "recovered", "halted"] = "open"
    opened: float = 0.0
    decided: float | None = None
    acted: float | None = None
    recovered: float | None = None
    """When its group was first seen to have committed a step with the others (follow.with_the_others)."""
    step_before: int = 0
    """Newest committed step of the group when it failed."""
    error: str = ""
    """The error text that the rank left, if any."""
    shadow: bool = False
    """Only observed: nothing was done, and `rung` is what would have been. Recovered: by itself."""
    trace: str = ""
    """The traceback of that."""
    rank: int | None = None
    confidence: Confidence = Confidence.CERTAIN
    took_s: float = 0.0
    """These three as in Failure."""
    followed: bool = False
    """It had befallen the group on another host too: none is held to it."""
    outside: bool = False
    """As in Failure, for all that happened in it."""
    resumed: str = ""
    """Which checkpoint the group was started from, and which were passed over. Empty: it healed from peers, or was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lighthouse:
    """The one seat of the run's lighthouse and gate (ADR 6)."""

    node: str = ""
    generation: int = 0
    address: str = ""
    """Of its gate, once that listens; empty again while it is being closed."""
    opened: float = 0.0
    """When that was heard."""
    closing: bool = False
    """Nobody is to reach it any more, and it is not proved yet that nobody does."""
    mute_since: float | None = None
    """Since when its gate's lease is gone (on the run clock)."""
    cut_since: float | None = None
    """Since when the live nodes have all said that their forwarders have cut."""
    quorum_ids_above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The newest start of groups from disk."""

    said: str
    """As Incident.resumed."""
    generations: Mapping[int, int] = field(default_factory=dict)
    """Group -> its generation then, where it is not the first. What an older one saves later belongs to steps that were given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that the supervisor remembers of a run."""

    clock: float = 0.0
    """The run clock when this was written."""
    decisions: int = 0
    """How many decisions changed this memory: names each of them."""
    phase: RunPhase = "new"
    halt_reason: Reason | None = None
    """None: it is not halted."""
    stop_at_step: int | None = None
    stop_by: float | None = None
    """When groups that have not ended after that step are ended, on the run clock. None: the run is not stopping."""
    handover_at_step: int | None = None
    """All groups end after this step, to start again from its checkpoint: their nodes are leaving. None: no such thing."""
    handover_since: float = 0.0
    groups: Mapping[int, GroupMemory] = field(default_factory=dict)
    allocations: Mapping[str, AllocationMemory] = field(default_factory=dict)
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """Open ones only; the others live in their records."""
    incidents_seen: int = 0
    cordons: Mapping[str, str] = field(default_factory=dict)
    """Host -> the incident of this run for which it is given no group of it any more, until a person frees it."""
    spent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Budget scope -> instants at which it was drawn on."""
    spent_by_kind: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """As `spent`, of the kinds that have a budget of their own."""
    tried: Mapping[str, tuple[Tried, ...]] = field(default_factory=dict)
    """What -> its newest tries: a rung, from its decision until the group trains or fails again; or waiting for an allocation."""
    all_lost_at: float | None = None
    """When the engine had last taken every allocation of the run, on the run clock."""
    allocations_above: int = 0
    """Numbers that no allocation is given: a backup does not know them."""
    restarts_done: Mapping[int, int] = field(default_factory=dict)
    resumes_done: int = 0
    downs_done: int = 0
    evictions_done: int = 0
    evict_until: float | None = None
    """A person has said that what is held is to be given up, however much it is: until then."""
    breaker_since: float | None = None
    """Since when groups that fail are held, because they are too many to be their nodes' fault. None: they are not."""
    breaker_ended: float | None = None
    """When they were let go by themselves, the last time."""
    lighthouse: Lighthouse = field(default_factory=Lighthouse)
    checkpoint: Checkpoint | None = None
    """The newest complete one that is known: a hint, since more may lie on disk."""
    resumed: Resumed | None = None
    """None: no group was started from disk yet, or no one lists the folder."""
    suspects: Mapping[str, float] = field(default_factory=dict)
    """Keys of signs (core/signs.py) -> since when."""
    held_hang: Reason | None = None
    """Why nothing is done about a hang. None: there is none, or something is done."""
    slow: Mapping[int, SlowSince] = field(default_factory=dict)
    """Groups that take longer for a step than the others, where the policy has something done about it."""
    behind: Mapping[int, Behind] = field(default_factory=dict)
    """Groups that take too long for a step, in a wait for others that are ahead of them."""
    waited: Mapping[int, Waited] = field(default_factory=dict)
    """Groups whose start is late, and has waited for others."""
    silent: tuple[int, ...] = ()
    """Groups that the gate has fallen silent on: the others' agents free them from a stuck collective."""
    measured: Measured = NOTHING
    """What its timeouts have to leave room for."""


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
    reason: str
    group: int | None = None
    generation: int | None = None
    node: str = ""
    rung: Rung | None = None
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """An incident that is held against a host: it made a group of the run leave it. A record of its own, for all runs."""

    host: str
    run: str
    incident: str
    kind: Kind
    at: float
    """On the run clock, which is one for all runs."""
    freed: str = ""
    """The checks that the host has passed since: it is not held any more, but remembered. Empty: it is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to remember, what was done and why, what is waited for, and when to look again."""

    memory: Memory
    actions: tuple[Action, ...] = ()
    waits: tuple[str, ...] = ()
    """One sentence for each thing that is not done yet."""
    incidents: tuple[Incident, ...] = ()
    """Those that changed."""
    suspicions: tuple[Suspicion, ...] = ()
    """New ones."""
    acquitted: tuple[tuple[str, str], ...] = ()
    """Host and incident of those that were not the host's doing after all: they are held against it no more."""
    look_again_at: float | None = None
