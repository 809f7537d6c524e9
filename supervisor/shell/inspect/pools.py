"""A person's requests about pools: hold nodes, launch a run on them, look at them, give them back (docs/POOLS.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.hold import hold
from supervisor.core.report.durations import wall_clock
from supervisor.core.report.words import said
from supervisor.core.round.draft import Round
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Store
from supervisor.shell.control import observe, pools
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, pool_fit, status
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class PoolNodeStatus:
    """One node of a pool."""

    node: str
    """Empty while the engine has not given it."""
    allocation: str
    state: str
    """The state of its allocation, or `silent`: it was granted, and its agent is not there."""
    host: str
    run: str
    """Run that has it; empty: none."""
    mesh: str = ""
    """Owner of the Monarch mesh on it, as user@machine; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class PoolStatus:
    """Status of a pool."""

    pool: str
    phase: str
    engine: str
    wanted: int
    """Number of nodes that it holds, or asks for."""
    nodes: tuple[PoolNodeStatus, ...]
    used_by: dict[str, int]
    """Run -> its number of nodes. A run that uses the pool and has none is here too."""
    idle_since_unix_s: float | None
    """Since when no run uses it, by its leader's clock; None: one does, it has ended, or no leader has seen it yet."""
    ends_unix_s: float | None
    """When its time is over; None: only `supervisor release` ends it, or it has ended."""
    waiting: tuple[str, ...]
    cordons: dict[str, str]
    leaving: dict[str, str]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    code: str = ""
    """As RunStatus.code."""


def seconds_of(text: str) -> float:
    """Reads a duration: a number with s, m, h or d, as in `90m`. Raises ValueError with a sentence."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{text!r} is no duration: give a number above 0 with s, m, h or d, as in 8h")
    return float(found[1]) * UNITS_S[found[2]]


def spec_of(spec: RunSpec, nodes: int | None, for_s: float | None) -> RunSpec:
    """Returns the spec of a pool that holds `nodes` nodes for runs like this one, by default as many as it would ask for.
    `for_s`: seconds, None for what the run file says. Raises Fatal if the run itself is on a pool."""
    if spec.allocation.pool:
        raise Fatal(
            f"the run file takes its nodes from pool {spec.allocation.pool}: remove allocation.pool to hold others"
        )
    allocation = spec.allocation
    wanted = nodes if nodes is not None else allocation.nodes + allocation.spares
    if wanted < 1:
        raise Fatal(f"a pool of {wanted} nodes: it holds one at least")
    return RunSpec(
        name=spec.name,
        groups=replace(spec.groups, count=0),
        allocation=replace(allocation, nodes=wanted, spares=0, wait_for_all=False),
        hold=spec.hold if for_s is None else replace(spec.hold, for_s=for_s),
        policy=spec.policy,
    )


def release(store: Store, mirror: Mirror, name: str) -> str:
    """Asks for all nodes of a pool to be given back to the engine. Returns what was done. Raises Fatal if there is no
    such pool, if it has ended, or while a run uses it."""
    record = _pool(mirror, name)
    if pools.is_over(mirror, name):
        raise Fatal(f"pool {name} has ended: it holds nothing any more; supervisor rm {name} frees its name")
    runs = observe.runs(mirror)
    used = pools.users(mirror, name, runs, pools.lent(mirror, name, runs))
    if used:
        stop = f"supervisor stop {used[0]}"
        raise Fatal(f"pool {name} is used by {_runs(used)}: end {'it' if len(used) == 1 else 'them'} first ({stop})")
    client.change_control(store, name, lambda control: replace(control, stop=True, suspended=False))
    return f"pool {name}: its {record.spec.allocation.nodes} nodes are given back to the engine"


def pool_status(mirror: Mirror, record: RunRecord, alarms: Sequence[str] = ()) -> PoolStatus:
    """Returns a pool's status, with etcd's alarms among its warnings. Raises views.Unreadable if its memory cannot be read."""
    name, spec = record.spec.name, record.spec
    memory, observed = status.seen_of(mirror, record)
    now = status.clock_now(mirror, name, memory)
    as_run = status.status_of(mirror, record, memory, observed, now)
    r = Round(replace(observed, now=now), spec, memory)
    hold(r)
    clocks = status.account(mirror, name).clocks
    ended = pools.is_over(mirror, name)
    ends = memory.held_since + spec.hold.for_s if memory.held_since is not None and spec.hold.for_s else None
    used = dict.fromkeys(observed.users, 0)
    for run in observed.lent.values():
        used[run] += 1
    return PoolStatus(
        pool=name,
        phase=memory.phase,
        engine=spec.allocation.engine,
        wanted=spec.allocation.nodes,
        nodes=tuple(
            _node(mirror, key, observed.grants.get(key), observed.lent.get(key, ""))
            for key, allocation in sorted(memory.allocations.items(), key=lambda each: int(each[0].rpartition("-a")[2]))
            if allocation.state == "wanted"
        ),
        used_by=used,
        idle_since_unix_s=_wall(memory.idle_since, clocks) if not (ended or used) else None,
        ends_unix_s=_wall(ends, clocks) if not ended else None,
        waiting=(*as_run.waiting, *said(r.waits.values())),
        cordons=as_run.cordons,
        leaving=as_run.leaving,
        warnings=(*alarms, *as_run.warnings),
        problems=as_run.problems,
        code=as_run.code,
    )


def named(mirror: Mirror, name: str) -> RunRecord | None:
    """Returns the pool of this name; None if there is none."""
    record = observe.runs(mirror).get(name)
    return record if record is not None and record.spec.is_pool else None


def every(mirror: Mirror) -> list[PoolStatus]:
    """Returns all pools, those that hold nodes first, then the newest first."""
    found = sorted(observe.runs(mirror).values(), key=lambda record: -record.launched_unix_s)
    told = [pool_status(mirror, record) for record in found if record.spec.is_pool]
    return sorted(told, key=lambda each: pools.is_over(mirror, each.pool))


def _pool(mirror: Mirror, name: str) -> RunRecord:
    record = observe.runs(mirror).get(name)
    if record is None:
        raise Fatal(f"there is no pool {name!r}; known: {pool_fit.known(mirror)}")
    if not record.spec.is_pool:
        raise Fatal(f"{name} is a run, not a pool: supervisor stop {name} ends it")
    return record


def _node(mirror: Mirror, key: str, grant: Grant | None, run: str) -> PoolNodeStatus:
    node = grant.nodes[0] if grant is not None and grant.nodes else ""
    registration = mirror.record(keys.registration(node), Registration) if node else None
    there = registration is not None and registration.allocation == key
    state = grant.state if grant is not None else "pending"
    return PoolNodeStatus(
        node=node,
        allocation=key,
        state="silent" if state == "granted" and not there else state,
        host=(registration.host if registration is not None and there else "") or node,
        run=run,
        mesh=pools.mesh_on(mirror, node),
    )


def _wall(at: float | None, clocks: tuple[tuple[float, float], ...]) -> float | None:
    return None if at is None else wall_clock(at, clocks)


def _runs(names: tuple[str, ...]) -> str:
    return f"run {names[0]}" if len(names) == 1 else f"runs {', '.join(names)}"
