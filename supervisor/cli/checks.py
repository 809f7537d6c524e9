"""Checks of a run file that the commands share, with their exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from supervisor.cli.common import doing, endpoints_in, print_timeouts, sentences
from supervisor.shell.dev.home import security_of, system_folder
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.runfile.parse import RunFileError


def read_run_file(file: Path, name: str) -> RunSpec:
    """Reads a run file. Exits 2 with all its problems."""
    from supervisor.shell.runfile import parse

    try:
        return parse.load(file, name)
    except parse.RunFileError as error:
        refuse(file, error)


def refuse(file: Path, error: RunFileError) -> NoReturn:
    for problem in error.problems:
        print_line(f"supervisor: {file}: {problem}", err=True)
    print_timeouts("(as written)", error.timeouts)
    raise typer.Exit(2)


def check_titan(file: Path, spec: RunSpec) -> None:
    """Checks the Titan part in a process of its own, and notes changes in the recipe. Exits 2 with all problems."""
    from supervisor.shell.inspect import client
    from supervisor.shell.runfile import parse

    with doing("checking the config with TorchTitan"):
        problems, changes = client.check_titan(spec)
    if problems:
        refuse(file, parse.RunFileError(problems))
    for change in changes:
        print_line(f"supervisor: {file}: {change}", err=True)


def check_all(file: Path, spec: RunSpec, etcd: str, home: Path, security: str) -> None:
    """Checks all that needs no etcd: the Titan part, and whether the engine can give the nodes. Exits 2 with the
    problems of the file, 1 where the engine refuses the run."""
    from supervisor.shell.engines.registry import Context, before_launch

    check_titan(file, spec)
    with sentences():
        endpoints = tuple(endpoints_in(etcd, home))
        context = Context(home=system_folder(home), etcd=endpoints, security=security or security_of(home))
        note = before_launch(spec, context)
    if note:
        print_line(f"supervisor: {note}", err=True)
