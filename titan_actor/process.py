"""Starts and ends a rank's process as its node expects it: readable by the node's agent, ended by SIGTERM, with the
reason of a failure in its files. Shared by TorchTitan's trainer and a script of the user's own (everstep_trainer)."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from supervisor.core.model.observed import DebugView
from supervisor.wire.records import PEERS_GONE, TERMINATED, DigestMark, TrainerLaunch
from supervisor.wire.version import RECORDS
from titan_actor.activity import ActivityFile
from titan_actor.commands import Commands
from titan_actor.control import NEVER, Agreement, Control, Wishes
from titan_actor.debugger import Debugger, was_quit
from titan_actor.forking import SHIM_PID
from titan_actor.ledger import Ledger, born_unix_s, told, write_error_file
from titan_actor.peers import PeersGone, saved
from titan_actor.report import Report
from titan_actor.seconds import Seconds

log = logging.getLogger(__name__)

_PR_SET_PTRACER = 0x59616D61

Comes = Callable[[], TrainerLaunch]

WAITING = ("starting", "built", "quorum")
"""Phases in which SIGTERM ends the process at once: there is no step to finish, and the main thread may not react."""
LOOKS_AGAIN_S = 0.1
"""Seconds between two looks of a group that waits at whether it may go on."""


class RankProcess:
    """One rank's process, from its first moment to its last: its records, and the commands of its node."""

    def __init__(
        self, launch: TrainerLaunch, warm: bool = False, comes: Comes | None = None, of_any_group: bool = False
    ) -> None:
        """`warm`: forked from the warm process. `comes`: a hot standby's wait for the launch of its start; it has no records
        before `begin`. `of_any_group`: that start may be of another group than `launch`. Raises OSError if its folder
        cannot be written."""
        self.launch, self._warm, self._comes, self.of_any_group = launch, warm, comes, of_any_group
        if comes is None:
            self._begin(born_unix_s(), standby=False)

    @property
    def waits(self) -> bool:
        """True of a standby that has not begun."""
        return self._comes is not None

    def begin(self) -> None:
        """Returns once this rank has begun: a standby waits here until it is used, with the launch of that start from then
        on."""
        if self._comes is not None:
            self.launch, self._comes = self._comes(), None
            self._begin(time.time(), standby=True)

    def _begin(self, born: float, standby: bool) -> None:
        launch, folder = self.launch, Path(self.launch.rank_dir)
        folder.mkdir(parents=True, exist_ok=True)
        where = {"generation": launch.generation, "group": launch.group, "rank": launch.rank}
        self.ledger = Ledger(folder / "steps.jsonl", born, **where)
        let_the_node_look()
        how = {"warm": self._warm, "standby": standby}
        self.ledger.event("start", pid=os.getpid(), **how, resume=launch.resume, schema=RECORDS)
        self.report, self.control = Report(launch), Control(launch.writer)
        self.commands = Commands(launch, self.control)
        self.debugger = self.commands.debugger = Debugger(self._stops)
        self._stood: DebugView | None = None
        """Place where it was last stopped in the debugger."""
        self._spoilt_at: int | None = None
        """Commits of this rank then."""
        end_on_term(self.control, self.report, self.ledger, self.commands)
        self.report.update()  # from this report on, TERM is handled
        self.debugger.install()
        self.activity, self.seconds = ActivityFile(launch.rank_dir), Seconds()
        self.saved_before = saved(launch.run_dir)
        """The complete checkpoints when this start began."""

    def digest(self, step: int, value: str) -> None:
        """Reports a hash of this rank's state after a committed step."""
        self.report.update(digest=DigestMark(step=step, value=value))
        self.ledger.event("digest", step=step, value=value)

    def wait(self, agreement: Agreement, wishes: Wishes) -> Wishes:
        """Waits between two steps while the group waits, and returns what it does then. All ranks of the group call it."""
        if not wishes.wait or wishes.stop_at < NEVER:
            return wishes
        before = self.report.progress.phase
        self.report.phase("waiting")
        while wishes.wait and wishes.stop_at == NEVER:
            time.sleep(LOOKS_AGAIN_S)
            wishes = agreement.on(self.control.take())
        self.ledger.event("waited")
        self.report.phase(before if wishes.stop_at == NEVER else "draining")
        return wishes

    def _stops(self, at: DebugView | None) -> None:
        """Reports that the rank stands in the debugger, or goes on."""
        self._stood, self._spoilt_at = at or self._stood, self.report.progress.commits
        self.report.update(debugging=at)
        self.ledger.event("debugging", at="" if at is None else f"{at.file}:{at.line}")

    def _by_debugger(self, error: BaseException) -> bool:
        """Returns true if a person ended it in the debugger, or its step was spoilt by a stop there: its peers may have
        gone on meanwhile."""
        return was_quit(error) or self._spoilt_at == self.report.progress.commits

    def ended(self, error: BaseException | None = None, code: int = 1, trace: bool = True) -> int:
        """Reports how the rank ends, after which it writes no more, and returns its exit code: `code` for an error, except
        that no peer was there to heal from. `trace`: also print where the error was raised."""
        step = self.report.progress.step
        if isinstance(error, PeersGone):
            code = PEERS_GONE
            self.report.update(phase="failed", error=f"cannot heal from peers: {error}")
            self.ledger.event("peers_gone", reason=str(error))
            print(f"cannot heal from peers: {error}", file=sys.stderr)
        elif error is not None:
            if self._by_debugger(error):
                self.report.update(debugging=self._stood)
            fail(self.launch, self.report, self.ledger, error, trace)
        elif self.control.in_haste:
            code = TERMINATED
            self.report.update(phase="failed", error="ended by SIGTERM")
            self.ledger.event("terminated", step=step)
        else:
            code = 0
            self.report.update(phase="finished")
            self.ledger.event("finished", step=step)
        self.commands.close()
        self.ledger.close()
        return code


