"""A person's orders about hosts: cordon, uncordon, drain (ADR 9)."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from supervisor.ports.errors import Fatal
from supervisor.ports.store import MAX_OPERATIONS, Store
from supervisor.shell.control import cordons, observe
from supervisor.shell.control.rewrite import rewrite
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.engines import registry
from supervisor.wire import keys
from supervisor.wire.person import who
from supervisor.wire.records import Cordon, RecordError, Registration

SHOWN = 10
"""Most names that a sentence lists."""


def cordon(
    store: Store,
    mirror: Mirror,
    name: str,
    because: str,
    drain: bool,
    elsewhere: Callable[[str], bool] = registry.know_host,
) -> str:
    """Keeps every run's groups away from a host, given by its name or that of a node on it. With `drain`, groups on it
    leave. Returns what was done. A drain remains one if the host is cordoned again.

    `elsewhere` returns true if the scheduler knows a host that we do not. Raises Fatal if neither does, or if the host
    only carries a lighthouse.
    """
    host = _host(mirror, name, elsewhere)
    if host not in _hosts(mirror).values() and host in _service_hosts(mirror):
        raise Fatal(f"host {host} carries the lighthouse and no groups: a cordon would keep nothing away from it")
    wanted = Cordon(host=host, why=because, by=who(), at_unix_s=time.time(), drain=drain)
    wanted = _write(store, wanted)
    there = _groups_on(mirror, host)
    again = f"free it again: supervisor uncordon {host}"
    if wanted.drain:
        leave = f"{', '.join(there)} will leave it when another node is there" if there else "no group is on it"
        return f"host {host} is drained: no group is placed there any more; {leave}; {again}"
    stays = f"{', '.join(there)} stays on it" if there else "no group is on it"
    return f"host {host} is cordoned: no group is placed there any more; {stays}; {again}"


def uncordon(store: Store, mirror: Mirror, *names: str) -> str:
    """Frees hosts for every run, whatever cordoned them. Returns what was done, one line for each host. Raises Fatal,
    and frees none, if nothing is held against one of them."""
    held, nodes = cordons.by_host(mirror), _hosts(mirror)
    hosts = list(dict.fromkeys(name if name in held else nodes.get(name, name) for name in names))
    free = [host for host in hosts if host not in held]
    if free:
        known = f"cordoned are {_listed(held)}" if held else "no host is"
        raise Fatal(f"host {free[0]} is not cordoned ({known})")
    found = [key for host in hosts for key in held[host].keys]
    for start in range(0, len(found), MAX_OPERATIONS):
        store.commit({}, found[start : start + MAX_OPERATIONS])
    said = cordons.sentences(mirror)
    return "\n".join(
        f"host {host} is free again, for every run (it was: {_was(held[host]) or said.get(host) or OF_AN_ENDED_RUN})"
        for host in hosts
    )


OF_AN_ENDED_RUN = "an incident of a run that has ended was held against it"


def _was(held: cordons.HostCordons) -> str:
    return held.why or held.failed or held.of_node


def _write(store: Store, wanted: Cordon) -> Cordon:
    """Writes the cordon; retries if another writer came in between, so that no drain is undone unseen."""
    key = keys.cordon(wanted.host)
    try:
        return rewrite(
            store,
            key,
            Cordon,
            lambda before: replace(wanted, drain=wanted.drain or (before is not None and before.drain)),
        )
    except RecordError as error:
        raise Fatal(f"{key} cannot be read ({error}): supervisor uncordon {wanted.host}, then again") from error


def _host(mirror: Mirror, name: str, elsewhere: Callable[[str], bool]) -> str:
    nodes = _hosts(mirror)
    hosts = {*nodes.values(), *cordons.by_host(mirror), *_service_hosts(mirror)}
    if name in hosts:
        return name
    if name in nodes:
        return nodes[name]
    if name and "/" not in name and elsewhere(name):
        return name
    nearest = difflib.get_close_matches(name, sorted({*hosts, *nodes}), n=1)
    hint = f"nearest: {nearest[0]}" if nearest else f"known: {_listed(hosts)}"
    raise Fatal(f"no node was ever on a host {name!r}, and no scheduler here knows it ({hint})")


def _hosts(mirror: Mirror) -> dict[str, str]:
    """Returns the host of every node for groups that was ever seen. A node without a record counts as its own host,
    except for `HOST.JOBID`, where hosts are shared."""
    found, gone = {}, []
    for name in mirror.nodes():
        registration = mirror.record(keys.registration(name), Registration)
        if registration is None:
            gone.append(name)
        elif registration.role == "trainer":
            found[name] = registration.host or name
    for _, memory in observe.readable(mirror):
        groups = memory.groups.values()
        found |= {seat.node: seat.machine for g in groups for seat in g.seats if seat.node not in found}
    known = set(found.values())
    for name in gone:
        host, _, job = name.rpartition(".")
        found.setdefault(name, host if host in known and job.isdigit() else name)
    return found


def _service_hosts(mirror: Mirror) -> set[str]:
    found = set()
    for name in mirror.nodes():
        registration = mirror.record(keys.registration(name), Registration)
        if registration is not None and registration.role == "service":
            found.add(registration.host or name)
    return found


def _groups_on(mirror: Mirror, host: str) -> list[str]:
    """Returns `group 1 of run demo` for each group that is there now."""
    found = []
    for run, memory in observe.readable(mirror):
        groups = memory.groups.values()
        there = [g for g in groups if g.phase != "finished" and any(seat.machine == host for seat in g.seats)]
        found += [f"group {g.group} of run {run}" for g in there]
    return found


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:SHOWN]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "") if shown else "none"
