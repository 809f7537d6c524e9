"""Room for a run in the pool of this machine's nodes."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.model.spec import RunSpec
from supervisor.shell.engines.local import LocalEngine, Pool


def lacks(spec: RunSpec, system: Path) -> str:
    """The nodes that a pool lacks for a run, what happens until it has more, and how it gets them; empty: none.

    `system` is the system's folder. Raises Fatal where the pool cannot be read."""
    pool = _of_this_machine(system)
    if pool is None:
        return ""
    engine = LocalEngine(system)
    wanted, free = spec.allocation.nodes + spec.allocation.spares, engine.free()
    if free >= wanted:
        return ""
    groups, patience = spec.groups, spec.policy.allocation_timeout_s
    least, starts = max(1, groups.min_groups), free // groups.nodes_per_group
    if spec.is_pool:
        return f"local nodes: {len(pool.nodes)}, free: {free}, to hold: {wanted}; the others join when there are more. {pool.raised_to(engine.held() + wanted)}"
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


def lacks_more(more: int, system: Path) -> str:
    """Returns the sentence about nodes that a pool lacks for a run which needs that many more; empty: none. `system` and
    errors are those of `lacks`."""
    pool = _of_this_machine(system)
    if pool is None:
        return ""
    engine = LocalEngine(system)
    free = engine.free()
    if free >= more:
        return ""
    return (
        f"nodes in the pool: {len(pool.nodes)}, free: {free}, needed: {more} more; what lacks a node waits until there is one. "
        f"{pool.raised_to(engine.held() + more)}"
    )


def _of_this_machine(system: Path) -> Pool | None:
    pool = Pool.load(system)
    return pool if pool is not None and pool.host == socket.gethostname() else None


def not_here(spec: RunSpec) -> Iterator[str]:
    """Yields sentences about programs and files of the run file that this machine, on which its nodes are, has not."""
    env, hooks = spec.env, spec.hooks
    if env.directory and not os.path.isdir(env.directory):
        yield f"env.directory = {env.directory!r}: there is no such folder on this machine; each node must have it"
    for name, path in env.files.items():
        if not os.path.isfile(path):
            yield f"env.files.{name} = {path!r}: there is no such file on this machine; each node must have it"
    found_in = env.set.get("PATH", os.environ.get("PATH", os.defpath))
    # the agent puts the interpreter's folder in front, unless the run file sets PATH
    ranks_path = found_in if "PATH" in env.set else os.pathsep.join((os.path.dirname(sys.executable), found_in))
    programs = (
        ("trainer.command", spec.trainer.command, ranks_path),
        ("hooks.before", hooks.before, found_in),
        ("hooks.after", hooks.after, found_in),
    )
    for key, command, path in programs:
        if command and not _is_there(command[0], env.directory, path):
            yield f"{key}: there is no program {command[0]!r} on this machine; each node must have it"


def _is_there(program: str, directory: str, path: str) -> bool:
    """Returns true if a program can be started, also where that depends on the folder in which the agent was."""
    if "/" not in program:
        return shutil.which(program, path=path) is not None
    file = Path(directory) / program
    return not file.is_absolute() or (file.is_file() and os.access(file, os.X_OK))
