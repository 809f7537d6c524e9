"""Versioned records: the JSON values under our etcd keys and in the files that agents and trainers share.

A record is a frozen dataclass; `encode` adds its kind and version, `decode` refuses what it cannot read with
`RecordError` so that the reader can report it and leave it alone.
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

from supervisor.core.measured import Measured
from supervisor.core.spec import HangSpec, PolicySpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.wire.checks import CheckResult

VERSION = 1
"""Version of every kind that is not in VERSIONS."""

VERSIONS: dict[str, int] = {"Memory": 2, "GroupMemory": 2, "Incident": 2}
"""Kinds with an incompatible change behind them, and their version now. Raised only when a program that ignores what it
does not know, and drops it when it writes, would do harm; a field with a good default raises nothing (docs/UPGRADES.md)."""

T = TypeVar("T")

_JSON = json.JSONEncoder(separators=(",", ":"))

_HEAD = re.compile(rb'\{"\$kind":"(\w+)","\$version":(\d{1,9})[,}]')


class RecordError(ValueError):
    """A value that is no record of ours: corrupt, of another kind, or of a newer version."""


class NewerRecord(RecordError):
    """A record of a newer version than this program's."""


def version_of(kind: str) -> int:
    """The version in which this program writes a kind, and the newest that it reads."""
    return VERSIONS.get(kind, VERSION)


def newer(value: bytes | str) -> str:
    """Why a value is of a newer version than this program's; empty when it is not (or is no record at all)."""
    head = _HEAD.match(value.encode() if isinstance(value, str) else value)
    if head is not None:  # as `encode` writes it: asked of every change, so nothing else is parsed
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
    """JSON bytes of dataclasses and what they hold. Half of a surrogate pair, as in the name of a file that is no UTF-8, is written
    as it is; who reads it back takes json.loads, for pydantic refuses it."""
    try:
        return to_json(value, ensure_ascii=True)
    except PydanticSerializationError:
        return _JSON.encode(to_jsonable_python(value)).encode()


def encode(record: Any) -> bytes:
    """JSON bytes of a record, with its kind and version."""
    kind, body = type(record).__name__, ascii_json(record)
    head = f'{{"$kind":"{kind}","$version":{version_of(kind)}'.encode()
    return head + (body[1:] if body == b"{}" else b"," + body[1:])


class Encoder:
    """Encodes what lies at a key, and keeps the bytes until another record is to lie there: a round looks at the records of
    thousands of nodes and changes a few."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, bytes]] = {}

    def __call__(self, key: str, record: Any) -> bytes:
        known = self._known.get(key)
        if known is None or (known[0] is not record and known[0] != record):
            known = self._known[key] = (record, encode(record))
        return known[1]


def decode(value: bytes | str, kind: type[T]) -> T:
    """Read a record; raises RecordError for corrupt bytes or another kind, NewerRecord for a newer version.

    Unknown fields are ignored: a later minor version may add some.
    """
    head = _HEAD.match(value.encode(errors="replace") if isinstance(value, str) else value)
    if head is not None and head[1].decode() == kind.__name__ and int(head[2]) <= version_of(kind.__name__):
        with suppress(ValueError):  # as `encode` writes it; what cannot be read so is read with care, to say why
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
        raise RecordError(f"version {version!r} is no number")
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
    """Rank within the group, from 0; on one node it is the local rank too."""
    world_size: int
    """Ranks of the group."""
    groups: int
    min_groups: int
    node: str
    node_address: str
    """Address at which the other nodes reach this one: manager, store and process group listen there."""
    master_port: int
    lighthouse: str
    """host:port of this node's forwarder."""
    run_dir: str
    """Shared by all nodes of the run: checkpoints."""
    rank_dir: str
    """This rank's own folder: progress.json, steps.jsonl, command.sock, error.json, stacks.txt."""
    titan: TitanSpec = field(default_factory=TitanSpec)
    torchft: TorchFTSpec = field(default_factory=TorchFTSpec)
    checkpoint: CheckpointMark | None = None
    """The newest complete checkpoint that the supervisor knows of."""
    resume: Literal["disk", "peers"] = "disk"
    """disk: load `checkpoint` if there is one. peers: others are training, heal from them; a rank that meets none
    that has trained, or is behind `checkpoint` then, exits with PEERS_GONE instead of training from scratch."""
    writer: bool = False
    """Whether this group writes the checkpoints."""


