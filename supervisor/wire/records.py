"""Versioned records: the JSON values under our etcd keys and in the files that agents and trainers share.

A record is a frozen dataclass. `encode` adds its kind and version. `decode` raises `RecordError` for what it cannot
read, so that the reader can report it and leave it alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from supervisor.core.model.code import CodeVersion
from supervisor.core.model.measured import Measured
from supervisor.core.model.observed import DebugView, SpikeView, StuckView
from supervisor.core.model.spec import (
    EnvSpec,
    HangSpec,
    HooksSpec,
    NetworkSpec,
    PolicySpec,
    RunSpec,
    TitanSpec,
    TorchFTSpec,
    TrainerSpec,
)
from supervisor.wire.checks import CheckResult

VERSION = 1
"""Version of every kind that is not in VERSIONS."""

VERSIONS: dict[str, int] = {"Memory": 3, "GroupMemory": 5, "Incident": 3, "AllocationMemory": 2}
"""Kinds that had an incompatible change, and their current version. Raise one only if a program that drops unknown
fields when it writes would do harm. A field with a good default needs no new version (docs/UPGRADES.md)."""

T = TypeVar("T")

_JSON = json.JSONEncoder(separators=(",", ":"))

_HEAD = re.compile(rb'\{"\$kind":"(\w+)","\$version":(\d{1,9})[,}]')


class RecordError(ValueError):
    """A value that is not a readable record: corrupt, of another kind, or of a newer version."""


class NewerRecord(RecordError):
    """A record of a newer version than this program's."""


def version_of(kind: str) -> int:
    """Returns the version in which this program writes a kind, which is also the newest that it reads."""
    return VERSIONS.get(kind, VERSION)


def newer(value: bytes | str) -> str:
    """Returns why a value is newer than this program's version; empty if it is not (or is no record at all)."""
    head = _HEAD.match(value.encode() if isinstance(value, str) else value)
    if head is not None:  # as `encode` writes it: checked for every change, so nothing else is parsed
        return _newer(head[1].decode(), int(head[2]))
    try:
        body = json.loads(value)
    except (ValueError, RecursionError):
        return ""
    kind, version = (body.get("$kind"), body.get("$version")) if isinstance(body, dict) else ("", 0)
    return _newer(kind, version) if isinstance(kind, str) and isinstance(version, int) else ""


def _newer(kind: str, version: int) -> str:
    known = version_of(kind)
    return f"version {version} is newer than this program's {known}" if version > known else ""


def ascii_json(value: Any) -> bytes:
    """Returns JSON bytes of dataclasses and their content. Half of a surrogate pair, as in a file name that is not
    UTF-8, is written unchanged. Read such JSON with json.loads, since pydantic refuses it."""
    try:
        return to_json(value, ensure_ascii=True)
    except PydanticSerializationError:
        return _JSON.encode(to_jsonable_python(value)).encode()


def encode(record: Any) -> bytes:
    """Returns JSON bytes of a record, with its kind and version."""
    kind, body = type(record).__name__, ascii_json(record)
    head = f'{{"$kind":"{kind}","$version":{version_of(kind)}'.encode()
    return head + (body[1:] if body == b"{}" else b"," + body[1:])


