"""Defines what a round sees: nodes, ranks, the gate, the engine and people. Times are seconds on the run clock (ADR 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from supervisor.core.model.code import CodeVersion
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.spec import RunSpec
from supervisor.core.model.stacks import StackView, of_text


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


ACROSS = frozenset({"quorum", "collective", "heal"})
"""Activities that wait for other groups."""
WAITING = ACROSS | {"commit"}
"""Activities that wait for other ranks. Other ones wait for no one or, unseen, for the shards of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckView:
    """A step of a rank that exceeded its bound, as the node's agent saw it by its own clock."""

    activity: str
    """As in supervisor.wire.activity; empty if the rank does not report it."""
    activity_s: float = 0.0
    """For how long it had done that when the bound was passed."""
    bound_s: float = 0.0
    usual_s: float = 0.0
    """Median of its last steps; 0 if none was learned."""
    process: Literal["", "stopped", "uninterruptible", "busy", "sleeping"] = ""
    """Process state in the kernel. busy: it used half of a processor or more. Empty if unknown."""
    where: StackView | None = None
    """Stack of its main thread; None until it is read."""
    lasted_s: float = 0.0
    """For how long no step had been committed when this was first reported; 0 if not reported."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Describes its JSON: that of its fields. The stack that older agents sent as a sentence is read too."""
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": _typed},
            "schema": handler(source),
        }


def _typed(value: Any) -> Any:
    if not isinstance(value, Mapping) or not isinstance(text := value.get("stack"), str):
        return value
    return {"where": of_text(text), **{name: each for name, each in value.items() if name != "stack"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugView:
    """Place where a rank is stopped in the debugger."""

    function: str
    file: str
    line: int
    since_unix_s: float
    """Time when it was stopped, by its node's wall clock, for people only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeView:
    """A committed step whose loss is above the usual one."""

    step: int
    loss: float
    """Mean over the groups."""
    usual: float
    """Median of it over the steps before; 0 if unknown yet."""
    spreads: float
    """Distance above, in median absolute deviations."""
    own: float
    """The rank's own loss, before it was averaged over the groups."""
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
    """Number of groups that made its newest step; 0: unknown. A group that heals in a step is among them on a token
    store alone."""
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
    debugging: bool = False
    """True while a person has it stopped in the debugger, or if it ended so."""
    measured: Measured = NOTHING


UNUSABLE = frozenset({"disk_full", "disk_read_only", "file_system_error", "file_system_stalled", "ranks_unseen"})
"""Kinds of facts about an agent's folder, or a run's: nothing can be written there."""

XID = "gpu_xid"
"""Kind of the facts that NVIDIA's driver reports by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """Fact that a node's agent reports about one of its GPUs."""

    kind: str
    """Name in `supervisor.core.evidence.gpu_faults`."""
    evidence: str
    """Sentence that names the GPU."""
    xid: int = 0
    rank: int | None = None
    """Local rank that uses it; None: unknown."""
    during: frozenset[tuple[int, int]] | None = None
    """(group, generation) of this run that ran on the node when it happened. None: it holds now, for all there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Proof that a node's processes have ended, before its lease has lapsed."""

    why: str
    """The evidence, as the end of a sentence about the node."""
    silent_s: float
    """Seconds for which nothing was heard of it by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. `registered` is true while its agent's lease lives, and nothing proves that it is dead."""

    name: str
    registered: bool
    host: str = ""
    """Machine, as its engine names it; empty: the same name."""
    death: Death | None = None
    """None: nothing proves it dead. It stays for a while after the lease has lapsed, until the failure is judged."""
    leaving: str = ""
    """Reason why the scheduler will end the node soon, as it has announced there; empty: it has not."""
    allocation: str = ""
    switch: str = ""
    """Switches to which its host is connected, outermost first, as in `spine.leaf`; empty: unknown."""
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
    store: str = ""
    """host:port there that is free for the next group of several nodes to meet at; empty: not reported."""
    store_ms: float = 0.0
    """Usual time of etcd's answer to a report of its agent; 0: unknown."""
    codes: tuple[str, ...] | None = None
    """Versions of the code that are wanted and lie there, as CodeVersion.version. None: its agent knows of none."""
    code_error: str = ""
    """Why one that is wanted does not; empty: it is being fetched, or all are there."""

    @property
    def machine(self) -> str:
        """Name of its host, to which cordons apply."""
        return self.host or self.name


DEPARTED_S = 0.5
"""Seconds without a connection after which the gate counts a node as departed. Its forwarder, while it lives, tries
again after 0.05 s."""

GATE_ETCD_SILENCE_S = 5.0
"""Seconds without etcd after which a gate goes on only while it hears every admitted group. Its watch asks for a sign
of life every second and changes streams after 3 s, so this is no hiccup."""


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
    departed: frozenset[str] = frozenset()
    """Nodes of lost groups that have closed all their connections to it."""
    quorum_id: int = 0
    """The newest quorum of its lighthouse, as the gate read it; 0: none."""


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
    through: str = ""
    """Key of the pool's allocation that is lent by this one: its nodes register under that key. Empty: under their own."""


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
class NextSpec:
    """The spec with which a person relaunches the run, while it is not in force yet."""

    number: int
    """As RunRecord.number."""
    spec: RunSpec
    scales: bool = False
    """True if no group must start again for it (spec.only_scales), by the whole specs: an input that is kept lacks
    what no decision reads."""
    because: str = ""
    from_memory: bool = False
    """True if the groups keep their state in memory meanwhile."""


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
    relaunch: NextSpec | None = None
    """None: no relaunch is asked for."""
    cordons: Mapping[str, CordonView] = field(default_factory=dict)
    """By host: cordons by a person, and by the incidents of any run."""
    lent: Mapping[str, str] = field(default_factory=dict)
    """Allocations of this pool that a run has now, by key -> the run. Empty for a run."""
    users: tuple[str, ...] = ()
    """Runs that use this pool: launched on it and not over, or not rid of its nodes yet. Empty for a run."""
    disk: DiskView | None = None
    """None: no one lists the folder of checkpoints."""
    code: CodeVersion | None = None
    """The code that the next start takes. None: what its nodes have."""

    def lacks_code(self, node: NodeView) -> bool:
        """Returns true if the code of the next start does not lie on a node: no group starts there yet."""
        return self.code is not None and self.code.version not in (node.codes or ())
