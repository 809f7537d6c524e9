"""Reads the machine's health for the agent's report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, cast

from supervisor.wire import standbys
from supervisor.wire.records import Fact, Health


def read(
    node: str, folder: Path, disk_free_bytes: int, warm: str, problems: tuple[str, ...], facts: tuple[Fact, ...]
) -> Health:
    """Adds the memory available without swapping, in bytes, that of the hot standbys, and the load. `folder`: the node's.
    The reporter fills in the sequence."""
    held = standbys.memory(folder / "ranks")
    return Health(
        standbys=len(held),
        standby_bytes=sum(held),
        node=node,
        sequence=0,
        warm=cast(Literal["off", "starting", "ready"], warm),
        disk_free_bytes=disk_free_bytes,
        memory_available_bytes=_memory_available(),
        load_1m=os.getloadavg()[0],
        problems=problems,
        facts=facts,
    )


def _memory_available() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
