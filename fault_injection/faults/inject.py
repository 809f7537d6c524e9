"""How each fault of the catalogue is made. Whatever has to be healed goes on the stack before it is broken."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, suppress

from agents import sockets
from fault_injection import causes
from fault_injection.causes import Order
from fault_injection.faults import acts
from fault_injection.faults.fault import Inject, Scene, Target
from fault_injection.memory_cgroup import memory_cgroup
from supervisor.ports.errors import Fatal
from supervisor.shell.processes import is_running, start_ticks

DONE_WITHIN_S = 60.0
"""A rank does as ordered at its next step; a checkpoint may be some steps away."""

SHIM_LOOKS_S = 2.0
"""The shim notes in which cgroup its processes are once a second."""

HOG_HAS = 96 << 20
"""Bytes that are left to a rank before the kernel kills it for memory."""

SLOWER_S = 0.5
"""By which each step of a slow rank is longer: several steps of the debug model."""


def signalled(number: signal.Signals) -> Inject:
    """A signal that ends one rank."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return _end(scene, target.pid, number)

    return inject


def stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    """SIGSTOP to one rank, SIGCONT in the end if it still is there."""
    return _stop(scene, target.pid, after)


def ordered(cause: str, seconds: float = 0.0) -> Inject:
    """The rank does it to itself, at the place of its next step where it belongs."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return _ordered(scene, target, Order(cause=cause, seconds=seconds))

    return inject


def until_restarted(cause: str, seconds: float = 0.0) -> Inject:
    """As `ordered`, for what no supervisor mends: in the end a person restarts the group."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        after.callback(scene.restart, target.group)
        return _ordered(scene, target, Order(cause=cause, seconds=seconds))

    return inject


def for_memory(scene: Scene, target: Target, after: ExitStack) -> str:
    cgroup = after.enter_context(memory_cgroup(f"{target.group}-{target.generation}"))
    cgroup.add(target.pid)
    time.sleep(SHIM_LOOKS_S)
    cgroup.limit(cgroup.used() + HOG_HAS)
    _ordered(scene, target, Order(cause=causes.HOG))
    scene.wait(lambda: cgroup.kills() > 0, DONE_WITHIN_S, "the kernel kills for memory")
    return f"the kernel has counted a kill for memory in the cgroup of pid {target.pid}"


def aborted(scene: Scene, target: Target, after: ExitStack) -> str:
    """The process group between the groups fails under whatever runs in it."""
    folder = target.folder / "ranks" / f"{scene.run}.{target.group}.{target.generation}.{target.rank}"
    with sockets.connect(folder / "command.sock", timeout_s=5.0) as command, command.makefile("rwb") as lines:
        lines.write(b'{"do":"abort"}\n')
        lines.flush()
        answer = json.loads(lines.readline() or b"{}")
    if not answer.get("ok"):
        raise Fatal(f"group {target.group} rank {target.rank} did not abort: {answer.get('error', 'no answer')}")
    return f"rank {target.rank} has aborted its process group"


def disk_full(scene: Scene, target: Target, after: ExitStack) -> str:
    after.callback((target.folder / acts.FILLER).unlink, missing_ok=True)
    return acts.fill_disk(target.group, target.node, target.folder).evidence


def agent_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    pid = scene.agent_pid(target.node)
    said = _end(scene, pid, signal.SIGKILL)
    scene.wait(lambda: scene.agent_pid(target.node) not in (0, pid), DONE_WITHIN_S, "the shim starts the next agent")
    return said


def agent_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.agent_pid(target.node), after)


def node_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.kill_node(target)


def node_cut(scene: Scene, target: Target, after: ExitStack) -> str:
    after.callback(scene.mend, target.node)
    scene.cut(target.node)
    return f"link of {target.node} is down"


def leader_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.leader_pid(), signal.SIGKILL)


def leader_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.leader_pid(), after)


def lighthouse_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.gate_pids()[1], signal.SIGKILL)


def lighthouse_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.gate_pids()[1], after)


def gate_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.gate_pids()[0], signal.SIGKILL)


def etcd_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.etcd_pid(), signal.SIGKILL)


def etcd_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.etcd_pid(), after)


def etcd_compacted(scene: Scene, target: Target, after: ExitStack) -> str:
    """While the leader is stopped: what its watch would read next is gone when it goes on."""
    _stop(scene, scene.leader_pid(), after)
    seen = scene.revision()
    scene.wait(lambda: scene.revision() > seen + 1, DONE_WITHIN_S, "somebody writes to etcd")
    newest = scene.revision()
    scene.compact(newest)
    return f"etcd is compacted up to revision {newest}; the leader, stopped, had seen {seen} at the most"


def allocation_gone(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.take_allocation(target)


def _ordered(scene: Scene, target: Target, wanted: Order) -> str:
    whom = (scene.run_dir, target.group, target.generation, target.rank)
    causes.order(*whom, wanted)
    scene.wait(lambda: causes.done_at(*whom) is not None, DONE_WITHIN_S, f"the rank does as ordered ({wanted.cause})")
    return f"pid {target.pid} has begun it: {wanted.cause}"


def _end(scene: Scene, pid: int, number: signal.Signals) -> str:
    ticks = _ticks(pid)
    os.kill(pid, number)
    scene.wait(lambda: not is_running(pid, ticks), DONE_WITHIN_S, f"process {pid} ends after {number.name}")
    return f"{number.name} to pid {pid}, which has ended"


def _stop(scene: Scene, pid: int, after: ExitStack) -> str:
    ticks = _ticks(pid)
    after.callback(_continue, pid, ticks)
    os.kill(pid, signal.SIGSTOP)
    scene.wait(lambda: _state(pid) == "T", DONE_WITHIN_S, f"process {pid} is stopped")
    return f"SIGSTOP to pid {pid}, which the kernel shows as stopped"


def _continue(pid: int, ticks: int) -> None:
    if is_running(pid, ticks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _ticks(pid: int) -> int:
    ticks = start_ticks(pid) if pid > 0 else None
    if ticks is None:
        raise Fatal(f"there is no process {pid} any more")
    return ticks


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
