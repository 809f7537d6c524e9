"""The run file: TOML to RunSpec. Finds every mistake before anything starts, and names the key, the value and the
nearest right one."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.spec import KEYS, MAX_NODES_PER_GROUP, AllocationSpec, GroupsSpec, RunSpec, TitanSpec
from supervisor.core.timeouts import solver as timeouts
from supervisor.core.timeouts.bound import Row
from supervisor.shell.engines import registry
from supervisor.shell.runfile import validate_environment, validate_policy
from supervisor.wire import tables
from supervisor.wire.titan_names import ASSETS


class RunFileError(ValueError):
    """The problems of a run file: one sentence each."""

    def __init__(self, problems: list[str], timeouts: tuple[Row, ...] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.timeouts = timeouts
        """The whole table, if one of the timeouts is unsafe; else empty."""


def load(path: Path, name: str = "", pool: str = "") -> RunSpec:
    """Reads and checks a run file. `name`: the run's name in the place of the file's. `pool`: as for on_pool. Raises
    RunFileError with all problems at once; contradictions are sought only once all keys and types are right."""
    body = contents(path)
    return parse(on_pool({**body, "name": name} if name else body, pool), base=path.parent)


def contents(path: Path) -> dict[str, Any]:
    """Returns the TOML document in a run file, unchecked. Raises RunFileError if there is none."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise RunFileError([f"cannot read the run file {path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise RunFileError([f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or deeply nested lists
        raise RunFileError([f"{path} is not valid TOML: {error}"]) from error


def on_pool(body: dict[str, Any], pool: str) -> dict[str, Any]:
    """Returns the document of a run that takes its nodes from this pool (empty: as it is). The pool's spares serve the
    run, unless it asks for its own."""
    allocation = body.get("allocation", {})
    if not pool or not isinstance(allocation, dict):
        return body
    return {**body, "allocation": {"spares": 0, **allocation, "engine": "pool", "pool": pool}}


def parse(
    body: dict[str, Any], base: Path | None = None, before: RunSpec | None = None, seen: Measured = NOTHING
) -> RunSpec:
    """Builds a RunSpec from a TOML document; relative data paths are taken from `base`. `before`: the spec that it
    changes, whose own contradictions are not reported again. `seen`: measured durations of that run."""
    spec, unknown = tables.read(body, RunSpec, fixed=validate_policy.fixed)
    if spec is None:
        raise RunFileError(unknown)
    spec = dataclasses.replace(spec, groups=_with_ranks(spec.groups, body.get("groups", {})))
    known = contradictions(before, seen) if before is not None else []
    problems = unknown + [problem for problem in contradictions(spec, seen) if problem not in known]
    if problems:
        unsafe = not _ranges(spec) and timeouts.unsafe(spec, seen)
        raise RunFileError(problems, timeouts.rows(spec, seen) if unsafe else ())
    if base is None:
        return spec
    if spec.trainer.command and not spec.env.directory:
        spec = dataclasses.replace(spec, env=dataclasses.replace(spec.env, directory=str(base.resolve())))
    return dataclasses.replace(spec, titan=_from(base, spec.titan))


def _with_ranks(groups: GroupsSpec, given: Any) -> GroupsSpec:
    """Returns the groups with their number of ranks, where the run file gives that of a node, or of nodes alone."""
    if "ranks_per_group" in given or (groups.ranks_per_node == 0 and groups.nodes_per_group <= 1):
        return groups
    return dataclasses.replace(groups, ranks_per_group=groups.nodes_per_group * max(1, groups.ranks_per_node))


def _seats(groups: GroupsSpec, allocation: AllocationSpec) -> Iterator[str]:
    """Yields sentences about nodes and ranks that do not agree."""
    ranks, nodes, here = groups.ranks_per_group, groups.nodes_per_group, groups.ranks_per_node
    if nodes > MAX_NODES_PER_GROUP:
        yield (
            f"groups.nodes_per_group = {nodes}: at most {MAX_NODES_PER_GROUP}, since what is decided about a group must fit "
            "into one transaction of etcd"
        )
    if here and here * nodes != ranks:
        yield (
            f"groups.ranks_per_group = {ranks} is not groups.nodes_per_group x groups.ranks_per_node = {nodes} x {here} "
            f"= {nodes * here}: leave it out"
        )
    elif nodes > 0 and ranks % nodes:
        yield (
            f"groups.ranks_per_group = {ranks} cannot be shared out over groups.nodes_per_group = {nodes}: a multiple of "
            f"{nodes}, or give groups.ranks_per_node"
        )
    if allocation.nodes < groups.nodes:
        each = f"each group needs {nodes} nodes" if nodes > 1 else "each group needs a node"
        times = (
            f"groups.count x groups.nodes_per_group = {groups.nodes}" if nodes > 1 else f"groups.count = {groups.count}"
        )
        yield f"allocation.nodes = {allocation.nodes} is fewer than {times}: {each}, at least {groups.nodes}"


PATHS = ("dump_folder", "hf_assets_path", "checkpoint.initial_load_path")
"""Overrides that are made absolute, but for URLs."""
PATHS_OR_NAMES = ("dataloader.dataset_path", "validator.dataloader.dataset_path")
"""Overrides that are made absolute if the path exists: they may be names of the Hugging Face hub."""


def _from(base: Path, titan: TitanSpec) -> TitanSpec:
    """Makes relative paths absolute: ranks run in other folders. Names of the Hugging Face hub stay as they are."""
    data = titan.data
    if data.path:
        data = dataclasses.replace(data, path=absolute("titan.data.path", base, data.path))
    return dataclasses.replace(titan, data=data, overrides=_overrides_from(base, titan.overrides))


def _overrides_from(base: Path, table: dict[str, Any], where: str = "") -> dict[str, Any]:
    found = dict(table)
    for name, value in table.items():
        if isinstance(value, dict):
            found[name] = _overrides_from(base, value, f"{where}{name}.")
        elif isinstance(value, str) and _is_path(f"{where}{name}", base, value):
            found[name] = absolute(f"titan.overrides.{where}{name}", base, value)
    return found


def _is_path(key: str, base: Path, value: str) -> bool:
    # the check knows what takes the place of TorchTitan's own assets, by the name as it is
    local = value != "" and "://" not in value and not (value.startswith(ASSETS) and not os.path.exists(base / value))
    return (key in PATHS and local) or (key in PATHS_OR_NAMES and os.path.exists(base / value))


def absolute(key: str, base: Path, path: str) -> str:
    """Returns the path without links. Raises RunFileError if it cannot be one."""
    try:
        return str((base / path).resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links is a RuntimeError, a NUL a ValueError
        raise RunFileError([f"{key} = {path!r} is no path: {error}"]) from error


def name_problem(name: str) -> str:
    """Returns why this is no name of a run; empty if it is one."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
        return ""
    return f"name = {name!r}: use 1 to 63 letters, digits and inner dashes; nearest: {nearest_name(name)!r}"


def document(spec: RunSpec) -> dict[str, Any]:
    """Returns a spec as the TOML document that `parse` reads."""
    body: dict[str, Any] = to_jsonable_python(spec)
    body["env"] = {KEYS.get(name, name): value for name, value in body["env"].items()}
    return body


def contradictions(spec: RunSpec, seen: Measured = NOTHING) -> list[str]:
    """Returns sentences about values that contradict each other, or the durations `seen` in the run."""
    found = list(filter(None, [name_problem(spec.name)]))
    out_of_range = _ranges(spec)
    found += out_of_range or [row.sentence for row in timeouts.unsafe(spec, seen)]
    groups, allocation, policy = spec.groups, spec.allocation, spec.policy
    if groups.min_groups > groups.count:
        found.append(
            f"groups.min_groups = {groups.min_groups} is more than groups.count = {groups.count}: at most {groups.count}"
        )
    found += _seats(groups, allocation)
    found += validate_policy.problems(policy)
    found += validate_environment.problems(spec)
    if policy.backoff_first_s > policy.backoff_max_s:
        found.append(
            f"policy.backoff_first_s = {policy.backoff_first_s:g} is above policy.backoff_max_s = {policy.backoff_max_s:g}"
        )
    if spec.titan.data.source == "folder" and not spec.titan.data.path:
        found.append('titan.data.path = "": source = "folder" needs the path of a folder of text, jsonl or parquet')
    if spec.titan.data.source == "tokens" and not spec.titan.data.path:
        found.append(
            'titan.data.path = "": source = "tokens" needs the folder of a store, which `supervisor data build` makes'
        )
    if spec.titan.data.source == "tokens" and spec.titan.data.lost_place == "skip":
        found.append(
            'titan.data.lost_place = "skip": a token store begins at its first sample ("start"), or not at all'
        )
    if spec.titan.data.source != "tokens" and not spec.trainer.command:
        found += [
            f'titan.{key}: has no effect without titan.data.source = "tokens": remove it'
            for key in _OF_TOKENS
            if getattr(spec.titan, key) != getattr(TitanSpec(), key)
        ]
    return found + _own_script(spec) + registry.problems(allocation)


_OF_TOKENS = ("global_batch", "max_accumulation", "shrunk_lr")

_TITANS_OWN = ("recipe", "overrides", "data", *_OF_TOKENS, "digest_interval_steps", "checkpoints_kept")
"""Keys of [titan] that only TorchTitan's trainer reads. The others reach a command of the user's own too."""


def _own_script(spec: RunSpec) -> list[str]:
    """Returns the problems of [trainer], with the keys of [titan] that have no effect beside a command."""
    trainer, default = spec.trainer, RunSpec(name="")
    if not trainer.command:
        keys = [
            f.name for f in dataclasses.fields(trainer) if getattr(trainer, f.name) != getattr(default.trainer, f.name)
        ]
        return [f"trainer.{key}: has no effect without trainer.command: give a command, or remove it" for key in keys]
    found = [
        f"titan.{key}: has no effect with trainer.command, since only TorchTitan's trainer reads it: remove it"
        for key in _TITANS_OWN
        if getattr(spec.titan, key) != getattr(default.titan, key)
    ]
    if not trainer.command[0]:
        found.append('trainer.command = [""]: begins with the name of a program, as ["python", "train.py"]')
    if trainer.silent_after_s and not trainer.plain:
        found.append(
            'trainer.silent_after_s: has no effect with reports = "steps", since the pace of its steps shows a hang; '
            'remove it, or set reports = "output"'
        )
    return found


_AT_LEAST: dict[str, float] = {
    "trainer.silent_after_s": 0,
    "titan.steps": 1,
    "titan.checkpoint_interval_steps": 1,
    "titan.checkpoints_kept": 1,
    "titan.digest_interval_steps": 0,
    "titan.max_accumulation": 0,
    "groups.count": 1,
    "groups.ranks_per_group": 1,
    "groups.nodes_per_group": 1,
    "groups.ranks_per_node": 0,
    "groups.min_groups": 1,
    "allocation.nodes": 1,
    "allocation.spares": 0,
    "hold.for_s": 0,
    "hold.warn_idle_s": 0,
    "allocation.slurm.warn_s": 1,
    "allocation.slurm.max_pending": 0,
    "torchft.heartbeat_timeout_ms": 1,
    "torchft.join_timeout_ms": 1,
    "torchft.process_group_timeout_ms": 1,
    "torchft.heal_timeout_s": 1,
    "torchft.quorum_timeout_ms": 1,
    "torchft.quorum_retries": 0,
    "policy.budget.restart": 0,
    "policy.budget.replace": 0,
    "policy.budget.reallocate": 0,
    "policy.budget.window_s": 1,
    "policy.hang.factor": 6,
    "policy.hang.at_least_s": 1,
    "policy.hang.at_most_s": 1,
    "policy.hang.stopped_s": 0,
    "policy.breaker.share": 0,
    "policy.breaker.at_least": 1,
    "policy.breaker.window_s": 1,
    "policy.backoff_first_s": 0,
    "policy.backoff_max_s": 0,
    "policy.healthy_after_s": 0,
    "policy.silent_timeout_s": 1,
    "policy.straggler_factor": 1,
    "policy.straggler_for_s": 1,
    "policy.loss_spike_factor": 5,
    "policy.start_timeout_s": 1,
    "policy.node_lease_s": 1,
    "policy.allocation_timeout_s": 1,
    "policy.cut_off_stop_s": 0,
    "policy.term_grace_s": 0,
    "hooks.timeout_s": 1,
}
"""Least value of each key by itself; relations between timeouts are in core/timeouts/solver.py."""


def _ranges(spec: RunSpec) -> list[str]:
    found = []
    for key, least in _AT_LEAST.items():
        value: Any = spec
        for part in key.split("."):
            value = getattr(value, part)
        if not math.isfinite(value):
            found.append(f"{key} = {value}: must be a finite number, at least {least:g}")
        elif value < least:
            found.append(f"{key} = {value:g}: must be at least {least:g}")
    return found


def nearest_name(name: str) -> str:
    """Returns a name of a run that resembles any text."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:63] or "my-run"
