"""Makes faults from outside: each breaks one thing for real and reports it. Those inside a rank are in `causes`."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agents.shim import process
from supervisor.ports.errors import Fatal
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.processes import is_running, start_ticks

FILLER = ".filler"

ENDS_WITHIN_S = 5.0
"""Seconds in which a process ends after SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A fault that was made. `unix_s` is this machine's clock just before it."""

    name: str
    group: int
    node: str
    unix_s: float
    evidence: str


def kill_trainer(group: int, node: str, pid: int) -> Injected:
    """Sends SIGKILL to one rank. Raises Fatal when it does not die."""
    ticks = start_ticks(pid)
    if ticks is None:
        raise Fatal(f"fault kill_trainer: there is no process {pid}")
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + ENDS_WITHIN_S
    while is_running(pid, ticks):
        if time.monotonic() > until:
            raise Fatal(f"fault kill_trainer: process {pid} lives on after SIGKILL")
        time.sleep(0.001)
    return Injected(name="kill_trainer", group=group, node=node, unix_s=at, evidence=f"SIGKILL to pid {pid}")


def stop_rank(group: int, node: str, pid: int) -> Injected:
    """Sends SIGSTOP to one rank: it stays where it is, with all that it holds."""
    at = time.time()
    os.kill(pid, signal.SIGSTOP)
    return Injected(name="stop_rank", group=group, node=node, unix_s=at, evidence=f"SIGSTOP to pid {pid}")


def kill_agent(group: int, node: str, pid: int) -> Injected:
    """Sends SIGKILL to a node's agent alone. The node does not fail, for its shim starts the next agent."""
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return Injected(name="kill_agent", group=group, node=node, unix_s=at, evidence=f"SIGKILL to pid {pid}")


def fill_disk(group: int, node: str, folder: Path) -> Injected:
    """Writes a file, FILLER, or more of it, until the file system of `folder` is full. The caller removes it."""
    at = time.time()
    with (folder / FILLER).open("ab", buffering=0) as file:
        try:
            for size in (1 << 16, 1 << 12):
                while file.write(b"\0" * size) == size:
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return Injected(name="fill_disk", group=group, node=node, unix_s=at, evidence=f"the disk of {folder} is full")


def cut_node(group: int, node: str, cut: Callable[[], None]) -> Injected:
    """Takes a node's link down: the node is silent, as a dead host."""
    at = time.time()
    cut()
    return Injected(name="lose_node", group=group, node=node, unix_s=at, evidence=f"link of {node} is down")


def kill_node(group: int, node: str, system: Path) -> Injected:
    """Sends SIGKILL to everything of a node. This is the easier case, as the kernel resets its connections at once.
    Raises Fatal when a process survives."""
    shim = int((system / "nodes" / node / "shim.lock").read_text())
    found = [(pid, start_ticks(pid)) for pid in tree(shim)]
    victims = [(pid, ticks) for pid, ticks in found if ticks is not None]
    at = time.time()
    for pid, _ in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + ENDS_WITHIN_S
    while alive := [pid for pid, ticks in victims if is_running(pid, ticks)]:
        if time.monotonic() > until:
            raise Fatal(f"fault kill_node: {len(alive)} processes of {node} live on after SIGKILL, as pid {alive[0]}")
        time.sleep(0.001)
    evidence = f"SIGKILL to {len(victims)} processes of {node}, which have all ended"
    return Injected(name="lose_node", group=group, node=node, unix_s=at, evidence=evidence)


def take_allocation(group: int, node: str, key: str, system: Path) -> Injected:
    """Takes an allocation back through the engine, as a scheduler does on preemption."""
    at = time.time()
    LocalEngine(system).take_away(key, "preempted by the fault injection")
    return Injected(
        name="take_allocation", group=group, node=node, unix_s=at, evidence=f"allocation {key} was taken away"
    )


def tree(root: int) -> list[int]:
    """Returns this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in process.all_processes():
        children.setdefault(stat.parent, []).append(stat.pid)
    found = [root]
    for pid in found:  # grows meanwhile
        found += children.get(pid, [])
    return found
