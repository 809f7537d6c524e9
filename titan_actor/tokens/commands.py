"""Lists the command that this package adds to `supervisor`. It is imported once it is chosen."""

from __future__ import annotations

import typer

from supervisor.wire.command_line import START, later

COMMANDS = ((START, "data", "command", "Tokenize a corpus into a store; show and audit one."),)
"""Heading, name, module here, and the first sentence of the command's help."""


def register(app: typer.Typer) -> None:
    """Adds it to the command line."""
    for heading, name, module, line in COMMANDS:
        later(app, heading, name, f"titan_actor.tokens.{module}", line)