class Encoder:
    """Encodes records, and keeps a key's bytes until its record changes: a round looks at the records of thousands of
    nodes and changes a few."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, bytes]] = {}

    def __call__(self, key: str, record: Any) -> bytes:
        known = self._known.get(key)
        if known is None or (known[0] is not record and known[0] != record):
            known = self._known[key] = (record, encode(record))
        return known[1]


def decode(value: bytes | str, kind: type[T]) -> T:
    """Reads a record. Raises RecordError for corrupt bytes or another kind, NewerRecord for a newer version.

    Unknown fields are ignored: a later minor version may add some.
    """
    head = _HEAD.match(value.encode(errors="replace") if isinstance(value, str) else value)
    if head is not None and head[1].decode() == kind.__name__ and int(head[2]) <= version_of(kind.__name__):
        with suppress(ValueError):  # the format of `encode`; anything else takes the slow path, which finds the error
            written: T = _adapter(cast(Hashable, kind)).validate_json(value)
            return written
    try:
        body = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("$kind") != kind.__name__:
        found = body.get("$kind") if isinstance(body, dict) else type(body).__name__
        raise RecordError(f"kind is {found!r}, expected {kind.__name__!r}")
    version = body.get("$version")
    if not isinstance(version, int):
        raise RecordError(f"version {version!r} is not a number")
    if version > version_of(kind.__name__):
        raise NewerRecord(_newer(kind.__name__, version))
    try:
        record: T = _adapter(cast(Hashable, kind)).validate_python(
            {k: v for k, v in body.items() if k not in ("$kind", "$version")}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return record


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


# --- files and sockets that agents and trainers share (on one node) ---


@dataclass(frozen=True, kw_only=True)
class CheckpointMark:
    """A complete checkpoint on disk."""

    step: int
    path: str
    group: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class TrainerLaunch:
    """All that a rank needs to start: the file `launch.json` in its rank folder."""

    run: str
    group: int
    generation: int
    rank: int
    """Rank within the group, from 0."""
    world_size: int
    """Ranks of the group."""
    groups: int
    min_groups: int
    node: str
    node_address: str
    """Address at which other nodes reach this one: manager, store and process group listen there."""
    master_port: int
    """Port of the group's store."""
    store: str = ""
    """Address of the group's store, if another node may have it; empty: `node_address`."""
    first_rank: int = 0
    """The first of the group's ranks on this node."""
    ranks_here: int = 0
    """Ranks of the group on this node; 0: all."""
    lighthouse: str
    """host:port of this node's forwarder, which is the only way to the lighthouse."""
    run_dir: str
    """Folder that all nodes of the run share, for checkpoints."""
    rank_dir: str
    """This rank's own folder: progress.json, steps.jsonl, command.sock, error.json, stacks.txt."""
    titan: TitanSpec = field(default_factory=TitanSpec)
    torchft: TorchFTSpec = field(default_factory=TorchFTSpec)
    checkpoint: CheckpointMark | None = None
    """Newest complete checkpoint that the supervisor knows."""
    resume: Literal["disk", "peers"] = "disk"
    """disk: load `checkpoint` if there is one. peers: others are training, heal from them. A rank that meets no trained
    peer, or is behind `checkpoint` then, exits with PEERS_GONE instead of training from scratch."""
    writer: bool = False
    """True if this group writes the checkpoints."""
    from_memory: int = 0
    """Number of the relaunch whose kept state is loaded before `checkpoint`, where this node has it; 0: none."""
    trainer: TrainerSpec = field(default_factory=TrainerSpec)
    collective_timeout_s: float = 0.0
    """Least timeout of the group's own collectives after its first step; 0: TorchTitan's config alone counts."""
    standby: bool = False
    """True if the next start of this rank is built before it is needed, where this node can."""

    @property
    def local_rank(self) -> int:
        """Rank among those of its group on its node."""
        return self.rank - self.first_rank

    @property
    def local_world_size(self) -> int:
        return self.ranks_here or self.world_size

    @property
    def master_address(self) -> str:
        """Address of the group's store: that of its first node."""
        return self.store or self.node_address


PEERS_GONE = 75
"""Exit code of a trainer that was started with resume = "peers" and found none (EX_TEMPFAIL of sysexits.h)."""


MISCONFIGURED = 78
"""Exit code of a trainer whose run file no machine could train, as error.json explains (EX_CONFIG of sysexits.h)."""


TERMINATED = 143
"""Exit code of a trainer that SIGTERM ended before it was finished (128 + 15, as in shells)."""


@dataclass(frozen=True, kw_only=True)
class DigestMark:
    """Hash of parameters, optimizer state and learning rate after `step` committed steps."""

    step: int
    value: str


