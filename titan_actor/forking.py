"""Steps of a process forked from the warm one before it is a trainer. Nothing here is imported late."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

SHIM_PID = "SUPERVISOR_SHIM_PID"
"""Set by the shim for its children: a trainer must not outlive its shim (a lost shim is a lost node)."""


def in_the_background(output: int, keep: Collection[int | None]) -> None:
    """Makes this fork a session of its own, which reads nothing, writes to `output`, and has no other open files but
    those to keep."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    write_to(output)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            _close(int(name))


def write_to(output: int) -> None:
    """Has this process print there."""
    os.dup2(output, 1)
    os.dup2(output, 2)


def die_with_parent(parent: int) -> None:
    """Has the kernel end this process with its parent; ends it if that has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def outlive_parent() -> None:
    """Takes that back."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def die_with_shim(between: int) -> None:
    """Ties the trainer to the shim once it is adopted. Set earlier, the death of the process between would kill it."""
    shim = os.environ.get(SHIM_PID)
    if shim is None:
        return
    while os.getppid() == between:
        time.sleep(0.001)
    die_with_parent(int(shim))


def call_it(name: str) -> None:
    """Gives this process a name in the kernel's lists."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        # the listing's own descriptor
        pass
