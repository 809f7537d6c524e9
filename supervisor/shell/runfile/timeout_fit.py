"""Compares a run's timeouts with the durations measured in it, or in an earlier run of the same program."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.measured import NOTHING, Measured, together
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import RunSpec
from supervisor.core.timeouts import solver
from supervisor.core.timeouts.bound import Row
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import RunRecord


def remembered(mirror: Mirror, run: str) -> Measured:
    """Returns the durations that the leader recorded of a run; nothing if they cannot be read."""
    memory = mirror.record(keys.memory(run, "run"), Memory)
    return memory.measured if memory is not None else NOTHING


def live(mirror: Mirror, record: RunRecord, memory: Memory) -> tuple[Row, ...]:
    """Returns the timeouts of an existing run, judged by its recorded durations and by what its ranks report now."""
    now = solver.measured(observe.observed(mirror, record.spec.name, memory, now=memory.clock, store_stable_s=0.0))
    seen = together([memory.measured, now])
    # the usual step is the current one, if any; the others are the longest ever seen
    return solver.rows(record.spec, replace(seen, step_s=now.step_s or seen.step_s))


def of_one_like_it(mirror: Mirror, spec: RunSpec) -> tuple[str, Measured]:
    """Returns the newest run that trained the same program, and its durations; an empty name if there is none."""
    alike = [
        record
        for record in observe.runs(mirror).values()
        if _what(record.spec) == _what(spec) and remembered(mirror, record.spec.name) != NOTHING
    ]
    if not alike:
        return "", NOTHING
    newest = max(alike, key=lambda record: record.launched_unix_s).spec.name
    return newest, remembered(mirror, newest)


def _what(spec: RunSpec) -> tuple[object, ...]:
    """Returns all that decides how long a step takes."""
    return spec.trainer, spec.titan.recipe, spec.titan.overrides, spec.groups.ranks_per_group, spec.allocation.engine


def short(spec: RunSpec, seen: Measured = NOTHING) -> list[str]:
    """Returns a sentence for each timeout that is safe, but only just."""
    return [row.sentence for row in solver.rows(spec, seen) if row.settable and row.state == "tight"]