@dataclass(frozen=True, kw_only=True)
class HealFailed:
    """The newest of a rank's heals that failed in a row."""

    source: str
    """host:port of the peer that should have given its state."""
    error: str
    times: int
    for_s: float
    """From the start of the first to the end of this one, by the rank's own clock."""


@dataclass(frozen=True, kw_only=True)
class Healing:
    """A heal in progress that has taken a second and more."""

    source: str
    """host:port of the peer that gives its state."""
    bytes: int
    """The bytes that have come."""
    for_s: float
    """Seconds since they were asked for, by the rank's own clock."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A rank's report of itself, written whole (tmp + rename) to `progress.json` at every change."""

    run: str
    group: int
    generation: int
    rank: int
    pid: int
    sequence: int
    """Grows with every write: an observer measures, by its own clock, how long it has not moved."""
    phase: Literal[
        "starting", "built", "quorum", "healing", "step", "checkpoint", "draining", "waiting", "finished", "failed"
    ]
    step: int = 0
    """Committed steps, from the TorchFT manager."""
    commits: int = 0
    """Steps that this process itself committed: above 0 means that it has joined."""
    stepped_unix_s: float = 0.0
    """When it committed the newest of them, by the node's wall clock, for people only; 0 if unknown."""
    failed_commits: int = 0
    loss: float | None = None
    """Mean over all participating replicas."""
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    """Duration of the last step."""
    compute_s: float = 0.0
    """Part of it that this rank computed itself: without its data, quorum, heal, commit, and its waits for peers."""
    data_s: float = 0.0
    """Part of it for which the rank waited for its data."""
    rounds: int = 1
    """Forward and backward passes of a step, as of the newest quorum: a step of fewer groups may have more."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of its process so far, by cause of the ledger (supervisor.core.goodput.causes); rank 0 only."""
    healed: bool = False
    """True if this process loaded its peers' state. Others may report `heal` seconds too, for giving their own."""
    gradient_norm: float | None = None
    """Norm of the averaged gradient, before it was clipped."""
    mfu: float | None = None
    """Model FLOPS utilisation, from 0 to 1; None without a GPU of known peak."""
    quorum_id: int = -1
    participants: int = 0
    replica_id: str = ""
    checkpoint: CheckpointMark | None = None
    """Newest checkpoint that this rank completed (writer's rank 0 only)."""
    digest: DigestMark | None = None
    error: str = ""
    """Why it ends; before that, why its newest checkpoint failed. Empty once one was written."""
    spike: SpikeView | None = None
    """The largest of the last steps; None if there was none."""
    numerics: Literal["", "own", "group", "peers", "parameters"] = ""
    """Source of a non-finite number that made it fail. own: this rank's own loss or gradient, before it was averaged, or
    its part of the parameters. group: another's of its group. peers: only the mean over the groups. parameters: found before a checkpoint, from
    any rank's gradient."""
    heal_failed: HealFailed | None = None
    """None if none failed, or one has succeeded since."""
    healing: Healing | None = None
    """None: no heal is in progress."""
    debugging: DebugView | None = None
    """Place where it is stopped in the debugger, or was when that ended it; None: it goes on."""


# --- on a node: kept by the shim ---


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """A process that the shim started. (pid, start_ticks) identifies it: a pid alone is recycled."""

    name: str
    """`<run>.<group>.<generation>.<rank>` for a trainer, `lighthouse.<run>.<generation>` for a lighthouse."""
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    folder: str
    warm: bool = False
    exit_code: int | None = None
    """As in wait(2); set if it exited by itself."""
    signal: int | None = None
    """Set if a signal ended it."""
    exited: bool = False
    told: str | None = None
    """Why the shim sent what ended it; empty if it sent nothing. None if unknown."""
    oom: bool | None = None
    """True if the kernel killed for memory in its memory cgroup shortly before it ended. None if unknown."""
    ended_s: float = 0.0
    """When it ended, by the machine's monotonic clock; 0 if unknown."""


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A run's stay on a node that has hooks: the file `stay.json` in the folder of the run's hooks, from before its
    first rank until its hook `after` has ended."""

    run: str
    group: int
    """Group of the node's first rank."""
    run_dir: str
    env: EnvSpec
    hooks: HooksSpec
    code: CodeVersion | None = None
    """The code of the hooks; None: what the node has."""


