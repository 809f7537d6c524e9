"""Changes the policy of a live run: checked like the run file, versioned, and stored with the reason."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from pydantic_core import to_jsonable_python

from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.spec import PolicySpec, RunSpec
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import Expect, Store
from supervisor.shell.runfile import changes, parse
from supervisor.wire import keys
from supervisor.wire.records import PolicyChange, PolicySet, RunRecord, decode, encode

KEPT = 50
"""Earlier changes kept in etcd."""

FIXED = frozenset(f.name for f in dataclasses.fields(RunSpec)) - {f.name for f in dataclasses.fields(PolicySpec)}
"""Other parts of a run file: a live run keeps its own."""

AT_START = {"node_lease_s": "nodes read it only at their start"}
"""Keys that a live run cannot change, and why."""


def changed(spec: RunSpec, given: Sequence[str], seen: Measured = NOTHING) -> PolicySpec:
    """Returns the run's policy with these KEY=VALUE changes. Keys are those below [policy] of the run file; values are
    TOML, or else plain text. A key without a value gets its default. `seen`: measured durations of the run. Raises
    RunFileError with all problems."""
    body = parse.document(spec)
    problems = []
    for pair in given:
        key, equals, text = pair.partition("=")
        key = key.strip().removeprefix("policy.")
        section = key.partition(".")[0]
        if not equals or not all(key.split(".")):
            problems.append(f"{pair!r}: give KEY=VALUE, as hang.factor=20")
        elif key == "policy":
            problems.append(f"{pair!r}: policy is a table, not a key: give KEY=VALUE, as hang.factor=20")
        elif section in FIXED:
            problems.append(f"{key} is not part of the policy: {section} is fixed by the run file at launch")
        elif key in AT_START:
            problems.append(f"policy.{key} cannot be changed on a live run: {AT_START[key]}")
        elif wrong := changes.put(
            body["policy"], key.split("."), changes.value_of(text.strip()) if text.strip() else None
        ):
            problems.append(f"policy.{key}: {wrong}")
    if problems:
        raise parse.RunFileError(problems)
    return parse.parse(body, before=spec, seen=seen).policy


def set_policy(
    store: Store, record: RunRecord, given: Sequence[str], because: str, seen: Measured = NOTHING
) -> PolicySet:
    """Writes the changed policy. Raises RunFileError if it is wrong, and Fatal if someone else set it meanwhile."""
    name = record.spec.name
    item = store.get(keys.policy(name))
    before = decode(item.value, PolicySet) if item is not None else None
    spec = record.spec if before is None else dataclasses.replace(record.spec, policy=before.policy)
    policy = changed(spec, given, seen)
    version = before.version + 1 if before is not None else 1
    earlier = [*before.earlier, _change(before)][-KEPT:] if before is not None else []
    wanted = PolicySet(
        version=version, policy=policy, because=because, at_unix_s=time.time(), changes=list(given), earlier=earlier
    )
    expect = [Expect(keys.policy(name), mod_revision=item.mod_revision if item is not None else 0)]
    try:
        store.commit({keys.policy(name): encode(wanted)}, expect=expect)
    except Fenced:
        raise Fatal(
            f"someone else has set the policy of {name} meanwhile: check it (supervisor policy show), then repeat this"
        ) from None
    return wanted


def _change(was_set: PolicySet) -> PolicyChange:
    return PolicyChange(
        version=was_set.version, changes=was_set.changes, because=was_set.because, at_unix_s=was_set.at_unix_s
    )


def lines(policy: PolicySpec) -> list[str]:
    """Returns lines KEY = VALUE, as `set` takes them."""
    return [f"{key} = {changes.text_of(value)}" for key, value in changes.flat(to_jsonable_python(policy)).items()]
