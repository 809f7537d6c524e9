"""Lends nodes of pools: reads etcd's records for `core/remediation/lending.py`, and writes the grants that it returns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from supervisor.core.model.memory import AllocationMemory, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code, Reason
from supervisor.core.remediation.lending import Asked, Held, Pool, lend
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import say
from supervisor.ports.store import MAX_OPERATIONS, Store, Term
from supervisor.shell.control import cordons
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys, logged
from supervisor.wire.records import Control, NodeCheck, NodeDesired, NodeObserved, Registration, RunRecord, encode

log = logging.getLogger(__name__)

Runs = Mapping[str, RunRecord]
"""All launched runs by name, as from observe.runs."""


def launched_on(mirror: Mirror, pool: str, runs: Runs) -> list[str]:
    """Returns the runs that may have nodes of this pool: those launched on it, and those whose spec cannot be read."""
    names = (key[len(keys.RUNS) :].split("/", 1)[0] for key in mirror.of_sort("spec"))
    return [name for name in names if name not in runs or runs[name].spec.allocation.pool == pool]


def lent(mirror: Mirror, pool: str, runs: Runs) -> dict[str, str]:
    """Returns the pool's allocations that a run has now: key -> the run."""
    found = {}
    for run in launched_on(mirror, pool, runs):
        for grant in mirror.table(keys.grant(run, ""), Grant).values():
            if grant.state == "granted" and _pool_of(grant.through) == pool:
                found[grant.through] = run
    return found


def every_lent(mirror: Mirror, runs: Runs) -> dict[str, str]:
    """Returns the allocations of all pools that a run has now: key -> the run."""
    names = [name for name, record in runs.items() if record.spec.is_pool]
    return {key: run for name in names for key, run in lent(mirror, name, runs).items()}