PEERS_GONE = 75
"""Exit code of a trainer started with resume = "peers" that found none (EX_TEMPFAIL of sysexits.h)."""


MISCONFIGURED = 78
"""Exit code of a trainer that no machine could train with this run file, as error.json says (EX_CONFIG of sysexits.h)."""


TERMINATED = 143
"""Exit code of a trainer that SIGTERM ended before it was finished (128 + 15, as shells say it)."""


@dataclass(frozen=True, kw_only=True)
class DigestMark:
    """Hash of parameters, optimizer state and learning rate after `step` committed steps."""

    step: int
    value: str


@dataclass(frozen=True, kw_only=True)
class LossSpike:
    """A committed step whose loss is above what is usual."""

    step: int
    loss: float
    """Mean over the groups."""
    usual: float
    """Median of it over the steps before; 0: not known yet."""
    spreads: float
    """How far above, in median absolute deviations."""
    own: float
    """This rank's own loss, before it was averaged over the groups."""
    own_usual: float
    own_spreads: float


@dataclass(frozen=True, kw_only=True)
class HealFailed:
    """The newest of a rank's heals that failed in a row."""

    source: str
    """host:port of the peer that was to give its state."""
    error: str
    times: int
    for_s: float
    """From the beginning of the first to the end of this one, by the rank's own clock."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a rank says of itself, written whole (tmp + rename) to `progress.json` at every change."""

    run: str
    group: int
    generation: int
    rank: int
    pid: int
    sequence: int
    """Grows with every write: whoever watches measures how long it has not moved, by its own clock."""
    phase: Literal["starting", "built", "quorum", "healing", "step", "checkpoint", "draining", "finished", "failed"]
    step: int = 0
    """Committed steps, from the TorchFT manager."""
    commits: int = 0
    """Steps that this process itself has committed: above 0 means that it has joined."""
    stepped_unix_s: float = 0.0
    """When it committed the newest of them: the node's wall clock, for people only. 0: not known."""
    failed_commits: int = 0
    loss: float | None = None
    """Mean over all participating replicas."""
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    """Duration of the last step."""
    compute_s: float = 0.0
    """Of that, what this rank computed itself: without its data, quorum, heal, commit, and its waits for peers."""
    data_s: float = 0.0
    """Of that, what it waited for its data."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Rank 0 only: where the seconds of its process went so far, by cause of the ledger (supervisor.core.ledger)."""
    healed: bool = False
    """This process has loaded its peers' state; who had none to load tells some `heal` seconds too, of giving its own."""
    gradient_norm: float | None = None
    """Of the averaged gradient, before it was clipped."""
    mfu: float | None = None
    """Model FLOPS utilisation, from 0 to 1. None: no GPU whose peak is known."""
    quorum_id: int = -1
    participants: int = 0
    replica_id: str = ""
    checkpoint: CheckpointMark | None = None
    """Newest checkpoint that this rank has completed (writer's rank 0 only)."""
    digest: DigestMark | None = None
    error: str = ""
    """Why it ends; before that, why its newest checkpoint failed. Empty once one was written."""
    spike: LossSpike | None = None
    """The largest of the last steps; None: there was none."""
    numerics: Literal["", "own", "group", "peers", "parameters"] = ""
    """It failed because of a number that is not finite. own: this rank's own loss or gradient, before it was averaged. group: another's of
    its group. peers: only the mean over the groups. parameters: found before a checkpoint, whoever's gradient made them so."""
    heal_failed: HealFailed | None = None
    """None: none failed, or one has succeeded since."""


# --- on a node: what the shim keeps ---


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """A process that the shim started. (pid, start_ticks) names it for good: a pid alone is recycled."""

    name: str
    """`<run>.<group>.<generation>.<rank>` for a trainer, `lighthouse.<run>.<generation>` for a lighthouse."""
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    folder: str
    warm: bool = False
    exit_code: int | None = None
    """As in wait(2): set when it exited by itself."""
    signal: int | None = None
    """Set when a signal ended it."""
    exited: bool = False
    told: str | None = None
    """Why the shim sent what ended it; empty: it sent nothing. None: not known."""
    oom: bool | None = None
    """Whether the kernel killed for memory in its memory cgroup shortly before it ended. None: not known."""
    ended_s: float = 0.0
    """When it ended, by the machine's monotonic clock. 0: not known."""


