"""Finds the current leader, and the port on which this host's page was last served."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.processes import is_running, pid_namespace
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord


def leader(mirror: Mirror) -> LeaderRecord | None:
    """Returns the leader; None if no one leads. A killed leader's record stays until its lease lapses, but an ended
    process of this machine leads no more. For another machine, only the lease shows it."""
    record = mirror.record(keys.LEADER, LeaderRecord)
    return None if record is None or has_ended(record) else record


def has_ended(record: LeaderRecord) -> bool:
    """Returns true if it was a visible process of this machine and no longer runs."""
    ours = record.host == socket.gethostname() and record.pid_namespace == pid_namespace() != 0
    return ours and not is_running(record.pid, record.start_ticks)


def kept_port(system: Path) -> int:
    """Returns the port on which this host's page was first served from this home; 0 if unknown."""
    try:
        port = int(_file(system).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0


def keep_port(system: Path, port: int) -> None:
    """Keeps the port for the next start here, so that browsers and scrapers find the page. Ignores OSError."""
    with suppress(OSError):
        system.mkdir(parents=True, exist_ok=True)
        _file(system).write_text(f"{port}\n")


def _file(system: Path) -> Path:
    return system / f"page-port-{socket.gethostname()}"
