"""The command `supervisor ledger`: accounts for a run's seconds from its files, by group, incident and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.common import Json, sentences, show
from supervisor.core.goodput.causes import Cause
from supervisor.wire.printer import Printer

if TYPE_CHECKING:
    from rich.table import Table

MOST = 3
"""Causes named for each group and each incident in the table; JSON has all."""


def register(app: typer.Typer) -> None:
    """Adds `ledger` to the command line."""
    app.command("ledger", epilog="Example: supervisor ledger runs/demo")(command)


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the run, which holds its journal.jsonl.")],
    as_json: Json = False,
) -> None:
    """Account for every second of a run, by cause. Shows where each group's time went and what each incident cost. It reads
    only the files of the run, not etcd.

    Each second belongs to at most one incident, the newest; seconds without an incident have their own row.

    The account runs from the first decision to the end of the run, as its journal says. For a run that goes on, it ends now.
    If no `supervisor up` carries the run and its files are silent for minutes, it ends at the last sign of life. The time
    from a halt to its resume is left out.

    Exits 1 if the sums differ from the run's time, or if files of nodes or generations that trained are missing here."""
    from supervisor.shell.history import account

    with sentences():
        found = account.of_run(folder)
    show(found, as_json, _Printed(found))
    if found["wrong"]:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Printed:
    found: dict[str, Any]

    def __rich_console__(self, console: Printer, _: Any) -> Any:
        found, groups = self.found, self.found["groups"]
        shares = {Cause.PRODUCTIVE.value: found["ettr"], **found["badput"]}
        end = datetime.fromtimestamp(found["end_unix_s"], UTC)
        until = found["phase"] if found["over"] else f"not over: until {end:%H:%M:%S} UTC"
        if (since := found["silent_since_unix_s"]) is not None:
            at = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC"
            until = f"not over: nothing is heard of it since {at}; counted until then"
        if found["halted_s"]:
            until += f"; {found['halted_s']:.1f} s for which it was halted are left out"
        yield f"run {found['run']}: {found['seconds']:.1f} s of {len(groups)} groups ({until}); ETTR {found['ettr']:.1%}"
        yield _table(
            ("cause", "group-seconds", "share"),
            [(cause, f"{seconds:.1f}", f"{shares[cause]:.1%}") for cause, seconds in found["causes"].items()],
        )
        yield _table(
            ("group", "productive", "most of the rest (s)"),
            [
                (str(g), f"{s.get(Cause.PRODUCTIVE.value, 0.0) / (sum(s.values()) or 1.0):.1%}", _most(s))
                for g, s in groups.items()
            ],
            console.width,
        )
        if found["incidents"]:
            costs = [
                (i["id"], f"{i['kind']} group {i['group']}", str(i["rung"]), i["lost_s"]) for i in found["incidents"]
            ]
            yield _table(
                ("incident", "of", "rung", "cost", "most of it (s)"),
                [
                    (*about, f"{sum(lost.values()):.1f}", _most(lost))
                    for *about, lost in (*costs, ("-", "no incident", "-", found["no_incident_s"]))
                ],
                console.width,
            )
        yield from (f"WRONG: {sentence}" for sentence in found["wrong"])


def _most(seconds: dict[str, float]) -> str:
    rest = sorted(((v, c) for c, v in seconds.items() if c != Cause.PRODUCTIVE.value and v >= 0.05), reverse=True)
    return ", ".join(f"{cause} {value:.1f}" for value, cause in rest[:MOST])


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int = 0) -> Table:
    """`width`: that of the terminal; the last column names as many causes as fit."""
    from rich.table import Table

    others = sum(2 + max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads) - 1))
    if width:
        rows = [(*row[:-1], _fits(row[-1], max(width - others, len(heads[-1])))) for row in rows]
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(
            head, no_wrap=True, justify="right" if head in ("group-seconds", "share", "productive", "cost") else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _fits(causes: str, room: int) -> str:
    while len(causes) > room and ", " in causes:
        causes = causes.rpartition(", ")[0]
    return causes
