"""Lists the commands that this package adds to `supervisor`. Only a chosen one is imported."""

from __future__ import annotations

import typer

from supervisor.wire.command_line import PROVE, later

COMMANDS = (
    (PROVE, "demo", "demo.command", "Train a small Llama 3 here and break it three ways."),
    (PROVE, "chaos", "chaos.command", "Break a run on purpose and certify the outcome."),
    (PROVE, "simulate", "whatif.command", "Simulate what months of failures cost under a policy."),
)
"""Heading, name, module here, and the first sentence of the command's help."""


def register(app: typer.Typer) -> None:
    """Adds them to the command line."""
    for heading, name, module, line in COMMANDS:
        later(app, heading, name, f"fault_injection.{module}", line)
