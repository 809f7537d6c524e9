"""`supervisor doctor`: finds problems of this machine and of the live system, and says what to do about them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.ports.errors import PortError
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import connect
from supervisor.shell.inspect import status
from supervisor.shell.inspect.doctor import (
    addresses,
    environment,
    machine,
    ports,
    slurm,
    store,
    system,
    timeouts,
    trust,
)
from supervisor.shell.inspect.doctor.finding import Finding, bad, note
from supervisor.wire import keys
from supervisor.wire.security import Security, SecurityError, checked

__all__ = ["Finding", "examine", "render"]


def examine(endpoints: str, home: Path, security: str = "") -> list[Finding]:
    """Returns all findings, the machine's first. Empty `endpoints`: skips the live system. `security` is the security
    file."""
    found = [*machine.examine(home), *environment.examine(home), *ports.examine(home), *slurm.examine(home)]
    if not endpoints:
        found += machine.server()
        found.append(note("no `supervisor up` runs in this folder", "start one, or give --etcd"))
        return found
    where = endpoints.split(",")
    found += addresses.examine(where[0])
    try:
        believed = checked(security, where)
    except SecurityError as error:
        return [*found, bad(str(error), "docs/SECURITY.md says what to write")]
    found += trust.examine(where, believed)
    try:
        found += _live(where, believed)
    except PortError as error:
        found.append(bad(str(error), "check that etcd runs and can be reached, and its own log"))
    return found


def _live(endpoints: list[str], security: Security) -> list[Finding]:
    with connect(endpoints, security=security) as etcd:
        mirror = Mirror(etcd.list(keys.PREFIX))
        found = list(store.examine(etcd, mirror))
        found += trust.rights(etcd, endpoints, security)
    found += [note(warning, "it stays here and in `status` as long as they do") for warning in status.insecure(mirror)]
    found += system.examine(mirror)
    return found


def render(findings: list[Finding]) -> RenderableType:
    """Renders one row for each finding, with its remedy; then each run's timeouts, also those that fit."""
    table = Table(box=None, pad_edge=False, show_header=False)
    colour = {"good": "green", "note": "yellow", "bad": "red"}
    fits: dict[str, list[timeouts.Fit]] = {}
    for finding in findings:
        if isinstance(finding, timeouts.Fit):
            fits.setdefault(finding.run, []).append(finding)
        if not isinstance(finding, timeouts.Fit) or finding.level != "good":
            table.add_row(Text(finding.level, colour[finding.level]), finding.what, finding.do)
    return Group(table, *(timeouts.lines(of_run) for of_run in fits.values()))
