"""The timeouts of every run that is not over: the whole table, with what each was held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from supervisor.core.bounds import Row
from supervisor.core.model import Memory
from supervisor.shell import fit
from supervisor.shell.doctor.finding import Finding
from supervisor.shell.mirror import Mirror
from supervisor.wire.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Fit(Finding):
    """A finding about one timeout of a run."""

    run: str
    row: Row


COLOURS = {"unsafe": "red", "tight": "yellow", "fits": "green"}


def examine(mirror: Mirror, record: RunRecord, memory: Memory) -> Iterator[Finding]:
    """A finding a row."""
    for row in fit.live(mirror, record, memory):
        yield judged(record.spec.name, row)


def judged(run: str, row: Row) -> Fit:
    fits = f"{row.key} = {_number(row.value)} {row.unit}".rstrip() + f": {row.best.why}"
    what = f"run {run}: {row.sentence or fits}"
    match row.state:
        case "fits":
            return Fit(level="good", what=what, run=run, row=row)
        case "tight":
            return Fit(level="note", what=what, do=_do(run, row), run=run, row=row)
        case "unsafe":
            return Fit(level="bad", what=what, do=_do(run, row), run=run, row=row)


def _do(run: str, row: Row) -> str:
    if not row.settable:
        return "look at what keeps the engine from answering"
    if row.key.startswith("policy.") and row.key != "policy.node_lease_s":
        return f"supervisor policy set {row.key[7:]}={_number(row.best.value)} --because WHY --run {run}"
    return f"{row.key} = {_number(row.best.value)} in the run file of the next run"


def table(fits: Sequence[Fit]) -> Table:
    """Of one run."""
    made = Table(box=None, pad_edge=False, title=f"timeouts of run {fits[0].run}", title_justify="left")
    for name in ("timeout", "now", "safe", "best", "", "why", "measured"):
        made.add_column(name, justify="right" if name in ("now", "safe", "best") else "left")
    for each in fits:
        row = each.row
        safe = f">= {_number(row.least.value)}" if row.least.value else ""
        if row.most is not None:
            safe = f"{safe} <= {_number(row.most.value)}".strip()
        made.add_row(
            row.key,
            f"{_number(row.value)} {row.unit}".rstrip(),
            safe,
            _number(row.best.value) if row.settable else "",
            Text(row.state, COLOURS[row.state]),
            row.sentence.partition(": ")[2] or row.best.why,
            row.measured,
        )
    return made


def _number(value: float) -> str:
    return f"{value:.10g}"
