"""The CLI's requests to etcd: launch a run, control it, and read its state."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import shutdown
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import MAX_OPERATIONS, Expect, Store
from supervisor.shell.control import observe
from supervisor.shell.control.leader import leader
from supervisor.shell.control.rewrite import rewrite
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import pool_fit, removal
from supervisor.wire import checkpoints, environment, keys, programs
from supervisor.wire.code_tree import Tree
from supervisor.wire.records import CheckpointMark, Control, RecordError, Removed, RunRecord, decode, encode

RESUMABLE = ("halted", "stopped")
"""Phases of an ended run that a person may resume."""


class NotChecked(Exception):
    """The Titan part cannot be checked on this machine; the text says why, and what to do."""


def check_titan(spec: RunSpec, tree: Tree | None = None) -> tuple[list[str], list[str]]:
    """Returns the problems of the Titan part, and what is changed in its recipe's config or must be compared, as
    sentences. A command of the user's own has no such part: what is noted is that its script is not on this machine.
    `tree`: the code that the run's nodes have. Raises NotChecked."""
    if spec.trainer.command:
        return [], _not_here(spec, tree)
    found = _asked_titan(spec, tree)
    if isinstance(found, str):
        return [found], []
    return [_problem(p) for p in found["problems"]], [*_changes(found.get("changes", ())), *found.get("notes", ())]


def titan_settings(spec: RunSpec) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the problems of the Titan part as sentences, or else every field of its config: key, value, by, reason and
    the recipe's value. Raises NotChecked."""
    found = _asked_titan(spec, None, "--show")
    if isinstance(found, str):
        return [found], []
    return [_problem(p) for p in found["problems"]], found.get("settings", [])


def _asked_titan(spec: RunSpec, tree: Tree | None, *options: str) -> dict[str, Any] | str:
    """Returns the answer of `titan_actor.check`, or why there is none. Raises NotChecked.

    It is a process of its own, because only `titan_actor` imports torch, and in the environment of the run's ranks: a
    recipe of the user's may need it.
    """
    record, env = encode(RunRecord(spec=spec, run_dir="", launched_unix_s=0.0)), spec.env
    given = env.set if tree is None else tree.first_in(env.set, os.environ, env.unset)
    directory = env.directory if tree is None else tree.place_of(env.directory)
    result = subprocess.run(
        programs.command("check", *options),
        input=record,
        capture_output=True,
        check=False,
        env=environment.of_rank(os.environ, given, env.pass_, env.unset),
        cwd=directory if os.path.isdir(directory) else None,
    )
    try:
        found: dict[str, Any] = json.loads(result.stdout)
        found["problems"], missing = list(found["problems"]), found.get("missing")
    except (ValueError, KeyError):
        tail = result.stderr.decode(errors="replace").strip().splitlines()[-3:]
        return f"the Titan part cannot be checked (exit code {result.returncode}): {' | '.join(tail)}"
    if missing:
        raise NotChecked(
            f"the config was not checked, since this machine has no {' and no '.join(missing)}: install "
            "everstep[trainer] to check it here; a node that cannot train it says so at its start"
        )
    return found


def _not_here(spec: RunSpec, tree: Tree | None) -> list[str]:
    scripts = [argument for argument in spec.trainer.command if argument.endswith(".py")]
    directory = spec.env.directory if tree is None else tree.place_of(spec.env.directory)
    missing = [path for script in scripts if not (path := Path(directory) / script).exists()]
    return [f"trainer.command: there is no {path} on this machine; each node must have it" for path in missing]


def _problem(problem: dict[str, Any]) -> str:
    nearest = f"; nearest: {problem['nearest']}" if problem.get("nearest") else ""
    return f"{problem['key']} = {problem['value']!r}: {problem['message']}{nearest}"


def _changes(changes: Iterable[dict[str, Any]]) -> list[str]:
    """Returns a sentence for each change of a recipe, and one for all that has no effect for the same reason."""
    lines, gone = [], dict[str, list[str]]()
    for change in changes:
        given, reason = f"{change['key']} = {change['before']!r}", change["reason"]
        if change["after"] is None:
            gone.setdefault(reason, []).append(given)
        else:
            lines.append(f"the recipe's {given} becomes {change['after']!r}: {reason}")
    return lines + [
        f"the recipe's {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: {reason}"
        for reason, given in gone.items()
    ]


