"""Examines etcd: its version, members, alarms, size, response time, and the time left on its leases."""

from __future__ import annotations

import contextlib
import http.client
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.core.timeouts.solver import RENEWED_AT
from supervisor.ports.errors import PortError
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import EtcdStore, check_version
from supervisor.shell.etcd.status import StoreStatus
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.wire import keys
from supervisor.wire.sockets import http_connection

LOOKS = 9
"""Number of round trips measured."""

FULL = 0.8
"""Part of the quota above which the database counts as full: auto-compaction keeps a healthy one far below."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Time left on the lease of a key, as etcd reports it. Seconds; below 0: it has lapsed."""

    key: str
    ttl_s: int
    left_s: int


def examine(store: EtcdStore, mirror: Mirror) -> Iterator[Finding]:
    seen = store.status()
    yield from server(seen, quota(seen.endpoint))
    trips = round_trips(store)
    try:
        found = margins(store, mirror)
    except PortError as error:
        yield note(f"cannot list the leases: {error}", "run this with the certificate of `supervisor`")
        found = []
    yield from leases(found)
    yield from pace(trips, min((m.ttl_s for m in found), default=0))


def server(seen: StoreStatus, quota_bytes: int | None) -> Iterator[Finding]:
    """Yields what etcd reports of itself."""
    warning = check_version(seen.version) if seen.version else None
    if not seen.version:
        yield note(f"etcd at {seen.endpoint} reports its version and size to `root` alone", "run this as `root` once")
    elif warning:
        yield note(f"etcd {seen.version} at {seen.endpoint}", warning)
    else:
        yield good(f"etcd {seen.version} at {seen.endpoint}")
    for alarm in seen.alarms:
        yield bad("etcd has raised an alarm", alarm)
    if not seen.has_leader:
        yield bad("etcd has no leader: it accepts no writes", "bring back a majority of its members")
    if seen.members_unknown:
        yield bad(f"etcd does not list its members: {seen.members_unknown}", "bring back a majority of its members")
    names = ", ".join(seen.members)
    if len(seen.members) == 1:
        yield note(
            f"etcd has one member ({names})",
            "for more than a demo, run three: with one, losing its disk loses the state of all runs",
        )
    elif seen.members and len(seen.members) % 2 == 0:
        yield note(
            f"etcd has {len(seen.members)} members ({names})", "an even number survives no more losses than one fewer"
        )
    elif seen.members:
        yield good(f"etcd has {len(seen.members)} members ({names})")
    if seen.db_size:
        yield size(seen.db_size, quota_bytes)


def size(used_bytes: int, quota_bytes: int | None) -> Finding:
    """Compares the database with the quota at which etcd takes no more writes."""
    if not quota_bytes:
        return good(f"etcd's database has {used_bytes / 2**20:.1f} MiB; its quota is not known from here")
    what = f"etcd's database has {used_bytes / 2**20:.1f} of {quota_bytes / 2**20:.0f} MiB"
    if used_bytes < FULL * quota_bytes:
        return good(what)
    return bad(
        what, "etcdctl compact REVISION, etcdctl defrag; shorten --auto-compaction-retention, or raise the quota"
    )


def quota(endpoint: str) -> int | None:
    """Returns the quota in bytes, from etcd's metrics; None if they are not served unencrypted."""
    try:
        with contextlib.closing(http_connection(endpoint, 2.0)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    match = re.search(r"^etcd_server_quota_backend_bytes (\S+)$", text, re.MULTILINE)
    return int(float(match[1])) if match else None


def round_trips(store: EtcdStore) -> list[float]:
    """Returns the seconds that each of several linearizable reads took."""
    found = []
    for _ in range(LOOKS):
        began = time.monotonic()
        store.get(keys.LEADER)
        found.append(time.monotonic() - began)
    return found


def pace(trips_s: Sequence[float], least_ttl_s: int) -> Iterator[Finding]:
    """Compares round trips with the shortest lease, which must be renewed when part of its time is over."""
    worst, median = max(trips_s), statistics.median(trips_s)
    what = f"etcd answers in {1000 * median:.1f} ms ({1000 * worst:.1f} ms at worst of {len(trips_s)})"
    do = "give etcd a disk and cores of its own, or lengthen the leases (supervisor run --lease-s, policy.node_lease_s)"
    if not least_ttl_s:
        yield good(what)
    elif worst > least_ttl_s / RENEWED_AT:
        yield bad(f"{what}: longer than a third of the shortest lease ({least_ttl_s} s)", do)
    elif worst > least_ttl_s / 10:
        yield note(f"{what}: the shortest lease is {least_ttl_s} s", do)
    else:
        yield good(f"{what}, the shortest lease is {least_ttl_s} s")


def margins(store: EtcdStore, mirror: Mirror) -> list[Margin]:
    """Returns the margins of the leases of the leader, the agents and the gates."""
    found = []
    for key, item in sorted(mirror.items.items()):
        if item.lease and _kept(key):
            with store.connection.call(f"look at the lease of {key}") as client:
                answer = client.leasestub.LeaseTimeToLive(rpc.LeaseTimeToLiveRequest(ID=item.lease), store.timeout_s)
            found.append(Margin(key=key, ttl_s=int(answer.grantedTTL), left_s=int(answer.TTL)))
    return found


def _kept(key: str) -> bool:
    agents = key.startswith(keys.NODES) and (key.endswith("/registration") or "/gate-presence/" in key)
    return key == keys.LEADER or agents


def leases(found: Sequence[Margin]) -> Iterator[Finding]:
    """Finds leases that are not renewed in time. Each is renewed after a third of its time: with less than a third
    left, two renewals have failed. etcd rounds the time left down to whole seconds."""
    late = [m for m in found if 3 * (m.left_s + 1) <= m.ttl_s]
    for m in late:
        yield bad(
            f"the lease of {m.key[len(keys.PREFIX) :]} has {max(0, m.left_s)} of {m.ttl_s} s left",
            "its owner is frozen, cut off, or on an overloaded machine: look at its log",
        )
    if found and not late:
        yield good(f"{len(found)} leases are renewed in time")
