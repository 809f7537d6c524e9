"""`supervisor chaos`: break a run on purpose, and certify what came of it."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from fault_injection.faults import site as sites
from fault_injection.faults.catalogue import FAULTS
from supervisor.cli.common import Json, show

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


__all__ = ["chaos", "register"]
