"""Processes as Linux shows them: how to identify one, start one that dies with us, and signal the right one.

Standard library only: the shim imports this, and must stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from supervisor.core.report.visible import visible
from supervisor.wire import environment

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

SHIM_PID = "SUPERVISOR_SHIM_PID"
"""Environment variable that tells every process of a node the pid that its parent must have."""

NODE_DIR = "SUPERVISOR_NODE_DIR"
"""Environment variable that marks every process of a node with its folder: forked processes inherit it."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that we use. (pid, start_ticks) names a process for good."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int

    @property
    def running(self) -> bool:
        return self.state not in "ZX"


def stat_of(pid: int, of: int | None = None) -> Stat | None:
    """Returns None if there is no such process, or none that we may see. `of`: the process of thread `pid`."""
    fields = _fields(f"/proc/{pid}/stat" if of is None else f"/proc/{of}/task/{pid}/stat")
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19])) if fields is not None else None


def processor_s(pid: int) -> float | None:
    """Returns the processor seconds of all threads so far; None when there is no such process."""
    fields = _fields(f"/proc/{pid}/stat")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields is not None else None


def _fields(path: str) -> list[str] | None:
    """Returns the fields of a stat file, from the state on."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # PermissionError: another user's, under hidepid=1
        return None
    # the command's name may hold spaces and brackets, so the fields count from its closing one
    return text[text.rindex(")") + 2 :].split()


def waited_s(pid: int) -> float | None:
    """Returns the seconds in which a process's main thread was ready to run and had no processor (schedstat: the run
    delay). None if there is no such process, or this kernel does not count them."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def all_processes() -> list[Stat]:
    found = (stat_of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [stat for stat in found if stat is not None]


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """Signals exactly this process; False if it is gone. The pidfd holds on to it between check and signal."""
    if pid <= 1:
        return False
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = stat_of(pid)
        if stat is None or stat.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def signal_session(pid: int, start_ticks: int, number: int) -> bool:
    """Signals a session leader of ours and everything in its session; False when the leader is gone.

    No other process gets a session's number while a member lives, so members are signalled even when only they are
    left. The leader must still be known as the one meant.
    """
    stat = stat_of(pid) if pid > 1 else None
    if stat is None or stat.start_ticks != start_ticks:
        return False
    signal_members(pid, number)
    return send_signal(pid, start_ticks, number)


def signal_members(session: int, number: int) -> int:
    """Signals every process of a session but its leader; returns how many."""
    members = [stat for stat in all_processes() if stat.session == session and stat.pid != session and stat.running]
    return sum(send_signal(stat.pid, stat.start_ticks, number) for stat in members)


def marked(folder: str) -> list[Stat]:
    """Returns every running process, except ourselves, that any shim started for this node folder."""
    found = []
    for stat in all_processes():
        if stat.pid == os.getpid() or not stat.running:
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's: not ours either way
            if environment.of_process(stat.pid).get(NODE_DIR) == folder:
                found.append(stat)
    return found


def kill_and_wait(victims: Sequence[Stat], deadline_s: float) -> bool:
    """Sends SIGKILL to these processes, which need not be our children; true once all are gone."""
    handles = []
    for stat in victims:
        try:
            handles.append(os.pidfd_open(stat.pid))
        except OSError:
            continue
        send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)
    until = time.monotonic() + deadline_s
    try:
        for handle in handles:
            left = max(0.0, until - time.monotonic())
            if not select.select([handle], [], [], left)[0]:
                return False
        return True
    finally:
        for handle in handles:
            os.close(handle)


class Spare:
    """Descriptors kept for what must be seen even when this process has no other left."""

    COUNT = 8
    """Descriptors that a look at an ended session needs, and its signals; twice, since other threads may take some."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._keep()

    @contextlib.contextmanager
    def freed(self) -> Iterator[None]:
        """Frees them for a while."""
        while self._kept:
            os.close(self._kept.pop())
        try:
            yield
        finally:
            self._keep()

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # the next time there may be more
            while len(self._kept) < self.COUNT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def become_subreaper() -> None:
    """Makes orphans below us our children, so that we can read their exit status."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends. Exits at once when the parent already has.

    Only right in a child of the parent's main thread, and only after the last fork (it is not inherited).
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def start(
    argv: Sequence[str], env: Mapping[str, str], log: str, keep_fd: int | None = None, directory: str = ""
) -> int:
    """Starts a program in its own session that dies with us, with its output appended to `log`. Returns its pid.
    `directory`: where it begins; empty: where we are.

    Raises OSError when the log cannot be opened or the program cannot be run. `subprocess` is not used because it reaps
    its children itself, and the shim must see every exit status.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    report, failure = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, env, (output, keep_fd, failure), parent, directory)
    finally:
        os.close(output)
        os.close(failure)
    with os.fdopen(report, "rb") as file:
        error = file.read()  # end of file: exec closed the other end, so the program runs
    if error:
        os.waitpid(pid, 0)
        raise OSError(f"cannot run {argv[0]}: {error.decode(errors='replace')}")
    return pid


def _become(
    argv: Sequence[str], env: Mapping[str, str], files: tuple[int, int | None, int], parent: int, directory: str
) -> NoReturn:
    output, keep_fd, failure = files
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and children would inherit that
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a step of srun gets the shim's notice in all of its processes
        os.setsid()
        die_with_parent(parent)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if keep_fd is not None:
            os.set_inheritable(keep_fd, True)
        if directory:
            os.chdir(directory)
        os.execvpe(argv[0], list(argv), dict(env))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not return into the shim's code
        os.write(failure, str(error).encode())
    finally:
        os._exit(127)


def hold_notice() -> None:
    """Keeps a SIGUSR1 that comes before the shim has its handler pending, even across exec: unhandled it kills."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


def open_standard_files() -> None:
    """Opens missing standard files: a scheduler may start us without, and the next file would take the number."""
    while True:
        handle = os.open(os.devnull, os.O_RDWR)
        if handle > 2:
            os.close(handle)
            return
        os.set_inheritable(handle, True)


_sayer: Callable[[Callable[[], None]], object] | None = None


def say_by(later: Callable[[Callable[[], None]], object] | None) -> None:
    """Sets what writes the sentences from now on: a log may lie on a disk that stalls. None: the caller writes them."""
    global _sayer
    _sayer = later


def say(sentence: str) -> None:
    """Prints a sentence for the person who reads the shim's output."""
    line = f"supervisor-agent: {visible(sentence)}"
    if _sayer is None:
        _print(line)
    else:
        _sayer(partial(_print, line))


def _print(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        pass  # a full disk, or a reader that is gone, must not end the parent of every trainer here
