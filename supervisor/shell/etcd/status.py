"""Reads etcd's own state, for people: version, size, leader, alarms, members."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from supervisor.ports.errors import Fatal, PortError
from supervisor.ports.store import Item
from supervisor.shell.etcd.connection import Connection
from supervisor.shell.etcd.errors import NOSPACE_MEND, is_denied
from supervisor.shell.etcd.stubs import rpc

MENDED = "3.6.14, 3.7.1"
"""The first etcd of each line without the known ways around its roles (`holes.py`), by etcd's advisories."""

USE = f"use {MENDED} or newer; without certificates Debian's etcd-server does too, 3.4.23 or newer"

CORRUPT_MEND = (
    "etcd found its members' data to differ (alarm CORRUPT): stop writing, keep a copy of each data folder, and restore "
    "the members from a snapshot of a good one"
)


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of etcd. `has_leader` is the asked member's view; `alarms` are whole sentences with their remedies.
    `members` are names. Without a quorum it is empty, and `members_unknown` says why. Where etcd reports its state to
    `root` alone (3.5.28 to 3.5.31, 3.6.9 to 3.6.11), `version` is empty and `db_size` 0."""

    endpoint: str
    version: str
    db_size: int
    has_leader: bool
    alarms: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    members_unknown: str = ""


class Asked(Protocol):
    """An etcd that reports its state."""

    def get(self, key: str) -> Item | None: ...

    def status(self) -> StoreStatus:
        """Raises Retryable if it does not answer."""
        ...


def read_status(connection: Connection) -> StoreStatus:
    """Reads the state from the member in use. Raises Retryable if it does not answer."""
    endpoint, timeout_s = connection.endpoint, connection.timeout_s
    answer: Any = None
    try:
        with connection.call("status") as client:
            answer = client.maintenancestub.Status(rpc.StatusRequest(), timeout_s)
    except Fatal as error:
        if not is_denied(error):
            raise
    alarms: list[str] = []
    members: tuple[str, ...] = ()
    members_unknown = ""
    try:
        with connection.call("alarms") as client:
            found = client.maintenancestub.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), timeout_s)
        alarms = sorted({_alarm_text(alarm.alarm) for alarm in found.alarms})
        with connection.call("members") as client:
            listed = client.clusterstub.MemberList(rpc.MemberListRequest(), timeout_s).members
        members = tuple(member.name for member in listed)
    except PortError as error:
        members_unknown = str(error)
        # this member's own view needs no quorum
        alarms = [str(text) for text in answer.errors] if answer is not None else []
    return StoreStatus(
        endpoint=endpoint,
        version=answer.version if answer is not None else "",
        db_size=answer.dbSize if answer is not None else 0,
        has_leader=answer is None or answer.leader != 0,
        alarms=tuple(alarms),
        members=members,
        members_unknown=members_unknown,
    )


def _alarm_text(alarm: int) -> str:
    mends = {int(rpc.NOSPACE): NOSPACE_MEND, int(rpc.CORRUPT): CORRUPT_MEND}
    return mends.get(int(alarm), f"etcd has raised an alarm of kind {int(alarm)}")


def check_version(version: str) -> str | None:
    """Returns a warning about this server version, or None.

    etcd 3.5.0 to 3.5.2 are "not recommended for production" (etcd #13766: data may differ between members after a
    SIGKILL). The warning covers versions up to 3.5.5. Of those, 3.5.1 was run here: once in 87 kills its revision went
    back.
    """
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return f"etcd reports version {version!r}, which is no version of etcd's: {USE}"
    major, minor, patch = map(int, numbers.groups())
    if (major, minor) == (3, 5) and patch <= 5:
        return f"etcd {version} may lose or corrupt data when it is killed (etcd #13766): {USE}"
    if (major, minor) < (3, 4):
        return f"etcd {version} is older than 3.4 and has no watch progress requests: {USE}"
    return None
