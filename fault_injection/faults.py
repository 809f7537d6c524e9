"""The faults of the demo: each breaks one thing for real and says what it did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.ports.errors import Fatal
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.processes import is_running, start_ticks


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A fault that was made. `unix_s` is this machine's clock just before it."""

    name: str
    group: int
    node: str
    unix_s: float
    evidence: str


def kill_trainer(group: int, node: str, pid: int) -> Injected:
    """SIGKILL to one rank. Raises Fatal when it does not die."""
    ticks = start_ticks(pid)
    if ticks is None:
        raise Fatal(f"fault kill_trainer: there is no process {pid}")
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 5.0
    while is_running(pid, ticks):
        if time.monotonic() > until:
            raise Fatal(f"fault kill_trainer: process {pid} lives on after SIGKILL")
        time.sleep(0.001)
    return Injected(name="kill_trainer", group=group, node=node, unix_s=at, evidence=f"SIGKILL to pid {pid}")


def cut_node(group: int, node: str, cut: Callable[[], None]) -> Injected:
    """A node's link goes down: silent, as a dead host."""
    at = time.time()
    cut()
    return Injected(name="lose_node", group=group, node=node, unix_s=at, evidence=f"link of {node} is down")


def kill_node(group: int, node: str, system: Path) -> Injected:
    """SIGKILL to everything of a node. The easier case: the kernel resets its connections at once."""
    shim = int((system / "nodes" / node / "shim.lock").read_text())
    victims = [shim, *_descendants(shim)]
    at = time.time()
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return Injected(
        name="lose_node", group=group, node=node, unix_s=at, evidence=f"SIGKILL to {len(victims)} processes of {node}"
    )


def take_allocation(group: int, node: str, key: str, system: Path) -> Injected:
    """The engine takes an allocation back, as a scheduler does on preemption."""
    at = time.time()
    LocalEngine(system).take_away(key, "preempted by the fault injection")
    return Injected(
        name="take_allocation", group=group, node=node, unix_s=at, evidence=f"allocation {key} was taken away"
    )


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found
