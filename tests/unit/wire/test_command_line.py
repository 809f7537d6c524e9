"""The conventions that `supervisor` and `supervisor-agent` share, and the imports of their start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from click.testing import Result
from typer.core import TyperGroup
from typer.testing import CliRunner

import agents.cli
import fault_injection.commands
import supervisor.cli
from supervisor.wire.command_line import HEADINGS, Later
from supervisor.wire.version import version

ROOT = Path(__file__).parents[3]

HEAVY = {"torch", "grpc", "google", "etcd3", "jinja2", "prometheus_client", "pydantic", "rich", "asyncio"}

OURS_TO_LIST = {
    *("supervisor", "supervisor.cli", "supervisor.core", "supervisor.core.report", "supervisor.core.report.visible"),
    *("supervisor.wire", "supervisor.wire.command_line", "supervisor.wire.logged"),
    *("fault_injection", "fault_injection.commands"),
}
"""Modules of ours that take part in listing the commands of `supervisor`."""

IMPORTED = """
import contextlib, json, os, sys
from {module} import app
{more}
for arguments in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        with contextlib.suppress(SystemExit):
            app(arguments, prog_name="program")
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def imported(folder: Path, module: str, *arguments: str, **environment: str) -> set[str]:
    """Modules that a program has imported when it is done."""
    (found,) = imported_by_each(folder, module, [arguments], **environment)
    return found


