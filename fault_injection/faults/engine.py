"""Makes the faults of an engine: what a scheduler does to a run, and its absence. Slurm itself confirms the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

from fault_injection.faults.fault import Scene, Site, Target
from fault_injection.faults.processes import DONE_WITHIN_S, stop
from fault_injection.testbed.slurm import SlurmHere, drained, filler_name, number_of, takes_jobs
from supervisor.core.model.observed import Grant
from supervisor.ports.errors import Fatal
from supervisor.shell.engines.local import LocalEngine

ASK_S = 0.5
"""Seconds between two queries to slurmctld, which serves a whole cluster."""

LEAVES_WITHIN_S = 120.0
"""Seconds from a node's drain until its group is elsewhere: short where a spare is warm, else a job and a start."""

PENDING_WITHIN_S = 60.0
"""Seconds from an allocation's end until the next request: two engine listings, and the start of its processes' end."""

PENDING_S = 10.0

FULL = "no node is free: all are withheld by the fault injection"


LENT = "the run's nodes are lent by a pool, which asked the engine for them: see node_killed"

# --- needs ---


def on_slurm(site: Site) -> str:
    if site.engine in ("slurm", "pool"):
        return own_nodes(site)
    return f"the engine is {site.engine} and has no such thing: see allocation_gone"


def local(site: Site) -> str:
    return own_nodes(site) if site.engine in ("local", "pool") else f"the engine is {site.engine}: see job_cancelled"


def own_nodes(site: Site) -> str:
    return LENT if site.engine == "pool" else ""


def cancels(site: Site) -> str:
    return site.no_jobs


def drains(site: Site) -> str:
    return site.no_drain


def controller(site: Site) -> str:
    return site.no_controller


def fills(site: Site) -> str:
    """Returns why nodes cannot be filled. The local engine's are processes of one machine; Slurm's may be anywhere."""
    return site.not_here if site.engine == "local" else site.no_filling


# --- faults ---


def job_cancelled(scene: Scene, target: Target, after: ExitStack) -> str:
    return _cancel(scene, SlurmHere(), number_of(_grant(scene, target.allocation)))


def node_drained(scene: Scene, target: Target, after: ExitStack) -> str:
    """Drains a node until its group has left it and its job has ended, as an administrator does first."""
    slurm, number = SlurmHere(), number_of(_grant(scene, target.allocation))
    host, reason = slurm.job(number).node, f"supervisor chaos, run {scene.run}"
    before, size = slurm.node(host), len(scene.nodes()[target.group])
    if drained(before):
        raise Fatal(f"node {host} is drained already: {before.reason}")
    after.callback(slurm.undrain, host, reason)
    if words := slurm.drain(host, reason):
        raise Fatal(f"Slurm does not let this user drain node {host}: {words}")
    _ask(scene, lambda: drained(slurm.node(host)), DONE_WITHIN_S, f"Slurm marks node {host} as drained")
    marked = "+".join(slurm.node(host).states)
    _ask(
        scene, lambda: len(scene.nodes()[target.group]) == size and target.node not in scene.nodes()[target.group],
        LEAVES_WITHIN_S, f"group {target.group} leaves {host}",
    )  # fmt: skip
    _ask(scene, lambda: not _runs(slurm, number), DONE_WITHIN_S, f"job {number} on {host} ends")
    moved = ", ".join(scene.nodes()[target.group])
    after.close()
    _ask(scene, lambda: takes_jobs(slurm.node(host)), DONE_WITHIN_S, f"node {host} is resumed")
    return (
        f"sinfo said {marked} of node {host}; group {target.group} went to {moved}, and job {number} ended; it is resumed, and sinfo says "
        f"{'+'.join(slurm.node(host).states)}"
    )


def controller_away(scene: Scene, target: Target, after: ExitStack) -> str:
    slurm = SlurmHere()
    pid = slurm.controller()
    after.callback(_ask, scene, lambda: not slurm.silent(), DONE_WITHIN_S, "slurmctld answers again")
    said = stop(scene, pid, after)
    silent = slurm.silent()
    if not silent:
        raise Fatal(f"slurmctld, pid {pid}, is stopped, and `scontrol ping` is answered all the same")
    return f"slurmctld: {said}; {silent}"