def launched_before(store: Store, spec: RunSpec) -> RunRecord | None:
    """Returns the record of this very run, or None if it was not launched. Raises Fatal if another run has its name."""
    item = store.get(keys.spec(spec.name))
    if item is None:
        return None
    record = decode(item.value, RunRecord)
    if record.spec != spec:
        raise Fatal(f"another run is already named {spec.name!r}: choose another name")
    return record


def refuse_name(store: Store, name: str) -> None:
    """Raises Fatal if a run has this name, or if no supervisor leads, which would start a new one."""
    if store.get(keys.LEADER) is None:
        raise Fatal("no supervisor leads: nothing would happen; start one with `supervisor up`")
    if store.get(keys.spec(name)) is not None:
        raise Fatal(_taken(name))


def refuse_unfit(store: Store, spec: RunSpec) -> None:
    """Raises Fatal as refuse_name does, and if the run's pool cannot serve it."""
    refuse_name(store, spec.name)
    if spec.allocation.pool:
        pool_fit.on_its_pool(Mirror(store.list(keys.PREFIX)), spec)


def _taken(name: str) -> str:
    return (
        f"a run named {name!r} already exists: choose another name (--name), or remove that run once it has ended: "
        f"supervisor rm {name}"
    )


def resumed_from(folder: Path, spec: RunSpec) -> CheckpointMark:
    """Returns the checkpoint in this folder, with which a new run begins. Raises Fatal if it is not one, or if the
    run has no step to make after it."""
    mark = checkpoints.mark_of(folder.resolve())
    if mark is None:
        raise Fatal(
            f"{folder} is no complete checkpoint of a run: give a folder such as runs/NAME/checkpoints/step-40.g0.gen1, "
            f"with its {checkpoints.MARKER}"
        )
    if mark.step >= spec.titan.steps:
        raise Fatal(f"{folder} is at step {mark.step}, and titan.steps = {spec.titan.steps}: raise that")
    return mark


def launch(
    store: Store,
    spec: RunSpec,
    home: Path,
    say: Callable[[str], None] = lambda sentence: None,
    begins_with: CheckpointMark | None = None,
) -> RunRecord:
    """Creates the run. `say` gets a sentence if the folder of a removed run of this name is set aside. `begins_with`: a
    checkpoint of another run. Raises Fatal if the name is taken, no supervisor leads, or its pool cannot serve it."""
    name = spec.name
    refuse_name(store, name)
    mirror = Mirror(store.list(keys.PREFIX if spec.allocation.pool else f"{keys.RUNS}{name}/"))
    spec = pool_fit.on_its_pool(mirror, spec) if spec.allocation.pool else spec
    before = mirror.record(keys.removed(name), Removed)
    if removal.left(mirror, name):
        raise Fatal(
            f"an earlier run {name} is not wholly removed: finish that with `supervisor rm {name}`, then launch again"
        )
    run_dir = home.resolve() / name
    record = RunRecord(spec=spec, run_dir=str(run_dir), launched_unix_s=time.time())
    if begins_with is not None and Path(begins_with.path).is_relative_to(checkpoints.folder_of(str(run_dir)).resolve()):
        raise Fatal(f"{begins_with.path} is in the folder of this very run: launch it under another name (--name)")
    try:
        kept = removal.set_aside(run_dir) if before is not None and before.run_dir == str(run_dir) else None
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Fatal(f"cannot make the run's folder {run_dir}: {error.strerror}") from error
    if begins_with is not None:
        _lend(begins_with, run_dir)
    if kept is not None:
        say(f"the files of the removed run {name} are now in {kept}")
    first = removal.successor(spec, before) if before is not None else {}
    records = [*first.items(), (keys.spec(name), encode(record))]
    free = [Expect(keys.spec(name), create_revision=0)]
    free += pool_fit.as_it_is(mirror, spec.allocation.pool) if spec.allocation.pool else []
    # a memory without a spec is no run yet, so the spec comes last
    parts = [dict(records[i : i + MAX_OPERATIONS]) for i in range(0, len(records), MAX_OPERATIONS)]
    try:
        for part in parts:
            store.commit(part, expect=free)
    except Fenced:
        if spec.allocation.pool and store.get(keys.spec(name)) is None:
            raise Fatal(f"pool {spec.allocation.pool} was changed at the same moment: repeat this") from None
        raise Fatal(_taken(name)) from None
    return record