def imported_by_each(
    folder: Path, module: str, commands: Sequence[Sequence[str]], **environment: str
) -> list[set[str]]:
    """The same for each of several commands, none of which sees what another imports."""
    more = "import fault_injection.commands; fault_injection.commands.register(app)" * (module == "supervisor.cli")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(module=module, more=more), json.dumps(commands)], cwd=folder, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, check=True,
    )  # fmt: skip
    return [set(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def ours(modules: set[str]) -> set[str]:
    return {m for m in modules if m.partition(".")[0] in ("supervisor", "agents", "fault_injection", "titan_actor")}


@pytest.mark.parametrize("arguments", [["--help"], [], ["--no-such"]], ids=" ".join)
def test_listing_the_commands_imports_none_of_them(tmp_path: Path, arguments: list[str]) -> None:
    found = imported(tmp_path, "supervisor.cli", *arguments)
    assert found & HEAVY == set()
    assert ours(found) == OURS_TO_LIST


def test_a_mistyped_name_imports_no_command(tmp_path: Path) -> None:
    assert ours(imported(tmp_path, "supervisor.cli", "statsu")) == OURS_TO_LIST


def test_completing_a_name_imports_no_command(tmp_path: Path) -> None:
    wanted = {"_PROGRAM_COMPLETE": "complete_bash", "COMP_WORDS": "program st", "COMP_CWORD": "1"}
    assert ours(imported(tmp_path, "supervisor.cli", **wanted)) == OURS_TO_LIST


def test_the_agents_help_imports_nothing_heavy(tmp_path: Path) -> None:
    found = imported(tmp_path, "agents.cli", "--help")
    assert found & HEAVY == set()
    assert not {
        m for m in ours(found) if m.startswith(("supervisor.shell.etcd", "agents.health.checks", "agents.agent"))
    }


@pytest.mark.parametrize("command", ["status", "stop", "uncordon n1"])
def test_a_command_that_finds_no_etcd_imports_no_more_than_asking_takes(tmp_path: Path, command: str) -> None:
    found = imported(tmp_path, "supervisor.cli", *command.split(), "--etcd", "127.0.0.1:1")
    assert "grpc" in found, "it has asked"
    assert found & {"torch", "jinja2", "prometheus_client"} == set()
    assert not {m for m in ours(found) if m.startswith(("supervisor.core.", "supervisor.wire.records"))} - {
        *("supervisor.core.report", "supervisor.core.report.visible"),
        *("supervisor.core.model", "supervisor.core.model.measured"),
    }


PROGRAMS = {"supervisor": supervisor.cli.app, "supervisor-agent": agents.cli.app}
both = pytest.mark.parametrize("program", PROGRAMS)


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the words of each command and subcommand."""
    if path:
        yield path
    chosen = command.chosen() if isinstance(command, Later) else command
    for name, each in getattr(chosen, "commands", {}).items():
        yield from paths(each, (*path, name))


HEAVY_FOR_HELP = HEAVY - {"pydantic", "rich"} | {"hypothesis", "numpy", "rich.table", "rich.progress", "yaml"}
"""typer brings pydantic for the options; a printer that the commands share brings rich."""

OURS_TO_ACT = (
    *("supervisor.wire.records", "supervisor.core.decide", "supervisor.core.remediation", "supervisor.core.report.w"),
    *("supervisor.shell.etcd", "supervisor.shell.control", "supervisor.shell.history", "supervisor.shell.inspect"),
    *("supervisor.shell.runfile", "supervisor.shell.engines", "supervisor.shell.web", "supervisor.shell.dev.up."),
    *("agents.agent", "agents.gate", "agents.health", "titan_actor", "fault_injection.checkers", "fault_injection.sim"),
    *("fault_injection.faults", "fault_injection.testbed", "fault_injection.doubles"),
)
"""Beginnings of the names of modules that only a command that acts needs."""


@pytest.mark.parametrize(("module", "program"), [("supervisor.cli", "supervisor"), ("agents.cli", "supervisor-agent")])
def test_the_help_of_a_command_imports_nothing_that_acts(tmp_path: Path, module: str, program: str) -> None:
    """So each starts in 0.3 s on an idle machine. The sign is what is imported: no wall time is asserted."""
    fault_injection.commands.register(supervisor.cli.app)
    found = list(paths(typer.main.get_command(PROGRAMS[program])))
    assert len(found) >= (40 if program == "supervisor" else 2)
    assert ("chaos", "run") in found or program != "supervisor"
    loaded = imported_by_each(tmp_path, module, [(*path, "--help") for path in found])
    wrong = {
        " ".join(path): {m for m in modules if m in HEAVY_FOR_HELP or f"{m}.".startswith(OURS_TO_ACT)}
        for path, modules in zip(found, loaded, strict=True)
    }
    assert {path: modules for path, modules in wrong.items() if modules} == {}


def asked(program: str, *arguments: str) -> Result:
    return CliRunner().invoke(PROGRAMS[program], [*arguments], prog_name=program, env={"COLUMNS": "80"})


@both
def test_the_version(program: str) -> None:
    done = asked(program, "--version")
    assert (done.exit_code, done.stdout) == (0, f"{program} {version()}\n")


@both
@pytest.mark.parametrize("command", [[], ["run"]], ids=str)
def test_help_is_plain_and_has_a_short_name(program: str, command: list[str]) -> None:
    long, short = (asked(program, *command, option) for option in ("--help", "-h"))
    assert (long.exit_code, long.stdout) == (short.exit_code, short.stdout) == (0, long.stdout)
    assert long.stdout.startswith(f"Usage: {' '.join([program, *command])} [OPTIONS]")
    assert long.stdout.isascii()


@both
def test_what_is_mistyped_names_the_near_one(program: str) -> None:
    for arguments, sentence in (
        (["rnu"], "Error: No such command 'rnu'. Did you mean 'run'"),
        (["--verson"], "Error: No such option: --verson (Possible options: --version)"),
        (["run", "--hoem", "x"], "Error: No such option: --hoem (Possible options: "),
    ):
        done = asked(program, *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_a_mistyped_command_of_a_group_names_the_near_one() -> None:
    done = asked("supervisor", "policy", "sett")
    assert done.exit_code == 2
    assert "No such command 'sett'. Did you mean 'set'?" in done.stderr


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"supervisor {version()}\n", "")


@both
def test_the_shell_completes_names_and_the_options_of_the_one_that_is_chosen(program: str) -> None:
    name = f"_{program.replace('-', '_').upper()}_COMPLETE"

    def completed(*words: str) -> list[str]:
        wanted = {name: "complete_bash", "COMP_WORDS": " ".join([program, *words]), "COMP_CWORD": str(len(words))}
        done = CliRunner().invoke(PROGRAMS[program], [], prog_name=program, env=wanted)
        return done.stdout.split()

    assert "run" in completed("r")
    assert completed("run", "--metrics-p") == ["--metrics-port"]
    assert "--install-completion" in asked(program, "-h").stdout


def listed() -> dict[str, Later]:
    fault_injection.commands.register(supervisor.cli.app)
    return cast(dict[str, Any], cast(TyperGroup, typer.main.get_command(supervisor.cli.app)).commands)


@pytest.mark.parametrize(("name", "line"), [pytest.param(*each, id=each[0]) for each in listed().items()])
def test_a_line_in_the_list_is_the_first_sentence_of_the_commands_help(name: str, line: Later) -> None:
    chosen = line.chosen()
    assert chosen.name == name
    assert chosen.get_short_help_str(200) == line.get_short_help_str(200)


def test_the_list_has_the_headings_in_order_and_cuts_no_line() -> None:
    shown = asked("supervisor", "--help").stdout.partition("\n\nStart:")[2]
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":")] == list(HEADINGS[1:])
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == [
        name for heading in HEADINGS for name, line in listed().items() if line.rich_help_panel == heading
    ]
    assert "..." not in shown
