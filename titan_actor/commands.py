"""`command.sock`: a JSON line in, a JSON line out, served by a thread beside the training.

| request | answer |
|---|---|
| {"do":"drain","at_step":S or null,"keep":N} | ends cleanly after the current step, or once S steps are committed; N (0: not): keeps its state in memory for the relaunch of that number |
| {"do":"abort","lost":[G, ...]} | the running collective with one of these groups fails; this step is not committed, training goes on; [] or none: with any |
| {"do":"writer","writer":bool} | writes checkpoints from now on, or no longer; other fields are for older trainers |
| {"do":"wait","wait":bool} | waits after its step from now on, or goes on: a person has another group in the debugger |
| {"do":"debug","line":TEXT or null,"wait_s":S} | a line for pdb where the rank is stopped: `output`, `stopped`, `waits` |

Errors: {"error": text}.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from supervisor.wire import sockets
from supervisor.wire.records import TrainerLaunch
from titan_actor.control import Control
from titan_actor.debugger import Debugger

LONGEST_REQUEST = 64 * 1024
LONGEST_WAIT_S = 5.0
ANSWERED_WITHIN_S = 1.0
"""The most seconds that the end of a rank waits for an answer that is on its way: the line for the debugger that ended it."""


class Commands:
    """Serves `command.sock` in a thread."""

    def __init__(self, launch: TrainerLaunch, control: Control) -> None:
        self._control = control
        self.on_term: Callable[[], None] | None = None
        """Called in a thread after SIGTERM: the main thread may be inside a native call, where no handler runs."""
        Stacks(Path(launch.rank_dir) / "stacks.txt", self._term)
        self._path = Path(launch.rank_dir) / "command.sock"
        self._socket = sockets.listen(self._path)
        self._answering, self._answered = 0, threading.Condition()
        self.debugger: Debugger | None = None
        self.abort: Callable[[list[int]], None] | None = None
        """Set once there is a process group to abort."""
        threading.Thread(target=self._serve, name="commands", daemon=True).start()

    def _term(self) -> None:
        if self.on_term is not None:
            self.on_term()

    def close(self) -> None:
        """Stops answering, once what was asked has its answer."""
        self._path.unlink(missing_ok=True)
        self._socket.close()
        with self._answered:
            self._answered.wait_for(lambda: not self._answering, ANSWERED_WITHIN_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), name="command", daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines:
            try:
                while line := lines.readline(LONGEST_REQUEST):
                    with self._on_its_way():
                        lines.write(json.dumps(self._answer(line)).encode() + b"\n")
                        lines.flush()
            except OSError:
                # the asker has gone
                return

    @contextmanager
    def _on_its_way(self) -> Iterator[None]:
        with self._answered:
            self._answering += 1
        try:
            yield
        finally:
            with self._answered:
                self._answering -= 1
                self._answered.notify_all()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return self._do(request.get("do"), request)
        except (ValueError, AttributeError, TypeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _do(self, what: Any, request: dict[str, Any]) -> dict[str, Any]:
        if what == "drain":
            at_step = request.get("at_step")
            if at_step is not None and (not isinstance(at_step, int) or isinstance(at_step, bool)):
                raise TypeError("at_step must be a number of steps or null")
            keep = request.get("keep", 0)
            if not isinstance(keep, int):
                raise TypeError("keep must be a number")
            self._control.drain(at_step, keep)
        elif what == "abort":
            if self.abort is None:
                return {"error": "there is no process group yet"}
            lost = request.get("lost", [])
            if not isinstance(lost, list):
                raise TypeError("lost must be a list of groups")
            self.abort(lost)
        elif what == "writer":
            self._control.write(_flag(request, "writer"))
        elif what == "wait":
            self._control.wait(_flag(request, "wait"))
        elif what == "debug":
            return self._debug(request)
        else:
            return {"error": f"unknown command {what!r}"}
        return {"ok": True}

    def _debug(self, request: dict[str, Any]) -> dict[str, Any]:
        line, wait_s = request.get("line"), request.get("wait_s", 1.0)
        if not isinstance(line, str | None) or not isinstance(wait_s, int | float):
            raise TypeError("line must be a text or null, wait_s a number")
        if self.debugger is None:
            return {"error": "it has no debugger yet"}
        return self.debugger.command(line, min(wait_s, LONGEST_WAIT_S))


def _flag(request: dict[str, Any], name: str) -> bool:
    flag = request.get(name)
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be true or false")
    return flag


class Stacks:
    """Writes all threads' stacks into a file on SIGUSR1, whatever the main thread waits for (but not while it holds the
    GIL)."""

    def __init__(self, path: Path, on_term: Callable[[], None]) -> None:
        self._on_term = on_term
        self._file: IO[bytes] = open(path, "ab")  # noqa: SIM115  (kept open: a full disk must not hide where it hangs)
        # not faulthandler.register: its handler walks the threads without the GIL, and crashes the process when one
        # of them ends at that moment (seen: a segmentation fault, once in some hundred)
        wakes, self._woken = socket.socketpair()
        wakes.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        threading.Thread(target=self._serve, name="stacks", daemon=True).start()

    def _serve(self) -> None:
        """Reads the numbers of signals, which the kernel's handler writes here whatever the main thread does."""
        while numbers := self._woken.recv(64):
            if signal.SIGUSR1 in numbers:
                faulthandler.dump_traceback(file=self._file, all_threads=True)
            if signal.SIGTERM in numbers:
                self._on_term()
