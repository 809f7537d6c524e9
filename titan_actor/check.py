"""`python -m titan_actor.check`: reads a RunRecord on stdin, and prints the problems of its Titan part, and what is
changed in the recipe's config. With `--show`, also every field of the config.

Prints {"problems": [{"key", "value", "message", "nearest"}, ...], "changes": [{"key", "before", "after", "reason"},
...], "notes": [sentence, ...], "settings": [{"key", "value", "by", "reason", "before"}, ...]}. Exits 0 without problems,
1 with some, 2 when stdin is no RunRecord. Where torch or what stands on it is not installed, "missing" names that,
nothing is checked, and it exits 0.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.core.model.spec import GroupsSpec, SlurmSpec, TitanSpec
from supervisor.wire.records import RecordError, RunRecord, decode
from titan_actor import mends
from titan_actor.problem import Problem

Lines = list[dict[str, object]]

NEEDED = ("torch", "torchft", "torchtitan")

NEWEST_GPU = (10, 0)
"""Compute capability of a B200: TorchTitan 0.3.0 asks for none above it."""


def problems(titan: TitanSpec, groups: GroupsSpec) -> Lines:
    """Returns all problems of a spec as JSON values: key from the top of the run file, value, message, nearest key."""
    return looked_at(titan, groups)[0]


def looked_at(
    titan: TitanSpec,
    groups: GroupsSpec,
    here: bool = False,
    files: Collection[str] = (),
    slurm: SlurmSpec | None = None,
) -> tuple[Lines, Lines, list[str]]:
    """Returns all problems of a spec, what is changed in its recipe's config (key, before, after, reason), and sentences
    on what the user must compare. `here`: the run trains on this machine, whose memory is known. `files`: names of
    secrets that the ranks have. `slurm`: the request for nodes, if they are Slurm's."""
    mends.apply()
    from titan_actor import config, fit, memory

    try:
        with _as_on_a_gpu(slurm is not None):
            built, changes = config.resolved(titan, groups.ranks_per_group)
    except config.ConfigError as error:
        return [dataclasses.asdict(problem) for problem in error.problems], [], []
    notes: list[str] = []
    found = fit.problems(built, titan, groups, files)
    ranks = groups.ranks_per_group
    if here and not found and (why := memory.problem(built, ranks, groups.count * ranks)):
        found = [Problem("groups.ranks_per_group", ranks, why)]
    if not here and not found:
        why, note = memory.in_slurm(built, groups, slurm or SlurmSpec())
        found = [Problem("groups.ranks_per_group", ranks, why)] if why else []
        notes += [note] if note else []
    if here and (why := _no_weights(built.checkpoint)):
        key = "titan.overrides.checkpoint.initial_load_path"
        found.append(Problem(key, built.checkpoint.initial_load_path, why))
    if here and (why := _no_dump(built.dump_folder)):
        found.append(Problem("titan.overrides.dump_folder", built.dump_folder, why))
    if here and not found and not mends.on_gpu():
        try:
            fit.refuse_on_cpu(built)
        except fit.NotOnCpu as error:
            found = [Problem("titan.recipe", titan.recipe, str(error))]
    lines = [dataclasses.asdict(problem) for problem in found], [dataclasses.asdict(change) for change in changes]
    return *lines, notes


@contextmanager
def _as_on_a_gpu(elsewhere: bool) -> Iterator[None]:
    """Has TorchTitan make the config of a run that trains elsewhere. Recipes with float8 or NVFP4 ask for a new GPU, which
    the nodes may have and a login host has not; each rank asks again."""
    import torch

    cuda, before = torch.cuda, (torch.cuda.is_available, torch.cuda.get_device_capability)
    if elsewhere:
        cuda.is_available, cuda.get_device_capability = lambda: True, lambda device=None: NEWEST_GPU
    try:
        yield
    finally:
        cuda.is_available, cuda.get_device_capability = before


def _no_weights(checkpoint: Any) -> str:
    """Explains why a run cannot begin with the weights that its config names; empty: it may."""
    path = checkpoint.initial_load_path or ""
    if not path.startswith("/"):
        return ""
    if not Path(path).is_dir():
        return "there is no such folder on this machine"
    if not checkpoint.initial_load_in_hf and not (Path(path) / ".metadata").is_file():
        return (
            "no checkpoint of TorchTitan is there (no .metadata): name the folder of one step, or set "
            "titan.overrides.checkpoint.initial_load_in_hf = true for weights of Hugging Face"
        )
    return ""


def _no_dump(folder: str) -> str:
    """Explains why TorchTitan's own files cannot be written to a folder; empty: they can, or it is the run's own."""
    if not Path(folder).is_absolute():
        return ""
    above = next((one for one in (Path(folder), *Path(folder).parents) if os.path.exists(one)), Path())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return ""
    return f"profiles and metrics go there, and {above} is no folder that this user may write to: name another"


def main() -> int:
    """Reads stdin, prints, and returns the exit code."""
    # torchtitan's imports print warnings; stdout is for the answer alone
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        spec = decode(sys.stdin.read(), RunRecord).spec
    except RecordError as error:
        print(f"stdin is not a RunRecord: {error}", file=sys.stderr)
        return 2
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    engine = spec.allocation.engine
    slurm = spec.allocation.slurm if engine == "slurm" else None
    found, changes, notes = (
        ([], [], []) if missing else looked_at(spec.titan, spec.groups, engine == "local", spec.env.files, slurm)
    )
    told: dict[str, object] = {"problems": found, "changes": changes, "notes": notes, "missing": missing}
    if "--show" in sys.argv[1:] and not found and not missing:
        from titan_actor import config

        with _as_on_a_gpu(slurm is not None):
            fields = config.shown(spec.titan, spec.groups.ranks_per_group)
        told["settings"] = [dataclasses.asdict(setting) for setting in fields]
    json.dump(told, answer, default=str)
    answer.write("\n")
    answer.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
