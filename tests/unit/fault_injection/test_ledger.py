"""`supervisor ledger`: the account of a run, from the files in its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from fault_injection import ledger
from tests.unit.fault_injection.files import RUN, story

app = typer.Typer()
ledger.register(app)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "150"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the story's run, laid out as `supervisor up` does."""
    files = story(tmp_path)
    for entry in files.journal:
        for group, says in entry.get("groups", {}).items():
            says["node"] = {1: "n2", 2: "n2", 3: "n3"}[says["generation"]] if group == "1" else "n1"
    files.write()
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    return tmp_path / RUN


def test_every_second_of_each_group_and_what_each_incident_cost(folder: Path) -> None:
    said = asked(str(folder), "--json")
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    assert (found["run"], found["seconds"], found["wrong"]) == (
        RUN,
        22.0,
        [],
    )  # the first decision at 1 s, the last step at 23 s
    assert {group: round(sum(seconds.values()), 6) for group, seconds in found["groups"].items()} == {
        "0": 22.0,
        "1": 22.0,
    }
    # it steps from 5 s to 23 s, and one of these seconds was of a step that was not committed
    assert found["groups"]["0"]["productive"] == pytest.approx(17.0)
    assert found["groups"]["0"]["failed_step"] == pytest.approx(1.0)
    both = sum(seconds["productive"] for seconds in found["groups"].values())
    assert found["ettr"] == pytest.approx(both / 44.0, abs=1e-4)
    assert [(i["id"], i["kind"], i["group"]) for i in found["incidents"]] == [
        ("i1", "crash", 1),
        ("i2", "node_lost", 1),
    ]
    assert all(sum(i["lost_s"].values()) > 1.0 for i in found["incidents"])


def test_it_is_told_in_tables(folder: Path) -> None:
    said = asked(str(folder)).output
    assert f"run {RUN}: 22.0 s of 2 groups; ETTR " in said
    assert "i2        node_lost group 1  2" in said
    assert "WRONG" not in said


def test_files_that_are_on_another_machine_are_missed(folder: Path) -> None:
    shutil.rmtree(folder.parent / ".supervisor" / "nodes" / "n3")
    said = asked(str(folder))
    assert said.exit_code == 1
    assert "WRONG: node n3: its files are not below" in said.output


def test_a_line_that_cannot_be_read_is_named_and_one_that_is_being_written_is_not(folder: Path) -> None:
    journal = folder / "journal.jsonl"
    whole = journal.read_text()
    journal.write_text(whole + '{"t": 17')
    assert asked(str(folder)).exit_code == 0
    first, rest = whole.split("\n", 1)
    journal.write_text(f"{first}\nnonsense\n{rest}")
    said = asked(str(folder))
    assert said.exit_code == 1
    assert f"WRONG: journal.jsonl of {RUN}: line 2 is no JSON" in said.output


def test_a_folder_of_no_run_and_a_run_that_never_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for where, words in ((folder.parent, "holds no journal.jsonl"), (folder, "no step is written down")):
        shutil.rmtree(folder.parent / ".supervisor", ignore_errors=True)
        said = asked(str(where))
        assert said.exit_code == 1
        assert words in said.output + said.stderr
        assert "Traceback" not in said.output
