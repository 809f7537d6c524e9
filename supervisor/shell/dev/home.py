"""The folder of the runs: where `supervisor up` keeps its own files, and its notes about itself."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.shell.dev.up_lock import POOL_LOCK
from supervisor.shell.processes import holder


def system_folder(home: Path) -> Path:
    """Returns the folder of everything but the runs themselves, below the folder of the runs."""
    return home.resolve() / ".supervisor"


def runs_in(home: Path) -> bool:
    """Returns true if an `up` with a pool runs in this home."""
    return holder(system_folder(home) / POOL_LOCK) != 0


def endpoints_of(home: Path) -> str:
    """Returns the etcd of the `up` of this home, or an empty string."""
    return noted(home).get("etcd", "")


def security_of(home: Path) -> str:
    """Returns the security file of the `up` of this home, or an empty string."""
    return noted(home).get("security", "")


def noted(home: Path) -> dict[str, str]:
    """Returns the notes of `up` about itself; empty if none has run, or the last one ended cleanly."""
    try:
        body = json.loads((system_folder(home) / "up.json").read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in body.items()}
