"""Runs a command of `supervisor` in this process: starting Python takes longer than most of them."""

from __future__ import annotations

import subprocess

from typer.testing import CliRunner

from supervisor import cli


def ran(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Returns what it printed, and its exit code. `env`: set while it runs."""
    result = CliRunner().invoke(cli.app, list(arguments), env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)
