"""`supervisor chaos`: break a run on purpose, and certify what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fault_injection import recorded
from fault_injection.checkers import Verdict, check
from fault_injection.faults import site as sites
from fault_injection.faults.catalogue import FAULTS
from fault_injection.promises import ALL
from supervisor.cli.common import Json, sentences, show

chaos = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Break a run on purpose, and certify what came of it.",
)


def register(app: typer.Typer) -> None:
    """Add `chaos` to the command line."""
    app.add_typer(chaos, name="chaos")


@chaos.command("list", epilog="Example: supervisor chaos list")
def list_command(as_json: Json = False) -> None:
    """Every fault, what it does, and why it cannot be made on this machine where it cannot."""
    site = sites.of_machine()
    rows = [
        {"fault": f.name, "family": f.family, "how": f.how, "kinds": list(f.kinds), "why_not": f.why_not(site)}
        for f in FAULTS.values()
    ]
    if as_json:
        show(rows, True, None)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("fault", "family", "what it does", "right incident", "not here, because"):
        table.add_column(column, overflow="fold")
    for row in rows:
        kinds = " or ".join(row["kinds"]) if not row["why_not"] else "-"
        table.add_row(str(row["fault"]), str(row["family"]), str(row["how"]), kinds or "none", str(row["why_not"]))
    Console().print(table)
    possible = sum(1 for row in rows if not row["why_not"])
    typer.echo(f"{possible} of {len(rows)} faults can be made here")


@chaos.command("check", epilog="Example: supervisor chaos check runs/chaos/history.jsonl")
def check_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="history.jsonl of a run that was broken.")],
    as_json: Json = False,
) -> None:
    """Judge histories: what each checker says of them, from the files alone. Ends with 1 unless all pass."""
    with sentences():
        judged = {str(path): check(recorded.load(path), ALL) for path in files}
    if as_json:
        show(judged, True, None)
    else:
        for path, verdicts in judged.items():
            typer.echo(f"{path}: {sum(v.answer == 'pass' for v in verdicts)} of {len(verdicts)} checkers pass")
            for line in render(verdicts):
                typer.echo(f"  {line}")
    if any(v.answer != "pass" for verdicts in judged.values() for v in verdicts):
        raise typer.Exit(1)


def render(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line for each, and one for each sentence of those that do not pass."""
    for verdict in verdicts:
        yield f"{verdict.answer:8} {verdict.checker}"
        yield from (f"         {sentence}" for sentence in verdict.sentences)


__all__ = ["chaos", "register"]
