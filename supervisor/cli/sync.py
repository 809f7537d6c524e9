"""The command that brings code to the nodes of a run or pool (docs/CODE.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.common import HOME, Etcd, Home, SecurityFile, credentials, doing, opened_store
from supervisor.wire import command_line
from supervisor.wire.printer import print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.add_typer(commands)


@commands.command(epilog="Example: supervisor sync . --on lab")
def sync(
    on: Annotated[str, typer.Option("--on", metavar="POOL|RUN", help="The pool, or the run, that gets it.")],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of the code. .everstepignore, or else .gitignore, leaves files out."
        ),
    ] = Path(),
    most_mib: Annotated[
        float, typer.Option("--most-mib", min=0.001, help="Most MiB of the code; beyond it nothing is sent.")
    ] = 1024.0,
    etcd: Etcd = "",
    home: Home = HOME,
    security: SecurityFile = "",
) -> None:
    """Bring a folder of code to the nodes of a pool or run. Only what changed travels, and the next start of each group takes
    it."""
    from supervisor.shell.code import sync as syncing

    with opened_store(etcd, home, security) as store:
        with doing(f"syncing {folder.resolve()} to {on}"):
            done = syncing.sync(store, on, folder, credentials(home, security), most_mib)
        for note in done.notes:
            print_line(f"supervisor: {note}", err=True)
        print_line(str(done))
