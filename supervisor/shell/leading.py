"""Who leads, and where its page was the last time."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from supervisor.shell.mirror import Mirror
from supervisor.shell.processes import is_running, pid_namespace
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord


def leader(mirror: Mirror) -> LeaderRecord | None:
    """None where no one leads. The record of a leader that was killed stays until its lease lapses: a process of this machine that
    has ended leads no more. Of another machine's only its lease tells."""
    record = mirror.record(keys.LEADER, LeaderRecord)
    return None if record is None or has_ended(record) else record


def has_ended(record: LeaderRecord) -> bool:
    """Whether it was a process of this machine, among those that we can see, and runs no more."""
    ours = record.host == socket.gethostname() and record.pid_namespace == pid_namespace() != 0
    return ours and not is_running(record.pid, record.start_ticks)


def kept_port(system: Path) -> int:
    """The port on which this host's page was first served from this home; 0: none is known."""
    try:
        port = int(_file(system).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0


def keep_port(system: Path, port: int) -> None:
    """For the next start here: a browser, and who scrapes, find it again. A convenience: a home that cannot be written is no error."""
    with suppress(OSError):
        system.mkdir(parents=True, exist_ok=True)
        _file(system).write_text(f"{port}\n")


def _file(system: Path) -> Path:
    return system / f"page-port-{socket.gethostname()}"
