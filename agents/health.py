"""The machine, as the agent sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal, cast

from supervisor.wire.records import Fact, Health


def read(node: str, folder: Path, warm: str, problems: tuple[str, ...], facts: tuple[Fact, ...]) -> Health:
    """Free disk below `folder`, memory that can be had without swapping, load; the sequence is the writer's to fill."""
    return Health(
        node=node,
        sequence=0,
        warm=cast(Literal["off", "starting", "ready"], warm),
        disk_free_bytes=_disk_free(folder),
        memory_available_bytes=_memory_available(),
        load_1m=os.getloadavg()[0],
        problems=problems,
        facts=facts,
    )


def _disk_free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _memory_available() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
