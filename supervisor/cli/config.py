"""`supervisor config`: shows the whole config that a run file makes of its recipe, and who set each field."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from supervisor.cli.checks import FOREIGN, Config, Given, Module, read_given, refuse
from supervisor.cli.common import Json, doing
from supervisor.wire import command_line
from supervisor.wire.printer import print_line

commands = command_line.commands(help_="Show the TorchTitan config that a run file makes.")


def register(app: typer.Typer) -> None:
    """Adds `config` to the command line."""
    app.add_typer(commands, name="config")


@commands.callback()
def about() -> None:
    """Show the TorchTitan config that a run file makes."""


@commands.command(
    "show", context_settings=FOREIGN, epilog="Example: supervisor config show examples/debug.toml --changed"
)
def show_config(
    given: Given = None,
    module: Module = "",
    config: Config = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the recipe's own.")] = False,
    as_json: Json = False,
) -> None:
    """Show every field of the config, who set it (recipe, run file, supervisor), and why a value was forced."""
    from supervisor.shell.inspect import client
    from supervisor.shell.runfile import parse

    file, spec = read_given(given, module, config, "")
    if spec.trainer.command:
        print_line(f"supervisor: {file}: trainer.command has no config of TorchTitan's", err=True)
        raise typer.Exit(2)
    try:
        with doing("asking TorchTitan for the config"):
            problems, settings = client.titan_settings(spec)
    except client.NotChecked as why:
        print_line(f"supervisor: {file}: {why}", err=True)
        raise typer.Exit(1) from None
    if problems:
        refuse(file, parse.RunFileError(problems))
    found = [s for s in settings if not changed or (s["by"] != "recipe" and s["value"] != s["before"])]
    if as_json:
        print_line(json.dumps(found, indent=2))
    for setting in () if as_json else found:
        print_line(_line(setting))


def _line(setting: dict[str, Any]) -> str:
    text = f"{setting['key']} = {setting['value']!r}"
    if setting["by"] == "recipe":
        return text + (f"  # {setting['reason']}" if setting["reason"] else "")
    why = f": {setting['reason']}" if setting["reason"] else ""
    return f"{text}  # {setting['by']}{why}; the recipe has {setting['before']!r}"
