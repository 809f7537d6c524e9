"""Moves the wall clock of a node's agent while it runs, by libfaketime; all other processes keep theirs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fault_injection.testbed.unavailable import NotHere

FOLDER = "CHAOS_CLOCKS"
"""Environment variable: the folder with a file for each node whose agent has a clock of its own."""

SAYS_EVERY_S = 0.2


class Clocks:
    """Moves the clocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def move(self, node: str, by: str) -> None:
        """Sets a node's clock, as libfaketime reads it: `+3h`. It holds for the node's next agent, and for a present
        one that already has such a clock."""
        scratch = self.folder / f"{node}.new"
        scratch.write_text(by)
        scratch.replace(self.folder / node)

    def back(self, node: str) -> None:
        """Gives the node's next agent the machine's clock."""
        (self.folder / node).unlink(missing_ok=True)
        (self.folder / f"{node}.says").unlink(missing_ok=True)

    def ahead_s(self, node: str) -> float | None:
        """Returns the seconds by which its agent's clock is ahead of the kernel's; None while no such agent runs."""
        path = self.folder / f"{node}.says"
        try:
            return float(path.read_text()) - path.stat().st_mtime
        except (OSError, ValueError):
            return None


def library() -> str:
    """Returns the path of libfaketime. Raises NotHere where it is missing."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise NotHere("no libfaketime (Debian: apt-get install faketime)")
    return str(found[0])


def follow(arguments: Sequence[str]) -> None:
    """The agent's side: restarts itself under libfaketime if its clock is moved, and then writes down what it reads."""
    node = next((a.partition("=")[2] for a in arguments if a.startswith("--node=")), "none")
    file = Path(os.environ.get(FOLDER, "")) / node
    if not file.is_file():
        return
    if "FAKETIME_TIMESTAMP_FILE" not in os.environ:
        faked = {
            "LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **faked})
    threading.Thread(target=_say, args=(file.with_name(f"{node}.says"),), name="clock", daemon=True).start()


def _say(path: Path) -> None:
    never = threading.Event()  # time.sleep fails under libfaketime when the clock has jumped
    while not never.wait(SAYS_EVERY_S):
        scratch = path.with_name(f"{path.name}.new")
        try:
            scratch.write_text(repr(time.time()))
            scratch.replace(path)
        except OSError:
            return
