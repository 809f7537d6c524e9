"""Examines the timeouts of every run that is not over, and renders the table with each one's bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from supervisor.core.bounds import Row
from supervisor.core.model import Memory
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect.doctor.finding import Finding
from supervisor.shell.runfile import timeout_fit
from supervisor.wire.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Fit(Finding):
    """A finding about one timeout of a run."""

    run: str
    row: Row


COLOURS = {"unsafe": "red", "tight": "yellow", "fits": "green"}


def examine(mirror: Mirror, record: RunRecord, memory: Memory) -> Iterator[Finding]:
    """Yields one finding for each timeout of the run."""
    for row in timeout_fit.live(mirror, record, memory):
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
        return "find out why the engine does not answer"
    if row.key.startswith("policy.") and row.key != "policy.node_lease_s":
        return f"supervisor policy set {row.key[7:]}={_number(row.best.value)} --because WHY --run {run}"
    return f"{row.key} = {_number(row.best.value)} in the run file of the next run"


def table(run: str, rows: Sequence[Row]) -> Text:
    """Renders the whole table, for a user whose timeouts were refused."""
    return lines([judged(run, row) for row in rows])


def lines(fits: Sequence[Fit]) -> Text:
    """Renders the table of one run. Each timeout is a block, so that a narrow terminal can show it."""
    text = Text(f"{f'timeouts of run {fits[0].run}':34}{'now':>12}{'safe':>12}{'best':>10}\n", "bold")
    for each in fits:
        row = each.row
        bounds = [(">=", row.least)] if row.least.value else []
        bounds += [("<=", row.most)] if row.most is not None else []
        safe = " ".join(f"{sign}{_number(bound.value)}" for sign, bound in bounds)
        now, best = f"{_number(row.value)} {row.unit}".rstrip(), _number(row.best.value) if row.settable else ""
        text.append(f"{row.key:34}{now:>12}{safe:>12}{best:>10}  ", "none")
        text.append(f"{row.state}\n", COLOURS[row.state])
        text.append("".join(f"    safe: {bound.why}\n" for _, bound in bounds), "dim")
        text.append(f"    best: {row.best.why}{f' ({row.measured})' if row.measured else ''}\n", "dim")
    text.rstrip()
    return text


def _number(value: float) -> str:
    return f"{value:.10g}"
