"""Checks of a run file that the commands share, with their exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from supervisor.cli.common import doing, print_timeouts, sentences
from supervisor.shell.dev.home import endpoints_in, security_of, system_folder
from supervisor.wire.printer import print_line

if TYPE_CHECKING:
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.engines.registry import Context
    from supervisor.shell.runfile.parse import RunFileError
    from supervisor.wire.code_tree import Tree


def read_run_file(file: Path, name: str, pool: str = "") -> RunSpec:
    """Reads a run file; `pool` as for parse.on_pool. Exits 2 with all its problems."""
    from supervisor.shell.runfile import parse

    try:
        return parse.load(file, name, pool)
    except parse.RunFileError as error:
        refuse(file, error)


Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN.toml | --module M --config C [--KEY VALUE ...] [KEY=VALUE ...]",
        help="The run file (docs/RUN_FILE.md); or what TorchTitan's command line takes (--training.steps 1000), with "
        "keys of the run file as KEY=VALUE (groups.count=4). --job.config_file FILE reads an older job file.",
        show_default=False,
    ),
]
Module = Annotated[str, typer.Option("--module", metavar="M", help="Model of TorchTitan, as llama3.")]
Config = Annotated[str, typer.Option("--config", metavar="C", help="Config of its registry, as llama3_8b.")]
FOREIGN = {"ignore_unknown_options": True}
"""Context of commands that take TorchTitan's options."""


def read_given(given: list[str] | None, module: str, config: str, name: str, pool: str = "") -> tuple[Path, RunSpec]:
    """Reads a run file, or makes one of TorchTitan's options. `pool` as for parse.on_pool. Returns what errors are of, and
    the spec. Exits 2 with all problems."""
    from supervisor.shell.runfile import parse, titan_command

    given = given or []
    if module or config or any(one.startswith(f"--{titan_command.JOB_FILE}") for one in given):
        what = Path(f"--module {module} --config {config}" if module else " ".join(given[:2]))
        if bool(module) != bool(config):
            print_line("supervisor: give --module and --config together", err=True)
            raise typer.Exit(2)
        problems: list[str] = []
        try:
            made = titan_command.from_arguments(module, config, given, name)
            for line in made.lines:
                print_line(f"supervisor: {line}", err=True)
            problems += made.problems
            spec = parse.parse(parse.on_pool(made.body, pool), base=Path())
        except parse.RunFileError as error:
            refuse(what, parse.RunFileError([*problems, *error.problems], error.timeouts))
        if problems:
            check_titan(what, spec, problems)
        return what, spec
    unknown = next((one for one in given if one.startswith("-")), "")
    if unknown or len(given) != 1:
        why = f"no such option: {unknown}" if unknown else "give one run file, or --module and --config of TorchTitan"
        print_line(f"supervisor: {why} (supervisor launch --help)", err=True)
        raise typer.Exit(2)
    file = Path(given[0])
    return file, read_run_file(file, name, pool)


def refuse(file: Path, error: RunFileError) -> NoReturn:
    for problem in error.problems:
        print_line(f"supervisor: {file}: {problem}", err=True)
    print_timeouts("(as written)", error.timeouts)
    raise typer.Exit(2)


def check_titan(file: Path, spec: RunSpec, known: Sequence[str] = (), tree: Tree | None = None) -> bool:
    """Checks the Titan part in a process of its own, and notes changes in the recipe. `tree`: the code that the run's nodes
    have. Returns false if this machine cannot check it. Exits 2 with all problems, those `known` before among them."""
    from supervisor.shell.inspect import client
    from supervisor.shell.runfile import parse

    try:
        with doing("checking the command" if spec.trainer.command else "checking the config with TorchTitan"):
            problems, changes = client.check_titan(spec, tree)
    except client.NotChecked as why:
        print_line(f"supervisor: {file}: {why}", err=True)
        if known:
            refuse(file, parse.RunFileError([*known]))
        return False
    if known or problems:
        refuse(file, parse.RunFileError([*known, *problems]))
    for change in changes:
        print_line(f"supervisor: {file}: {change}", err=True)
    return True


def check_all(file: Path, spec: RunSpec, etcd: str, home: Path, security: str, tree: Tree | None = None) -> bool:
    """Checks all that needs no etcd: the Titan part, and whether the engine can give the nodes. `tree`: as for check_titan.
    Returns false if the Titan part cannot be checked here. Exits 2 with the problems of the file, 1 where the engine
    refuses the run."""
    checked = check_titan(file, spec, tree=tree)
    note_of_engine(spec, etcd, home, security)
    return checked


def context_of(etcd: str, home: Path, security: str) -> Context:
    """Returns what engines are built with for these options. Raises Fatal where the system's files cannot be read."""
    from supervisor.shell.engines.registry import Context

    endpoints = tuple(endpoints_in(etcd, home))
    return Context(home=system_folder(home), etcd=endpoints, security=security or security_of(home))


def note_of_engine(spec: RunSpec, etcd: str, home: Path, security: str) -> None:
    """Prints what the engine says of the nodes that a run or pool asks for, if anything. Exits 1 if it refuses them."""
    from supervisor.shell.engines.registry import before_launch

    with sentences():
        note = before_launch(spec, context_of(etcd, home, security))
    if note:
        print_line(f"supervisor: {note}", err=True)
