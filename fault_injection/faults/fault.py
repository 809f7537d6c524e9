"""Defines a fault, the site where it is made, and the target that it hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fault_injection.testbed.system import House
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec

Family = Literal[
    "process", "collectives", "data", "state", "agent", "node", "supervisor", "lighthouse", "etcd", "engine", "gpu"
]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The faults that can be made here. Each field is the reason why one cannot; empty: it can."""

    engine: str = "local"
    not_here: str = ""
    """Why the run's processes cannot be reached by pid."""
    not_obeying: str = ""
    """Why its ranks do not follow orders (causes.py)."""
    no_memory_cgroup: str = ""
    no_own_disks: str = ""
    """Why a node's disk cannot be filled without filling those of all others."""
    no_cut: str = ""
    """Why a node's link cannot be taken down."""
    no_filter: str = ""
    """Why a part of its network cannot be closed."""
    no_own_etcd: str = ""
    no_house: str = ""
    """Why it has no etcds, GPUs and failpoints of its own (testbed/system.py)."""
    no_collective: str = ""
    """Why a step of its groups has no collective within a group."""
    no_reset: str = ""
    """Why the kernel does not end a connection of other processes."""
    no_faketime: str = ""
    """Why a process cannot have a clock of its own."""
    no_trace: str = ""
    """Why system calls of etcd cannot be delayed."""
    no_jobs: str = ""
    """Why a job of the run cannot be cancelled; this and the following are for a run on Slurm."""
    no_drain: str = ""
    no_filling: str = ""
    """Why no job of ours can take the free hosts."""
    no_controller: str = ""
    """Why slurmctld cannot be stopped."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rank, and where it is. `pids`: those of all ranks of its group."""

    group: int
    generation: int
    node: str
    rank: int
    pids: Mapping[int, int]
    allocation: str
    folder: Path
    """The folder of its node."""
    step: int = 0
    failpoint: str = ""
    """Where a leader must die; empty: where the fault defines."""

    @property
    def pid(self) -> int:
        return self.pids[self.rank]


class Scene(Protocol):
    """The live run, as faults reach it."""

    run_dir: str
    run: str
    allocation: AllocationSpec
    """How its nodes are requested."""

    @property
    def house(self) -> House | None:
        """The parts that the run has for itself; None for a run that was not started to be broken."""
        ...

    def leader_pid(self) -> int: ...
    def agent_pid(self, node: str) -> int: ...
    def shim_pid(self, node: str) -> int: ...
    def gate_pids(self) -> tuple[int, int]:
        """Returns the pids of the gate and of its lighthouse."""
        ...

    def etcd_pids(self) -> Sequence[int]:
        """Returns the pids of all its members."""
        ...

    def revision(self) -> int:
        """Returns the store's newest revision."""
        ...

    def compact(self, revision: int) -> None: ...
    def write(self, size: int) -> None:
        """Writes that many bytes to a key that no process reads."""
        ...

    def ranks(self) -> Mapping[tuple[int, int, int], int]:
        """Maps (group, its current generation, rank) to the pid."""
        ...

    def nodes(self) -> Mapping[int, Sequence[str]]:
        """Maps each group to its nodes; fewer than it needs while it waits for one."""
        ...

    def grants(self) -> Mapping[str, Grant]:
        """Returns what the engine reports of the allocations that the run wants, by key."""
        ...

    def phase(self) -> str:
        """Returns the run's phase."""
        ...

    def resume(self, because: str) -> None:
        """Resumes a halted run, as a person does."""
        ...

    def told(self, node: str) -> set[str]:
        """Returns what its agent reports of the node: the kinds of its facts, and `xid N`."""
        ...

    def kill_node(self, target: Target) -> str: ...
    def take_allocation(self, target: Target) -> str: ...
    def left_out(self, group: int) -> bool:
        """Returns true if the group is suspended: the others train without it until a person requests it."""
        ...

    def restart(self, group: int) -> None:
        """Restarts a group on a person's request."""
        ...

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        """Waits until it is reached; raises Fatal if that takes too long."""
        ...


Inject = Callable[[Scene, Target, ExitStack], str]
"""Breaks it and returns the evidence. Its healing goes on the stack first. Raises Fatal when it did not happen."""

Need = Callable[[Site], str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way of breaking a run. `missing`: why it cannot be made anywhere yet; it then has no `inject`."""

    name: str
    family: Family
    how: str
    inject: Inject | None = None
    needs: tuple[Need, ...] = ()
    kinds: tuple[Kind, ...] = ()
    """Kinds of the one incident that is right. Empty: no action is right."""
    stays_s: float = 0.0
    """Seconds after which it is healed. 0: at once, or by the supervisor."""
    takes_s: float = 0.0
    """Most seconds until it has happened, if it waits for something that the run does by itself."""
    stalls: bool = False
    """The others stand still until the supervisor acts: they wait inside a collective or a quorum."""
    shown: bool = False
    """The kernel shows it: `policy.hang.stopped_s` counts, not how long a step takes."""
    drifts: bool = False
    """The group's parameters differ from the others' until it heals."""
    writers: bool = False
    """It hits rank 0 of the group that writes the checkpoints, whatever the plan names."""
    anywhere: bool = False
    """It is made through the engine: the victim's node may be another machine."""
    takes_spares: bool = False
    """Spares are requested again only when they could have come, policy.allocation_timeout_s after the last request."""
    missing: str = ""
    echoes: tuple[Kind, ...] = field(default=())
    """Kinds of incident that the other groups may show for it as well."""

    def why_not(self, site: Site) -> str:
        """Returns the first reason why it cannot be made here; empty if it can."""
        if self.inject is None:
            return self.missing
        return next((reason for need in self.needs if (reason := need(site))), "")
