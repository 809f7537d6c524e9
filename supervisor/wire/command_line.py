"""The common style of both programs' command lines: plain help under headings, errors, `-h`, `--version`, shell
completion.

Starting a program imports no more than this: each command is only a line of help, and imported when it is chosen.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

START, LOOK, ACT, REPAIR, PROVE = HEADINGS = ("Start", "Look", "Act", "Repair", "Prove")
"""Headings under which the help lists the commands, in this order; other commands are under "Commands"."""


class Headed(TyperGroup):
    """A command group that lists its commands under headings, each with the first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for name in self.commands)
        for heading in ("", *HEADINGS):
            listed = {name: command for name, command in self.commands.items() if _heading(command) == heading}
            if listed:
                room = formatter.width - width - 6
                with formatter.section(heading or "Commands"):
                    formatter.write_dl([(n.ljust(width), c.get_short_help_str(room)) for n, c in listed.items()])


def _heading(command: Any) -> str:
    panel = getattr(command, "rich_help_panel", None)
    return panel if panel in HEADINGS else ""


class Later(TyperCommand):
    """A command's line in the help; the command itself is imported when it is chosen."""

    def chosen(self) -> TyperCommand | TyperGroup:
        assert self.callback is not None
        return cast("TyperCommand | TyperGroup", self.callback())

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.chosen().make_context(info_name, args, parent, **extra)


def later(app: typer.Typer, heading: str, name: str, module: str, line: str) -> None:
    """Lists a command, which its module's `register(app)` adds once chosen. The line is its help's first sentence."""

    def chosen() -> TyperCommand | TyperGroup:
        loaded = commands()
        importlib.import_module(module).register(loaded)
        return cast("TyperCommand | TyperGroup", typer.main.get_group(loaded).commands[name])

    app.command(name, help=line, rich_help_panel=heading, cls=Later)(chosen)


def commands(name: str | None = None, help_: str | None = None, *, completion: bool = False) -> typer.Typer:
    """Returns an empty command group, without rich, which reads markup in foreign text and is slow to import."""
    return typer.Typer(
        name=name,
        cls=Headed,
        help=help_,
        add_completion=completion,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def program(name: str, help_: str) -> typer.Typer:
    """Returns a program's command line, without commands yet."""
    app = commands(name, help_, completion=True)
    app.callback()(_root)
    return app


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from supervisor.wire.printer import print_line
        from supervisor.wire.version import version

        print_line(f"{context.command.name} {version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...
