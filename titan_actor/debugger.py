"""A rank that stops at `breakpoint()`: pdb, whose commands come through `command.sock` and whose output leaves there.

Python's own would read the standard input of a process that has none, and end the trainer.
"""

from __future__ import annotations

import bdb
import os
import pdb
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from supervisor.core.model.observed import DebugView

OUTPUT_CHARACTERS = 256 * 1024
"""Most characters of output that wait for someone to read them; what comes then is dropped."""
CUT = "\n... the rest of this output is dropped\n"


class Debugger:
    """The debugger of one rank. `command` may be called by any thread, and all else by those that stop."""

    def __init__(self, report: Callable[[DebugView | None], None]) -> None:
        """`report`: takes the place where it stops, and None once it goes on."""
        self._report = report
        self._pid = os.getpid()
        self._one = threading.Lock()
        """Held by the thread that is stopped: another one that comes to a breakpoint waits for it."""
        self._holder: int | None = None
        self._changed = threading.Condition()
        self._line: str | None = None
        self._waits = False
        """True while pdb waits for a line."""
        self._output = ""
        self._pdb: _Pdb | None = None
        self.at: DebugView | None = None
        """Place where the rank stands; None: it goes on."""
        self.used = 0
        """Number of times that it was stopped."""

    def install(self) -> None:
        """Takes over `breakpoint()` and `pdb.set_trace()`. A PYTHONBREAKPOINT of the user's stays."""
        if not os.environ.get("PYTHONBREAKPOINT"):
            sys.breakpointhook = self._stop
        pdb.set_trace = self._stop

    def command(self, line: str | None, wait_s: float) -> dict[str, Any]:
        """Gives pdb a line (None: only looks), and returns its output: at the next line that it waits for, once it goes
        on, or after `wait_s`. A rank that has come to another breakpoint meanwhile is stopped again."""
        with self._changed:
            if self.at is None:
                return {"error": "it is not stopped: it goes on"}
            if line is not None:
                if not self._changed.wait_for(lambda: self._waits, wait_s):
                    return {"error": "it is still busy with the command before"}
                self._line, self._waits = line, False
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._waits or self.at is None, wait_s)
            output, self._output = self._output, ""
            return {"ok": True, "output": output, "stopped": self.at is not None, "waits": self._waits}

    def _stop(self, *_: Any, header: str | None = None, **__: Any) -> None:
        if os.getpid() != self._pid:
            print("a breakpoint in a process that a rank has started is passed over", file=sys.stderr)
            return
        if self._holder != threading.get_ident():
            self._one.acquire()  # until it goes on: see `goes_on`
            self._holder = threading.get_ident()
        if self._pdb is None:
            self._pdb = _Pdb(self)
        if header is not None:
            self.write(f"{header}\n")
        self._pdb.set_trace(sys._getframe(1))

    # --- for pdb ---

    def stands(self, frame: FrameType) -> None:
        """Reports where pdb stands."""
        code = frame.f_code
        with self._changed:
            since = time.time() if self.at is None else self.at.since_unix_s
            self.used += self.at is None
            self.at = DebugView(
                function=code.co_name, file=code.co_filename, line=frame.f_lineno, since_unix_s=round(since, 1)
            )
        self._report(self.at)

    def goes_on(self) -> None:
        """Reports that the rank goes on."""
        self._report(None)
        with self._changed:
            self.at, self._waits = None, False
            self._changed.notify_all()
        if self._holder == threading.get_ident():  # not where it stopped at a breakpoint of pdb's own
            self._holder = None
            self._one.release()

    def readline(self) -> str:
        """Waits for a line."""
        with self._changed:
            self._waits = True
            self._changed.notify_all()
            while self._waits:
                self._changed.wait(1.0)  # so that signals are handled
            line, self._line = self._line, None
            return f"{line or ''}\n"

    def write(self, text: str) -> None:
        """Keeps output until someone reads it."""
        with self._changed:
            room = OUTPUT_CHARACTERS - len(self._output)
            if room > 0:
                self._output += text if len(text) <= room else text[:room] + CUT

    def flush(self) -> None:
        """Does nothing: pdb calls it after each output."""


class _Pdb(pdb.Pdb):
    prompt = ""

    def __init__(self, debugger: Debugger) -> None:
        # it needs no more of a file than these
        files: Any = debugger
        super().__init__(stdin=files, stdout=files, nosigint=True, readrc=False)
        self.prompt = ""
        self._debugger = debugger

    def interaction(self, frame: Any, traceback: Any) -> None:
        at = frame if frame is not None else traceback.tb_frame
        self._debugger.stands(at)
        super().interaction(frame, traceback)

    def dispatch_return(self, frame: Any, arg: Any) -> Any:
        traced = super().dispatch_return(frame, arg)
        if frame is self.botframe:  # a thread's outermost: there is none above it in which pdb could stop
            self.set_continue()
        return traced

    def set_continue(self) -> None:
        super().set_continue()
        self._debugger.goes_on()

    def set_quit(self) -> None:
        super().set_quit()
        self._debugger.goes_on()


def was_quit(error: BaseException | None) -> bool:
    """Returns true if a person ended the process in the debugger."""
    return isinstance(error, bdb.BdbQuit)
