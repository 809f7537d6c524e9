"""The command line: parses and calls. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib.metadata import entry_points

from supervisor.cli import hosts, look, policy, runs, system
from supervisor.cli.common import HOME, Home, app, sentences
from supervisor.wire.logged import TextLine
from supervisor.wire.printer import print_line

__all__ = ["HOME", "Home", "app", "main", "sentences"]

COMMANDS = (system, runs, hosts, policy, look)
"""Modules that add their commands to `app` when they are imported."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@app.callback()
def _root() -> None:
    """Supervises fault-tolerant pretraining runs of TorchTitan and TorchFT."""


def _add_commands() -> None:
    """Sub-commands of the other packages: they import us, we never import them."""
    for point in sorted(entry_points(group="supervisor.commands"), key=lambda p: p.name):
        point.load()(app)


def _log_level() -> str:
    """What SUPERVISOR_LOG says; exits 2 when that is no level."""
    level = os.environ.get("SUPERVISOR_LOG") or "WARNING"
    if level not in LEVELS:
        print_line(f"supervisor: SUPERVISOR_LOG = {level!r}: it is one of {', '.join(LEVELS)}", err=True)
        sys.exit(2)
    return level


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a file's name may be no UTF-8
    handler = logging.StreamHandler()
    handler.setFormatter(TextLine("supervisor: %(message)s"))
    logging.basicConfig(level=_log_level(), handlers=[handler])
    _add_commands()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(1)