def _lend(mark: CheckpointMark, run_dir: Path) -> None:
    own = [folder for _, folder, known in checkpoints.listed(str(run_dir)) if known is not None]
    if own and own != [checkpoints.folder_of(str(run_dir)) / checkpoints.name_of(mark)]:
        raise Fatal(
            f"the run's folder has checkpoints already, such as {own[0]}: launch it under another name (--name)"
        )
    try:
        checkpoints.lend(mark, run_dir)
    except OSError as error:
        raise Fatal(f"cannot take over {mark.path} into {run_dir}: {error}") from error


def choose_run(mirror: Mirror, name: str) -> RunRecord:
    """Returns the named run, or the newest if no name is given. Raises Fatal if there is none, or if it is a pool."""
    found = {run: record for run, record in observe.runs(mirror).items() if not record.spec.is_pool}
    if name and name in observe.runs(mirror) and name not in found:
        raise Fatal(
            f"{name} is a pool, not a run: look with supervisor status {name}, end it with supervisor release {name}"
        )
    if name and name not in found:
        raise Fatal(f"there is no run {name!r}; known: {', '.join(sorted(found)) or 'none'}")
    if not found:
        raise Fatal("there is no run yet: start one with `supervisor launch RUN.toml`")
    return found[name] if name else max(found.values(), key=lambda r: r.launched_unix_s)


def not_over(mirror: Mirror, resumable: bool) -> dict[str, str]:
    """Returns the phases of runs that a request can reach, newest first. `resumable` adds those to be resumed."""
    ended = [phase for phase in ENDED if not (resumable and phase in RESUMABLE)]
    runs = [record for record in observe.runs(mirror).values() if not record.spec.is_pool]
    newest_first = sorted(runs, key=lambda r: r.launched_unix_s, reverse=True)
    memories = {r.spec.name: mirror.record(keys.memory(r.spec.name, "run"), Memory) for r in newest_first}
    phases = {name: memory.phase if memory is not None else "new" for name, memory in memories.items()}
    return {name: phase for name, phase in phases.items() if phase not in ended}


def change_control(store: Store, run: str, change: Callable[[Control], Control]) -> Control:
    """Changes a person's requests for a run; retries if another writer came in between."""
    key = keys.control(run)
    try:
        return rewrite(store, key, Control, lambda known: change(known or Control()))
    except RecordError as error:
        raise Fatal(f"{key} cannot be read and is left alone ({error}); delete it in etcd to go on") from error


def refuse_ended(mirror: Mirror, record: RunRecord, wish: str) -> None:
    """Raises Fatal if the run has ended, so that the request `wish` (in words) would have no effect."""
    name = record.spec.name
    # an unreadable memory holds the run: a person may want to pause it before mending that
    memory = mirror.record(keys.memory(name, "run"), Memory)
    if memory is None or memory.phase not in ENDED:
        return
    if memory.phase in RESUMABLE:
        raise Fatal(
            f'run {name} is {memory.phase}: {wish} does nothing; to let it go on: supervisor resume {name} --because "..."'
        )
    refuse_over(mirror, record, wish)


def refuse_over(mirror: Mirror, record: RunRecord, wish: str) -> None:
    """Raises Fatal as `refuse_ended` does, but not for a run that may be resumed."""
    name = record.spec.name
    memory = mirror.record(keys.memory(name, "run"), Memory)
    if memory is not None and memory.phase in ENDED and memory.phase not in RESUMABLE:
        raise Fatal(f"run {name} is {memory.phase}: {wish} does nothing any more")


def pause(store: Store, mirror: Mirror, record: RunRecord) -> str:
    """Leaves a run alone until `resume`; training goes on. Returns what was done. Raises Fatal if it has ended."""
    refuse_ended(mirror, record, "pause")
    change_control(store, record.spec.name, lambda c: replace(c, paused=True))
    return f"{record.spec.name}: paused"


def stop(store: Store, mirror: Mirror, record: RunRecord) -> str:
    """Requests the end of a run after a common step. Returns what happens now, and its time limits. Raises Fatal if it
    has ended."""
    refuse_ended(mirror, record, "stop")
    change_control(store, record.spec.name, lambda c: replace(c, stop=True, suspended=False))
    return f"{record.spec.name}: {stopping(mirror, record)}"


def stopping(mirror: Mirror, record: RunRecord) -> str:
    """Returns what a stop does now, and its time limits, which run from when a leader sees the request."""
    memory = mirror.record(keys.memory(record.spec.name, "run"), Memory) or Memory()
    drain_s, longest_s = (f(record.spec, memory.measured) for f in (shutdown.drain_s, shutdown.longest_s))
    leads = "" if leader(mirror) is not None else "; no supervisor leads, so it begins when one does"
    step = memory.checkpoint.step if memory.checkpoint is not None else 0
    lost = f"; what ranks have kept in memory since step {step} is lost" if memory.from_memory else ""
    return (
        f"stopping: groups that train end after one common step, the others at once; what has not ended in {drain_s:.0f} s "
        f"is terminated, and the run ends within {longest_s:.0f} s{leads}{lost}"
    )


