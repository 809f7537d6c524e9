"""Naming a process for good: a pid is recycled, (pid, start ticks) is not. And one that ends with us."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# PR_SET_PDEATHSIG in a process of its own that then becomes the program: a preexec_fn would run between fork and exec of a
# process that has gRPC's threads. The parent may have died before the call: hence the look at getppid.
_DIE_WITH_PARENT = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None,use_errno=True).prctl(1,signal.SIGKILL,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n"
)


def start_ticks(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot; None when it has ended. With the pid, its identity."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A killed process shows as a zombie as soon as its first thread has ended; while others are still ending it holds its
    # ports and locks (seen: "address already in use" for a server that was just killed).
    ended = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether this very process runs; a zombie does not."""
    return start_ticks(pid) == ticks


def dies_with_us(argv: list[str]) -> list[str]:
    """The command that runs this one (a path and its arguments) for as long as the calling THREAD lives."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]
