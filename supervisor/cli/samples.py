"""The command `supervisor data audit`: shows that a run has used each sample of its token store once.

It is of the group `data`, whose other commands are in titan_actor, and imported when it is chosen.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.common import Json, sentences
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.shell.history.samples import Audit

MOST = 5
"""Sentences of one kind that are printed; JSON has all."""


def register(app: typer.Typer) -> None:
    """Adds `audit` to the commands of `data`."""
    app.command("audit", epilog="Example: supervisor data audit runs/llama")(command)


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the run, which holds its journal.jsonl.")],
    as_json: Json = False,
) -> None:
    """Count the samples of a token store that a run used once, twice and never. Up to the last committed step, over
    restarts, heals, resumes and changes of size. It reads the step records of all ranks, not etcd.

    Exits 1 if a sample was used twice or skipped, or if records of steps are missing here."""
    import json

    from supervisor.ports.errors import Fatal
    from supervisor.shell.history import account, samples
    from supervisor.shell.history.files import read, without_later

    with sentences():
        name, system = account.located(folder)
        found = samples.audit(without_later(read(name, folder.resolve(), system)))
        if found is None:
            raise Fatal(f'run {name}: no record of a token store is here (titan.data.source = "tokens")')
    print_line(json.dumps({"run": name, **asdict(found)}, indent=2) if as_json else _line(name, found))
    wrong = [*found.wrong, *(each.sentence for each in found.unnoted)]
    for sentence in wrong[:MOST] if not as_json else ():
        print_line(f"supervisor: {sentence}", err=True)
    if len(wrong) > MOST and not as_json:
        print_line(f"supervisor: and {len(wrong) - MOST} more: --json has them", err=True)
    if wrong:
        raise typer.Exit(1)


def _line(name: str, found: Audit) -> str:
    lines = [
        f"run {name}: {found.steps:,} steps of its model, samples {found.begin or 0:,} to {found.end - 1:,}: {found.once:,} used once, "
        f"{found.twice:,} twice, {found.never:,} never",
    ]
    if found.again:
        lines.append(f"{found.again:,} were drawn for steps that failed or were thrown away, and drawn again")
    return "\n".join(lines)
