"""Removes a run that has ended from etcd, so that its name can be used again.

Agents and engines know a run's processes and allocations by its name and a number. So the numbers that were used stay
in one record, and the next run of the name goes on above them.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from supervisor.core.model.memory import GroupMemory, Lighthouse, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import MAX_OPERATIONS, Expect, Store
from supervisor.shell.control import cordons, observe, projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Control, Removed, RunRecord, encode


def remove(store: Store, name: str, with_files: bool) -> list[str]:
    """Removes a run from etcd and, with `with_files`, its folder. Returns what was done, as sentences.

    Completes a removal that was interrupted. Raises Fatal if there is no such run, if it has not ended or still holds
    nodes, or if it changes meanwhile; Unreadable if its memory cannot be read.
    """
    mirror = Mirror(store.list(keys.PREFIX))
    record = observe.runs(mirror).get(name)
    if record is None:
        _refuse_unknown(mirror, name)
        _sweep(store, name)
        return [f"removed what was left of run {name}"]
    memory = observe.memory(mirror, name)
    _refuse_live(mirror, name, memory)
    _begin(store, mirror, record, memory)
    _sweep(store, name)
    return [f"removed run {name}", *_files(record, with_files), *_kept_away(mirror, name)]


def successor(spec: RunSpec, before: Removed) -> dict[str, bytes]:
    """Returns the first memory of a run that has a removed run's name: its numbers go on above those."""
    fresh = GroupMemory(group=0, size=spec.groups.nodes_per_group, generation=before.generation + 1)
    groups = {g: replace(fresh, group=g) for g in range(spec.groups.count)}
    memory = Memory(
        groups=groups,
        generations_above=before.generation,
        allocations_above=before.allocations,
        incidents_seen=before.incidents,
        lighthouse=Lighthouse(generation=before.lighthouse),
    )
    return projection.memory_records(spec, memory, ())


def set_aside(run_dir: Path) -> Path | None:
    """Renames the folder that a removed run has left, to the first free one of NAME.1, NAME.2 and so on. Returns its
    new path; None if there is none, or an empty one, as a launch leaves that was killed after this. Raises OSError."""
    if not run_dir.is_dir() or not any(run_dir.iterdir()):
        return None
    number = 1
    while (to := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    return run_dir.rename(to)


def left(mirror: Mirror, name: str) -> list[str]:
    """Returns the run's own keys, except the record of its removal."""
    return [key for key in mirror.keys(f"{keys.RUNS}{name}/") if key != keys.removed(name)]


def _refuse_unknown(mirror: Mirror, name: str) -> None:
    if keys.spec(name) in mirror.items:
        raise Fatal(f"{keys.spec(name)} cannot be read: run {name} is left alone; delete that key in etcd to go on")
    if not left(mirror, name):
        known = ", ".join(sorted(observe.runs(mirror))) or "none"
        raise Fatal(f"there is no run {name!r}; known: {known}")


def _refuse_live(mirror: Mirror, name: str, memory: Memory) -> None:
    if memory.phase == "stopping":
        raise Fatal(f"run {name} is still stopping: repeat this when `supervisor status {name}` shows it stopped")
    control = mirror.record(keys.control(name), Control) or Control()
    if memory.phase not in ENDED:
        raise Fatal(f"run {name} is {memory.phase}: end it first with `supervisor stop {name}`, then repeat this")
    if control.resumes > memory.resumes_done:
        raise Fatal(f"run {name} is {memory.phase}, and is about to be resumed: `supervisor stop {name}` ends it again")
    grants = mirror.table(keys.grant(name, ""), Grant).values()
    held = sorted(", ".join(g.nodes) or g.key for g in grants if g.state in ("pending", "granted"))
    if held:
        raise Fatal(
            f"run {name} is {memory.phase}, but its nodes {', '.join(held)} are not given back: repeat this when a supervisor "
            "with their engine has led for some seconds"
        )


def _begin(store: Store, mirror: Mirror, record: RunRecord, memory: Memory) -> None:
    """Takes the run away from the supervisors, in one transaction."""
    name = record.spec.name
    removed = Removed(
        run_dir=record.run_dir,
        generation=max([memory.generations_above, *(g.generation for g in memory.groups.values())]),
        lighthouse=memory.lighthouse.generation,
        allocations=memory.allocations_above + len(memory.allocations),
        incidents=memory.incidents_seen,
    )
    gone = (keys.spec(name), keys.memory(name, "run"), keys.control(name))
    as_it_is = [Expect(key, mod_revision=mirror.items[key].mod_revision if key in mirror.items else 0) for key in gone]
    there = [key for key in gone if key in mirror.items]
    try:
        store.commit({keys.removed(name): encode(removed)}, there, as_it_is)
    except Fenced as error:
        raise Fatal(f"run {name} was changed at the same moment, and is not removed: repeat this") from error


def _sweep(store: Store, name: str) -> None:
    """Deletes the other keys of a run without a spec. Repeats it: a leader may have been writing its last ones."""
    while found := _rest(Mirror(store.list(keys.PREFIX)), name):
        for start in range(0, len(found), MAX_OPERATIONS):
            store.commit({}, found[start : start + MAX_OPERATIONS], [Expect(keys.spec(name), create_revision=0)])


def _rest(mirror: Mirror, name: str) -> list[str]:
    """Returns the keys to delete: those below the run, and those of the nodes about it. A node that reports a process of
    the run keeps its order to end and forget it: without one it would leave the process alone."""
    reports = set(observe.runs_on(mirror, name))
    orders = {keys.desired(node, name) for node in reports}
    ends = [key for key in mirror.keys(keys.DESIRED) if key.endswith(f"/{name}") and key not in orders]
    gates = [keys.gate(node, name) for node in mirror.nodes()]
    return [*left(mirror, name), *ends, *(key for key in gates if key in mirror.items)]


def _files(record: RunRecord, with_files: bool) -> list[str]:
    folder = Path(record.run_dir)
    if not with_files:
        return [f"its files stay in {folder}"] if folder.is_dir() else []
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return [f"its folder {folder} is not on this machine"]
    except OSError as error:
        raise Fatal(f"run {record.spec.name} is removed, but not its folder {folder}: {error.strerror}") from error
    return [f"its folder {folder} is deleted"]


def _kept_away(mirror: Mirror, name: str) -> list[str]:
    hosts = sorted(host for host, held in cordons.by_host(mirror).items() if name in held.runs)
    if not hosts:
        return []
    return [
        f"its incidents are still held against {', '.join(hosts)}, for the other runs: "
        f"supervisor uncordon {' '.join(hosts)} ends that"
    ]
