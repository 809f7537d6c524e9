"""`supervisor ledger`: where the seconds of a run went, from its files: of each group, of each incident, of all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fault_injection.badput import Span, does_not_add_up, ledger, of_incident, windows
from fault_injection.history import History, read
from supervisor.cli.common import Json, sentences, show
from supervisor.core.ledger import Cause, ratios, totals
from supervisor.ports.errors import Fatal
from supervisor.shell.up import system_folder

MOST = 3
"""Causes that are named of each group and each incident in the table; JSON has all."""


def register(app: typer.Typer) -> None:
    """Add `ledger` to the command line."""
    app.command("ledger", epilog="Example: supervisor ledger runs/demo")(command)


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The run's: it has journal.jsonl in it.")],
    as_json: Json = False,
) -> None:
    """Where each second of each group went, and what each incident cost, from the files of a run, live or over; no etcd is asked.

    Ends with 1 where the sums are not the run's time, or files of a node are not on this machine."""
    with sentences():
        found = of_run(folder)
    show(found, as_json, _Printed(found))
    if found["wrong"]:
        raise typer.Exit(1)


def of_run(folder: Path) -> dict[str, Any]:
    """As `--json` prints it; seconds throughout. Raises Fatal where there is no journal, or no step in it yet."""
    if not (folder / "journal.jsonl").is_file():
        raise Fatal(
            f"{folder} holds no journal.jsonl: give the folder of a run, as runs/NAME, on the machine of its supervisor"
        )
    folder = folder.resolve()
    system = next((s for s in map(system_folder, (folder, folder.parent)) if s.is_dir()), system_folder(folder.parent))
    history = read(folder.name, folder, system)
    steps = [line["t"] for s in history.steps for line in s.committed()]
    if not history.decisions or not steps:
        raise Fatal(
            f"run {folder.name}: no step is written down below {system}: it has not trained yet, or did on other machines"
        )
    span = Span(min(decision.t for decision in history.decisions), max(steps))
    ledgers = {g: ledger(history, g, span) for g in sorted({g for d in history.decisions for g in d.groups})}
    ettr, badput = ratios(ledgers.values())
    by_group = {g: _seconds(totals(intervals)) for g, intervals in ledgers.items()}
    return {
        "run": folder.name,
        "seconds": round(span.end - span.begin, 3),
        "begin_unix_s": span.begin,
        "ettr": round(ettr, 4),
        "badput": {cause: round(share, 4) for cause, share in badput.items()},
        "causes": _seconds(totals(interval for intervals in ledgers.values() for interval in intervals)),
        "groups": by_group,
        "incidents": [
            {**{name: w.incident[name] for name in ("id", "kind", "group", "rung")}, "lost_s": of_incident(ledgers, w)}
            for w in windows(history)
        ],
        "wrong": [
            *_not_here(history, system),
            *(f"{where} is no JSON" for where in history.unreadable),
            *does_not_add_up(history, ledgers, span),
        ],
    }


def _seconds(found: dict[Cause, float]) -> dict[str, float]:
    return {cause.value: round(seconds, 3) for cause, seconds in sorted(found.items(), key=lambda each: -each[1])}


def _not_here(history: History, system: Path) -> list[str]:
    nodes = {str(g.get("node") or "") for d in history.committed() for g in d.groups.values()} - {""}
    away = sorted(node for node in nodes if not (system / "nodes" / node).is_dir())
    return [f"node {n}: its files are not below {system}: what its groups did there counts as no process" for n in away]


@dataclass(frozen=True)
class _Printed:
    found: dict[str, Any]

    def __rich_console__(self, console: Console, _: Any) -> Any:
        found, groups = self.found, self.found["groups"]
        whole = sum(found["causes"].values()) or 1.0
        yield f"run {found['run']}: {found['seconds']:.1f} s of {len(groups)} groups; ETTR {found['ettr']:.1%}"
        yield _table(
            ("cause", "group-seconds", "share"),
            [(cause, f"{seconds:.1f}", f"{seconds / whole:.1%}") for cause, seconds in found["causes"].items()],
        )
        yield _table(
            ("group", "productive", "most of the rest"),
            [
                (str(g), f"{s.get(Cause.PRODUCTIVE.value, 0.0) / (sum(s.values()) or 1.0):.1%}", _most(s))
                for g, s in groups.items()
            ],
        )
        if found["incidents"]:
            yield _table(
                ("incident", "of", "rung", "cost", "most of it"),
                [
                    (
                        i["id"], f"{i['kind']} group {i['group']}", str(i["rung"]), f"{sum(i['lost_s'].values()):.1f}",
                        _most(i["lost_s"]),
                    )
                    for i in found["incidents"]
                ],
            )  # fmt: skip
        yield from (f"WRONG: {sentence}" for sentence in found["wrong"])


def _most(seconds: dict[str, float]) -> str:
    rest = sorted(((v, c) for c, v in seconds.items() if c != Cause.PRODUCTIVE.value and v >= 0.05), reverse=True)
    return ", ".join(f"{cause} {value:.1f} s" for value, cause in rest[:MOST])


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in ("group-seconds", "share", "productive", "cost") else "left")
    for row in rows:
        table.add_row(*row)
    return table
