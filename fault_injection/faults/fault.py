"""What a fault is, where it is made, and whom it hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fault_injection.house import House
from supervisor.core.model import Grant, Kind
from supervisor.core.spec import AllocationSpec

Family = Literal[
    "process", "collectives", "data", "state", "agent", "node", "supervisor", "lighthouse", "etcd", "engine", "gpu"
]


@dataclass(frozen=True, kw_only=True)
class Site:
    """What can be done here. An empty reason is none: it can."""

    engine: str = "local"
    not_here: str = ""
    """Why the run's processes cannot be reached by pid."""
    not_obeying: str = ""
    """Why its ranks do not do what they are ordered to (causes.py)."""
    no_memory_cgroup: str = ""
    no_own_disks: str = ""
    """Why a node's disk cannot be filled without filling everybody's."""
    no_cut: str = ""
    """Why a node's link cannot be taken down."""
    no_filter: str = ""
    """Why a part of its network cannot be closed."""
    no_own_etcd: str = ""
    no_house: str = ""
    """Why it has no etcds, GPUs and failpoints of its own (house.py)."""
    no_collective: str = ""
    """Why a step of its groups has no collective of their own."""
    no_reset: str = ""
    """Why the kernel does not end a connection of others."""
    no_faketime: str = ""
    """Why a process cannot have a clock of its own."""
    no_trace: str = ""
    """Why system calls of etcd cannot be delayed."""
    no_jobs: str = ""
    """Why a job of the run cannot be cancelled; this and the following are of a run on Slurm."""
    no_drain: str = ""
    no_filling: str = ""
    """Why no job of ours can take the hosts that are free."""
    no_controller: str = ""
    """Why slurmctld cannot be stopped."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rank, and where it is. `pids`: of all ranks of its group."""

    group: int
    generation: int
    node: str
    rank: int
    pids: Mapping[int, int]
    allocation: str
    folder: Path
    """Its node's."""
    step: int = 0
    failpoint: str = ""
    """Where a leader is to die; empty: where the fault says."""

    @property
    def pid(self) -> int:
        return self.pids[self.rank]


class Scene(Protocol):
    """The live run, as faults reach it."""

    run_dir: str
    run: str
    allocation: AllocationSpec
    """How its nodes are asked for."""

    @property
    def house(self) -> House | None:
        """None: of somebody else's run."""
        ...

    def leader_pid(self) -> int: ...
    def agent_pid(self, node: str) -> int: ...
    def shim_pid(self, node: str) -> int: ...
    def gate_pids(self) -> tuple[int, int]:
        """Of the gate, and of its lighthouse."""
        ...

    def etcd_pids(self) -> Sequence[int]:
        """Of all its members."""
        ...

    def revision(self) -> int:
        """The store's newest."""
        ...

    def compact(self, revision: int) -> None: ...
    def write(self, size: int) -> None:
        """So many bytes, to a key of nobody's."""
        ...

    def ranks(self) -> Mapping[tuple[int, int, int], int]:
        """(group, its current generation, rank) -> pid."""
        ...

    def nodes(self) -> Mapping[int, str]:
        """Group -> where it is placed; empty: nowhere."""
        ...

    def grants(self) -> Mapping[str, Grant]:
        """What the engine says of the allocations that the run wants, by key."""
        ...

    def phase(self) -> str:
        """Of the run."""
        ...

    def resume(self, because: str) -> None:
        """A halted run, as a person does."""
        ...

    def told(self, node: str) -> set[str]:
        """What its agent says of the node: the kinds of its facts, and `xid N`."""
        ...

    def kill_node(self, target: Target) -> str: ...
    def take_allocation(self, target: Target) -> str: ...
    def left_out(self, group: int) -> bool:
        """Whether the others train without it until a person asks for it."""
        ...

    def restart(self, group: int) -> None:
        """As a person asks for it."""
        ...

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        """Raises Fatal when it does not come."""
        ...


Inject = Callable[[Scene, Target, ExitStack], str]
"""Breaks it and returns the evidence. What heals it is put on the stack first. Raises Fatal when it did not happen."""

Need = Callable[[Site], str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`missing`: why nobody can make it yet, wherever; then it has no `inject`."""

    name: str
    family: Family
    how: str
    inject: Inject | None = None
    needs: tuple[Need, ...] = ()
    kinds: tuple[Kind, ...] = ()
    """Of the one incident that is right. Empty: nothing may be done about it."""
    stays_s: float = 0.0
    """It is healed after so long. 0: at once, or by the supervisor."""
    takes_s: float = 0.0
    """At the most, until it has happened: it waits for what the run does of itself."""
    stalls: bool = False
    """The others stand still until the supervisor acts: they wait inside a collective or a quorum."""
    shown: bool = False
    """The kernel shows it: `policy.hang.stopped_s` counts, not how long a step takes."""
    drifts: bool = False
    """The group's parameters are others' no more until it heals."""
    writers: bool = False
    """It hits rank 0 of the group that writes the checkpoints, whomever the plan names."""
    anywhere: bool = False
    """It is asked of the engine: the victim's node may be another machine."""
    takes_spares: bool = False
    """They are asked for again only when they could have come: policy.allocation_timeout_s after they had been asked for."""
    missing: str = ""
    echoes: tuple[Kind, ...] = field(default=())
    """What the other groups may show of it as well."""

    def why_not(self, site: Site) -> str:
        """The first reason why it cannot be made here; empty when it can."""
        if self.inject is None:
            return self.missing
        return next((reason for need in self.needs if (reason := need(site))), "")
