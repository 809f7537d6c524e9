"""`supervisor doctor`: what is wrong on this machine and in the live system, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.ports.errors import Fatal, PortError
from supervisor.shell import status, views
from supervisor.shell.audit import audit
from supervisor.shell.etcd_server import find_server
from supervisor.shell.mirror import Mirror
from supervisor.shell.store import EtcdStore, check_version, connect
from supervisor.shell.up import system_folder
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord

PINS = {"torch": "2.13.0", "torchft": "0.2.0", "torchtitan": "0.3.0", "etcd3": "0.12.0"}
FOREIGN = {"supervisor": "supervisord's package", "openai-agents": "the OpenAI agents package"}
"""Public distributions whose import names are ours: installed beside us they overwrite our files."""

LEAST_FREE_BYTES = 2 * 2**30
"""A debug model's checkpoints, logs and etcd's data stay below this for a day."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["good", "note", "bad"]
    what: str
    do: str = ""


def examine(endpoints: str, home: Path) -> list[Finding]:
    """All findings, the machine's first. `endpoints` empty: no live system is looked for."""
    found = [*_python(), *_packages(), *_host(), *_disk(home), *_leftovers(home)]
    if not endpoints:
        found += _server()
        found.append(
            Finding(level="note", what="no `supervisor up` runs in this folder", do="start one, or give --etcd")
        )
        return found
    try:
        store = connect(endpoints.split(","))
    except PortError as error:
        return [*found, Finding(level="bad", what=str(error), do="check that etcd runs and can be reached")]
    try:
        found += _live(store)
    except PortError as error:
        found.append(Finding(level="bad", what=str(error), do="check etcd's own log"))
    finally:
        store.close()
    return found


def _python() -> Iterator[Finding]:
    inside = sys.prefix != sys.base_prefix
    yield Finding(
        level="good" if inside else "note",
        what=f"Python {sys.version.split()[0]} {'in' if inside else 'outside'} a virtual environment",
        do="" if inside else "use one of its own: our import names are also those of public packages",
    )


def _packages() -> Iterator[Finding]:
    for name, pin in PINS.items():
        try:
            have = version(name)
        except PackageNotFoundError:
            yield Finding(level="bad", what=f"{name} is not installed", do=f"pip install {name}=={pin}")
            continue
        right = have.split("+")[0] == pin
        yield Finding(
            level="good" if right else "bad",
            what=f"{name} {have}",
            do="" if right else f"these versions were tested together: pip install {name}=={pin}",
        )
    for name, whose in FOREIGN.items():
        try:
            files(name)
        except PackageNotFoundError:
            continue
        yield Finding(
            level="bad",
            what=f"{whose} ({name}) is in this environment and overwrites files of ours",
            do=f"pip uninstall {name}, then reinstall this program",
        )


def _host() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        yield Finding(level="good", what=f"the host's name {name} resolves")
    except OSError:
        yield Finding(
            level="bad", what=f"the host's name {name} does not resolve", do=f"add it to /etc/hosts: 127.0.1.1 {name}"
        )
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield Finding(
            level="note",
            what="no root or no `ip`: the demo loses a node by killing its processes, which is the easier case",
            do="run it as root with iproute2 installed for a silent loss",
        )


def _disk(home: Path) -> Iterator[Finding]:
    folder = home.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    level: Literal["good", "bad"] = "good" if free > LEAST_FREE_BYTES else "bad"
    yield Finding(
        level=level, what=f"{free / 2**30:.1f} GiB free in {folder}", do="" if level == "good" else "free some"
    )
    if not os.access(folder, os.W_OK):
        yield Finding(level="bad", what=f"{folder} cannot be written", do="give another --home")


def _leftovers(home: Path) -> Iterator[Finding]:
    """Nodes whose shim is gone but whose processes are not."""
    system = system_folder(home)
    mark = f"SUPERVISOR_NODE_DIR={system}"
    orphans = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in environment and f"SUPERVISOR_SHIM_PID={entry.name}" not in environment:
            shim = next((v for v in environment.split("\0") if v.startswith("SUPERVISOR_SHIM_PID=")), "=0").split("=")[
                1
            ]
            if not Path(f"/proc/{shim}").exists():
                orphans.append(entry.name)
    if orphans:
        yield Finding(
            level="bad",
            what=f"processes of nodes whose shim is gone: {', '.join(orphans)}",
            do=f"kill {' '.join(orphans)}",
        )


def _server() -> Iterator[Finding]:
    try:
        yield Finding(level="good", what=f"etcd server: {find_server()}")
    except Fatal as error:
        yield Finding(level="bad", what=str(error))


def _live(store: EtcdStore) -> Iterator[Finding]:
    seen = store.status()
    warning = check_version(seen.version)
    yield Finding(
        level="note" if warning else "good",
        what=f"etcd {seen.version}, {seen.db_size / 2**20:.1f} MiB",
        do=warning or "",
    )
    for alarm in seen.alarms:
        yield Finding(level="bad", what=f"etcd alarm: {alarm}")
    mirror = Mirror(store.list(keys.PREFIX))
    unreadable = audit(mirror, mirror.fresh())
    leader = mirror.record(keys.LEADER, LeaderRecord)
    yield Finding(
        level="good" if leader is not None else "bad",
        what=f"leader {leader.host}:{leader.pid}" if leader is not None else "nobody leads",
        do="" if leader is not None else "start a supervisor: supervisor up, or supervisor run",
    )
    for node in status.node_status(mirror):
        for problem in node.problems:
            yield Finding(level="bad", what=f"node {node.node}: {problem}")
    for name, record in views.runs(mirror).items():
        try:
            run = status.run_status(mirror, record)
        except views.Unreadable as error:
            yield Finding(level="bad", what=str(error), do="use a supervisor of the version that wrote it")
            continue
        if run.halt_reason:
            yield Finding(
                level="bad", what=f"run {name} is halted: {run.halt_reason}", do=f"supervisor incidents --run {name}"
            )
    for key, why in unreadable.items():
        yield Finding(
            level="bad", what=f"{key} cannot be read: {why}", do="it is left alone; delete it if nobody needs it"
        )


def render(findings: list[Finding]) -> RenderableType:
    """A row a finding, with what to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    colour = {"good": "green", "note": "yellow", "bad": "red"}
    for finding in findings:
        table.add_row(Text(finding.level, colour[finding.level]), finding.what, finding.do)
    return table
