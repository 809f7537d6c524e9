"""The command line of `supervisor data`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from supervisor.wire.command_line import Later
from tests.unit.titan_actor.tokens.stores import written
from titan_actor.tokens import command, commands

ROOT = Path(__file__).parents[4]


def said(code: int, *arguments: str) -> str:
    result = CliRunner().invoke(command.data, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_line_finds_it() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["supervisor.commands"]["titan_actor"].partition(":")
    assert getattr(importlib.import_module(module), name) is commands.register
    assert ("data", "command") in [each[1:3] for each in commands.COMMANDS]


def test_each_command_has_an_example_that_begins_with_it() -> None:
    for name, each in typer.main.get_group(command.data).commands.items():
        whole = each.chosen() if isinstance(each, Later) else each
        assert (whole.epilog or "").startswith(f"Example: supervisor data {name}")


def test_a_store_is_shown_and_verified(tmp_path: Path) -> None:
    folder = written(tmp_path, [[[1, 2, 3, 4]], [[5, 6]]])
    text = said(0, "show", str(folder), "--verify")
    assert "6 tokens of 2 documents in 2 shards, 0.0 MB (store " in text
    assert "all files of 2 shards are as the manifest says" in text
    facts = json.loads(said(0, "show", str(folder), "--json"))
    assert (facts["documents"], facts["tokens"], facts["pairs"], facts["vocabulary"]) == (2, 6, 4, 500)
    (folder / "s1.bin").write_bytes(b"\x05\x00\x07\x00")
    assert f"supervisor: {folder}/s1.bin is corrupt: its hash is not" in said(1, "show", str(folder), "--verify")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "/nowhere"), "supervisor: /nowhere is no token store: there is no such folder"),
        (("build", "/nowhere", "--tokenizer", "shipped", "--out", "o"), "supervisor: there is no /nowhere"),
        (("build", ".", "--tokenizer", "/nowhere", "--out", "o"), "supervisor: there is no tokenizer.json in /nowhere"),
    ],
)
def test_a_mistake_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in said(1, *arguments)


@pytest.mark.parametrize("out", ["corpus/tokens", "corpus", "link/tokens"])
def test_a_store_in_its_own_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("link").symlink_to("corpus")
    Path("corpus/a.txt").write_text("text")
    text = said(1, "build", "corpus", "--tokenizer", "shipped", "--out", out)
    assert text == f"supervisor: {out} is in the source corpus: give an --out outside of it\n"
    assert [path.name for path in Path("corpus").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("package", ["numpy", "tokenizers"])
def test_a_package_that_is_not_installed(package: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    code = f"import sys; sys.modules[{package!r}] = None; from titan_actor.tokens.command import data; data()"
    arguments = ["build", "a.txt", "--tokenizer", "shipped", "--out", "o"]
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert found.returncode == 1
    assert found.stderr == f"supervisor: {package} is not installed here: pip install 'everstep[trainer]'\n"


def test_nothing_but_the_loader_imports_torch() -> None:
    modules = ("build", "check", "command", "reader", "sources", "stream")
    lines = "; ".join(f"import titan_actor.tokens.{module}" for module in modules)
    found = subprocess.run(
        [sys.executable, "-c", f"{lines}; import sys; print('torch' in sys.modules, 'torchtitan' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["False", "False"]
