"""A command of this machine that makes a fault, or takes it away again."""

from __future__ import annotations

import subprocess

from supervisor.ports.errors import Fatal


def run_command(*command: str) -> str:
    """Returns what it prints. Raises Fatal with its own words when it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Fatal(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
