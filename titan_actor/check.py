"""`python -m titan_actor.check`: reads a RunRecord on stdin, and prints the problems of its Titan part.

Prints {"problems": [{"key", "value", "message", "nearest"}, ...]}. Exits 0 without problems, 1 with some, 2 when stdin
is no RunRecord.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from supervisor.core.model.spec import GroupsSpec, TitanSpec
from supervisor.wire.records import RecordError, RunRecord, decode
from titan_actor import mends


def problems(titan: TitanSpec, groups: GroupsSpec) -> list[dict[str, object]]:
    """Returns all problems of a spec as JSON values: key from the top of the run file, value, message, nearest key."""
    mends.apply()
    from titan_actor import config, fit

    try:
        built = config.from_spec(titan)
    except config.ConfigError as error:
        return [dataclasses.asdict(problem) for problem in error.problems]
    return [dataclasses.asdict(problem) for problem in fit.problems(built, titan, groups)]


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
    found = problems(spec.titan, spec.groups)
    json.dump({"problems": found}, answer, default=str)
    answer.write("\n")
    answer.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
