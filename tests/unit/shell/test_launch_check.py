"""The questions of `launch` to Slurm before it writes anything, and the cases where it reports that it did not ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec
from supervisor.ports.engine import Request
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines import registry
from supervisor.shell.engines.slurm import engine
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, encode
from tests.unit.shell.records import MEMORY, run_values

SPEC = RunSpec(name="run", allocation=AllocationSpec(engine="slurm", slurm=SlurmSpec(partition="gpu")))
CONTEXT = registry.Context(home=Path("/nowhere"), etcd=("e:1",))


class Engine:
    """Gives the answer that the test sets."""

    answer: Exception | None = None
    asked: Sequence[Request] = ()

    def __init__(self, etcd: Sequence[str], security: str, system: str) -> None:
        pass

    def check(self, request: Request) -> None:
        Engine.asked = [*Engine.asked, request]
        if Engine.answer is not None:
            raise Engine.answer


@pytest.fixture(autouse=True)
def _slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SlurmEngine", Engine)
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(Engine, "answer", None)
    monkeypatch.setattr(Engine, "asked", ())


def test_slurm_is_asked_for_the_runs_own_job() -> None:
    assert registry.before_launch(SPEC, CONTEXT) == ""
    assert [(r.run, r.slots, r.spec) for r in Engine.asked] == [("run", 1, SPEC.allocation)]


def test_a_local_run_asks_nothing() -> None:
    assert registry.before_launch(RunSpec(name="run"), CONTEXT) == ""
    assert Engine.asked == ()


def test_where_slurm_is_not_it_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.shutil, "which", lambda name: None)
    assert registry.before_launch(SPEC, CONTEXT).endswith(
        "Slurm was not asked if it accepts the run's jobs: there is no sbatch"
    )
    assert Engine.asked == ()


def test_where_slurm_is_away_it_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "answer", Retryable("no controller answers"))
    assert registry.before_launch(SPEC, CONTEXT).endswith(
        "Slurm was not asked if it accepts the run's jobs: no controller answers"
    )


def test_a_refused_run_is_not_launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, store = tmp_path / "run.toml", MemoryStore()
    file.write_text('name = "run"\n[allocation]\nengine = "slurm"\n[allocation.slurm]\npartition = "gpu"\n')
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    monkeypatch.setattr(common, "connect", lambda *_, **__: store)
    monkeypatch.setattr(store, "close", lambda: None)  # one for all commands
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))
    command = ["launch", str(file), "--etcd", "127.0.0.1:1", "--home", str(tmp_path / "runs")]
    monkeypatch.setattr(Engine, "answer", Fatal('Slurm refuses allocation.slurm.partition = "gpu": its words'))
    for arguments in (command, [*command, "--check"]):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 1
        assert 'supervisor: Slurm refuses allocation.slurm.partition = "gpu": its words' in result.output
        assert store.get(keys.spec("run")) is None
        assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(Engine, "answer", None)
    store = MemoryStore()
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    assert CliRunner().invoke(cli.app, command).exit_code == 0


def test_a_run_that_was_launched_before() -> None:
    store = MemoryStore()
    assert client.launched_before(store, SPEC) is None
    store.put(keys.spec("run"), encode(client.RunRecord(spec=SPEC, run_dir="/r", launched_unix_s=1.0)))
    known = client.launched_before(store, SPEC)
    assert known is not None
    assert known.run_dir == "/r"
    with pytest.raises(Fatal, match="another run is already named 'run'"):
        client.launched_before(store, RunSpec(name="run"))


# --- names ---


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[MemoryStore, Path]:
    """A store with the run `run`, and the run file of one of that name. TorchTitan must not be asked about it."""
    store, file = MemoryStore(), tmp_path / "run.toml"
    store.commit(run_values(MEMORY))
    file.write_text('name = "run"\n')
    monkeypatch.setattr(common, "connect", lambda *_, **__: store)
    monkeypatch.setattr(store, "close", lambda: None)
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: pytest.fail("the slow check was begun"))
    return store, file


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_a_folder_that_is_no_checkpoint_is_one_sentence(
    untouched: tuple[MemoryStore, Path], tmp_path: Path, check: tuple[str, ...]
) -> None:
    command = ["launch", str(untouched[1]), "--etcd", "127.0.0.1:1", "--resume-from", str(tmp_path / "none"), *check]
    result = CliRunner().invoke(cli.app, command)
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "none is no complete checkpoint of a run: give a folder such as" in result.stderr


def test_that_nobody_leads_and_that_a_name_is_taken_are_told_before_the_slow_check(
    untouched: tuple[MemoryStore, Path],
) -> None:
    store, file = untouched
    result = CliRunner().invoke(cli.app, ["launch", str(file), "--etcd", "127.0.0.1:1"])
    assert (result.exit_code, "no supervisor leads" in result.stderr) == (1, True)
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    result = CliRunner().invoke(cli.app, ["launch", str(file), "--etcd", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("supervisor: a run named 'run' already exists: choose another name (--name)")


def test_a_run_has_the_name_that_launch_is_given(
    untouched: tuple[MemoryStore, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, file = untouched
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))
    command = ["launch", str(file), "--etcd", "127.0.0.1:1", "--home", str(tmp_path / "runs"), "--name"]
    result = CliRunner().invoke(cli.app, [*command, "a_b"])
    assert (result.exit_code, "name = 'a_b': use 1 to 63 letters" in result.stderr) == (2, True)
    result = CliRunner().invoke(cli.app, [*command, "again"])
    assert result.exit_code == 0, result.output
    assert store.get(keys.spec("again")) is not None
    assert (tmp_path / "runs" / "again").is_dir()


def test_validate_asks_no_etcd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "run"\n')
    monkeypatch.setattr(common, "connect", lambda *_, **__: pytest.fail("etcd was asked"))
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))
    result = CliRunner().invoke(cli.app, ["validate", str(file)])
    asks = f"{file}: asks for 3 nodes of 1 rank each: 2 x 1 for its groups, 1 as spares\n"
    data, valid = f"{file}: data: each group reads a share of its own", f"{file}: run 'run' is valid\n"
    assert result.exit_code == 0
    assert result.stdout.startswith(asks + data)
    assert result.stdout.endswith(valid)
    file.write_text('name = "run"\n[titan.data]\nsource = "tokens"\npath = "/tokens"\n')
    assert CliRunner().invoke(cli.app, ["validate", str(file)]).stdout == asks + valid
    problem = "titan.recipe = 'x': no recipe 'x'"
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([problem], []))
    result = CliRunner().invoke(cli.app, ["validate", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"supervisor: {file}: {problem}" in result.stderr


# --- timeouts ---


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, bool]]:
    """`launch` of a run file, with measurements of a run named `before`. Returns its result, and if it launched."""

    def launch(text: str, seen: Measured = NOTHING, *more: str) -> tuple[Result, bool]:
        store = MemoryStore()
        store.commit(run_values(replace(MEMORY, measured=seen), "before"))
        store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
        monkeypatch.setattr(common, "connect", lambda *_, **__: store)
        monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))
        file = tmp_path / "run.toml"
        file.write_text(f'name = "new"\n{text}')
        command = ["launch", str(file), "--etcd", "127.0.0.1:1", "--home", str(tmp_path / "runs"), *more]
        result = CliRunner().invoke(cli.app, command)
        return result, any(keys.spec("new") in puts for puts in store.commits)

    return launch


UNSAFE = "[policy.hang]\nat_least_s = 10.0\n"


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_an_unsafe_set_is_refused_with_key_value_the_least_and_why(launched: Any, more: Sequence[str]) -> None:
    result, done = launched(UNSAFE, NOTHING, *more)
    assert result.exit_code == 2
    for words in ("policy.hang.at_least_s = 10 is below 15 s", "taken for hanging", "at least 15"):
        assert words in result.output
    assert "timeouts of run (as written)" in result.output
    assert [line.split()[0] for line in result.output.splitlines() if line.endswith("unsafe")] == [
        "policy.hang.at_least_s"
    ]
    assert "torchft.heartbeat_timeout_ms" in result.output, "what fits is printed beside it"
    assert not done


def test_a_collective_that_the_same_recipe_took_before_refuses_a_shorter_timeout(launched: Any) -> None:
    seen = Measured(collective_s=12.0)
    result, done = launched("", seen)
    assert result.exit_code == 2
    assert "torchft.process_group_timeout_ms = 10000 is below 12001 ms" in result.output
    assert "measured in run before, which trained the same" in result.output
    assert not done
    result, _ = launched("[torchft]\nprocess_group_timeout_ms = 13000\n[policy.hang]\nat_least_s = 60.0\n", seen)
    assert result.exit_code == 0


@pytest.mark.parametrize("text", ['[titan.overrides]\n"training.seq_len" = 64\n', "[groups]\nranks_per_group = 2\n"])
def test_what_another_model_took_says_nothing(launched: Any, text: str) -> None:
    result, done = launched(text, Measured(collective_s=12.0))
    assert result.exit_code == 0, result.output
    assert done


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_what_is_only_short_is_noted_in_a_line_and_what_fits_is_not_printed(launched: Any, more: Sequence[str]) -> None:
    result, _ = launched("[policy]\nsilent_timeout_s = 7.0\n", NOTHING, *more)
    assert result.exit_code == 0
    (note,) = [line for line in result.output.splitlines() if "policy." in line]
    assert note == "supervisor: policy.silent_timeout_s = 7 is safe but short: two leases; better 10"
    result, _ = launched("", NOTHING, *more)
    assert len(result.stdout.splitlines()) == 1 + 2 * len(more)
    assert result.stderr == "supervisor: checking the config with TorchTitan ...\n"


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_a_file_with_the_webhooks_url_that_is_not_here_is_said(
    launched: Any, more: Sequence[str], tmp_path: Path
) -> None:
    """Nothing more happens: the supervisor, which reads it, may be on another machine."""
    result, _ = launched(f'[policy]\nwebhook_file = "{tmp_path}/url"\n', NOTHING, *more)
    assert result.exit_code == 0, result.output
    (note,) = [line for line in result.output.splitlines() if "policy." in line]
    assert note.startswith(f"supervisor: policy.webhook_file: {tmp_path}/url cannot be read here (No such file")