def replacement_pending(scene: Scene, target: Target, after: ExitStack) -> str:
    """Takes the spares' allocations first, for the group would move to one of them. The run requests the group's next
    one at once. It requests a spare's once that could have come (policy.allocation_timeout_s). Each draws on the budget
    for allocations."""
    before = scene.grants()
    used, size = set(chain.from_iterable(scene.nodes().values())), len(scene.nodes()[target.group])
    spares = [key for key, grant in before.items() if grant.state == "granted" and not used.intersection(grant.nodes)]
    taken = [*spares, target.allocation]
    make = _on_slurm if scene.allocation.engine == "slurm" else _on_local
    full, take = make(scene, target, after, {key: _grant(scene, key) for key in taken})
    said = []
    for key in taken:
        said.append(take(key))
        scene.wait(lambda: not _granted(scene, key), PENDING_WITHIN_S, f"allocation {key} is known to be gone")  # noqa: B023

    def waits() -> bool:
        new = _new(scene, before)
        return len(scene.nodes()[target.group]) < size and bool(new) and all(grant.state == "pending" for grant in new)

    scene.wait(waits, PENDING_WITHIN_S, f"group {target.group} waits for an allocation that is pending")
    new = _new(scene, before)
    told = ", ".join(grant.key for grant in new)
    lacks = "has no node" if size == 1 else f"has {len(scene.nodes()[target.group])} of {size} nodes"
    why = f"group {target.group} {lacks}, and {told} is pending: {new[0].reason or 'no reason given'}"
    return "; ".join([full, *said, why, *_in_squeue(scene, new)])


# --- how ---

Take = Callable[[str], str]
"""Takes an allocation by its key; returns what was seen of it."""


def _on_local(scene: Scene, target: Target, after: ExitStack, taken: Mapping[str, Grant]) -> tuple[str, Take]:
    engine = LocalEngine(target.folder.parents[1])
    after.callback(engine.give_again)
    engine.withhold(FULL)

    def take(key: str) -> str:
        return scene.take_allocation(replace(target, node=taken[key].nodes[0], allocation=key))

    return "all nodes are withheld", take


def _on_slurm(scene: Scene, target: Target, after: ExitStack, taken: Mapping[str, Grant]) -> tuple[str, Take]:
    """Fills the free hosts with jobs of ours, and queues more for those that become free. It needs only to submit."""
    slurm, spec, name = SlurmHere(), scene.allocation.slurm, filler_name(scene.run)
    numbers = {key: number_of(grant) for key, grant in taken.items()}
    hosts = {key: slurm.job(number).node for key, number in numbers.items()}
    after.callback(slurm.empty, name)
    full = []
    if idle := slurm.idle(spec.partition):
        first = slurm.fill(spec, idle, name)
        _ask(scene, lambda: "RUNNING" in slurm.job(first).states, DONE_WITHIN_S, f"job {first} fills {', '.join(idle)}")
        full = [f"job {first} fills {', '.join(idle)}"]
    full += [f"job {slurm.fill(spec, [host], name)} queues for {host}" for host in hosts.values()]

    def take(key: str) -> str:
        return _cancel(scene, slurm, numbers[key])

    return ", ".join(full), take


def _cancel(scene: Scene, slurm: SlurmHere, number: int) -> str:
    host = slurm.job(number).node
    slurm.cancel([number])
    _ask(scene, lambda: "CANCELLED" in slurm.job(number).states, DONE_WITHIN_S, f"job {number} on {host} is cancelled")
    return f"scancel of job {number} on {host}: squeue says {'+'.join(slurm.job(number).states)}"


def _runs(slurm: SlurmHere, number: int) -> bool:
    return bool({"RUNNING", "COMPLETING"}.intersection(slurm.job(number).states))


def _in_squeue(scene: Scene, new: list[Grant]) -> list[str]:
    if scene.allocation.engine != "slurm":
        return []
    slurm, said = SlurmHere(), []
    for grant in new:
        job = slurm.job(number_of(grant))
        if "PENDING" not in job.states:
            raise Fatal(f"job {job.id}, of allocation {grant.key}, is {'+'.join(job.states)}, not pending")
        said.append(f"squeue says {'+'.join(job.states)} of its job {job.id}: {job.why}")
    return said


def _grant(scene: Scene, key: str) -> Grant:
    grant = scene.grants().get(key)
    if grant is None or grant.state != "granted":
        raise Fatal(
            f"allocation {key or '-'} of the run is not granted: {grant.state if grant else 'nothing is known of it'}"
        )
    return grant


def _granted(scene: Scene, key: str) -> bool:
    grant = scene.grants().get(key)
    return grant is not None and grant.state == "granted"


def _new(scene: Scene, before: Mapping[str, Grant]) -> list[Grant]:
    """Returns the grants that were requested since."""
    return [grant for key, grant in sorted(scene.grants().items()) if key not in before]


def _ask(scene: Scene, reached: Callable[[], bool], within_s: float, what: str) -> None:
    """Waits as `scene.wait` does, with a pause between two looks."""
    again_at = 0.0

    def look() -> bool:
        nonlocal again_at
        if time.monotonic() < again_at:
            return False
        found = reached()
        again_at = time.monotonic() + ASK_S
        return found

    scene.wait(look, within_s, what)
