"""Room for a run in the pool of this machine's nodes."""

from __future__ import annotations

import socket
from pathlib import Path

from supervisor.core.model.spec import RunSpec
from supervisor.shell.engines.local import LocalEngine, Pool


def lacks(spec: RunSpec, system: Path) -> str:
    """The nodes that a pool lacks for a run, what happens until it has more, and how it gets them; empty: none.

    `system` is the system's folder. Raises Fatal where the pool cannot be read."""
    pool = Pool.load(system)
    if pool is None or pool.host != socket.gethostname():
        return ""
    engine = LocalEngine(system)
    wanted, free = spec.allocation.nodes + spec.allocation.spares, engine.free()
    if free >= wanted:
        return ""
    groups, patience = spec.groups, spec.policy.allocation_timeout_s
    least, starts = max(1, groups.min_groups), free // groups.nodes_per_group
    if starts >= groups.count:
        until = f"the run starts without {wanted - free} of its spares"
    elif spec.allocation.wait_for_all:
        until = f"nothing starts until all groups have theirs, for at most {patience:g} s (policy.allocation_timeout_s)"
    elif starts >= least:
        until = (
            f"{starts} of {groups.count} groups start at once, the others join when there are more "
            "(--wait: all start together)"
        )
    else:
        until = f"nothing starts before groups.min_groups = {least} is met"
    size = f"nodes in the pool: {len(pool.nodes)}, free: {free}, wanted: {wanted} ({groups.nodes} for groups, {wanted - groups.nodes} more)"
    return f"{size}; {until}. {pool.raised_to(engine.held() + wanted)}"
