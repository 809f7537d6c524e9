"""Runs a command in a terminal of its own, and keeps its output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.testbed.waiting import eventually

IN, OUT = "\x1b[?1049h", "\x1b[?1049l"
"""The codes that enter the alternate screen, and leave it again."""

CURSOR = "\x1b[?25h"
"""The code that shows the cursor again."""

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """A command in a terminal; `wrote` is its output so far, codes included."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], width: int, height: int) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(theirs)
        # a shell that runs the tests in the background has them ignore SIGINT
        self.process = subprocess.Popen(
            ["env", "--default-signal", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(environment),
            start_new_session=True,
        )
        self._theirs = theirs
        self.wrote = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while data := os.read(self._ours, 1 << 16):
                self.wrote += data.decode(errors="replace")

    def screen(self) -> list[str]:
        """The last drawing, from the top left corner on."""
        return _CODES.sub("", self.wrote.rpartition("\x1b[H")[2]).split("\n")

    def shows(self, words: str, deadline_s: float = 20.0) -> list[str]:
        """Waits until the screen has these words; returns the screen."""

        def seen() -> list[str] | None:
            screen = self.screen()
            return screen if words in "\n".join(screen) else None

        return eventually(seen, deadline_s, f"{words!r} in {self.wrote[-2000:]!r}")

    def ended(self, by: signal.Signals, deadline_s: float = 20.0) -> int:
        """Ends the command by this signal, and checks that it restored the terminal; returns its exit code."""
        self.process.send_signal(by)
        code = self.process.wait(deadline_s)
        eventually(lambda: self.wrote.count(IN) == self.wrote.count(OUT), 5.0, self.wrote[-500:])
        assert self.wrote.rindex(CURSOR) > self.wrote.index(IN)
        assert termios.tcgetattr(self._theirs) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10.0)
        os.close(self._theirs)
        os.close(self._ours)
        self._reader.join(5.0)


@contextlib.contextmanager
def terminal(command: Sequence[str], width: int = 80, height: int = 24, **environment: str) -> Iterator[Terminal]:
    """Yields a command in a terminal, ended with the block."""
    about = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
    made = Terminal(command, about | {"TERM": "xterm-256color"} | environment, width, height)
    try:
        yield made
    finally:
        made.close()
