"""Checks if a pool can serve a run, before the run is launched on it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import RunSpec
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Expect
from supervisor.shell.control import observe, pools
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import status
from supervisor.wire import keys
from supervisor.wire.records import Control, RunRecord


def on_its_pool(mirror: Mirror, spec: RunSpec) -> RunSpec:
    """Returns the spec of a run that is launched on a pool, with the pool's [allocation.slurm]: it says how nodes go.
    Raises Fatal if the pool cannot serve the run."""
    name = spec.allocation.pool
    record = observe.runs(mirror).get(name)
    if record is None:
        raise Fatal(f"there is no pool {name!r}; known: {known(mirror)}. Make one: supervisor hold --name {name}")
    if not record.spec.is_pool:
        raise Fatal(f"{name} is a run, not a pool: `supervisor pools` lists those")
    memory = mirror.record(keys.memory(name, "run"), Memory)
    control = mirror.record(keys.control(name), Control) or Control()
    if pools.is_over(mirror, name):
        raise Fatal(f"pool {name} has ended: hold another one (supervisor hold --name NAME), or launch without --on")
    if control.stop or (memory is not None and memory.phase == "stopping"):
        raise Fatal(f"pool {name} gives its nodes back: hold another one (supervisor hold), or launch without --on")
    if memory is not None and _time_is_over(mirror, record, memory):
        raise Fatal(f"the time of pool {name} is over, and it ends once no run uses it: hold another (supervisor hold)")
    refuse_size(record.spec, spec)
    return replace(spec, allocation=replace(spec.allocation, slurm=record.spec.allocation.slurm))


def refuse_size(held: RunSpec, spec: RunSpec) -> None:
    """Raises Fatal if a run by this spec does not fit on the nodes of a pool of the spec `held`."""
    name, asked = held.name, spec.allocation.nodes + spec.allocation.spares
    if held.groups.slots < spec.groups.slots:
        raise Fatal(
            f"each node of pool {name} has room for {held.groups.slots} ranks, and run {spec.name} needs "
            f"{spec.groups.slots} on each (groups.ranks_per_group = {spec.groups.ranks_per_group}, "
            f"groups.nodes_per_group = {spec.groups.nodes_per_group}): hold a pool by this run file"
        )
    if held.allocation.nodes < asked:
        raise Fatal(
            f"pool {name} has {held.allocation.nodes} nodes, and run {spec.name} needs {asked} (allocation.nodes and "
            f"allocation.spares): hold {asked} (supervisor hold --nodes {asked})"
        )
    if held.policy.node_lease_s != spec.policy.node_lease_s:
        raise Fatal(
            f"the nodes of pool {name} have a lease of {held.policy.node_lease_s} s, and run {spec.name} has "
            f"policy.node_lease_s = {spec.policy.node_lease_s}: set it to {held.policy.node_lease_s}"
        )


def as_it_is(mirror: Mirror, pool: str) -> list[Expect]:
    """Returns what must not change before a run is launched on the pool: a release of it, or its end."""
    found = (mirror.items.get(key) for key in (keys.spec(pool), keys.control(pool)))
    return [
        Expect(key, mod_revision=item.mod_revision if item is not None else 0)
        for key, item in zip((keys.spec(pool), keys.control(pool)), found, strict=True)
    ]


def _time_is_over(mirror: Mirror, record: RunRecord, memory: Memory) -> bool:
    for_s, now = record.spec.hold.for_s, status.clock_now(mirror, record.spec.name, memory)
    return bool(for_s) and memory.held_since is not None and now >= memory.held_since + for_s


def known(mirror: Mirror) -> str:
    """Lists the names of all pools."""
    return ", ".join(sorted(run for run, record in observe.runs(mirror).items() if record.spec.is_pool)) or "none"
