"""Finds trainers whose TorchFT ports (manager, store, process group, heal) can be reached from outside the training
network. These ports are unencrypted."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from supervisor.shell.dev.home import system_folder
from supervisor.shell.inspect.doctor.finding import Finding, good, note

_LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp."""

DO = "keep them on the training network, by a firewall or by addresses of only that network (docs/SECURITY.md)"


def examine(home: Path) -> Iterator[Finding]:
    """Examines the ports on which this machine's trainers listen."""
    open_: dict[str, set[int]] = {}
    looked = 0
    for name, pid in trainers(system_folder(home)):
        try:
            ports = everywhere(Path(f"/proc/{pid}"))
        except OSError:
            continue  # it has ended, or belongs to another user
        looked += 1
        if ports:
            open_[name] = ports
    if open_:
        name, ports = min(open_.items())
        told = ", ".join(map(str, sorted(ports)[:6]))
        yield note(
            f"{len(open_)} trainers listen on every address of this machine ({name}: ports {told}), unencrypted", DO
        )
    elif looked:
        yield good(f"none of the {looked} trainers here listens on every address of this machine")


def trainers(system: Path) -> Iterator[tuple[str, int]]:
    """Yields (name, pid) of the running trainers in the records of this machine's shims."""
    for path in sorted(system.glob("nodes/*/processes/*.json")):
        try:
            body = json.loads(path.read_text())
            name, pid, exited = str(body["name"]), int(body["pid"]), bool(body["exited"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if pid and not exited and not name.startswith("lighthouse."):
            yield name, pid


def everywhere(process: Path) -> set[int]:
    """Returns the ports on which a process (its folder in /proc) listens on every address; none if it sees only
    loopback. Raises OSError."""
    if not leaves_loopback((process / "net" / "route").read_text()):
        return set()
    sockets = set()
    for entry in os.scandir(process / "fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[len("socket:[") : -1])
    tables = (process / "net" / name for name in ("tcp", "tcp6"))
    return {port for table in tables if table.exists() for port in wildcard_ports(table.read_text(), sockets)}


def leaves_loopback(route: str) -> bool:
    """Returns true if /proc/net/route knows a network other than loopback."""
    return any(line.split()[0] != "lo" for line in route.splitlines()[1:] if line.split())


def wildcard_ports(table: str, sockets: Collection[str]) -> Iterator[int]:
    """Yields the ports of /proc/net/tcp (or tcp6) on which one of the sockets (inodes) listens on every address."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN or fields[9] not in sockets:
            continue
        address, _, port = fields[1].partition(":")
        if not address.strip("0"):
            yield int(port, 16)
