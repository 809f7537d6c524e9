"""`python -m titan_actor.check`: reads a RunRecord on stdin, and prints the problems of its Titan part, and what is
changed in the recipe's config. With `--show`, also every field of the config.

Prints {"problems": [{"key", "value", "message", "nearest"}, ...], "changes": [{"key", "before", "after", "reason"},
...], "settings": [{"key", "value", "by", "reason", "before"}, ...]}. Exits 0 without problems, 1 with some, 2 when stdin
is no RunRecord. Where torch or what stands on it is not installed, "missing" names that, nothing is checked, and it
exits 0.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path

from supervisor.core.model.spec import GroupsSpec, TitanSpec
from supervisor.wire.records import RecordError, RunRecord, decode
from titan_actor import mends

Lines = list[dict[str, object]]

NEEDED = ("torch", "torchft", "torchtitan")


def problems(titan: TitanSpec, groups: GroupsSpec) -> Lines:
    """Returns all problems of a spec as JSON values: key from the top of the run file, value, message, nearest key."""
    return looked_at(titan, groups)[0]


def looked_at(
    titan: TitanSpec, groups: GroupsSpec, here: bool = False, files: Collection[str] = ()
) -> tuple[Lines, Lines]:
    """Returns all problems of a spec, and what is changed in its recipe's config: key, before, after, reason. `here`:
    the run trains on this machine, whose memory is known. `files`: names of secrets that the ranks have."""
    mends.apply()
    from titan_actor import config, fit, memory

    try:
        built, changes = config.resolved(titan, groups.ranks_per_group)
    except config.ConfigError as error:
        return [dataclasses.asdict(problem) for problem in error.problems], []
    found = fit.problems(built, titan, groups, files)
    ranks = groups.ranks_per_group
    if here and not found and (why := memory.problem(built, ranks, groups.count * ranks)):
        found = [config.Problem("groups.ranks_per_group", ranks, why)]
    weights = built.checkpoint.initial_load_path or ""
    if here and weights.startswith("/") and not Path(weights).is_dir():
        key = "titan.overrides.checkpoint.initial_load_path"
        found.append(config.Problem(key, weights, "there is no such folder on this machine"))
    if here and not found and not mends.on_gpu():
        try:
            fit.refuse_on_cpu(built)
        except fit.NotOnCpu as error:
            found = [config.Problem("titan.recipe", titan.recipe, str(error))]
    return [dataclasses.asdict(problem) for problem in found], [dataclasses.asdict(change) for change in changes]


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
    found, changes = (
        ([], [])
        if missing
        else looked_at(spec.titan, spec.groups, here=spec.allocation.engine == "local", files=spec.env.files)
    )
    told: dict[str, object] = {"problems": found, "changes": changes, "missing": missing}
    if "--show" in sys.argv[1:] and not found and not missing:
        from titan_actor import config

        told["settings"] = [
            dataclasses.asdict(setting) for setting in config.shown(spec.titan, spec.groups.ranks_per_group)
        ]
    json.dump(told, answer, default=str)
    answer.write("\n")
    answer.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
