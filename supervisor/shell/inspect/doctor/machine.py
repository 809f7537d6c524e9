"""Examines this machine: its packages, disk, clock, and leftovers of earlier runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from supervisor.ports.errors import Fatal
from supervisor.shell.dev.etcd_server import find_server
from supervisor.shell.dev.home import system_folder
from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.wire import environment
from supervisor.wire.kernel_clock import kernel_clock, synchronised
from supervisor.wire.version import FITS, INSTALL, misfit

ETCD3 = "0.12.0"
"""Version of etcd3 whose faults are known and mended."""
FOREIGN = {"supervisor": "supervisord's package", "openai-agents": "the OpenAI agents package"}
"""Public distributions with our import names: installed beside us, they overwrite our files."""

LEAST_FREE_BYTES = 2 * 2**30
"""Least free space: a debug model's checkpoints, logs and etcd's data stay below it for a day."""


EASIER = "the demo loses a node by killing its processes, which is the easier case"


def examine(home: Path) -> list[Finding]:
    """Returns all findings that need no etcd."""
    return [
        *_python(),
        *_packages(),
        *_host(),
        *namespaced(),
        *_disk(home),
        clock(clock_is_synchronised()),
        *_leftovers(home),
        *_namespaces(),
    ]


def server() -> Iterator[Finding]:
    """Finds the etcd that `up` would start."""
    try:
        yield good(f"etcd server: {find_server()}")
    except Fatal as error:
        yield bad(str(error), "")


def _python() -> Iterator[Finding]:
    python = f"Python {sys.version.split()[0]}"
    if sys.prefix != sys.base_prefix:
        yield good(f"{python} in a virtual environment")
    else:
        own = "use a virtual environment of its own: some public packages share our import names"
        yield note(f"{python} outside a virtual environment", own)


def _packages() -> Iterator[Finding]:
    for name in FITS:
        why, have = misfit(name), _version(name)
        if not why:
            yield good(f"{name} {have}")
        elif have:
            yield bad(f"{name} {have}", why)
        else:
            yield note(f"{name} is not installed: no trainer and no lighthouse runs here", f"if one must: {INSTALL}")
    have = _version("etcd3")
    yield (
        good(f"etcd3 {have}") if have == ETCD3 else bad(f"etcd3 {have or 'is missing'}", f"pip install etcd3=={ETCD3}")
    )
    for name, whose in FOREIGN.items():
        try:
            files(name)
        except PackageNotFoundError:
            continue
        what = f"{whose} ({name}) is in this environment and overwrites files of this program"
        yield bad(what, f"pip uninstall {name}, then reinstall this program")


def _version(name: str) -> str:
    """Returns a package's version; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _host() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        yield good(f"the host's name {name} resolves")
    except OSError:
        yield bad(f"the host's name {name} does not resolve", f"add it to /etc/hosts: 127.0.1.1 {name}")


def namespaced() -> Iterator[Finding]:
    """Finds what a node lacks here to fall silent in its own network namespace."""
    if os.geteuid() != 0:
        yield note(f"not root: {EASIER}", "run the demo as root for a silent loss")
    elif shutil.which("ip") is None:
        yield note(f"no `ip` command: {EASIER}", "apt-get install iproute2 for a silent loss")


def _disk(home: Path) -> Iterator[Finding]:
    folder = home.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    room = f"{free / 2**30:.1f} GiB free in {folder}"
    yield good(room) if free > LEAST_FREE_BYTES else bad(room, "free some")
    if not os.access(folder, os.W_OK):
        yield bad(f"{folder} cannot be written", "give another --home")


def clock_is_synchronised() -> bool | None:
    """Returns true if something synchronises this machine's clock; None if the kernel does not say."""
    try:
        return synchronised(*kernel_clock())
    except (OSError, AttributeError):
        return None


def clock(found: bool | None) -> Finding:
    """Finds a clock that is not synchronized. No decision depends on a wall clock, but people compare logs."""
    do = "run chrony or systemd-timesyncd; until then do not compare the logs of several machines (no decision does)"
    if found is None:
        return note("the kernel does not say if the clock is synchronised", do)
    return good("the clock is synchronised") if found else note("this machine's clock is not synchronised", do)


def orphan(variables: Mapping[str, str], system: Path, pid: str) -> str:
    """Returns the pid of the dead shim of a node's process; empty if it is not ours, or its shim lives."""
    folder = variables.get("SUPERVISOR_NODE_DIR", "")
    shim = variables.get("SUPERVISOR_SHIM_PID", "")
    if not folder or Path(folder).parent != system / "nodes" or shim in ("", pid):
        return ""
    return "" if Path(f"/proc/{shim}").exists() else shim


def _leftovers(home: Path) -> Iterator[Finding]:
    """Finds processes of nodes whose shim is gone."""
    system = system_folder(home)
    orphans = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if orphan(environment.of_process(int(entry.name)), system, entry.name):
                orphans.append(entry.name)
    if orphans:
        yield bad(f"processes of nodes whose shim is gone: {', '.join(orphans)}", f"kill {' '.join(orphans)}")


def _namespaces() -> Iterator[Finding]:
    """Finds network namespaces of a killed demo or test."""
    if shutil.which("ip") is None:
        return
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False, timeout=10)
    left = dead_namespaces(listed.stdout)
    if left:
        what = f"network namespaces of processes that are gone: {', '.join(left)}"
        yield note(what, "; ".join(f"ip netns del {name}" for name in left))


def dead_namespaces(listed: str) -> list[str]:
    """Returns the names `sv<pid>-...` in the output of `ip netns list` whose process is gone."""
    names = [line.split()[0] for line in listed.splitlines() if line.split()]
    found = [(name, match[1]) for name in names if (match := re.fullmatch(r"sv(\d+)-.+", name))]
    return [name for name, pid in found if not Path(f"/proc/{pid}").exists()]