def require(record: RunRecord, group: int | None = None, rank: int | None = None) -> None:
    """Raises Fatal if the run has no such group, or its groups no such rank. None: not checked."""
    groups = record.spec.groups
    if group is not None and not 0 <= group < groups.count:
        raise Fatal(f"run {record.spec.name} has no group {group}: it has 0 to {groups.count - 1}")
    if rank is not None and not 0 <= rank < groups.ranks_per_group:
        raise Fatal(f"a group of run {record.spec.name} has no rank {rank}: it has 0 to {groups.ranks_per_group - 1}")


def restart(store: Store, record: RunRecord, group: int) -> str:
    """Requests a restart of a group. Returns what was done. Raises Fatal if the run has no such group."""
    require(record, group)
    change_control(
        store,
        record.spec.name,
        lambda c: replace(c, restarts={**c.restarts, group: c.restarts.get(group, 0) + 1}),
    )
    return f"{record.spec.name}: group {group} will be restarted"


def lacks_reason(mirror: Mirror, record: RunRecord, because: str) -> str:
    """Returns why a run cannot be resumed without a reason; empty if it can, or if one is given."""
    memory = observe.memory(mirror, record.spec.name)
    if memory.phase != "halted" or because:
        return ""
    return (
        f"run {record.spec.name} is halted; give a reason to resume it: "
        f'supervisor resume {record.spec.name} --because "..." (what happened: supervisor incidents)'
    )


def resume(store: Store, mirror: Mirror, record: RunRecord, because: str, they_are_down: bool = False) -> str:
    """Ends a pause, or a stop, or a halt, for the given reason. Returns what was done.

    Raises Fatal if the run is finished or still drains towards its halt. Also raises it if the run ended with a
    lighthouse on an unregistered node, unless the person says that `they_are_down`.
    """
    name = record.spec.name
    memory = observe.memory(mirror, name)
    phase, host = memory.phase, memory.lighthouse.node
    if phase == "finished":
        raise Fatal(f"run {name} is finished: there is nothing to resume; launch it under another name")
    if phase == "stopping" and memory.halt_reason and because:
        raise Fatal(f"run {name} is still stopping before its halt; repeat this when it is halted")
    if phase == "running" and because and they_are_down and memory.lighthouse.mute_since is not None:
        change_control(store, name, lambda c: replace(c, paused=False, down=c.down + 1, because=because))
        return f"{name}: its lighthouse on {host} and what was on its side count as down, because: {because}"
    if phase == "running" and because and memory.breaker_since is not None:
        change_control(store, name, lambda c: replace(c, paused=False, evictions=c.evictions + 1, because=because))
        held = "the nodes that are lost, or whose checks do not pass, or whose groups a restart did not repair, are given up"
        return f"{name}: {held}, charged to no budget, because: {because}"
    if phase not in RESUMABLE:
        control = mirror.record(keys.control(name), Control)
        if because and (control is None or not control.paused):
            raise Fatal(f"run {name} is neither halted nor paused ({phase}): there is nothing to resume")
        change_control(store, name, lambda c: replace(c, paused=False))
        return f"{name}: acting again"
    if host and keys.registration(host) not in mirror.items and not they_are_down:
        raise Fatal(
            f"run {name} had its lighthouse on node {host}, which is not registered: that lighthouse and the trainers on its "
            "side may still train; make sure that they are down, then repeat this with --they-are-down"
        )
    because = because or "it had been stopped"
    change_control(store, name, lambda c: resumed(c, because))
    return f"{name}: resumed from its newest checkpoint, with full budgets, because: {because}"


def resumed(control: Control, because: str) -> Control:
    """Returns the requests of a person who resumes a halted or stopped run."""
    return replace(control, paused=False, stop=False, suspended=False, resumes=control.resumes + 1, because=because)


def incidents(mirror: Mirror, run: str) -> list[Incident]:
    """Returns all incidents of a run, oldest first."""
    found = [incident for _, incident in mirror.records(keys.incident(run, ""), Incident)]
    return sorted(found, key=lambda i: int(i.id[1:]) if i.id[1:].isdigit() else 0)