# --- etcd: written by agents ---


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The presence of the node's agent (under its lease)."""

    node: str
    address: str
    role: Literal["trainer", "service"]
    """service: a host that carries the lighthouse and no ranks."""
    allocation: str
    """Key of the allocation that gave the node; empty for a service host."""
    slots: int
    """Number of ranks that fit."""
    agent_pid: int
    version: str
    host: str = ""
    """The machine, as its engine names it; empty if the node has the same name."""
    metrics_port: int = 0
    insecure: bool = False
    """True if it is unencrypted off loopback, because its security file has `insecure = true`."""
    switch: str = ""
    """Switches to which its host is connected, outermost first, as in `spine.leaf`; empty: unknown."""


@dataclass(frozen=True, kw_only=True)
class SecondAgent:
    """An agent that was started under the name of a node that already has one. It does nothing."""

    node: str
    machine: str
    """The machine's own name."""
    address: str
    folder: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A present condition of a node from which training may suffer."""

    kind: str
    """disk_full, disk_read_only, file_system_stalled, file_system_error, ranks_unseen, memory_pressure,
    clock_unsynchronised, link_down, and those of supervisor.core.evidence.gpu_faults; other sources have other kinds."""
    subject: str
    """The folder, interface or device."""
    evidence: str
    """A sentence."""
    xid: int = 0
    """Number of the Xid, for gpu_xid."""
    rank: int | None = None
    """Local rank that uses the GPU; None if unknown."""
    during: tuple[str, ...] | None = None
    """For an event: the generations (RUN.GROUP.GENERATION) that certainly ran on the node then. It concerns no others.
    None: a present state, which concerns all that run here."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The machine's health, as its agent sees it."""

    node: str
    sequence: int
    warm: Literal["off", "starting", "ready"]
    disk_free_bytes: int
    memory_available_bytes: int
    load_1m: float
    problems: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    store_ms: float = 0.0
    """Milliseconds that etcd usually takes for this agent's report, up to the next power of two; 0: not measured."""
    unix_s: float = 0.0
    """The machine's clock at the time of writing, to warn people if it is off; 0 if not reported."""
    standbys: int = 0
    """Ranks whose next start is built already."""
    standby_bytes: int = 0
    """Memory of these."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """The newest checks of a node's machine: by its agent before its first rank and after a failure, or by hand."""

    node: str
    host: str
    """The machine: a failed check keeps every run's groups away from it."""
    state: Literal["pending", "passed", "failed", "unknown"]
    """unknown: none failed, but one could not be done."""
    why: str
    """The occasion of the checks."""
    began: int = 0
    """An etcd revision before their start: they do not clear what was held against the host since then."""
    results: tuple[CheckResult, ...] = ()
    """While they are repeated: the previous results, which stand until then."""

    @cached_property
    def stands(self) -> Literal["pending", "passed", "failed", "unknown"]:
        """The state that currently applies."""
        outcomes = {result.outcome for result in self.results}
        return "failed" if "failed" in outcomes else "unknown" if "unknown" in outcomes else self.state


