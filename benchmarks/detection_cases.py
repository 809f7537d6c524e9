"""The causes that `benchmarks.detection` makes, how it makes them, and the verdicts that are right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fault_injection.faults import acts
from fault_injection.faults.fault import Target
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.testbed.memory_cgroup import memory_cgroup
from fault_injection.testbed.unavailable import NotHere
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung

if TYPE_CHECKING:
    from benchmarks.detection import Bench

SHIM_LOOKS_S = 2.0
"""Seconds: the shim notes its processes' cgroups once a second."""
HOG_HAS = 32 << 20
"""Bytes left to a rank: the clock runs while it fills them."""
AHEAD = 10
"""Steps until something happens in every group at once."""
HICCUP_S = 1.2

Inject = Callable[["Bench", Target, ExitStack], float]
"""Breaks a target and returns the moment, by this machine's monotonic clock. Clean-up goes on the stack."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cause and its right verdict. `kinds`: any of them is right. `rung`: None if nothing may be done."""

    how: str
    inject: Inject
    kinds: tuple[Kind, ...]
    rung: Rung | None
    family: str
    whole_run: bool = False
    """No group is the culprit: the run is halted, and no host is held guilty."""
    rank_named: bool = True
    """The verdict must name the rank, besides group and node."""
    says: str = ""
    """Words of the evidence that name the cause."""
    echoes: tuple[Kind, ...] = field(default=())
    """Kinds that the other groups may show as well, at rung 1."""


def _ordered(cause: str) -> Inject:
    """One rank breaks itself at its next step."""

    def inject(bench: Bench, target: Target, after: ExitStack) -> float:
        return bench.ordered(target, Order(cause=cause))

    return inject


def _everywhere(cause: str, one_rank: bool) -> Inject:
    """Every group breaks at the same step; in each only the target's rank, or all ranks."""

    def inject(bench: Bench, target: Target, after: ExitStack) -> float:
        wanted = Order(cause=cause, at_step=bench.step() + AHEAD)
        ordered = []
        for each in bench.targets(target.rank):
            ranks = [target.rank] if one_rank else list(each.pids)
            for rank in ranks:
                causes.order(bench.run_dir, each.group, each.generation, rank, wanted)
                ordered.append((each.group, each.generation, rank))
        return bench.done(*ordered)

    return inject


def _sigkill(bench: Bench, target: Target, after: ExitStack) -> float:
    at = time.monotonic()
    acts.kill_trainer(target.group, target.node, target.pid)
    return at


def _sigstop(bench: Bench, target: Target, after: ExitStack) -> float:
    at = time.monotonic()
    acts.stop_rank(target.group, target.node, target.pid)
    return at


def _hiccup(bench: Bench, target: Target, after: ExitStack) -> float:
    at = _sigstop(bench, target, after)
    time.sleep(HICCUP_S)
    os.kill(target.pid, 18)
    return at


def _for_memory(bench: Bench, target: Target, after: ExitStack) -> float:
    cgroup = after.enter_context(memory_cgroup(f"hog-{bench.trials}"))
    cgroup.add(target.pid)
    time.sleep(SHIM_LOOKS_S)
    cgroup.limit(cgroup.used() + HOG_HAS)
    return bench.ordered(target, Order(cause=causes.HOG))


def _node_killed(bench: Bench, target: Target, after: ExitStack) -> float:
    at = time.monotonic()
    acts.kill_node(target.group, target.node, bench.w.system)
    return at


def _allocation_gone(bench: Bench, target: Target, after: ExitStack) -> float:
    at = time.monotonic()
    acts.take_allocation(target.group, target.node, target.allocation, bench.w.system)
    return at


def _disk_full(bench: Bench, target: Target, after: ExitStack) -> float:
    if not bench.disks:
        raise NotHere("nodes have no disk of their own here: a tmpfs needs root")
    after.callback((target.folder / acts.FILLER).unlink, missing_ok=True)
    at = time.monotonic()
    acts.fill_disk(target.group, target.node, target.folder)
    return at


def _slow(bench: Bench, target: Target, after: ExitStack) -> float:
    at = bench.ordered(target, Order(cause=causes.SLOW, seconds=bench.step_s))
    after.callback(bench.restart, target.group)
    return at


def _slow_steps(bench: Bench, target: Target, after: ExitStack) -> float:
    at = bench.ordered(target, Order(cause=causes.SLOW, seconds=4 * bench.step_s))
    after.callback(bench.restart, target.group)
    return at


def _agent_killed(bench: Bench, target: Target, after: ExitStack) -> float:
    pid = bench.agent_of(target.node)
    at = time.monotonic()
    acts.kill_agent(target.group, target.node, pid)
    eventually(lambda: bench.agent_of(target.node) != pid, 20, "the shim starts the next agent")
    return at


def _busy(bench: Bench, target: Target, after: ExitStack) -> float:
    for _ in range(os.cpu_count() or 1):
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        after.callback(child.wait)
        after.callback(child.kill)
    return time.monotonic()


CRASH, HANG, OTHER, NOTHING = "crash", "hang", "other", "nothing"
"""Families: a process that ends; a process that lives and does not go on; neither; and what heals by itself."""


