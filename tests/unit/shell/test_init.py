"""The first run file: what is asked, what is written, and that it is checked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.spec import RunSpec
from supervisor.shell.inspect import client
from supervisor.shell.runfile import parse, starter


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: ([], []))


def init(*arguments: str, answers: str = "") -> Result:
    return CliRunner().invoke(cli.app, ["init", *arguments], input=answers)


def test_without_a_terminal_it_asks_nothing_and_what_it_writes_is_a_run_file() -> None:
    result = init("my_run.toml")
    assert result.exit_code == 0, result.output
    spec = parse.load(Path("my_run.toml"))
    assert spec == RunSpec(name="my-run"), "the defaults are those of a run file"
    launch = "supervisor launch my_run.toml --follow"
    assert result.stdout == (f"wrote my_run.toml\nNext: supervisor up --nodes 3, and in a second terminal: {launch}\n")


@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_each_line_has_the_reason_that_the_reference_gives(engine: Any) -> None:
    given = starter.Answers(name="a", recipe="m:f", data="python-stdlib", groups=4, ranks=8, engine=engine)
    text = starter.text(given, Path("run.toml"))
    lines = text.splitlines()
    keys = [at for at, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) >= 12
    assert all(lines[at - 1].startswith("# ") for at in keys)
    assert "docs/RUN_FILE.md" in lines[0]
    tables = [line for line in lines if line.startswith("[")]
    assert tables[0] == "[titan]  # The training by TorchTitan: recipe, length, data and checkpoints."
    assert all(line.endswith(".") for line in tables)
    assert "# one process, unless the model is too large for it\nranks_per_group = 8\n" in text
    spec = parse.parse(tomllib.loads(text))
    assert (spec.groups.count, spec.allocation.nodes, spec.allocation.engine) == (4, 4, engine)
    assert (spec.titan.recipe, spec.titan.data.source) == ("m:f", "python-stdlib")
    assert ("partition" in text) is (engine == "slurm")


def test_a_person_is_asked_for_what_no_option_gives_until_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "person_asked", lambda: True)
    pair = "--module llama3 --config llama3_debugmodel"
    Path("texts").mkdir()
    result = init("--engine", "local", answers=f"a b\nmine\n{pair}\nnowhere\ntexts\n0\n3\n\n")
    assert result.exit_code == 0, result.output
    for words in ("name = 'a b': use 1 to 63 letters", "'nowhere' is no folder here", "'0': give a number"):
        assert words in result.stderr
    assert "Nodes from" not in result.output
    spec = parse.load(Path("run.toml"))
    assert (spec.name, spec.titan.recipe, spec.groups.count) == ("mine", pair, 3)
    assert (spec.titan.data.source, spec.titan.data.path) == ("folder", str(Path("texts").resolve()))


def test_a_folder_is_meant_from_here_wherever_the_file_is() -> None:
    Path("texts").mkdir()
    Path("files").mkdir()
    assert init("files/run.toml", "--data", "texts").exit_code == 0
    assert 'path = "../texts"' in Path("files/run.toml").read_text()
    assert parse.load(Path("files/run.toml")).titan.data.path == str(Path("texts").resolve())


def test_a_folder_that_holds_a_token_store() -> None:
    Path("tokens").mkdir()
    Path("tokens/manifest.json").touch()
    assert init("run.toml", "--data", "tokens").exit_code == 0
    spec = parse.load(Path("run.toml"))
    assert (spec.titan.data.source, spec.titan.data.path) == ("tokens", str(Path("tokens").resolve()))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--name", "a_b", "use 1 to 63 letters"),
        ("--data", "nowhere", "is no folder here"),
        ("--groups", "0", "at least 1"),
        ("--ranks", "-1", "at least 1"),
        ("--engine", "lsf", "give local or slurm"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(option: str, value: str, words: str) -> None:
    result = init(option, value)
    assert result.exit_code == 2
    assert f"Invalid value for {option}" in result.output
    assert words in result.output
    assert not Path("run.toml").exists()


def test_a_file_is_overwritten_only_by_force() -> None:
    Path("run.toml").write_text("precious")
    result = init()
    assert (result.exit_code, Path("run.toml").read_text()) == (2, "precious")
    assert "run.toml exists: give another name, or --force" in result.output
    assert init("--force").exit_code == 0
    assert Path("run.toml").read_text() != "precious"


def test_what_torchtitan_finds_wrong_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: (["titan.recipe = 'x': no recipe 'x'"], []))
    result = init("--recipe", "x")
    assert result.exit_code == 2
    assert "supervisor: run.toml: titan.recipe = 'x': no recipe 'x'" in result.stderr
    assert "correct run.toml, then check it: supervisor validate run.toml" in result.stderr
    assert "Next:" not in result.output
