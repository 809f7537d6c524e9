"""Identifies, finds and ends processes. A pid is recycled, but a pid with its start ticks is unique."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.wire import environment

# A process of its own sets PR_SET_PDEATHSIG and then becomes the program: a preexec_fn would run between fork and exec
# in a process with gRPC's threads. The parent may die before the call, hence the check of getppid.
_DIE_WITH_PARENT = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None,use_errno=True).prctl(1,signal.SIGKILL,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n"
)


def start_ticks(pid: int) -> int | None:
    """Returns the start, in the kernel's ticks since boot; None if it has ended. With the pid, it is unique."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A killed process shows as a zombie once its first thread has ended; while other threads still end, it holds its
    # ports and locks (seen: "address already in use" for a server that was just killed).
    ended = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Returns true if exactly this process runs; a zombie does not."""
    return start_ticks(pid) == ticks


def pid_namespace() -> int:
    """Returns the id of our pid namespace; 0 if unknown. A container has other processes under the same host name."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def holder(path: Path) -> int:
    """Returns the pid that holds this lock, as its holder wrote it there; 0 if no one does."""
    try:
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read().strip() or 0)
    except (OSError, ValueError):
        pass
    return 0


def dies_with_us(argv: list[str]) -> list[str]:
    """Returns a command that runs this one (a path and its arguments) for as long as the calling THREAD lives."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]


@dataclass(slots=True)
class Process:
    """A process of ours: a child, or one that an earlier process of ours started."""

    pid: int
    ticks: int
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    """None if it was adopted: its exit status is then unknown."""

    @staticmethod
    def of(child: subprocess.Popen[bytes]) -> Process:
        return Process(child.pid, start_ticks(child.pid) or 0, child)

    @property
    def alive(self) -> bool:
        """True while exactly this process runs; a zombie does not."""
        if self.child is not None:
            return self.child.poll() is None
        return is_running(self.pid, self.ticks)

    @property
    def ended_with(self) -> str:
        """How it ended, as words after "ended"."""
        code = self.child.poll() if self.child is not None else None
        if code is None:
            return ""
        return f" with code {code}" if code >= 0 else f" by signal {-code}"

    def stop(self, patience_s: float) -> None:
        """Sends SIGTERM, and SIGKILL after `patience_s`; does nothing if it has ended."""
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            if not self.alive:
                break
            # a frozen process handles SIGTERM only after it continues
            for each in (number, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, each)
            end = time.monotonic() + wait_s
            while self.alive and time.monotonic() < end:
                time.sleep(0.02)


def with_environment(name: str, value: str) -> Iterator[Process]:
    """Yields all our running processes that were started with this environment variable."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            here = environment.of_process(int(entry)).get(name) == value
        except OSError:
            continue  # ended meanwhile, or belongs to another user
        ticks = start_ticks(int(entry)) if here else None
        if ticks is not None:
            yield Process(int(entry), ticks)
