"""Ends or stops processes by pid for all faults, and verifies it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from fault_injection.faults.fault import Scene
from fault_injection.testbed.system import House
from supervisor.ports.errors import Fatal
from supervisor.shell.processes import is_running, start_ticks

DONE_WITHIN_S = 60.0
"""Seconds until a rank has done as ordered: at its next step, while a checkpoint may be some steps away."""


def house_of(scene: Scene) -> House:
    if scene.house is None:
        raise Fatal("this run is someone else's: its etcd, network and GPUs are not ours to break")
    return scene.house


def listed_pids(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))


def end(scene: Scene, pid: int, number: signal.Signals) -> str:
    ticks = ticks_of(pid)
    os.kill(pid, number)
    scene.wait(lambda: not is_running(pid, ticks), DONE_WITHIN_S, f"process {pid} ends after {number.name}")
    return f"{number.name} to pid {pid}, which has ended"


def stop(scene: Scene, pid: int, after: ExitStack) -> str:
    ticks = ticks_of(pid)
    after.callback(go_on, pid, ticks)
    os.kill(pid, signal.SIGSTOP)
    scene.wait(lambda: state(pid) == "T", DONE_WITHIN_S, f"process {pid} is stopped")
    return f"SIGSTOP to pid {pid}, which the kernel shows as stopped"


def go_on(pid: int, ticks: int) -> None:
    if is_running(pid, ticks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def ticks_of(pid: int) -> int:
    ticks = start_ticks(pid) if pid > 0 else None
    if ticks is None:
        raise Fatal(f"there is no process {pid} any more")
    return ticks


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
