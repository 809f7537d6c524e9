"""Processes that the shim keeps running: restarted when they end, with a pause that grows while they fail."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from agents.shim import process
from supervisor.wire import programs

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
LOOK_AGAIN_S = 0.02
SETTLED_S = 10.0
"""Seconds after which a process counts as settled and its next restart is quick again."""


class Kept:
    """One kept process. Subclasses define its command."""

    def __init__(self, name: str, log: str) -> None:
        self.name = name
        self.log = log
        self.pid = 0
        self.start_ticks = 0
        self._pause_s = FIRST_PAUSE_S
        self._started_at = 0.0
        self._again: asyncio.TimerHandle | None = None
        self.on_start: Callable[[Kept], None] = lambda kept: None
        self.may_start: Callable[[], bool] = lambda: True
        """False while the disk of its log stalls."""

    def argv(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        self._again = None
        if not self.may_start():
            self._again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.start)
            return
        try:
            self.pid = self._run()
        except OSError as error:
            process.say(f"cannot start the {self.name}: {error}; trying again")
            self._later()
            return
        stat = process.stat_of(self.pid)
        self.start_ticks = stat.start_ticks if stat is not None else 0
        self._started_at = asyncio.get_running_loop().time()
        self.on_start(self)

    def _run(self) -> int:
        return process.start(self.argv(), os.environ, self.log)

    def ended(self, how: str) -> None:
        """Schedules the restart. Call it when the process's pid was reaped."""
        self.pid = 0
        if asyncio.get_running_loop().time() - self._started_at > SETTLED_S:
            self._pause_s = FIRST_PAUSE_S
        process.say(f"the {self.name} ended ({how}); starting it again in {self._pause_s:.1f} s, its log is {self.log}")
        self._later()

    def _later(self) -> None:
        self._again = asyncio.get_running_loop().call_later(self._pause_s, self.start)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def stop_keeping(self) -> None:
        if self._again is not None:
            self._again.cancel()


class Agent(Kept):
    """Keeps the node's agent running."""

    def __init__(self, arguments: list[str], log: str) -> None:
        super().__init__("agent", log)
        self._arguments = arguments

    def argv(self) -> list[str]:
        return programs.command("agent", *self._arguments)


class ForkError(Exception):
    """The warm process forked no trainer; the text says why."""


class Warm(Kept):
    """The warm process, which forks trainers when asked over a SEQPACKET socket pair."""

    ANSWER_WITHIN_S = 10.0
    """Seconds to wait for a fork. A large process on a busy machine takes tenths of a second; later it is stuck."""

    def __init__(self, log: str, changed: Callable[[], None]) -> None:
        super().__init__("warm process", log)
        self.state = "starting"
        self._changed = changed
        self._ours: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._answer: asyncio.Future[int] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._around: tuple[dict[str, str], str] | None = None
        self._ahead = ""
        self._takes: Sequence[str] = ()
        """Messages that it takes beside starts: an older one takes fewer."""

    def build_ahead(self, launch: str) -> None:
        """Has it build standbys of a start that may come to this node (a TrainerLaunch); empty: no more. A process that takes
        its place builds them again."""
        self._ahead = launch
        if self.state == "ready":
            self._tell_ahead()

    def expect_start(self, used: bool) -> None:
        """Forgets the start that was built ahead, since one has come, which uses it if it can (`used`)."""
        if not used:
            self.build_ahead("")
        self._ahead = ""

    def _tell_ahead(self) -> None:
        self._tell({"ahead": self._ahead})

    def note_running(self, ranks: Sequence[tuple[str, int]]) -> None:
        """Has a process that is ready build the next start of ranks that it has not forked (launch files and pids)."""
        if "runs" in self._takes:
            self._tell({"runs": ranks})

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._ours is not None
        try:
            self._ours.send(json.dumps(message).encode())
        except OSError as error:  # it has ended, and the next one is told; or the start is too long for one message
            process.say(f"no start is built ahead: {error}")

    def begin_in(self, environment: dict[str, str], directory: str) -> bool:
        """Returns true if the process began with this environment, in this directory. Otherwise ends it, so that the
        next one does: what it has imported may have read the environment, and a fork would not read it again."""
        if self._around is None:
            self._around = (dict(os.environ), "")
        if self._around == (environment, directory):
            return True
        self._around = (environment, directory)
        process.say("the warm process starts again, with the environment of the run here")
        self._become("starting")
        if self.pid:
            process.signal_session(self.pid, self.start_ticks, 9)
        return False

    def argv(self) -> list[str]:
        assert self._theirs is not None
        return programs.command("warm", "--fd", str(self._theirs.fileno()))

    def _run(self) -> int:
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            environment, directory = self._around or (os.environ, "")
            pid = process.start(self.argv(), environment, self.log, self._theirs.fileno(), directory)
        except OSError:
            ours.close()
            raise
        finally:
            self._theirs.close()
        ours.setblocking(False)
        self._ours = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)
        return pid

    def _become(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self._changed()

    def _readable(self) -> None:
        assert self._ours is not None
        try:
            packet = self._ours.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._close("it closed its socket")
            return
        try:
            message = json.loads(packet)
        except ValueError:
            return
        if message.get("ready"):
            self._pause_s = FIRST_PAUSE_S
            self._takes = message.get("takes", [])
            self._become("ready")
            if self._ahead:
                self._tell_ahead()
        elif self._answer is None:
            # a warm process that must not be forked says why and stays: starting it again would change nothing
            process.say(f"no warm starts on this node: {message.get('error')}")
            self._become("off")
        elif not self._answer.done():
            if "pid" in message:
                self._answer.set_result(int(message["pid"]))
            else:
                self._answer.set_exception(ForkError(str(message.get("error"))))

    def _close(self, why: str) -> None:
        if self._ours is not None:
            asyncio.get_running_loop().remove_reader(self._ours.fileno())
            self._ours.close()
            self._ours = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ForkError(why))
        self._become("starting")

    def ended(self, how: str) -> None:
        self._close(f"it ended ({how})")
        super().ended(how)

    async def fork(self, launch: str, log: str, environment: dict[str, str]) -> int:
        """Returns a trainer's pid. Raises ForkError if there is none; kills a stuck warm process, so that none comes
        late."""
        async with self._one_at_a_time:
            if self._ours is None or self.state != "ready":
                raise ForkError("it is not ready")
            self._answer = asyncio.get_running_loop().create_future()
            try:
                self._ours.send(json.dumps({"launch": launch, "log": log, "env": environment}).encode())
                return await asyncio.wait_for(self._answer, self.ANSWER_WITHIN_S)
            except TimeoutError as error:
                process.signal_session(self.pid, self.start_ticks, 9)
                raise ForkError(f"it did not answer for {self.ANSWER_WITHIN_S:.0f} s and was killed") from error
            except OSError as error:
                raise ForkError(str(error)) from error
            finally:
                self._answer = None