# --- etcd: written by agents ---


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The node's agent is here (under its lease)."""

    node: str
    address: str
    role: Literal["trainer", "service"]
    """service: a host that carries the lighthouse and no ranks."""
    allocation: str
    """Key of the allocation that gave the node; empty for a service host."""
    slots: int
    """How many ranks fit."""
    agent_pid: int
    version: str
    host: str = ""
    """The machine, as its engine names it; empty: the same name as the node's."""
    metrics_port: int = 0
    insecure: bool = False
    """It talks in plain off loopback, because its security file says `insecure = true`."""


@dataclass(frozen=True, kw_only=True)
class SecondAgent:
    """An agent that was started under the name of a node that has one already. It does nothing."""

    node: str
    machine: str
    """As the machine names itself."""
    address: str
    folder: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that holds on a node now and that training may suffer from."""

    kind: str
    """disk_full, disk_read_only, file_system_stalled, file_system_error, ranks_unseen, memory_pressure, clock_unsynchronised, link_down, and
    those of supervisor.core.gpu; other sources have other ones."""
    subject: str
    """Which folder, interface or device."""
    evidence: str
    """A sentence."""
    xid: int = 0
    """Of gpu_xid: its number."""
    rank: int | None = None
    """Of a GPU: the local rank that uses it. None: not known."""
    during: tuple[str, ...] | None = None
    """Of an event: the generations (RUN.GROUP.GENERATION) that surely ran on the node when it happened, and of no other does it say
    anything. None: it holds now, for whoever runs here."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The machine, as its agent sees it."""

    node: str
    sequence: int
    warm: Literal["off", "starting", "ready"]
    disk_free_bytes: int
    memory_available_bytes: int
    load_1m: float
    problems: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    store_ms: float = 0.0
    """How long etcd usually takes for a report of this agent, rounded up to a power of two; 0: not measured."""
    unix_s: float = 0.0
    """The machine's clock when this was written, for people to be told that it is off; 0: not said."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """The newest checks of a node's machine: by its agent before its first rank and after a failure, or by hand."""

    node: str
    host: str
    """The machine: a failed check keeps every run's groups away from it."""
    state: Literal["pending", "passed", "failed", "unknown"]
    """unknown: none failed, and one could not be done."""
    why: str
    """On what occasion."""
    began: int = 0
    """An etcd revision at which they had not begun: what is held against the host since then they do not answer."""
    results: tuple[CheckResult, ...] = ()
    """While they are repeated: those of the time before, which stand until then."""

    @cached_property
    def stands(self) -> Literal["pending", "passed", "failed", "unknown"]:
        """What holds now."""
        outcomes = {result.outcome for result in self.results}
        return "failed" if "failed" in outcomes else "unknown" if "unknown" in outcomes else self.state


@dataclass(frozen=True, kw_only=True)
class ExitObserved:
    """How a process ended, decoded."""

    exit_code: int | None = None
    signal: int | None = None
    error_file: str = ""
    """Message of the torchelastic error file, if it left one."""
    raised: str = ""
    """Where it left no error file: the error of the traceback that its log ends with."""
    trace: str = ""
    """The newest frames of the traceback, from the error file or the log, at most 2 KiB."""
    last_words: str = ""
    """Of the end of its log, what tells most."""
    told: str | None = None
    """As in ProcessRecord, as are the two that follow."""
    oom: bool | None = None
    ended_s: float = 0.0
    kernel: str = ""
    """What the kernel's log says of its having killed it for memory."""
    disk: str = ""
    """Why nothing could be written in its node's folder just then: it may have ended for that, and could leave no word of it."""


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A step of a rank that has taken longer than it may, as the node's agent saw it by its own clock."""

    activity: str
    """As supervisor.wire.activity names it; empty: the rank does not say."""
    activity_s: float
    """For how long it had done that when the bound was passed."""
    bound_s: float
    usual_s: float
    """Median of its last steps; 0: none was learned."""
    process: Literal["", "stopped", "uninterruptible", "busy", "sleeping"] = ""
    """As the kernel shows it. busy: it used half of a processor or more. Empty: not known."""
    stack: str = ""
    """The innermost frames of its main thread; empty until they were read."""
    lasted_s: float = 0.0
    """For how long no step had been committed when this was first told; 0: not told."""


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
    """Where its forwarder passes on to; empty: it has cut and holds. None: not known (yet)."""
    reaches_gate: bool | None = None
    """Whether its forwarder has a connection to the gate now. None: not known (yet)."""
    stuck: Stuck | None = None
    stopped: str = ""
    """Why the kernel lets it do nothing, as the end of a sentence: a signal, a tracer. Empty: it may run, or not known."""
    stopped_s: float = 0.0
    """For how long the node's agent has seen that."""
    compute_s: float = 0.0
    """Median of `Progress.compute_s` over its last steps; 0: not learned yet."""
    data_s: float = 0.0
    """As compute_s, of `Progress.data_s`."""
    compute_past_s: float = 0.0
    """What compute_s was over the first steps of this generation; 0: not learned yet."""
    data_past_s: float = 0.0
    measured: Measured = field(default_factory=Measured)
    """What its steps, its start and its way to the gate were seen to take."""


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
    """What runs on a node, and the newest generation of each group that is known to be gone from it."""

    node: str
    sequence: int
    trainers: tuple[TrainerObserved, ...] = ()
    lighthouses: tuple[LighthouseObserved, ...] = ()
    leaving: str = ""
    """The scheduler has told the shim (SIGUSR1) that it will end this node soon: why. Empty: it has not."""

    @cached_property
    def runs(self) -> frozenset[str]:
        """Of which something runs there."""
        trainers = {x.run for x in self.trainers if x.state != "exited"}
        return frozenset(trainers | {x.run for x in self.lighthouses if x.state != "exited"})