@dataclass(frozen=True, kw_only=True)
class ExitObserved:
    """The decoded end of a process."""

    exit_code: int | None = None
    signal: int | None = None
    error_file: str = ""
    """Message of the torchelastic error file, if it left one."""
    raised: str = ""
    """Error of the traceback at the end of its log, if it left no error file."""
    trace: str = ""
    """The newest frames of the traceback, from the error file or the log, at most 2 KiB."""
    last_words: str = ""
    """The most telling part of the end of its log."""
    told: str | None = None
    """As in ProcessRecord, like the next two."""
    oom: bool | None = None
    ended_s: float = 0.0
    kernel: str = ""
    """The kernel log's report of killing it for memory."""
    disk: str = ""
    """Why its node's folder was not writable just then: it may have ended for that, unable to report it."""


@dataclass(frozen=True, kw_only=True)
class TrainerObserved:
    """One rank on this node."""

    run: str
    group: int
    generation: int
    rank: int
    pid: int
    state: Literal["starting", "running", "exited"]
    exit: ExitObserved | None = None
    progress: Progress | None = None
    gate: str | None = None
    """Target of its forwarder; empty: it has cut and holds. None if unknown (yet)."""
    reaches_gate: bool | None = None
    """True if its forwarder is connected to the gate now. None if unknown (yet)."""
    stuck: StuckView | None = None
    stopped: str = ""
    """Why the kernel does not let it run, as the end of a sentence: a signal, a tracer. Empty: it may, or unknown."""
    stopped_s: float = 0.0
    """For how long the node's agent has seen that."""
    compute_s: float = 0.0
    """Median of `Progress.compute_s` over its last steps; 0 if not learned yet."""
    data_s: float = 0.0
    """As compute_s, of `Progress.data_s`."""
    compute_past_s: float = 0.0
    """compute_s over the first steps of this generation; 0 if not learned yet."""
    data_past_s: float = 0.0
    measured: Measured = field(default_factory=Measured)
    """Measured durations of its steps, its start and its way to the gate."""


@dataclass(frozen=True, kw_only=True)
class LighthouseObserved:
    """A lighthouse and its gate on this node."""

    run: str
    generation: int
    state: Literal["starting", "running", "exited"]
    address: str = ""
    """host:port of its gate, once it listens."""
    exit: ExitObserved | None = None


@dataclass(frozen=True, kw_only=True)
class NodeObserved:
    """The processes on a node, and the newest generation of each group known to be gone from it."""

    node: str
    sequence: int
    trainers: tuple[TrainerObserved, ...] = ()
    lighthouses: tuple[LighthouseObserved, ...] = ()
    leaving: str = ""
    """Why the scheduler will end this node soon, after its notice to the shim (SIGUSR1); empty without a notice."""
    store: str = ""
    """host:port here that is free for a group to meet at; another one once a group was started with it."""
    mesh: str = ""
    """Owner of the Monarch mesh on this node, as user@machine; empty: there is none."""
    codes: tuple[str, ...] | None = None
    """Versions of the code that are wanted and lie here, as CodeVersion.version. None: an agent that knows of none."""
    code_error: str = ""
    """Why one that is wanted does not; empty: it is being fetched, or all are here."""

    @cached_property
    def runs(self) -> frozenset[str]:
        """Runs with a living process there."""
        trainers = {x.run for x in self.trainers if x.state != "exited"}
        return frozenset(trainers | {x.run for x in self.lighthouses if x.state != "exited"})


@dataclass(frozen=True, kw_only=True)
class GateGroup:
    """One group at the gate."""

    group: int
    generation: int
    """Generation that the gate admits; every older one is cut and can never come back."""
    hearing: Literal["absent", "holding", "beating", "silent", "gone"]
    """absent: never seen. holding: connected, not built. beating: alive. silent: nothing heard for a heartbeat timeout, or
    its node departed. gone: the shim reported that its process ended."""
    departed: tuple[str, ...] = ()
    """Nodes that closed all their connections, and have made none for DEPARTED_S: of a silent group, and of a group on several
    nodes that is gone."""


@dataclass(frozen=True, kw_only=True)
class GateObserved:
    """The groups that the gate of a run admits and hears."""

    run: str
    node: str
    generation: int
    """Generation of the lighthouse."""
    address: str
    groups: tuple[GateGroup, ...] = ()
    quorum_id: int = 0
    """The newest quorum of its lighthouse; 0: none, or a gate of an older version."""


