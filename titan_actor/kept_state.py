"""The state of a rank, kept in its node's memory from its last step to its next start (`relaunch --from-memory`).

The warm process makes a nameless file in memory for each rank before it forks it, and hands the same one to the rank's
next start there. So nothing lies in a folder, and what no start takes ends with the warm process. A rank that finds
nothing, since it starts on another node or was not forked, loads the checkpoint and heals.
"""

from __future__ import annotations

import json
import logging
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.wire.records import TrainerLaunch

log = logging.getLogger(__name__)

DESCRIPTOR: int | None = None
"""The file of this process, if it was forked from a warm one."""
HOLDER: int | None = None
"""pidfd of that one: without it the file ends with this process."""

LEAST_FREE = 2.0
"""A state is kept where this many times its size is free: the next start has its own beside it."""


@dataclass(frozen=True)
class Kept:
    """The state of a rank after a step, as `keep` took it."""

    step: int
    state: dict[str, Any]


class Files:
    """The warm process's files, one for each rank of the run that uses the node."""

    def __init__(self) -> None:
        self.holder = os.pidfd_open(os.getpid())
        self._files: dict[tuple[str, int, int], int] = {}

    def of(self, launch: str) -> int | None:
        """Returns the file of the rank with this launch file; those of other runs are given up. None: the launch file cannot
        be read, as the rank itself will say."""
        try:
            with open(launch, encoding="utf-8") as file:
                record = json.load(file)
            key = str(record["run"]), int(record["group"]), int(record["rank"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return self.at(key)

    def at(self, key: tuple[str, int, int]) -> int:
        """Returns the file of a run, group and rank."""
        for other in [known for known in self._files if known[0] != key[0]]:
            os.close(self._files.pop(other))
        if key not in self._files:
            self._files[key] = os.memfd_create("-".join(map(str, key))[:200], os.MFD_CLOEXEC)
        return self._files[key]

    def rename(self, old: tuple[str, int, int], new: tuple[str, int, int]) -> None:
        """Has a rank's file be that of another; what was kept for that one is given up."""
        if new in self._files:
            os.close(self._files.pop(new))
        self._files[new] = self._files.pop(old)


def keep(number: int, launch: TrainerLaunch, step: int, state: dict[str, Any]) -> bool:
    """Keeps what `state` refers to, under the number of the relaunch; returns false, and logs why, if it cannot."""
    import torch

    if DESCRIPTOR is None or HOLDER is None or select.select([HOLDER], [], [], 0)[0]:
        log.warning("the state is not kept in memory: this rank was not forked from the warm process that is here now")
        return False
    size, free = _bytes_of(state) * launch.local_world_size, free_bytes()
    if free < LEAST_FREE * size:
        log.warning("the state is not kept in memory: that of the ranks here has %d bytes, and %d are free", size, free)
        return False
    try:
        os.ftruncate(DESCRIPTOR, 0)
        with os.fdopen(os.dup(DESCRIPTOR), "wb") as file:
            file.seek(0)
            torch.save({"number": number, "world_size": launch.world_size, "step": step, "state": state}, file)
    except Exception as error:  # noqa: BLE001  (whatever it is, the checkpoint takes its place)
        log.warning("the state is not kept in memory: %s", error)
        os.ftruncate(DESCRIPTOR, 0)
        return False
    return True


def take(launch: TrainerLaunch) -> Kept | None:
    """Returns what was kept for this start; None if there is nothing, or it is of another relaunch."""
    import torch

    if DESCRIPTOR is None or not launch.from_memory or os.fstat(DESCRIPTOR).st_size == 0:
        return None
    try:
        with os.fdopen(os.dup(DESCRIPTOR), "rb") as file:
            file.seek(0)
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  (it must not end each next start too: the checkpoint takes its place)
        log.warning("the state in memory cannot be read: %s", error)
        drop()
        return None
    if (found["number"], found["world_size"]) != (launch.from_memory, launch.world_size):
        return None
    return Kept(step=int(found["step"]), state=found["state"])


def drop() -> None:
    """Gives the memory back."""
    if DESCRIPTOR is not None:
        os.ftruncate(DESCRIPTOR, 0)


def _bytes_of(value: Any) -> int:
    import torch

    if torch.is_tensor(value):
        return int(value.numel() * value.element_size())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes_of, inner))


def free_bytes() -> int:
    """Returns the memory that processes here may still take."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([free, *_left_by_cgroups()])


def _left_by_cgroups() -> Iterator[int]:
    """Yields what is left of the limits on this process, as a scheduler sets them; nothing without version 2."""
    of = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "")
    top = Path("/sys/fs/cgroup")
    for folder in (top / of.lstrip("/"), *(top / of.lstrip("/")).parents):
        try:
            most, now = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        except OSError:
            continue
        if most != "max":
            yield max(0, int(most) - int(now))
