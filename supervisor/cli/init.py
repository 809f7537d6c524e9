"""The command `supervisor init`: asks a few questions and writes a run file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor.cli import common
from supervisor.cli.checks import check_all, refuse
from supervisor.cli.common import HOME, Home, sentences, text_option
from supervisor.shell.dev.home import runs_in
from supervisor.wire import command_line
from supervisor.wire.printer import print_line

commands = command_line.commands()


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.add_typer(commands)


@commands.command(epilog="Example: supervisor init my-run.toml --groups 4 --engine local")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The run file to write.")] = Path("run.toml"),
    name: Annotated[
        str, typer.Option(callback=text_option, help="Name of the run. Default: that of the file.", show_default=False)
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            callback=text_option,
            help='A shipped recipe, MODULE:FUNCTION, or TorchTitan\'s "--module M --config C". Default: llama3-debug.',
        ),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            callback=text_option,
            metavar="recipe|python-stdlib|FOLDER",
            help="Source of the text. Default: recipe for a shipped recipe, python-stdlib for others.",
        ),
    ] = "",
    groups: Annotated[
        int | None, typer.Option(help="Number of replica groups. Default: 2.", show_default=False)
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks of each group. Default: 1.", show_default=False)] = None,
    engine: Annotated[str, typer.Option(metavar="local|slurm", help="Source of the nodes. Default: local.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    home: Home = HOME,
) -> None:
    """Write a first run file from a few answers. In a terminal it asks for what no option gives; elsewhere it takes the
    defaults. Every line has its reason. The file is checked like `validate` does, and the next command is printed."""
    from supervisor.shell.runfile import parse, starter

    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists: give another name, or --force to overwrite it", param_hint="FILE")
    if data and (problem := starter.data_problem(data)):
        raise typer.BadParameter(problem, param_hint="--data")
    ask = _Asked(common.person_asked())
    name = ask("--name", "Name of the run", name, parse.nearest_name(file.stem), parse.name_problem)
    recipe = ask("--recipe", "Recipe (shipped, MODULE:FUNCTION or --module M --config C)", recipe, "llama3-debug")
    data = ask(
        "--data", "Text (recipe, python-stdlib or a folder)", data, starter.data_of(recipe), starter.data_problem
    )
    answers = starter.Answers(
        name=name,
        recipe=recipe,
        data=data,
        groups=int(ask("--groups", "Replica groups", _number(groups), "2", _no_count)),
        ranks=int(ask("--ranks", "Ranks of each group", _number(ranks), "1", _no_count)),
        engine=ask("--engine", "Nodes from (local or slurm)", engine, "local", _no_engine),
    )
    try:
        written = starter.text(answers, file)
    except parse.RunFileError as error:
        refuse(file, error)
    with sentences():
        file.write_text(written)
    print_line(f"wrote {file}")
    try:
        check_all(file, parse.load(file), "", home, "")
    except typer.Exit:
        print_line(f"supervisor: correct {file}, then check it: supervisor validate {file}", err=True)
        raise
    print_line(f"Next: {_next(file, answers.groups, answers.engine, home)}")


class _Asked:
    """Asks a person for what no option gave, until the answer is right; takes the default where there is no person."""

    def __init__(self, person: bool) -> None:
        self._person = person

    def __call__(
        self, option: str, question: str, given: str, default: str, problem: Callable[[str], str] = lambda answer: ""
    ) -> Any:
        """Returns the value. Exits 2, naming the option, if its value or the default is wrong."""
        answer = given or (typer.prompt(question, default=default, err=True) if self._person else default)
        while why := problem(answer):
            if given or not self._person:
                raise typer.BadParameter(why, param_hint=option)
            print_line(f"supervisor: {why}", err=True)
            answer = typer.prompt(question, default=default, err=True)
        return answer


def _number(given: int | None) -> str:
    return str(given) if given is not None else ""


def _no_count(answer: str) -> str:
    return "" if answer.isascii() and answer.isdigit() and int(answer) > 0 else f"{answer!r}: give a number, at least 1"


def _no_engine(answer: str) -> str:
    from supervisor.core.model.engines import TRAITS

    own = [name for name, traits in TRAITS.items() if not traits.lends]
    return "" if answer in own else f"{answer!r}: give {' or '.join(own)}"


def _next(file: Path, groups: int, engine: str, home: Path) -> str:
    """Returns the next command of the person who has the file."""
    if engine == "slurm":
        return f"supervisor submit {file} --etcd HOST:PORT --home FOLDER-THAT-ALL-HOSTS-SHARE (docs/SLURM.md)"
    launch = f"supervisor launch {file} --follow"
    if runs_in(home):
        return launch
    return f"supervisor up --nodes {groups + 1}, and in a second terminal: {launch}"
