"""`python -m agents.health.checks.run --folder F --ranks N --peer NODE,PORT,ADDRESS ...`: runs all checks of this machine, one
after the other, each in its own process with a limit. Prints a CheckResult a line. Exits 1 if one failed or could not
be done."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from agents.health.checks import machine, network
from agents.shim import process
from supervisor.core.errors import printable
from supervisor.wire import programs
from supervisor.wire.checks import CheckResult, from_line, to_line

LIMIT_S = 30.0
"""Seconds for one check. They take tenths of a second; 20 s where twenty processes want each processor."""
DEVICE_LIMIT_S = 120.0
"""Seconds for the device check: torch from a shared file system, and a CUDA context on each of eight devices."""
TOTAL_S = 4 * LIMIT_S + DEVICE_LIMIT_S + 10.0
"""Seconds after which a caller need not wait any longer."""
KILLED_S = 1.0
"""Seconds to wait for a killed check. A process that sleeps in the kernel does not end, and is not waited for."""


@dataclass(frozen=True)
class Check:
    """One check: a function of ours, or a program that prints its results itself."""

    name: str
    limit_s: float
    look: Callable[[], CheckResult] | None = None
    argv: tuple[str, ...] = ()


def checks(folder: Path, ranks: int, peers: Sequence[network.Peer]) -> list[Check]:
    """Returns all checks, the cheapest first."""
    return [
        Check("memory", LIMIT_S, machine.memory),
        Check("disk", LIMIT_S, lambda: machine.disk(folder)),
        Check("loopback", LIMIT_S, machine.loopback),
        Check("peers", LIMIT_S, lambda: network.peers(peers)),
        Check("device", DEVICE_LIMIT_S, argv=tuple(programs.command("check_device", f"--ranks={ranks}"))),
    ]


def answers(check: Check) -> Iterator[CheckResult]:
    """Yields a check's results, and an `unknown` result if it ends badly, prints none, or exceeds its limit."""
    began = time.monotonic()
    reading, writing = os.pipe()
    errors = os.memfd_create("stderr")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _look(check, writing, errors, parent)
    os.close(writing)
    text, ended = _read(reading, began + check.limit_s)
    os.close(reading)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
    how = _reap(pid)
    took_s = round(time.monotonic() - began, 3)
    found = list(_results(text))
    for result in found:
        yield result if result.took_s else replace(result, took_s=took_s)
    if not ended:
        after = f" (after {found[-1].name})" if found else ""
        said = f"no answer within {check.limit_s:g} s{after}"
        yield CheckResult(name=check.name, outcome="unknown", evidence=said, took_s=took_s)
    elif not found or how:
        words = f"it ended with {how or 'exit code 0'}{_last_words(errors)}"
        yield CheckResult(name=check.name, outcome="unknown", evidence=words, took_s=took_s)
    os.close(errors)


def _look(check: Check, writing: int, errors: int, parent: int) -> NoReturn:
    try:
        os.setsid()
        process.die_with_parent(parent)
        os.dup2(errors, 2)
        if check.look is None:
            os.dup2(writing, 1)
            os.execv(check.argv[0], check.argv)
        try:
            result = check.look()
        except OSError as error:  # the machine refused
            said = f"{type(error).__name__}: {error.strerror or error}"
            result = CheckResult(name=check.name, outcome="failed", evidence=said)
        except Exception as error:  # noqa: BLE001 - our code is wrong, not the machine
            result = CheckResult(name=check.name, outcome="unknown", evidence=f"{type(error).__name__}: {error}")
        os.write(writing, to_line(result).encode() + b"\n")
        os._exit(0)
    finally:
        os._exit(1)


def _read(reading: int, until: float) -> tuple[bytes, bool]:
    """Returns what was written until then, and true if the writer has closed."""
    text = b""
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(reading, 1 << 16)
        if not block:
            return text, True
        text += block
    return text, False


def _reap(pid: int) -> str:
    """Returns how the child ended; empty if it ended well, or was killed and does not end."""
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], KILLED_S)[0]:
            return ""
    finally:
        os.close(handle)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"exit code {code}" if code > 0 else f"signal {-code}"


def _results(text: bytes) -> Iterator[CheckResult]:
    for line in text.splitlines():
        try:
            yield from_line(line)
        except ValueError:
            continue  # cut off when the process was killed


def _last_words(errors: int) -> str:
    os.lseek(errors, 0, os.SEEK_SET)
    with open(errors, encoding="utf-8", errors="replace", closefd=False) as file:
        lines = [line.strip() for line in printable(file.read()).splitlines() if line.strip()]
    return f": {lines[-1][-300:]}" if lines else ""


def _peer(text: str) -> network.Peer:
    node, port, address = text.split(",", 2)
    return network.Peer(node, address, int(port))


def main() -> int:
    parser = argparse.ArgumentParser(prog="agents.health.checks.run")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--peer", type=_peer, action="append", default=[])
    told = parser.parse_args()
    process.die_with_parent(os.getppid())
    failed = False
    for check in checks(told.folder, told.ranks, told.peer):
        for result in answers(check):
            failed = failed or result.outcome in ("failed", "unknown")
            print(to_line(result), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
