"""The folder of the runs: where `supervisor up` keeps its own files, and its notes about itself, its etcd among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from supervisor.shell.dev.up_lock import POOL_LOCK
from supervisor.shell.processes import holder

HOME = Path("runs")
"""Default folder of the runs."""

DEFAULT = "127.0.0.1:2379"
"""Default address of etcd."""


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


def endpoints_in(etcd: str, home: Path) -> list[str]:
    """Returns the endpoints as given, or those of the `up` in this home, or etcd's default."""
    return (etcd or endpoints_of(home) or DEFAULT).split(",")


def why_away(home: Path, endpoints: Sequence[str]) -> str:
    """Returns sentences on an etcd that no one named and that does not answer: that of this home, or the default."""
    folder = f"{home}/NAME"  # not home / "NAME", which has no slash in the home `.`, and so would be a name
    return (
        f"{_away(home, ', '.join(endpoints))}. To read a run's files without etcd: supervisor logs {folder}, "
        f"supervisor ledger {folder}, supervisor explain ID --journal {folder}/journal.jsonl"
    )


def _away(home: Path, where: str) -> str:
    if not endpoints_of(home):
        return (
            # an `up` without nodes of its own got its etcd as an option and notes none
            f"no etcd found: no `supervisor up` in {home} has recorded one, and none answers at the default, {DEFAULT}. "
            "Give --etcd, the --home of a running `up`, or set SUPERVISOR_ETCD; for a first run, `supervisor up` starts an etcd"
        )
    if runs_in(home):
        return (
            f"the etcd of the `supervisor up` in {home} does not answer at {where}. `up` restarts it as soon as it can, and "
            "prints what prevents it; training goes on meanwhile"
        )
    return f"the etcd of {home} does not answer at {where}, and no `supervisor up` runs there: start it with `supervisor up`"
