"""A past run's folder by the Python API: lists without pandas, and the same as tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import supervisor.client as everstep
from supervisor import cli
from tests.unit.fault_injection.files import RUN, story


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the story's run, laid out as `supervisor up` does."""
    files = story(tmp_path)
    for entry in files.journal:
        if entry["entry"] == "intent":
            entry |= {"phase": "running", "now": entry["t"] - 0.5}
    files.decide(23.5, 8, {0: 1, 1: 3})
    files.journal[-2]["phase"] = "finished"
    files.write()
    journal = tmp_path / RUN / "journal.jsonl"  # without blanks, as a supervisor writes it
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in files.journal))
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    return tmp_path / RUN


def ledger(folder: Path) -> dict[str, object]:
    result = CliRunner().invoke(cli.app, ["ledger", str(folder), "--json"])
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_its_ledger_is_the_commands(folder: Path) -> None:
    past, said = everstep.open(folder), ledger(folder)
    found = past.ledger()
    assert (past.name, found.run, found.phase, found.over) == (RUN, RUN, "finished", True)
    assert (found.seconds, found.ettr, found.badput) == (said["seconds"], said["ettr"], said["badput"])
    groups: dict[str, dict[str, float]] = {}
    for row in found.by_group:
        groups.setdefault(str(row.group), {})[row.cause] = row.seconds
    assert groups == said["groups"]
    assert sum(row.share for row in found.by_group if row.group == 0) == pytest.approx(1.0)
    assert list(found.wrong) == said["wrong"]


def test_its_steps_are_the_committed_ones_of_all_ranks(folder: Path) -> None:
    found = everstep.open(folder).steps_list()
    assert {(s.run, s.group, s.generation, s.rank) for s in found} == {
        (RUN, 0, 1, 0), (RUN, 1, 1, 0), (RUN, 1, 2, 0), (RUN, 1, 3, 0),
    }  # fmt: skip
    lines = [
        json.loads(line)
        for path in folder.parent.glob(".supervisor/nodes/*/ranks/*/steps.jsonl")
        for line in path.read_text().splitlines()
    ]
    committed = [line for line in lines if line["event"] == "step" and line["committed"]]
    assert len(found) == len(committed) < len(lines)
    assert sum(s.step_s or 0.0 for s in found) == pytest.approx(sum(line["t"] - line["start"] for line in committed))


def test_its_incidents_are_as_its_journal_has_them(folder: Path) -> None:
    past = everstep.open(folder)
    found = past.incidents_list()
    assert [(i.id, i.kind, i.group, i.state) for i in found] == [
        ("i1", "crash", 1, "recovered"),
        ("i2", "node_lost", 1, "recovered"),
    ]
    assert [i.seen_unix_s for i in found] == [0.5, 0.5], "they were opened when the run clock began"
    assert [i.reason for i in found] == ["because", "because"]
    assert past.ledger().by_incident.keys() == {"i1", "i2"}
    said = CliRunner().invoke(cli.app, ["explain", "i1", "--journal", str(folder / "journal.jsonl")])
    assert str(past.explain("i1")) + "\n" == said.stdout
    with pytest.raises(everstep.EverstepError, match=r"has no incident 'i9'; known: i1, i2"):
        past.explain("i9")


def test_a_folder_without_a_journal(tmp_path: Path) -> None:
    with pytest.raises(everstep.EverstepError, match=f"{tmp_path} holds no journal.jsonl: give the folder of a run"):
        everstep.open(tmp_path)
    (tmp_path / "journal.jsonl").touch()
    past = everstep.open(tmp_path)
    assert (past.steps_list(), past.incidents_list()) == ([], ())
    with pytest.raises(everstep.EverstepError, match="its journal has no decision yet"):
        past.ledger()


def test_its_tables(folder: Path) -> None:
    past = everstep.open(folder)
    steps, rows = past.steps(), past.steps_list()
    assert list(steps.columns) == ["run", "group", "generation", "rank", "step", "loss", "step_s", "time"]
    assert (len(steps), steps["step_s"].sum()) == (len(rows), pytest.approx(sum(r.step_s or 0.0 for r in rows)))
    assert steps["time"][0] == pandas.Timestamp(rows[0].time_unix_s, unit="s", tz="UTC").round("us")
    assert (steps["loss"].dtype, steps["step"].dtype) == ("float64", "int64")
    goodput = past.goodput()
    assert goodput[goodput.group == 1].set_index("cause").seconds.to_dict() == {
        row.cause: row.seconds for row in past.ledger().by_group if row.group == 1
    }
    incidents = past.incidents()
    assert list(incidents["id"]) == ["i1", "i2"]
    assert {"seen", "recovered", "lasted_s", "reason"} <= set(incidents.columns)


def test_tables_of_a_run_without_a_step_have_their_columns(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    past = everstep.open(tmp_path)
    assert (len(past.steps()), list(past.steps().columns)[-1]) == (0, "time")
    assert past.incidents().empty


def test_without_pandas_a_table_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    past = everstep.open(folder)
    for table in (past.incidents, past.steps, past.goodput):
        with pytest.raises(everstep.EverstepError, match=r"needs pandas, .*: pip install 'everstep\[pandas\]'"):
            table()
    assert past.steps_list()
