"""Monarch's settings that the client of a mesh and its workers share (docs/adr/0025-monarch.md). Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RELEASE = "0.7.0"
"""The release of torchmonarch in `pyproject.toml`: settings and errors of another differ."""

TUNED = {
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s",
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": "3s",
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": "3s",
    # above a poll and both waits, or a healthy controller counts as gone
    "HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT": "15s",
    "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT": "10s",
    "HYPERACTOR_MESH_PROC_STOP_MAX_IDLE": "5s",
    # the lease of the request ends a mesh; this ends what a program has dropped
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": "10m",
}
"""Environment variables, each with its value unless the user has set another. By default a lost host takes 69 s to be
noticed."""

PEMS = {"ca": "HYPERACTOR_TLS_CA", "cert": "HYPERACTOR_TLS_CERT", "key": "HYPERACTOR_TLS_KEY"}
"""File -> the environment variable by which Monarch finds it."""


def settle(folder: Path, pems: Mapping[str, str]) -> dict[str, str]:
    """Writes the PEM files (by the keys of PEMS) into a folder that only we may read, and returns the variables that name
    them. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    named = {}
    for name, variable in PEMS.items():
        file = folder / f"{name}.pem"
        file.touch(mode=0o600)
        file.write_text(pems[name])
        named[variable] = str(file)
    return named


def url(address: str, port: int) -> str:
    """Returns the address of a worker as Monarch writes it: TLS both ways."""
    return f"tls://[{address}]:{port}" if ":" in address else f"tls://{address}:{port}"
