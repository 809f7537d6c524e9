"""A launch by the Python API: the spec from what the caller has, and the checks of `supervisor launch`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.client.errors import EverstepError
from supervisor.core.model.spec import RunSpec
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.engines.registry import Context, before_launch
from supervisor.shell.inspect import client
from supervisor.shell.runfile import launch_notes, parse
from supervisor.shell.runfile.changes import put
from supervisor.wire.code_tree import Tree


def spec_of(
    run: str | Path | Mapping[str, Any] | RunSpec, name: str | None, changes: Mapping[str, Any], pool: str = ""
) -> tuple[RunSpec, str]:
    """Returns the spec, checked for what needs no other program, and the words that problems begin with. `pool`: as for
    parse.on_pool. Raises EverstepError with all problems."""
    what, base = "run", Path()
    try:
        if isinstance(run, RunSpec):
            body = parse.document(run)
        elif isinstance(run, Mapping):
            body = copy.deepcopy(dict(run))
        else:
            what, base = str(run), Path(run).parent
            body = parse.contents(Path(run))
        all_of_them = {**changes, **({"name": name} if name is not None else {})}
        if problems := [f"{k}: {why}" for k, value in all_of_them.items() if (why := put(body, k.split("."), value))]:
            raise parse.RunFileError(problems)
        return parse.parse(parse.on_pool(body, pool), base=base), what
    except parse.RunFileError as error:
        raise EverstepError(_lines(what, error.problems)) from error


def checked(spec: RunSpec, what: str, mirror: Mirror, context: Context, tree: Tree | None = None) -> list[str]:
    """Returns the notes of the checks of `supervisor launch`. `tree`: the code that the run's nodes have. Raises
    EverstepError if one refuses the run."""
    notes = [*checked_titan(spec, what, tree), *filter(None, [before_launch(spec, context)])]
    problems, seen = launch_notes.unsafe(mirror, spec)
    if problems:
        raise EverstepError(_lines(what, problems))
    return [*notes, *launch_notes.notes(spec, seen)]


def checked_titan(spec: RunSpec, what: str, tree: Tree | None = None) -> list[str]:
    """Returns the notes of the check of its training. `tree`: as for checked. Raises EverstepError if that refuses it."""
    try:
        problems, notes = client.check_titan(spec, tree)
    except client.NotChecked as why:
        return [str(why)]
    if problems:
        raise EverstepError(_lines(what, problems))
    return notes


def _lines(what: str, problems: list[str]) -> str:
    return "\n".join(f"{what}: {problem}" for problem in problems)
