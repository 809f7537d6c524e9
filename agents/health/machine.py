"""Reads the machine's health for the agent's report."""

from __future__ import annotations

import os
from typing import Literal, cast

from supervisor.wire.records import Fact, Health


def read(node: str, disk_free_bytes: int, warm: str, problems: tuple[str, ...], facts: tuple[Fact, ...]) -> Health:
    """Adds the memory available without swapping, in bytes, and the load. The reporter fills in the sequence."""
    return Health(
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
