"""Compares a run's timeouts with the durations measured in it, or in an earlier run of the same program."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from supervisor.core import timeouts
from supervisor.core.bounds import Row
from supervisor.core.measured import NOTHING, Measured, together
from supervisor.core.model import Memory
from supervisor.core.spec import RunSpec
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.engines.local import LocalEngine, Pool
from supervisor.wire import keys
from supervisor.wire.records import RunRecord


def remembered(mirror: Mirror, run: str) -> Measured:
    """Returns the durations that the leader recorded of a run; nothing if they cannot be read."""
    memory = mirror.record(keys.memory(run, "run"), Memory)
    return memory.measured if memory is not None else NOTHING


def live(mirror: Mirror, record: RunRecord, memory: Memory) -> tuple[Row, ...]:
    """Returns the timeouts of an existing run, judged by its recorded durations and by what its ranks report now."""
    now = timeouts.measured(observe.observed(mirror, record.spec.name, memory, now=memory.clock, store_stable_s=0.0))
    seen = together([memory.measured, now])
    # the usual step is the current one, if any; the others are the longest ever seen
    return timeouts.rows(record.spec, replace(seen, step_s=now.step_s or seen.step_s))


def of_one_like_it(mirror: Mirror, spec: RunSpec) -> tuple[str, Measured]:
    """Returns the newest run that trained the same program, and its durations; an empty name if there is none."""
    alike = [
        record
        for record in observe.runs(mirror).values()
        if _what(record.spec) == _what(spec) and remembered(mirror, record.spec.name) != NOTHING
    ]
    if not alike:
        return "", NOTHING
    newest = max(alike, key=lambda record: record.launched_unix_s).spec.name
    return newest, remembered(mirror, newest)


def _what(spec: RunSpec) -> tuple[object, ...]:
    """Returns all that decides how long a step takes."""
    return spec.titan.recipe, spec.titan.overrides, spec.groups.ranks_per_group, spec.allocation.engine


def short(spec: RunSpec, seen: Measured = NOTHING) -> list[str]:
    """Returns a sentence for each timeout that is safe, but only just."""
    return [row.sentence for row in timeouts.rows(spec, seen) if row.settable and row.state == "tight"]


def pool_short(spec: RunSpec, system: Path) -> str:
    """Returns what a local pool lacks for a run, what happens until then, and how to raise it; empty: nothing."""
    pool = Pool.load(system) if spec.allocation.engine == "local" else None
    wanted = spec.allocation.nodes + spec.allocation.spares
    engine = LocalEngine(system)
    free = engine.free() if pool is not None else wanted
    if pool is None or pool.host != socket.gethostname() or free >= wanted:
        return ""
    count, least, patience = spec.groups.count, max(1, spec.groups.min_groups), spec.policy.allocation_timeout_s
    if free >= count:
        until = f"the run starts without {wanted - free} of its spares"
    elif spec.allocation.wait_for_all:
        until = f"nothing starts until all groups have one, for at most {patience:g} s (policy.allocation_timeout_s)"
    elif free >= least:
        until = (
            f"{free} of {count} groups start at once, the others join when there are more (--wait: all start together)"
        )
    else:
        until = f"nothing starts before groups.min_groups = {least} is met"
    size = f"nodes in the pool: {len(pool.nodes)}, free: {free}, wanted: {wanted} ({count} for groups, {wanted - count} more)"
    return f"{size}; {until}. {pool.raised_to(engine.held() + wanted)}"