def let_the_node_look() -> None:
    """Lets processes started by the shim read this process's stack, as the agent does when it hangs. Yama's
    ptrace_scope 1 allows that only to ancestors. Without Yama this does nothing."""
    shim = os.environ.get(SHIM_PID, "")
    if shim.isdigit():
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(shim)), 0, 0, 0)


def end_on_term(control: Control, report: Report, ledger: Ledger, commands: Commands) -> None:
    """Has SIGTERM end the process after the current step, without a last checkpoint; while waiting, at once. Either way
    the exit code is TERMINATED, because the run is not finished."""

    def on_term(number: int, frame: object) -> None:
        control.in_haste = True
        control.drain(None)

    def end_if_waiting() -> None:
        # in a thread: the main thread may be inside a native call, in which no handler runs, or in the middle of
        # writing the very file that is written here
        control.in_haste = True
        control.drain(None)
        stands = commands.debugger is not None and commands.debugger.at is not None
        if report.progress.phase in WAITING or stands:
            report.update(phase="failed", error="ended by SIGTERM while waiting")
            ledger.event("terminated", step=report.progress.step)
            leave(TERMINATED)

    commands.on_term = end_if_waiting
    signal.signal(signal.SIGTERM, on_term)


def fail(launch: TrainerLaunch, report: Report, ledger: Ledger, error: BaseException, trace: bool = True) -> None:
    """Reports what ended the process: in its log, in error.json, in its progress and in its ledger."""
    text = told(error)
    print(f"trainer failed: {text}", file=sys.stderr)
    if trace:
        traceback.print_exc()
    try:
        write_error_file(launch.rank_dir, error, traceback.format_exc())
    except OSError as full:
        log.warning("error.json is not written: %s", full)
    report.update(phase="failed", error=text[:2000], numerics=getattr(error, "whose", ""))
    ledger.event("failed", error=text[:2000])


def leave(code: int) -> NoReturn:
    """Ends without the interpreter's shutdown, which waits for native threads that may hang on a lost peer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
