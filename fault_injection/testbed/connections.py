"""Finds TCP connections between processes here, also across network namespaces, in /proc; ends them by `ss -K`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from fault_injection.testbed.unavailable import no_command
from supervisor.ports.errors import Fatal

Address = tuple[str, int]
_PID = re.compile(r"pid=(\d+),")


def between(one: int, others: Sequence[int]) -> list[tuple[Address, Address]]:
    """Returns the established connections of a process with any of the others: its own address, and theirs."""
    theirs = {(peer, local) for pid in others for local, peer in _of(pid)}
    return [pair for pair in _of(one) if pair in theirs]


def end(pid: int, local: Address, peer: Address) -> None:
    """Makes the kernel end a connection in that process's network (0: in this one). Both sides see an error. Raises
    Fatal without `ss`."""
    _ss(pid, "-K", "src", f"{local[0]}:{local[1]}", "dst", f"{peer[0]}:{peer[1]}")


def _of(pid: int) -> list[tuple[Address, Address]]:
    found = []
    for line in _ss(pid, "-p", "state", "established").splitlines():
        if pid in {int(number) for number in _PID.findall(line)}:
            _, _, local, peer, *_ = line.split()
            found.append((_address(local), _address(peer)))
    return found


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port)


def _ss(pid: int, *words: str) -> str:
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid and _elsewhere(pid) else []
    try:
        result = subprocess.run([*inside, "ss", "-Htn", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Fatal(no_command(error.filename)) from error
    return result.stdout


def _elsewhere(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError as error:
        raise Fatal(f"there is no process {pid} any more") from error