# --- etcd: written by the leader ---


@dataclass(frozen=True, kw_only=True)
class TrainerDesired:
    """A group that must run on this node, with its ranks there."""

    run: str
    group: int
    generation: int
    world_size: int
    groups: int
    min_groups: int
    gate: str
    """host:port of the run's gate; empty while there is none (the forwarder cuts and holds)."""
    run_dir: str
    titan: TitanSpec
    torchft: TorchFTSpec
    term_grace_s: float
    checkpoint: CheckpointMark | None = None
    resume: Literal["disk", "peers"] = "disk"
    writer: bool = False
    gate_node: str = ""
    """Node of the gate: the forwarder expects its certificate there."""
    cut_off_stop_s: float = 0.0
    """`policy.cut_off_stop_s`; 0: never."""
    lost: tuple[int, ...] = ()
    """Other groups that are silent at the gate; not those whose process is known to have ended. A rank may wait in a collective with one of them. It must abort its
    process group if its step has not moved for a heartbeat timeout."""
    wait: bool = False
    """True while its ranks wait after their step, because a person has another group in the debugger."""
    hang: HangSpec = field(default_factory=HangSpec)
    collective_timeout_s: float = 0.0
    """As in TrainerLaunch."""
    standby: Literal["built", "warm", "none"] = "warm"
    """`policy.standby`."""
    stop_at_step: int | None = None
    """Drain: end cleanly after this committed step (or the current one, if it is past)."""
    from_memory: int = 0
    """Number of the relaunch for which ranks keep their state in memory when they drain, and from which they start; 0:
    none."""
    allocation: str = ""
    """Key of the allocation by which the group was placed: an agent of the same node name under another allocation does
    not start it. Empty: not compared."""
    env: EnvSpec = field(default_factory=EnvSpec)
    hooks: HooksSpec = field(default_factory=HooksSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    trainer: TrainerSpec = field(default_factory=TrainerSpec)
    nodes: int = 1
    """Nodes of the group (ADR 20)."""
    first_rank: int = 0
    """The first of the group's ranks on this node; each node has as many."""
    store: str = ""
    """host:port of the store at which the ranks of this generation meet; empty: its only node chooses one."""
    hold: bool = False
    """True while the group is not started: what is left of older generations ends, and the node stays the run's."""
    code: CodeVersion | None = None
    """The code of this generation; None: what the node has."""

    @property
    def ranks(self) -> range:
        """Ranks of the group that run on this node."""
        return range(self.first_rank, self.first_rank + self.world_size // self.nodes)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The one generation of a group that the gate lets through, and the nodes that run it. Raising it fences every
    older one."""

    generation: int
    node: str = ""
    """Node of its first rank, whose manager speaks for the group. Empty while no node has it: then none may."""
    others: tuple[str, ...] = ()
    """Its further nodes: the group counts as silent once one of them is."""


@dataclass(frozen=True, kw_only=True)
class LighthouseDesired:
    """A lighthouse with its gate that must run on this node, and the gate's orders (ADR 6)."""

    run: str
    generation: int
    groups: int
    min_groups: int
    torchft: TorchFTSpec
    admitted: dict[int, Admission] = field(default_factory=dict)
    """By group. An admission never goes back."""
    quorum_ids_above: int = 0
    """The lighthouse's quorum ids begin above this; 0: as TorchFT counts."""
    close: bool = False
    """True if it must end and never start again; its record is kept until another takes its place."""


@dataclass(frozen=True, kw_only=True)
class NodeDesired:
    """Everything that must run on a node; anything else there is ended."""

    node: str
    trainers: tuple[TrainerDesired, ...] = ()
    lighthouses: tuple[LighthouseDesired, ...] = ()
    code: CodeVersion | None = None
    """The code of the next start here, which must lie here before it; None: what the node has."""
    code_from: str = ""
    """URL of the leader's listener, which has it."""
    standby: TrainerDesired | None = None
    """On a spare: the start, of any group, for which its warm process builds standbys."""


@dataclass(frozen=True, kw_only=True)
class GatePresence:
    """The presence of a run's gate that reaches etcd (under its lease)."""

    run: str
    node: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The run as it was launched."""

    spec: RunSpec
    run_dir: str
    launched_unix_s: float
    """Launcher's wall clock, for people only."""
    number: int = 1
    """Number of this spec: 1 as it was launched, and one more for each relaunch."""
    relaunched_unix_s: float = 0.0
    """Wall clock of the person who asked for this spec, for people only; 0: it is the launched one."""
    because: str = ""
    """Why it was relaunched with this spec; empty: no reason was given."""


@dataclass(frozen=True, kw_only=True)
class Relaunch:
    """A person's wish that the run goes on by another spec. It is over once the run's own record has its number."""

    number: int
    spec: RunSpec
    because: str
    asked_unix_s: float
    """The asker's wall clock, for people only."""
    from_memory: bool = False
    """True if ranks keep their state in their nodes' memory, instead of writing a checkpoint."""
    restarts: bool = False
    """True if all groups start again though the spec does not ask for it: with new code, or another share of a step."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """The numbers that a removed run has used. Agents and engines know processes and allocations by the run's name and a
    number: the next run of the name goes on above these."""

    run_dir: str
    generation: int
    """The highest of its groups."""
    lighthouse: int
    """Generation of its lighthouse."""
    allocations: int
    incidents: int


@dataclass(frozen=True, kw_only=True)
class Control:
    """A person's requests for a run. Only the CLI writes it."""

    paused: bool = False
    stop: bool = False
    restarts: dict[int, int] = field(default_factory=dict)
    """Number of restarts requested so far, by group."""
    resumes: int = 0
    """How often a person has resumed the run from a halt or stop so far."""
    because: str = ""
    """The last reason given."""
    down: int = 0
    """How often a person has confirmed that a lost lighthouse's host, and the trainers on its side, are down."""
    evictions: int = 0
    """How often a person has given up lost nodes, however many they are."""
    suspended: bool = False
    """True if it was stopped because `supervisor up` ended: the next one resumes it."""


@dataclass(frozen=True, kw_only=True)
class PolicyChange:
    """One change of a run's policy by a person."""

    version: int
    changes: list[str]
    """As they were given: KEY=VALUE, below [policy]."""
    because: str
    at_unix_s: float
    """The setter's wall clock, for people only."""


@dataclass(frozen=True, kw_only=True)
class PolicySet:
    """A run's policy as a person has set it; it replaces the launched one. Only the CLI writes it."""

    version: int
    """1 is the first that was set."""
    policy: PolicySpec
    because: str
    at_unix_s: float
    """The setter's wall clock, for people only."""
    changes: list[str] = field(default_factory=list)
    """As they were given: KEY=VALUE, below [policy]."""
    earlier: list[PolicyChange] = field(default_factory=list)
    """The changes before it, the newest last: the leader may have seen none of them."""


@dataclass(frozen=True, kw_only=True)
class Synced:
    """One sync of the code."""

    version: str
    """As CodeVersion.version."""
    folder: str
    """As CodeVersion.folder."""
    files: int
    bytes: int
    by: str
    """The person: user@machine."""
    at_unix_s: float
    """Wall clock of that machine, for people only."""


@dataclass(frozen=True, kw_only=True)
class SyncedCode:
    """The code of a run or pool, which the next start takes. Only the CLI writes it."""

    newest: Synced
    earlier: tuple[Synced, ...] = ()
    """Syncs before it, the newest first, at most EARLIER_SYNCS."""


EARLIER_SYNCS = 20


@dataclass(frozen=True, kw_only=True)
class FaultsMade:
    """Faults that `supervisor chaos` injected into a run, for its metrics alone."""

    made: dict[str, int] = field(default_factory=dict)
    """Number of faults, by name."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Seconds of one process whose cause only its trainer can report, and had not reported at the newest account."""

    group: int
    generation: int
    seconds: float
    reported_s: float
    """Seconds that it had reported, over all causes: only what it reports beyond them is new to the next leader."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The totals of a run over all terms, for people alone: no decision reads it."""

    step: int = 0
    """Newest committed step; it outlives the trainers."""
    stepped_unix_s: float = 0.0
    """Newest time of a committed step, as in Progress."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of all groups, by cause of the ledger (supervisor.core.goodput.causes)."""
    clock: float = 0.0
    """Run clock up to which this account counts, where the next leader continues; 0 if an old program wrote it."""
    began_unix_s: float = 0.0
    """Start of the run: its first decision, by its leader's clock; 0 if unknown."""
    ended_unix_s: float = 0.0
    """End of the run: the decision by which it finished, stopped or halted, by its leader's clock. 0: it goes on."""
    ran_s: float = 0.0
    """Seconds from the start until `clock`, or until the end, without the time between a halt and its resume."""
    off_s: float = 0.0
    """Seconds by which the leader's clock is ahead of most nodes'; 0 if the difference is too small to tell."""
    clocks: tuple[tuple[float, float], ...] = ()
    """For each leadership term, oldest first: its first run clock, and the offset from there to the leader's wall clock
    (Unix). A new entry follows whenever that clock was set."""
    stood: tuple[tuple[float, float], ...] = ()
    """For each leadership term but the first, oldest first: its first run clock, and the seconds for which that clock
    had stood still. They count from the newest memory, with or without a leader, by both machines' wall clocks, and
    are never below 0."""
    held: tuple[Held, ...] = ()
    """Seconds that are in `ran_s` and not yet in `seconds`."""


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A decision that took effect, in short; written with its memory. The journal has the whole decision."""

    decision: int
    epoch: int
    host: str
    """Host of the deciding supervisor: its disk may be the only one with the journal."""
    program: str
    policy: int
    """Version of the policy; 0: the launched one."""
    input: str
    """Digest of the input, as the journal keeps it."""
    clock: float
    """Run clock."""
    actions: tuple[str, ...] = ()
    """Keys of the first actions."""
    more: int = 0
    """Number of further actions."""
    incidents: tuple[str, ...] = ()
    """Incidents that it changed."""


@dataclass(frozen=True, kw_only=True)
class Cordon:
    """A person's order that keeps the groups of every run away from a host."""

    host: str
    why: str
    by: str
    """The person: user@machine."""
    at_unix_s: float
    """Wall clock of that machine, for people only."""
    drain: bool = False
    """True if the groups there must leave it, in an orderly way."""


@dataclass(frozen=True, kw_only=True)
class LeaderRecord:
    """The current leader."""

    host: str
    pid: int
    home: str
    metrics_port: int = 0
    insecure: bool = False
    """As in Registration."""
    holes: tuple[str, ...] = ()
    """Ways around etcd's roles that were open when it started, as sentences for people."""
    page: str = ""
    """URL of its page (ADR 12). Empty if it has none, or is an older version."""
    start_ticks: int = 0
    pid_namespace: int = 0
    """With host and pid, these identify the process (supervisor.shell.processes); 0 if unknown."""
    version: str = ""
    """Version of its program; empty if that is older than this field."""


@dataclass(frozen=True, kw_only=True)
class EpochsBefore:
    """Epochs of the etcd whose state was restored into this one: added to every epoch."""

    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Restoring:
    """A restore has begun and not ended: the state under our prefix is incomplete, and no one may lead on it."""

    file: str
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class RemovedNode:
    """A node whose rights a person took."""

    node: str


@dataclass(frozen=True, kw_only=True)
class System:
    """The name that marks this system's jobs at a scheduler."""

    name: str
