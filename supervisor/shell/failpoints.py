"""Named places at which a test may kill the program: SUPERVISOR_FAILPOINT=name[:n] kills it with SIGKILL at the n-th
pass (default the first). `NAMES` is the whole list; an unknown name in the variable stops the start.

A program that somebody starts again would die there again and again: SUPERVISOR_FAILPOINT_ONCE=path has it die once. The
file is made before it dies, and nobody dies who finds it there.

From `journaled` on, of a turn of the loop, only one counts that has something to write."""

from __future__ import annotations

import os
import signal
from collections import Counter

NAMES = (
    "observed",
    "decided",
    "journaled",
    "committed",
    "recorded",
    "engine.before_acquire",
    "engine.after_acquire",
    "engine.before_release",
    "engine.after_release",
    "engine.before_grant",
    "engine.after_grant",
    "agent.before_spawn",
    "agent.after_spawn",
    "agent.before_signal",
    "agent.before_forward",
    "agent.after_forward",
    "agent.reported",
    "gate.listening",
    "gate.opening",
    "gate.open",
)

_passes: Counter[str] = Counter()


_HOW = {"": signal.SIGKILL, "stop": signal.SIGSTOP}


class FailpointError(ValueError):
    """SUPERVISOR_FAILPOINT names no failpoint; the text says which there are."""


def armed() -> tuple[str, int, signal.Signals] | None:
    """The failpoint asked for, the pass, and the signal; None without any. Raises FailpointError."""
    text = os.environ.get("SUPERVISOR_FAILPOINT", "")
    if not text:
        return None
    name, _, rest = text.partition(":")
    nth, _, how = rest.partition(":")
    if name not in NAMES or how not in _HOW:
        raise FailpointError(f"SUPERVISOR_FAILPOINT = {text!r}: there is no such failpoint; known: {', '.join(NAMES)}")
    try:
        return name, int(nth or 1), _HOW[how]
    except ValueError as error:
        raise FailpointError(f"SUPERVISOR_FAILPOINT = {text!r}: the pass, {nth!r}, is a number from 1") from error


def reach(name: str) -> None:
    """Die here if this failpoint is armed."""
    assert name in NAMES, name
    wanted = armed()
    if wanted is None or wanted[0] != name:
        return
    _passes[name] += 1
    if _passes[name] == wanted[1] and _first(os.environ.get("SUPERVISOR_FAILPOINT_ONCE", "")):
        os.kill(os.getpid(), wanted[2])


def _first(path: str) -> bool:
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True
