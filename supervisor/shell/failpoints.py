"""Failpoints: named places at which a test may kill the program.

SUPERVISOR_FAILPOINT=name[:n[:stop]] sends SIGKILL (`stop`: SIGSTOP) at the n-th pass, by default the first. `NAMES`
lists all names; an unknown name in the variable stops the start.

A program that is restarted would die there again and again. SUPERVISOR_FAILPOINT_ONCE=path makes it die once: it
creates that file first, and a program that finds the file survives.

From `journaled` on, the loop's failpoints count only turns that write something; `fencing` only those of them after
which a group waits until its old generation is gone or shut out.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

NAMES = (
    "observed",
    "decided",
    "journaled",
    "committed",
    "fencing",
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
    """SUPERVISOR_FAILPOINT names no failpoint; the text lists the known ones."""


def armed() -> tuple[str, int, signal.Signals] | None:
    """Returns the requested failpoint, pass and signal; None if none is. Raises FailpointError."""
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
        raise FailpointError(f"SUPERVISOR_FAILPOINT = {text!r}: the pass {nth!r} must be a number from 1") from error


def reach(name: str) -> None:
    """Dies here if this failpoint is armed."""
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
