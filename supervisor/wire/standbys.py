"""The file in which a node's warm process names its hot standbys, for the node's agent."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

FILE = "standbys.json"
"""Below the folder of the ranks' folders."""


def write(ranks: Path, pids: Sequence[int]) -> None:
    """Writes the pids of those that are built. Raises OSError."""
    new = ranks / f"{FILE}.new"
    new.write_text(json.dumps(sorted(pids)))
    os.replace(new, ranks / FILE)


def memory(ranks: Path) -> tuple[int, ...]:
    """Returns the bytes that each standby holds alone, and its share of what it holds with others (PSS)."""
    try:
        pids = json.loads((ranks / FILE).read_text())
    except (OSError, ValueError):
        return ()
    found = (_pss(pid) for pid in pids if isinstance(pid, int))
    return tuple(size for size in found if size)


def _pss(pid: int) -> int:
    """Returns 0 for a process that has ended, or is another by now."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith("standby"):
            return 0
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
