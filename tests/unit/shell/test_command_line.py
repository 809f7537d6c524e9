"""A person's mistakes that need no etcd: a sentence and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import ask, common, init, launch, logs, look, policy, relaunch, runs, sync, system
from supervisor.cli import hosts as hosts_commands
from supervisor.cli import pools as pools_commands
from supervisor.ports.errors import Retryable
from supervisor.shell.dev.home import system_folder
from supervisor.shell.dev.up_lock import alone
from supervisor.shell.dev.up_parts import Up
from supervisor.shell.engines.slurm import engine
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import MEMORY, SPEC, registration, run_values

SUPERVISOR = ("-m", "supervisor.cli")
AGENT = ("-m", "agents.cli", "run", "--node", "n1", "--home", "home")


def refused(folder: Path, *arguments: str, **environment: str) -> str:
    """The error output of a command that must end with 2."""
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
    )  # fmt: skip
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("command", [(*SUPERVISOR, "run"), AGENT])
def test_a_failpoint_that_there_is_not(tmp_path: Path, command: Sequence[str]) -> None:
    text = refused(tmp_path, *command, "--etcd", "127.0.0.1:1", SUPERVISOR_FAILPOINT="foo")
    assert "SUPERVISOR_FAILPOINT = 'foo': there is no such failpoint; known: observed" in text


@pytest.mark.parametrize("command", [(*SUPERVISOR, "run"), AGENT])
def test_a_log_format_that_there_is_not(tmp_path: Path, command: Sequence[str]) -> None:
    text = refused(tmp_path, *command, "--etcd", "127.0.0.1:1", SUPERVISOR_LOG_FORMAT="xml")
    assert "SUPERVISOR_LOG_FORMAT = 'xml': it must be text or json" in text


def test_a_log_level_that_there_is_not(tmp_path: Path) -> None:
    assert "SUPERVISOR_LOG = 'foo' is no log level; set it to one of DEBUG" in refused(
        tmp_path, *SUPERVISOR, "nodes", SUPERVISOR_LOG="foo"
    )


@pytest.mark.parametrize(
    "command",
    [
        (*SUPERVISOR, "run", "--etcd", ""),
        (*SUPERVISOR, "status", "--etcd", ""),
        (*SUPERVISOR, "doctor", "--etcd", "127.0.0.1"),
        (*SUPERVISOR, "up", "--etcd", "h:abc"),
        (*SUPERVISOR, "init-auth", "--etcd", "127.0.0.1:1,garbage"),
        (*SUPERVISOR, "launch", "--check", "--etcd", "h:99999", "run.toml"),
    ],
)
def test_what_is_no_endpoint(tmp_path: Path, command: Sequence[str]) -> None:
    text = refused(tmp_path, *command)
    assert "is not an etcd endpoint: give HOST:PORT" in text
    assert "off loopback" not in text


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1", "h:abc", "h:99999"])
def test_what_is_no_endpoint_for_an_agent(tmp_path: Path, endpoint: str) -> None:
    assert f"--etcd {endpoint!r}: each endpoint is HOST:PORT" in refused(tmp_path, *AGENT, "--etcd", endpoint)


def test_an_endpoint_in_the_environment(tmp_path: Path) -> None:
    assert "'zz' is not an etcd endpoint" in refused(tmp_path, *SUPERVISOR, "nodes", SUPERVISOR_ETCD="zz")


@pytest.mark.parametrize("option", [("--nodes", "0"), ("--address", "auto")])
def test_a_part_of_a_system_needs_its_etcd(tmp_path: Path, option: Sequence[str]) -> None:
    text = refused(tmp_path, *SUPERVISOR, "up", *option, SUPERVISOR_ETCD="")
    assert f"{' '.join(option)} needs --etcd: the etcd of the system to join" in text


def test_submit_is_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text('name = "run"\n')
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))
    result = CliRunner().invoke(cli.app, ["submit", str(tmp_path / "run.toml"), "--etcd", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert 'allocation.engine = "local": submit needs "slurm"' in result.output


@pytest.mark.parametrize("etcd", ["127.0.0.1:1", "https://127.0.0.1:1"])
def test_init_auth_with_an_insecure_file(tmp_path: Path, etcd: str) -> None:
    (tmp_path / "insecure.toml").write_text("insecure = true\n")
    text = refused(tmp_path, *SUPERVISOR, "init-auth", "--etcd", etcd, "--security", "insecure.toml")
    assert "give --security FILE" in text or "needs --security FILE" in text


NO_TEXT = b"caf\xe9".decode(errors="surrogateescape")
"""Text typed in another encoding, as Python gives it."""


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("cordon", "n2", "--because", NO_TEXT), "--because"),
        (("drain", "n2", "--because", NO_TEXT), "--because"),
        (("resume", "run", "--because", NO_TEXT), "--because"),
        (("policy", "set", "mode=observe", "--because", NO_TEXT), "--because"),
        (("policy", "set", f"webhook_file={NO_TEXT}", "--because", "why"), "KEY=VALUE..."),
        (("up", "--name", NO_TEXT), "--name"),
    ],
)
def test_words_that_are_no_utf_8(command: Sequence[str], where: str) -> None:
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 2
    assert f"Invalid value for '{where}': it is not valid UTF-8" in result.output


def test_every_option_that_says_why_takes_utf_8_alone() -> None:
    modules = (hosts_commands, launch, look, policy, pools_commands, runs, sync, system)
    commands = [c.callback for module in modules for c in module.commands.registered_commands if c.callback]
    hints = {c.__name__: get_type_hints(c, include_extras=True) for c in commands}
    found = {name: hint["because"].__metadata__[0].callback for name, hint in hints.items() if "because" in hint}
    assert {"cordon", "drain", "resume", "set_policy"} <= set(found)
    assert set(found.values()) == {common.text_option}


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], MemoryStore]:
    """Makes the commands find a run in a phase."""

    def made(phase: Any) -> MemoryStore:
        store = MemoryStore()
        store.commit(run_values(replace(MEMORY, phase=phase)))
        monkeypatch.setattr(common, "connect", lambda *_, **__: store)
        return store

    return made


@pytest.mark.parametrize("command", [("pause",), ("stop",), ("restart", "1")])
@pytest.mark.parametrize(("phase", "code"), [("running", 0), ("finished", 1), ("stopped", 1), ("halted", 1)])
def test_what_an_ended_run_is_asked(
    at: Callable[[Any], MemoryStore], command: tuple[str, ...], phase: str, code: int
) -> None:
    store = at(phase)
    result = CliRunner().invoke(cli.app, [*command, "--etcd", "127.0.0.1:1"])
    assert result.exit_code == code, result.output
    assert (f"run run is {phase}: {command[0]} does nothing" in result.output) is (code == 1)
    assert len(store.commits) == (1 if code else 2)


CHANGES = [
    ("pause",),
    ("stop",),
    ("restart", "1"),
    ("resume", "--because", "x"),
    ("policy", "set", "mode=observe", "--because", "x"),
]


@pytest.fixture
def several(at: Callable[[Any], MemoryStore]) -> MemoryStore:
    """Adds a second run that goes on beside the one of `at`, one that is over, the newest, and one that is halted."""
    store = at("running")
    for n, (name, phase) in enumerate({"other": "running", "held": "halted", "over": "finished"}.items()):
        record = RunRecord(spec=replace(SPEC, name=name), run_dir="/r", launched_unix_s=100.0 + n)
        memory = encode(replace(MEMORY, phase=phase, groups={}, incidents={}))
        store.commit({keys.spec(name): encode(record), keys.memory(name, "run"): memory})
    return store


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_of_several_runs_a_script_has_to_name_the_one_that_it_changes(
    several: MemoryStore, command: tuple[str, ...]
) -> None:
    before = len(several.commits)
    result = CliRunner().invoke(cli.app, [*command, "--etcd", "127.0.0.1:1"])
    assert result.exit_code == 2
    halted = command[0] in ("resume", "policy")
    lines = ["  held (halted)"] * halted + ["  other (running)", "  run (running)"]
    assert result.stderr.splitlines()[1:] == lines
    assert f"{len(lines)} runs are not over; which one? supervisor {command[0]}" in result.stderr
    assert len(several.commits) == before


@pytest.mark.parametrize("command", CHANGES[:3], ids=" ".join)
def test_of_several_runs_a_person_is_asked(
    several: MemoryStore, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(common, "person_asked", lambda: True)
    result = CliRunner().invoke(cli.app, [*command, "--etcd", "127.0.0.1:1"], input="over\nrun\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("run: ")
    assert list(several.commits[-1]) == [keys.control("run")]


def test_the_only_run_that_is_not_over_is_meant_though_a_newer_one_is(several: MemoryStore) -> None:
    for name in ("other", "held"):
        several.commit({}, deletes=[keys.spec(name), keys.memory(name, "run")])
    result = CliRunner().invoke(cli.app, ["stop", "--etcd", "127.0.0.1:1"])
    assert result.exit_code == 0
    assert result.stdout.startswith("run: stopping")


def test_they_are_down_is_handed_on(at: Callable[[Any], MemoryStore]) -> None:
    store = at("halted")
    command = ["resume", "run", "--because", "mended", "--etcd", "127.0.0.1:1"]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 1
    assert "--they-are-down" in result.output
    assert len(store.commits) == 1
    at("halted")
    assert CliRunner().invoke(cli.app, [*command, "--they-are-down"]).exit_code == 0


def test_every_command_has_an_example_that_begins_with_it() -> None:
    modules = (ask, hosts_commands, init, launch, logs, look, pools_commands, relaunch, runs, sync, system)
    registered = [c for m in modules for c in m.commands.registered_commands if c.callback]
    names = {c.name or c.callback.__name__.replace("_", "-"): c.epilog for c in registered if c.callback}
    assert {*names, "config", "policy", "ledger", "runs"} == {name for _, name, _, _ in cli.COMMANDS}
    wrong = {n: epilog for n, epilog in names.items() if not (epilog or "").startswith(f"Example: supervisor {n}")}
    assert not wrong


def test_a_host_is_cordoned_drained_and_freed(
    at: Callable[[Any], MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = at("running")
    store.commit(registration("n1"))
    monkeypatch.setattr(store, "close", lambda: None)  # one for all commands

    def say(*command: str) -> Any:
        return CliRunner().invoke(cli.app, [*command, "--etcd", "127.0.0.1:1"])

    done = say("cordon", "n1", "--because", "disk is failing")
    assert done.exit_code == 0, done.output
    assert "host n1 is cordoned" in done.output
    assert "disk is failing" in json.loads(say("nodes", "--json").output)[0]["cordon"]
    done = say("drain", "n1", "--because", "new card")
    assert "host n1 is drained: no group is placed there any more; group 0 of run run will leave it" in done.output
    assert say("uncordon", "n1").exit_code == 0
    again = say("uncordon", "n1")
    assert (again.exit_code, "host n1 is not cordoned" in again.output) == (1, True)


@pytest.mark.parametrize("command", ["cordon", "drain"])
def test_what_is_wrong_about_a_cordon(
    at: Callable[[Any], MemoryStore], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = at("running")
    monkeypatch.setattr(engine.shutil, "which", lambda _: None)

    def said(code: int, *arguments: str) -> str:
        result = CliRunner().invoke(cli.app, [command, *arguments, "--etcd", "127.0.0.1:1"])
        assert result.exit_code == code, result.output
        return result.output

    assert "no node was ever on a host 'n11'" in said(1, "n11", "--because", "disk")
    assert "--because" in said(2, "n1")
    assert "give a reason" in said(2, "n1", "--because", "  ")
    said(2, "--because", "disk")
    assert len(store.commits) == 1


@pytest.mark.parametrize("command", [("status",), ("top",), ("explain", "i1"), ("logs", "run")])
def test_where_nobody_said_which_etcd_the_default_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    """`supervisor up` has ended, for example: its user has never had an etcd there."""

    def connect(*_: object, **__: object) -> MemoryStore:
        raise Retryable("no etcd answers at 127.0.0.1", 1.0)

    monkeypatch.setattr(common, "connect", connect)
    monkeypatch.delenv("SUPERVISOR_ETCD", raising=False)
    said = CliRunner().invoke(cli.app, [*command, "--home", str(tmp_path)])
    assert said.exit_code == 1
    assert (
        f"supervisor: no etcd found: no `supervisor up` in {tmp_path} has recorded one, and none answers at the default, 127.0.0.1:2379"
        in said.stderr
    )
    files = f"supervisor logs {tmp_path}/NAME, supervisor ledger {tmp_path}/NAME, supervisor explain ID"
    assert files in said.stderr
    said = CliRunner().invoke(cli.app, [*command, "--home", str(tmp_path), "--etcd", "127.0.0.1:2379"])
    assert said.stderr.strip() == "supervisor: no etcd answers at 127.0.0.1"
    system_folder(tmp_path).mkdir()
    (system_folder(tmp_path) / "up.json").write_text('{"etcd": "127.0.0.1:2379"}')
    said = CliRunner().invoke(cli.app, [*command, "--home", str(tmp_path)])
    assert f"the etcd of {tmp_path} does not answer at 127.0.0.1:2379, and no `supervisor up` runs there" in said.stderr
    with alone(Up(home=system_folder(tmp_path), address=""), pytest.fail):
        said = CliRunner().invoke(cli.app, [*command, "--home", str(tmp_path)])
    assert f"the etcd of the `supervisor up` in {tmp_path} does not answer at 127.0.0.1:2379" in said.stderr
    assert files in said.stderr
    monkeypatch.chdir(tmp_path)
    assert "supervisor logs ./NAME, " in CliRunner().invoke(cli.app, [*command, "--home", "."]).stderr


def test_a_reader_of_the_output_that_has_ended_is_no_mistake_of_a_person() -> None:
    """As in `supervisor logs -f | head -1`: typer ends the command without a word."""
    with pytest.raises(BrokenPipeError), common.sentences():
        raise BrokenPipeError
