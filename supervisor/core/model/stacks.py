"""Defines where a process is that takes too long, as its node's agent read it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """A call in a Python stack."""

    function: str
    file: str
    """Name of the file, without its folder."""
    line: int

    @property
    def place(self) -> tuple[str, str]:
        """The frame without its line: a loop that waits is seen at any of its lines."""
        return self.function, self.file

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackView:
    """The stack of a process's main thread. The innermost frames are kept, the innermost first."""

    frames: tuple[Frame, ...] = ()
    """Empty: it runs no Python, or its stack is not known."""
    holds_lock: bool = False
    """True if it holds the interpreter's lock."""
    held_at: tuple[Frame, ...] = ()
    """Frames of another thread that keeps that lock: the main thread cannot go on, whatever it was doing. Empty: none
    does."""
    unknown: str = ""
    """Reason why it could not be read, in words of its agent. Empty: it was."""

    def __str__(self) -> str:
        main = " < ".join(map(str, self.frames)) or self.unknown or "no Python"
        lock = "; it holds the interpreter's lock" if self.holds_lock else ""
        return f"{main}{lock}{f'; the lock is kept at {self.held_at[0]}' if self.held_at else ''}"


_FRAME = re.compile(r"(.*) \((.*):(\d+)\)")
_OWN = ", holding the interpreter's lock"
_ANOTHERS = "; another thread holds the interpreter's lock, "
_UNKNOWN = re.compile(r"its stack is not known \((.*)\)", re.DOTALL)


def of_text(text: str) -> StackView | None:
    """Reads the sentence that agents sent before they sent frames. None: they had sent none yet."""
    if not text:
        return None
    if unknown := _UNKNOWN.fullmatch(text):
        return StackView(unknown=unknown[1])
    main, _, holder = text.partition(_ANOTHERS)
    own = main.endswith(_OWN)
    return StackView(frames=_frames(main.removesuffix(_OWN)), holds_lock=own, held_at=_frames(holder))


def _frames(text: str) -> tuple[Frame, ...]:
    """Reads `in inner (a.py:1) < outer (b.py:2)`. Empty for a process that runs no Python."""
    calls = text.removeprefix("in ").split(" < ") if text.startswith("in ") else []
    found = [_FRAME.fullmatch(call) for call in calls]
    return tuple(Frame(each[1], each[2], int(each[3])) for each in found if each is not None)