def _crash(how: str, inject: Inject, kind: Kind, says: str) -> Case:
    return Case(how=how, inject=inject, kinds=(kind,), rung=Rung.RESTART, family=CRASH, says=says)


def _hang(how: str, inject: Inject, says: str, *also: Kind) -> Case:
    return Case(how=how, inject=inject, kinds=(Kind.HANG, *also), rung=Rung.RESTART, family=HANG, says=says)


CASES: dict[str, Case] = {
    "segfault": _crash("a rank reads address 0", _ordered(causes.SEGFAULT), Kind.CRASH, "SIGSEGV"),
    "abort": _crash("a rank calls abort()", _ordered(causes.ABORT), Kind.CRASH, "SIGABRT"),
    "sigkill": _crash("SIGKILL to a rank", _sigkill, Kind.CRASH, "a SIGKILL that is neither ours"),
    "exit_code": _crash("a rank exits with code 7", _ordered(causes.EXIT), Kind.ERROR, "exited with code 7"),
    "exception": _crash("a rank raises", _ordered(causes.RAISE), Kind.ERROR, "Bug: the shapes do not fit"),
    "killed_for_memory": _crash("a rank takes more than its memory cgroup has", _for_memory, Kind.OOM, "killed by the kernel for memory"),
    "stopped": _hang("SIGSTOP to a rank", _sigstop, "is stopped by a signal", Kind.STALLED),
    "gil_held": _hang(
        "C code keeps the interpreter's lock", _ordered(causes.HOLD_GIL), "holding the interpreter's lock"
    ),
    "gil_held_aside": _hang(
        "C code of another thread keeps the interpreter's lock", _ordered(causes.HOLD_GIL_ASIDE),
        "another thread holds the interpreter's lock",
    ),
    "endless_loop": _hang("a rank computes for ever", _ordered(causes.LOOP), "burns a processor"),
    "data_blocked": _hang("the data loader reads a pipe that no one writes", _ordered(causes.BLOCK_DATA), " in data; "),
    "checkpoint_blocked": _hang(
        "rank 0 writes its checkpoint into a pipe that no one reads", _ordered(causes.BLOCK_CHECKPOINT), " in checkpoint; "
    ),
    "collective_skipped": _hang(
        "a rank leaves out a collective of its group", _ordered(causes.SKIP_COLLECTIVE), "(distributed_c10d.py:"
    ),
    "nan_in_one_group": Case(
        how="NaN planted in a weight of one group",
        inject=_ordered(causes.PLANT_NAN),
        kinds=(Kind.NUMERICS,), rung=Rung.REPLACE, family=OTHER, says="its hardware is suspect", echoes=(Kind.ERROR,),
    ),
    "nan_everywhere": Case(
        how="NaN planted in a weight of every group, at one step",
        inject=_everywhere(causes.PLANT_NAN, one_rank=True),
        kinds=(Kind.SAME_ERROR,), rung=Rung.STOP, family=OTHER, whole_run=True, says="loss is nan", echoes=(Kind.ERROR,),
    ),
    "bug_everywhere": Case(
        how="every rank raises the same at one step",
        inject=_everywhere(causes.RAISE, one_rank=False),
        kinds=(Kind.SAME_ERROR,), rung=Rung.STOP, family=OTHER, whole_run=True, says="Bug: the shapes do not fit",
        echoes=(Kind.ERROR,),
    ),
    "node_killed": Case(
        how="all processes of a node are killed",
        inject=_node_killed, kinds=(Kind.NODE_LOST,), rung=Rung.REPLACE, family=OTHER, rank_named=False, says="lapsed",
    ),
    "allocation_gone": Case(
        how="the engine takes an allocation away",
        inject=_allocation_gone, kinds=(Kind.ALLOCATION_LOST,), rung=Rung.REALLOCATE, family=OTHER, rank_named=False,
        says="the engine says that allocation",
    ),
    "disk_full": Case(
        how="the disk of a node fills, on which its ranks write logs and checkpoints: one fails, or hangs for its log",
        inject=_disk_full, kinds=(Kind.ERROR, Kind.HANG), rung=Rung.RESTART, family=OTHER, rank_named=False,
        says="No space left on device",
    ),
    "straggler": Case(
        how="a rank computes twice as long as the others", inject=_slow, kinds=(), rung=None, family=OTHER,
    ),
    "hiccup": Case(how="a rank is stopped for 1.2 s", inject=_hiccup, kinds=(), rung=None, family=NOTHING),
    "slow_steps": Case(how="every step of a rank takes five times as long", inject=_slow_steps, kinds=(), rung=None, family=NOTHING),
    "agent_killed": Case(how="SIGKILL to a node's agent", inject=_agent_killed, kinds=(), rung=None, family=NOTHING),
    "noisy_neighbours": Case(how="busy loops on all processors", inject=_busy, kinds=(), rung=None, family=NOTHING),
}  # fmt: skip

RANK_ZERO = ("checkpoint_blocked",)
"""Rank 0 writes the checkpoints."""


def mount(folder: Path, size: int) -> bool:
    """Mounts a tmpfs at the folder; false where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "node", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Unmounts the folder once the processes killed there have released its files."""
    eventually(lambda: subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0, 20)
