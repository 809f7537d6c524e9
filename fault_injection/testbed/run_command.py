"""Runs commands of this machine that make a fault or undo it."""

from __future__ import annotations

import subprocess

from supervisor.ports.errors import Fatal


def run_command(*command: str) -> str:
    """Runs a command and returns its output. Raises Fatal with its own words when it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Fatal(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
