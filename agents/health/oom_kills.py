"""Reads kills for memory and memory pressure, as the kernel counts them for each cgroup.

A process that ends by SIGKILL does not show whose it was. The count of its cgroup, before and after, tells the kernel's
kills from others. Standard library only: the shim imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

KEPT_S = 30.0
"""Seconds from the kernel's kill to the end of the process: freeing a large one's memory takes seconds."""

UNIFIED = "memory.events"
LEGACY = "memory.oom_control"
PRESSURE = "memory.pressure"

_PF_EXITING = 0x4
PROC = Path("/proc")


class Ooms:
    """Keeps the kill counts of the cgroups of some processes. Times are monotonic seconds."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._cgroups: dict[int, str] = {}
        self._files: dict[int, Path | None] = {}
        self._counts: dict[Path, int] = {}
        self._kills: dict[Path, list[float]] = {}
        """Times of counted kills that no ended process has explained yet."""

    def look(self, pids: Iterable[int], now: float) -> None:
        """Notes where these processes run, and what was counted there since the last look."""
        for pid in pids:
            cgroup = cgroup_of(pid, self._proc)
            if cgroup and cgroup != self._cgroups.get(pid):
                self._cgroups[pid] = cgroup
                self._files[pid] = counter(cgroup, self._proc)
        for file in {file for file in self._files.values() if file is not None}:
            self._count(file, now)

    def ended(self, pid: int, now: float, by_sigkill: bool) -> bool | None:
        """Returns true if a kill was counted in this process's cgroup within KEPT_S; None when that cannot be read.

        A process that SIGKILL ended is taken for the counted one: no later end is explained by that kill.
        """
        self._cgroups.pop(pid, None)
        file = self._files.pop(pid, None)
        if file is None or not self._count(file, now):
            return None
        kills = self._kills[file]
        self._kills[file] = kills[1:] if by_sigkill else kills
        if not kills and file not in self._files.values():
            del self._counts[file], self._kills[file]
        return bool(kills)

    def _count(self, file: Path, now: float) -> bool:
        count = read_count(file)
        if count is None:
            return False
        new = max(0, count - self._counts.get(file, count))
        self._counts[file] = count
        self._kills[file] = [at for at in self._kills.get(file, []) if now - at < KEPT_S] + [now] * new
        return True


def read_count(file: Path) -> int | None:
    """Returns how many processes the kernel has killed for memory there; None if the file does not tell."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    counts = [fields[1] for line in lines if len(fields := line.split()) == 2 and fields[0] == "oom_kill"]
    return int(counts[0]) if counts and counts[0].isdigit() else None


def cgroup_of(pid: int, proc: Path = PROC) -> str:
    """Returns /proc/PID/cgroup; empty for a process that is ending, which version 1 shows in the root."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" or int(fields[6]) & _PF_EXITING else text


def counter(cgroup: str, proc: Path = PROC) -> Path | None:
    """Returns the file with the kill count of the memory cgroup in /proc/PID/cgroup; None if none is readable."""
    groups = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    legacy = next((path for _, controllers, path in groups if "memory" in controllers.split(",")), None)
    if legacy is not None:
        return _below_mount("cgroup", "memory", legacy, LEGACY, proc, _counts)
    unified = _unified(cgroup)
    return _below_mount("cgroup2", "", unified, UNIFIED, proc, _counts) if unified is not None else None


def pressure(cgroup: str) -> Path | None:
    """Returns the memory pressure file of the cgroup that /proc/PID/cgroup names. None if the process is in no cgroup
    of its own, or the kernel has no such file. Only version 2 has it, even where version 1 limits the memory."""
    unified = _unified(cgroup)
    return None if unified in (None, "/") else _below_mount("cgroup2", "", unified, PRESSURE, PROC, Path.exists)


def _unified(cgroup: str) -> str | None:
    groups = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    return next((path for number, controllers, path in groups if (number, controllers) == ("0", "")), None)


def _counts(file: Path) -> bool:
    return read_count(file) is not None


def _below_mount(
    kind: str, option: str, path: str, name: str, proc: Path, there: Callable[[Path], bool]
) -> Path | None:
    """Returns `name` in the folder of cgroup `path`, below a mount of that kind that shows it."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    for mount in mounts:
        fields, _, rest = mount.partition(" - ")
        root, point = (part.replace("\\040", " ") for part in fields.split()[3:5])
        system = rest.split()
        if system[0] != kind or (option and option not in system[-1].split(",")):
            continue
        # a container may see only its own part of the tree, mounted as if it were all
        inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
        file = Path(point) / inside.lstrip("/") / name
        if there(file):
            return file
    return None
