"""Lists runs and finds their specs, those that a relaunch has replaced among them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.core.model.memory import Memory
from supervisor.ports.errors import Fatal
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run in the list of runs."""

    run: str
    phase: str
    spec: int
    """Number of the spec that is in force."""
    next_spec: int
    """Number of the spec that will be; 0: no relaunch is under way."""
    checkpoint_step: int | None
    groups: int
    launched_unix_s: float
    run_dir: str


def runs(mirror: Mirror) -> list[RunLine]:
    """Returns all runs, the newest first, without pools."""
    found = []
    for name, record in observe.runs(mirror).items():
        if record.spec.is_pool:
            continue
        memory = mirror.record(keys.memory(name, "run"), Memory) or Memory()
        asked = observe.asked_relaunch(mirror, name)
        line = RunLine(
            run=name,
            phase=memory.phase,
            spec=record.number,
            next_spec=asked.number if asked is not None else 0,
            checkpoint_step=memory.checkpoint.step if memory.checkpoint is not None else None,
            groups=record.spec.groups.count,
            launched_unix_s=record.launched_unix_s,
            run_dir=record.run_dir,
        )
        found.append(line)
    return sorted(found, key=lambda line: -line.launched_unix_s)


def found(mirror: Mirror, which: str) -> RunRecord:
    """Returns the record of RUN, or of RUN@NUMBER. Raises Fatal if there is none."""
    name, at, number = which.partition("@")
    runs_by_name = observe.runs(mirror)
    if name not in runs_by_name:
        raise Fatal(f"there is no run {name!r}; known: {', '.join(sorted(runs_by_name)) or 'none'}")
    record = runs_by_name[name]
    if not at or number == str(record.number):
        return record
    earlier = mirror.record(keys.earlier_spec(name, int(number)), RunRecord) if number.isdecimal() else None
    if earlier is None:
        raise Fatal(f"run {name} has no spec {number!r}: it has 1 to {record.number}")
    return earlier


def head(record: RunRecord) -> str:
    """Returns a line about a spec: whose it is, since when, and why."""
    since = record.relaunched_unix_s or record.launched_unix_s
    when = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    why = f", because: {record.because}" if record.because else ""
    return f"# {record.spec.name}: spec {record.number}, of {when}{why}"