def users(mirror: Mirror, pool: str, runs: Runs, has: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the runs that use this pool, sorted: launched on it and not over, or with nodes of it (`has`: as `lent`)."""
    live = [run for run in launched_on(mirror, pool, runs) if run in runs and not is_over(mirror, run)]
    return tuple(sorted({*live, *has.values()}))


def is_over(mirror: Mirror, run: str) -> bool:
    """Returns true if a run or pool has ended and is not about to be resumed. One whose memory cannot be read has not."""
    memory = mirror.record(keys.memory(run, "run"), Memory)
    control = mirror.record(keys.control(run), Control) or Control()
    return memory is not None and memory.phase in ENDED and control.resumes <= memory.resumes_done


def report(pool: str, waits: Iterable[Reason]) -> None:
    """Logs what a pool waits for; that no run uses it is a warning."""
    for why in waits:
        level = logging.WARNING if why.code == Code.POOL_IDLE else logging.INFO
        log.log(level, "%s: %s", pool, say(why), extra=logged.about(run=pool))


def _pool_of(allocation: str) -> str:
    return allocation.rpartition("-a")[0]


class PoolDriver:
    """Gives the runs on pools their allocations, as an EngineDriver does for an engine. It asks no engine, so it needs no
    thread: it works on the mirror that it is offered, and writes before the runs are looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settled: dict[str, list[object]] = {}
        """By pool: all that a comparison read which found nothing to do and no one waiting. A mirror keeps the same objects
        until a record changes."""

    def offer(self, mirror: Mirror, runs: Runs, term: Term) -> None:
        """Writes the grants that have changed. Raises Fenced if the term is over, Retryable if the store is away."""
        changed: dict[str, Grant] = {}
        for pool in {record.spec.allocation.pool for record in runs.values() if record.spec.allocation.pool}:
            read = _inputs(mirror, pool, runs)
            known = self._settled.get(pool, [])
            if len(known) == len(read) and all(a is b for a, b in zip(known, read, strict=True)):
                continue
            found, one_waits = _changed(mirror, pool, runs)
            changed |= found
            if not found and not one_waits:
                self._settled[pool] = read
        # a node is taken back no later than it is lent again
        ordered = sorted(changed, key=lambda key: changed[key].state == "granted")
        for start in range(0, len(ordered), MAX_OPERATIONS):
            part = {key: encode(changed[key]) for key in ordered[start : start + MAX_OPERATIONS]}
            mirror.wrote(part, self._store.commit(part, expect=[term.expect()]))


def _inputs(mirror: Mirror, name: str, runs: Runs) -> list[object]:
    """Returns what is read of a pool and the runs on it, but for its nodes, which matter only while a run waits for one."""
    found: list[object] = [
        runs,
        mirror.record(keys.memory(name, "run"), Memory),
        mirror.record(keys.control(name), Control),
    ]
    for run in (name, *launched_on(mirror, name, runs)):
        found += [mirror.table(keys.allocation(run, ""), AllocationMemory), mirror.table(keys.grant(run, ""), Grant)]
    return found


def _changed(mirror: Mirror, name: str, runs: Runs) -> tuple[dict[str, Grant], bool]:
    """Returns the grants of the runs on one pool that must be written, by etcd key, and if one waits for a node."""
    asked, elsewhere = [], lent(mirror, name, runs)
    for run in launched_on(mirror, name, runs):
        grants = {g.key: g for g in mirror.table(keys.grant(run, ""), Grant).values()}
        for allocation in mirror.table(keys.allocation(run, ""), AllocationMemory).values():
            if run not in runs or keys.grant(run, allocation.key) in mirror.unreadable:
                continue
            grant = grants.get(allocation.key)
            asked.append(Asked(run=run, allocation=allocation, grant=grant))
            if grant is not None and grant.state == "granted":
                elsewhere.pop(grant.through, None)
    pool = _read(mirror, name, runs)
    one_waits = any(a.allocation.state == "wanted" and (a.grant is None or a.grant.state == "pending") for a in asked)
    if one_waits:
        pool = replace(pool, held=_held_by(mirror, pool, runs))
    found = lend(pool, asked, elsewhere)
    changed = {}
    for each in asked:
        grant = found[each.allocation.key]
        if grant != each.grant:
            changed[keys.grant(each.run, grant.key)] = grant
            about, what = logged.about(run=each.run), grant.reason or ", ".join(grant.nodes)
            log.info("allocation %s is %s, of pool %s: %s", grant.key, grant.state, name, what, extra=about)
    return changed, one_waits


def _read(mirror: Mirror, name: str, runs: Runs) -> Pool:
    """Returns the pool without what it holds."""
    record = runs.get(name)
    if record is None or not record.spec.is_pool:
        # one that cannot be read still holds its nodes
        return Pool(name=name, there=keys.spec(name) in mirror.items)
    grants = {g.key: g for g in mirror.table(keys.grant(name, ""), Grant).values()}
    memory = mirror.record(keys.memory(name, "run"), Memory)
    over = ""
    if is_over(mirror, name):
        over = f"pool {name} has ended"
    elif memory is not None and memory.phase == "stopping":
        over = f"pool {name} gives its nodes back"
    return Pool(name=name, over=over, grants=grants)


def _held_by(mirror: Mirror, pool: Pool, runs: Runs) -> dict[str, Held]:
    memory = mirror.record(keys.memory(pool.name, "run"), Memory)
    own = memory.cordons.keys() if memory is not None else ()
    barred = {*own, *(host for host, cordon in cordons.seen_by(mirror, pool.name).items() if cordon.why)}
    # a grant that cannot be read may name any node: nothing is lent before it is repaired
    grants = (key for run in launched_on(mirror, pool.name, runs) for key in mirror.keys(keys.grant(run, "")))
    lends = memory is not None and not pool.over and not any(key in mirror.unreadable for key in grants)
    found = {}
    for allocation in mirror.table(keys.allocation(pool.name, ""), AllocationMemory).values():
        held = _held(mirror, allocation, pool.grants.get(allocation.key), barred)
        if held is not None:
            found[allocation.key] = held if lends else replace(held, usable=False)
    return found


def _held(mirror: Mirror, allocation: AllocationMemory, grant: Grant | None, barred: set[str]) -> Held | None:
    """Returns an allocation that the pool wants; None if it has brought nothing and will not."""
    if allocation.state != "wanted":
        return None
    if grant is None or grant.state == "pending":
        grant = grant or Grant(key=allocation.key, state="pending")
        return Held(grant=grant, host="", usable=False, comes=not grant.exhausted)
    if grant.state != "granted":
        return None
    there = [each for node in grant.nodes if (each := _registered(mirror, node, grant.key)) is not None]
    host = (there[0].host or there[0].node) if there else "".join(grant.nodes[:1])
    leaves = grant.leaving or allocation.leaving_since is not None or any(_leaves(mirror, each.node) for each in there)
    stays = host not in barred and not leaves
    return Held(
        grant=grant,
        host=host,
        switch=there[0].switch if there else "",
        usable=stays and 0 < len(there) == len(grant.nodes) and all(_passes(mirror, node) for node in grant.nodes),
        comes=stays and not there and allocation.unheard_since is None,
        runs=frozenset(run for node in grant.nodes for run in _on(mirror, node)),
        mesh=any(mesh_on(mirror, node) for node in grant.nodes),
    )


def _registered(mirror: Mirror, node: str, key: str) -> Registration | None:
    """Returns a node's registration; None if it is silent, or has the name of this one and is of another allocation."""
    found = mirror.record(keys.registration(node), Registration)
    return found if found is not None and found.allocation == key and found.role != "service" else None


def _leaves(mirror: Mirror, node: str) -> bool:
    seen = mirror.record(keys.observed(node), NodeObserved)
    return seen is not None and bool(seen.leaving)


def mesh_on(mirror: Mirror, node: str) -> str:
    """Returns who has a Monarch mesh on a node; empty: no one."""
    seen = mirror.record(keys.observed(node), NodeObserved)
    return seen.mesh if seen is not None else ""


def _passes(mirror: Mirror, node: str) -> bool:
    """Returns true unless its checks have not passed: a run would give it back at once."""
    check = mirror.record(keys.check(node), NodeCheck)
    return check is None or check.stands not in ("failed", "unknown")


def _on(mirror: Mirror, node: str) -> Iterator[str]:
    """Yields the runs of which something lives on a node, or is desired there."""
    seen = mirror.record(keys.observed(node), NodeObserved)
    yield from seen.runs if seen is not None else ()
    for run, desired in mirror.records(keys.desired(node, ""), NodeDesired):
        if desired.trainers or desired.lighthouses:
            yield run