@dataclass(frozen=True, kw_only=True)
class GateGroup:
    """One group at the gate."""

    group: int
    generation: int
    """The generation that the gate admits; every older one is cut and can never come back."""
    hearing: Literal["absent", "holding", "beating", "silent", "gone"]
    """absent: nobody came yet. holding: connected, not built. beating: alive. silent: nothing heard for a heartbeat
    timeout. gone: the shim said that its process ended."""


@dataclass(frozen=True, kw_only=True)
class GateObserved:
    """What the gate of a run admits and hears."""

    run: str
    node: str
    generation: int
    """Generation of the lighthouse."""
    address: str
    groups: tuple[GateGroup, ...] = ()


# --- etcd: written by the leader ---


@dataclass(frozen=True, kw_only=True)
class TrainerDesired:
    """A group that is to run on this node, all its ranks."""

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
    """Node of the gate: whose certificate the forwarder expects there."""
    cut_off_stop_s: float = 0.0
    """`policy.cut_off_stop_s`; 0: never."""
    lost: tuple[int, ...] = ()
    """Other groups that the gate hears no more: a rank whose step has not moved for a heartbeat timeout is told to
    abort its process group, since it may be waiting inside a collective with one of them."""
    hang: HangSpec = field(default_factory=HangSpec)
    stop_at_step: int | None = None
    """Drain: end cleanly after this committed step (or the current one, if it is past)."""
    allocation: str = ""
    """Key of the allocation by which the group was placed: another one's agent of the same node name does not start it.
    Empty: not compared."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The one generation of a group that the gate lets through, and the node that runs it. Raising it fences every
    older one."""

    generation: int
    node: str = ""
    """Empty while no node has it: then nobody may speak for it."""


@dataclass(frozen=True, kw_only=True)
class LighthouseDesired:
    """A lighthouse with its gate that is to run on this node, and the gate's orders (ADR 6)."""

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
    """It is to end, and never to be started again; its record is kept until another takes its place."""


