"""Writes a first run file from a few answers. Each line carries the reason that `supervisor/core/model/spec.py` gives."""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.core.model.engines import EngineName
from supervisor.core.model.spec import AllocationSpec, RunSpec
from supervisor.shell.runfile import parse

WIDTH = 100
"""Columns of a comment."""

HEAD = "Run file of Everstep. Every other key, its default and the reason for it: docs/RUN_FILE.md"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of the person who starts a run file."""

    name: str
    recipe: str
    data: str
    """recipe, python-stdlib, or the path of a folder."""
    groups: int
    ranks: int
    engine: EngineName


def data_of(recipe: str) -> str:
    """Returns the source of text that works everywhere with a recipe: TorchTitan's own configs name data sets that its
    wheel does not hold."""
    return "python-stdlib" if ":" in recipe or recipe.startswith("--") else "recipe"


def data_problem(data: str) -> str:
    """Returns why this is no source of text; empty if it is one."""
    if data in ("recipe", "python-stdlib") or Path(data).is_dir():
        return ""
    return f"{data!r} is no folder here: give recipe, python-stdlib, or a folder of .txt, .jsonl or .parquet files"


def text(answers: Answers, file: Path) -> str:
    """Returns the contents of the run file, which will lie at `file`. Raises RunFileError with the problems of the
    answers."""
    values = _values(answers, file)
    written = _toml(values)
    parse.parse(tomllib.loads(written), base=file.parent)
    return written


def _values(answers: Answers, file: Path) -> dict[str, Any]:
    """Returns what the file sets, by dotted key, in its order."""
    data = {"source": answers.data}
    if answers.data not in ("recipe", "python-stdlib"):
        # the file is read relative to its own folder, the answer is meant from here
        path = answers.data if Path(answers.data).is_absolute() else os.path.relpath(answers.data, file.parent)
        store = (Path(answers.data) / "manifest.json").is_file()
        data = {"source": "tokens", "path": path} if store else {"source": "folder", "path": path, "text_field": "text"}
    return {
        "name": answers.name,
        "titan.recipe": answers.recipe,
        "titan.steps": 1000,
        "titan.checkpoint_interval_steps": 50,
        **{f"titan.data.{key}": value for key, value in data.items()},
        "groups.count": answers.groups,
        "groups.ranks_per_group": answers.ranks,
        "groups.min_groups": 1,
        "allocation.engine": answers.engine,
        "allocation.nodes": answers.groups,
        "allocation.spares": 1,
        **_of_engine(answers.engine),
        "policy.mode": "act",
    }


def _of_engine(engine: EngineName) -> dict[str, Any]:
    """Returns the engine's own keys that are empty by default, if it has a table of its own: they depend on the
    cluster."""
    if engine not in {field.name for field in dataclasses.fields(AllocationSpec)}:
        return {}
    table = f"allocation.{engine}"
    return {f"{table}.{field.name}": "" for field in dataclasses.fields(_owner(table)) if field.default == ""}


def _toml(values: dict[str, Any]) -> str:
    lines, within = [f"# {HEAD}"], ""
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        owner = _owner(table)
        if table != within:
            sentence, _, _ = " ".join((owner.__doc__ or "").split()).partition(". ")
            lines += ["", f"[{table}]  # {sentence.removesuffix('.')}."]
            within = table
        else:
            lines.append("")
        field = next(field for field in dataclasses.fields(owner) if field.name == name)
        lines += [f"# {line}" for line in textwrap.wrap(field.metadata["reason"], WIDTH)]
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _owner(table: str) -> Any:
    """Returns the dataclass of a table of the run file."""
    owner: Any = RunSpec
    for name in filter(None, table.split(".")):
        owner = next(field for field in dataclasses.fields(owner) if field.name == name).default_factory
    return owner
