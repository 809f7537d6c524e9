"""Versioned records: the JSON values under our etcd keys and in the files that agents and trainers share.

A record is a frozen dataclass; `encode` adds its kind and version, `decode` refuses what it cannot read with
`RecordError` so that the reader can report it and leave it alone.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from supervisor.core.spec import RunSpec, TitanSpec, TorchFTSpec

VERSION = 1

T = TypeVar("T")


class RecordError(ValueError):
    """A value that is no record of ours: corrupt, of another kind, or of a newer version."""


def encode(record: Any) -> bytes:
    """JSON bytes of a record, with its kind and version."""
    body = to_jsonable_python(record)
    return json.dumps({"$kind": type(record).__name__, "$version": VERSION, **body}, separators=(",", ":")).encode()


def decode(value: bytes | str, kind: type[T]) -> T:
    """Read a record; raises RecordError for corrupt bytes, another kind, or a newer version.

    Unknown fields are ignored: a later minor version may add some.
    """
    try:
        body = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("$kind") != kind.__name__:
        found = body.get("$kind") if isinstance(body, dict) else type(body).__name__
        raise RecordError(f"kind is {found!r}, expected {kind.__name__!r}")
    version = body.get("$version")
    if not isinstance(version, int) or version > VERSION:
        raise RecordError(f"version {version!r} is newer than this program's {VERSION}")
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
    """disk: load `checkpoint` if there is one. peers: others are training, heal from them; a rank that meets no
    peer and is behind `checkpoint` exits with PEERS_GONE instead of training from scratch."""
    writer: bool = False
    """Whether this group writes the checkpoints."""


PEERS_GONE = 75
"""Exit code of a trainer started with resume = "peers" that found none (EX_TEMPFAIL of sysexits.h)."""


TERMINATED = 143
"""Exit code of a trainer that SIGTERM ended before it was finished (128 + 15, as shells say it)."""


@dataclass(frozen=True, kw_only=True)
class DigestMark:
    """Hash of parameters, optimizer state and learning rate after `step` committed steps."""

    step: int
    value: str


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
    failed_commits: int = 0
    loss: float | None = None
    """Mean over all participating replicas."""
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    """Duration of the last step."""
    quorum_id: int = -1
    participants: int = 0
    replica_id: str = ""
    checkpoint: CheckpointMark | None = None
    """Newest checkpoint that this rank has completed (writer's rank 0 only)."""
    digest: DigestMark | None = None
    error: str = ""


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
    metrics_port: int = 0


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


@dataclass(frozen=True, kw_only=True)
class ExitObserved:
    """How a process ended, decoded."""

    exit_code: int | None = None
    signal: int | None = None
    error_file: str = ""
    """Message of the torchelastic error file, if it left one."""
    stderr_tail: str = ""
    """Last lines of its log, at most 2 KiB."""


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
    """host:port of the run's gate; empty while there is none (the forwarder holds)."""
    run_dir: str
    titan: TitanSpec
    torchft: TorchFTSpec
    term_grace_s: float
    checkpoint: CheckpointMark | None = None
    resume: Literal["disk", "peers"] = "disk"
    writer: bool = False
    lost: tuple[int, ...] = ()
    """Other groups that the gate hears no more: a rank whose step has not moved for a heartbeat timeout is told to
    abort its process group, since it may be waiting inside a collective with one of them."""
    stop_at_step: int | None = None
    """Drain: end cleanly after this committed step (or the current one, if it is past)."""


@dataclass(frozen=True, kw_only=True)
class LighthouseDesired:
    """A lighthouse with its gate that is to run on this node."""

    run: str
    generation: int
    groups: int
    min_groups: int
    torchft: TorchFTSpec


@dataclass(frozen=True, kw_only=True)
class NodeDesired:
    """All that is to run on a node; whatever else runs there is to be ended."""

    node: str
    trainers: tuple[TrainerDesired, ...] = ()
    lighthouses: tuple[LighthouseDesired, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupAdmission:
    """The one generation of a group that the gate lets through. Raising it fences every older one."""

    run: str
    group: int
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


@dataclass(frozen=True, kw_only=True)
class LeaderRecord:
    """Who leads."""

    host: str
    pid: int
    home: str
    metrics_port: int = 0