@dataclass(frozen=True, kw_only=True)
class NodeDesired:
    """All that is to run on a node; whatever else runs there is to be ended."""

    node: str
    trainers: tuple[TrainerDesired, ...] = ()
    lighthouses: tuple[LighthouseDesired, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GatePresence:
    """The gate of a run lives and reaches etcd (under its lease)."""

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


@dataclass(frozen=True, kw_only=True)
class Control:
    """What a person asks of a run. Only the CLI writes it."""

    paused: bool = False
    stop: bool = False
    restarts: dict[int, int] = field(default_factory=dict)
    """group -> how many restarts were asked for so far."""
    resumes: int = 0
    """How often a person let the run out of a halt so far."""
    because: str = ""
    """Why, the last time."""
    down: int = 0
    """How often a person said that a lost lighthouse's host, and the trainers on its side, are down."""
    evictions: int = 0
    """How often a person said that lost nodes are to be given up, however many they are."""
    suspended: bool = False
    """It was stopped because `supervisor up` was ended: the next one lets it go on."""


@dataclass(frozen=True, kw_only=True)
class PolicyChange:
    """What a person has said of a run's policy, once."""

    version: int
    changes: list[str]
    """As they were given: KEY=VALUE, below [policy]."""
    because: str
    at_unix_s: float
    """Wall clock of who set it, for people only."""


@dataclass(frozen=True, kw_only=True)
class PolicySet:
    """A run's policy as a person has set it: it takes the place of the launched one. Only the CLI writes it."""

    version: int
    """1 is the first that was set."""
    policy: PolicySpec
    because: str
    at_unix_s: float
    """Wall clock of who set it, for people only."""
    changes: list[str] = field(default_factory=list)
    """As they were given: KEY=VALUE, below [policy]."""
    earlier: list[PolicyChange] = field(default_factory=list)
    """Those that it followed, the newest last: whoever leads may have seen none of them."""


@dataclass(frozen=True, kw_only=True)
class FaultsMade:
    """What `supervisor chaos` has broken in a run, for its metrics alone."""

    made: dict[str, int] = field(default_factory=dict)
    """By the fault's name."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Seconds of one process whose cause only its trainer can report, and had not reported at the newest account."""

    group: int
    generation: int
    seconds: float
    reported_s: float
    """Seconds of all causes that it had reported: only what it reports beyond them is new to the next leader."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a run has come to, over all terms, for people alone: nothing is decided by it."""

    step: int = 0
    """The newest step that was committed: it outlives the trainers."""
    stepped_unix_s: float = 0.0
    """As in Progress, the newest."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of all groups, by cause of the ledger (supervisor.core.ledger)."""
    clock: float = 0.0
    """The run clock up to which this account counts: whoever leads next goes on from there. 0: an older leader did not say."""
    began_unix_s: float = 0.0
    """Start of the run: its first decision, by the clock of the leader that made it. 0: not known."""
    ended_unix_s: float = 0.0
    """End of the run: the decision by which it finished, was stopped or halted, by that leader's clock. 0: it goes on."""
    ran_s: float = 0.0
    """From the start until `clock`, or until the end, without what passed between a halt and its resume."""
    off_s: float = 0.0
    """By how much the leader's clock is ahead of those of most nodes; 0: by less than can be told."""
    clocks: tuple[tuple[float, float], ...] = ()
    """Of each leadership term, oldest first: the run clock as it began, and what is added to an instant of the run clock after that
    to make it wall clock (Unix), by the machine that led. Again whenever its clock was set."""
    stood: tuple[tuple[float, float], ...] = ()
    """Of each leadership term after another, oldest first: the run clock as it began, and for how many seconds it had stood still then:
    since the newest memory, whether anybody led or not. By the wall clocks of both machines, and never less than 0."""
    held: tuple[Held, ...] = ()
    """Seconds that are in `ran_s` and not yet in `seconds`."""


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A decision that took effect, in short: it is written with the memory that it made. The whole is in the journal."""

    decision: int
    epoch: int
    host: str
    """Whose supervisor decided: its disk may be the only one with the journal."""
    program: str
    policy: int
    """Version of the policy; 0: the launched one."""
    input: str
    """Digest of what was decided on, as the journal keeps it."""
    clock: float
    """Run clock."""
    actions: tuple[str, ...] = ()
    """Keys of the first ones."""
    more: int = 0
    """How many more there were."""
    incidents: tuple[str, ...] = ()
    """That it changed."""


@dataclass(frozen=True, kw_only=True)
class Cordon:
    """A person keeps the groups of every run away from a host."""

    host: str
    why: str
    by: str
    """Who said it: user@machine."""
    at_unix_s: float
    """That machine's wall clock, for people only."""
    drain: bool = False
    """What runs there is to leave it, in an orderly way."""


@dataclass(frozen=True, kw_only=True)
class LeaderRecord:
    """Who leads."""

    host: str
    pid: int
    home: str
    metrics_port: int = 0
    insecure: bool = False
    """As in Registration."""
    page: str = ""
    """Where a browser finds its page (ADR 12). Empty: it has none, or is older than that."""
    start_ticks: int = 0
    pid_namespace: int = 0
    """With host and pid these name the process for good (supervisor.shell.processes). 0: not known."""


@dataclass(frozen=True, kw_only=True)
class EpochsBefore:
    """Epochs of the etcd whose state was restored into this one: added to every epoch."""

    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Restoring:
    """A restore has begun and not ended: what is under our prefix is not whole, and nobody may lead on it."""

    file: str
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class System:
    """The name by which this system's jobs are known at a scheduler."""

    name: str
