"""`supervisor ledger`: the account of a run, from the files in its folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from supervisor.cli import ledger
from supervisor.shell.history import account
from tests.unit.fault_injection.files import RUN, Files, resumed, seconds, step, story

app = typer.Typer()
ledger.register(app)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "150"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the story's run, laid out as `supervisor up` does."""
    files = story(tmp_path)
    for entry in files.journal:
        for group, says in entry.get("groups", {}).items():
            says["node"] = {1: "n2", 2: "n2", 3: "n3"}[says["generation"]] if group == "1" else "n1"
    for entry in files.journal:
        if entry["entry"] == "intent":
            entry["phase"] = "running"
    files.decide(23.5, 8, {0: 1, 1: 3})
    files.journal[-2]["phase"] = "finished"
    files.write()
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    return tmp_path / RUN


def test_every_second_of_each_group_and_what_each_incident_cost(folder: Path) -> None:
    said = asked(str(folder), "--json")
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    assert (found["run"], found["seconds"], found["wrong"]) == (
        RUN,
        22.5,
        [],
    )  # the first decision at 1 s, the last step at 23 s, the run's end at 23.5 s
    assert (found["phase"], found["over"]) == ("finished", True)
    assert {group: round(sum(seconds.values()), 6) for group, seconds in found["groups"].items()} == {
        "0": 22.5,
        "1": 22.5,
    }
    # it steps from 5 s to 23 s, and one of these seconds was of a step that was not committed
    assert found["groups"]["0"]["productive"] == pytest.approx(17.0)
    assert found["groups"]["0"]["failed_step"] == pytest.approx(1.0)
    both = sum(seconds["productive"] for seconds in found["groups"].values())
    assert found["ettr"] == round(both / 45.0, 3)
    assert [(i["id"], i["kind"], i["group"]) for i in found["incidents"]] == [
        ("i1", "crash", 1),
        ("i2", "node_lost", 1),
    ]
    assert all(sum(i["lost_s"].values()) > 1.0 for i in found["incidents"])
    told = sum(sum(of.values()) for of in (*(i["lost_s"] for i in found["incidents"]), found["no_incident_s"]))
    assert told == pytest.approx(45.0 - both, abs=0.02), "each second that did not train is of one of them, or of none"


def test_it_is_told_in_tables(folder: Path) -> None:
    said = asked(str(folder)).output
    assert f"run {RUN}: 22.5 s of 2 groups (finished); ETTR " in said
    assert "i2        node_lost group 1  2" in said
    assert "-         no incident        -" in said
    assert "WRONG" not in said


@pytest.mark.parametrize("columns", [60, 70])
def test_a_row_is_a_line(folder: Path, columns: int) -> None:
    """Without room, whole causes are left out, the smallest first."""

    def told(width: int) -> list[str]:
        with (console := Console(width=width, soft_wrap=True)).capture() as said:
            console.print(ledger._Printed(account.of_run(folder)))
        return said.get().splitlines()

    wide, narrow = told(150), told(columns)
    assert len(narrow) == len(wide)
    assert max(map(len, narrow)) <= columns
    for of_wide, of_narrow in zip(wide, narrow, strict=True):
        assert of_wide.startswith(of_narrow.rstrip())
    assert max(map(len, wide)) > columns


def test_files_that_are_on_another_machine_are_missed(folder: Path) -> None:
    shutil.rmtree(folder.parent / ".supervisor" / "nodes" / "n3")
    said = asked(str(folder))
    assert said.exit_code == 1
    assert "WRONG: node n3: its files are not below" in said.output


def test_a_folder_may_be_called_as_one_likes(folder: Path) -> None:
    """It may be a copy that is kept: the run's name comes from its journal, or from its ranks' folders alone."""
    whole = account.of_run(folder)
    copy = folder.rename(folder.parent / "archived")
    assert account.of_run(copy) == whole
    (folder.parent / ".supervisor" / "nodes" / "n1" / "ranks" / "another.0.1.0").mkdir()
    journal = copy / "journal.jsonl"
    said = account.of_run(copy)
    assert said["run"] == "archived", "two runs have ranks here"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    begins = next(line for line in lines if line["entry"] == "intent")
    begins["actions"].append({"verb": "acquire", "key": f"acquire:{RUN}-a1", "reason": "the run starts"})
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert account.of_run(copy) == whole


def test_what_has_trained_and_left_no_file_is_missed(folder: Path) -> None:
    """Its time does not count as trained then."""
    system = folder.parent / ".supervisor"
    for path in system.glob("nodes/*/ranks"):
        shutil.rmtree(path)
    for path in system.glob("nodes/*/shim.jsonl"):
        path.unlink()
    said = asked(str(folder), "--json")
    assert said.exit_code == 1
    assert json.loads(said.output)["wrong"] == [
        f"group {g} generation {n}: it has trained, and there is no step file and no shim's line of it below {system}"
        for g, n in ((0, 1), (1, 1), (1, 2), (1, 3))
    ]


def test_what_was_only_started_may_have_left_none(folder: Path) -> None:
    """Its node was lost before it had begun."""
    with (folder / "journal.jsonl").open("a") as file:
        about = {"t": 23.4, "epoch": 1, "decision": 9}
        groups = {"0": {"generation": 2, "node": "n1", "phase": "starting"}}
        acts = [{"verb": "start", "key": "start:0:2", "reason": "", "group": 0, "generation": 2}]
        file.write(
            json.dumps({**about, "entry": "intent", "phase": "running", "actions": acts, "groups": groups}) + "\n"
        )
        file.write(json.dumps({**about, "entry": "outcome", "refused": ""}) + "\n")
    assert account.of_run(folder, now=24.0)["wrong"] == []


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


def test_a_folder_of_no_run_and_a_run_of_which_nothing_was_decided(folder: Path) -> None:
    (folder.parent / "fresh").mkdir()
    (folder.parent / "fresh" / "journal.jsonl").write_text('{"t":0.5,"entry":"event","event":"term","epoch":1}\n')
    for where, words in (
        (folder.parent, "holds no journal.jsonl"),
        (folder.parent / "fresh", "its journal has no decision yet"),
    ):
        said = asked(str(where))
        assert said.exit_code == 1
        assert words in said.output + said.stderr
        assert "Traceback" not in said.output


# --- of a run that is not over ---


def live(folder: Path, until: float) -> Path:
    """The story's journal, as far as it was written then."""
    journal = folder / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines if line["t"] <= until))
    return folder


def test_what_stands_still_costs_until_now(folder: Path) -> None:
    """Both groups have ended by now, and nothing is done about it: the run is paused."""
    live(folder, 22.95)
    early, late = (account.of_run(folder, now=now) for now in (60.0, 105.0))
    assert not early["over"]
    assert (early["seconds"], late["seconds"]) == (59.0, 104.0)
    assert late["ettr"] < early["ettr"]
    assert late["causes"]["productive"] == early["causes"]["productive"]
    assert early["wrong"] == late["wrong"] == []


def test_what_nobody_supervises_is_counted_until_it_was_last_heard_of(folder: Path) -> None:
    """Its machine lost its power, and the run's end is unknown."""
    live(folder, 22.0)
    found = account.of_run(folder, now=100_000.0)
    assert (found["over"], found["silent_since_unix_s"], found["seconds"], found["wrong"]) == (False, 23.2, 22.2, [])
    assert "nothing is heard of it since 1970-01-01 00:00:23 UTC; counted until then" in asked(str(folder)).output
    with (folder.parent / ".supervisor" / "up.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getpid(), file=lock, flush=True)
        found = account.of_run(folder, now=100_000.0)
        assert (found["silent_since_unix_s"], found["seconds"]) == (None, 99_999.0), "it stands still, as one paused"
    assert account.of_run(folder, now=100_000.0)["seconds"] == 22.2


def test_a_run_whose_trainers_are_silent_for_longer_at_times_is_heard_of(folder: Path) -> None:
    live(folder, 22.0)
    (steps,) = (folder.parent / ".supervisor").glob("nodes/n1/ranks/*/steps.jsonl")
    with steps.open("a") as file:
        file.write(json.dumps({"event": "evaluated", "start": 24.0, "t": 1024.0}) + "\n")
    for now, silent in ((2900.0, None), (3200.0, 1024.0)):
        assert account.of_run(folder, now=now)["silent_since_unix_s"] == silent


def test_the_step_that_is_under_way_is_not_counted_yet(folder: Path) -> None:
    live(folder, 22.95)
    found = account.of_run(folder, now=24.0)
    assert (found["over"], found["seconds"], found["wrong"]) == (False, 22.0, [])


def test_before_the_first_step_it_tells_what_there_is(folder: Path) -> None:
    live(folder, 5.0)
    for path in (folder.parent / ".supervisor").glob("nodes/*/ranks/*/steps.jsonl"):
        lines = [line for line in path.read_text().splitlines(True) if json.loads(line)["t"] <= 4.0]
        path.write_text("".join(lines))
    found = account.of_run(folder, now=4.0)
    assert (found["seconds"], found["ettr"], found["wrong"]) == (3.0, 0.0, [])
    assert found["causes"] == {"act": pytest.approx(1.8), "allocate": pytest.approx(0.2), "start": pytest.approx(4.0)}
    for shim in (folder.parent / ".supervisor").glob("nodes/*/shim.jsonl"):
        lines = [line for line in shim.read_text().splitlines(True) if json.loads(line)["t"] <= 4.0]
        shim.write_text("".join(lines))
    found = account.of_run(folder, now=60.0)
    assert found["causes"]["start"] == pytest.approx(2 * 58.0), "a long first step is no failure that nobody has seen"


def test_a_run_that_was_halted_and_resumed_is_not_over(folder: Path) -> None:
    (journal := folder / "journal.jsonl").write_text(journal.read_text().replace('"finished"', '"halted"'))
    assert account.of_run(folder, now=60.0)["seconds"] == 22.5
    with journal.open("a") as file:
        file.write('{"t":30.0,"entry":"intent","epoch":1,"decision":9,"phase":"resuming"}\n')
    found = account.of_run(folder, now=60.0)
    assert (found["phase"], found["over"], found["seconds"]) == ("resuming", False, 59.0 - 6.5)


def written(files: Files) -> Path:
    """As `supervisor up` lays it out."""
    files.write()
    (files.folder / "system").rename(files.folder / ".supervisor")
    return files.folder / RUN


def test_what_a_person_takes_to_resume_it_is_left_out(tmp_path: Path) -> None:
    """It is as in the leader's accounts (`test_live_accounts`): eight hours of a halt were once counted as `detect`."""
    folder = written(resumed(tmp_path))
    found = account.of_run(folder)
    assert (found["phase"], found["over"], found["wrong"]) == ("finished", True, [])
    assert (found["seconds"], found["halted_s"]) == (28864.0 - 1.0 - 28800.0, 28800.0)
    assert found["groups"][0] == {
        "productive": 55.0,
        "start": 4.0,  # 2 s to 5 s, 28813 s to 28814 s
        "act": pytest.approx(0.9 + 0.9),
        "lost_step": pytest.approx(0.6),
        "detect": pytest.approx(0.4),  # 10.6 s to 11 s
        "allocate": pytest.approx(0.1 + 1.1),  # until a node was found, at 28812.1 s
    }
    assert found["ettr"] == pytest.approx(55.0 / 63.0, abs=1e-4)
    assert sum(found["incidents"][0]["lost_s"].values()) == pytest.approx(1.0), "what the halt cost is no incident's"
    assert "(finished; 28800.0 s for which it was halted are left out)" in asked(str(folder)).output


def test_who_is_told_to_end_commits_its_step(tmp_path: Path) -> None:
    """A halt ends the healthy groups, each after its current step. The rest of that step is rightly not counted."""
    files = resumed(tmp_path)
    last = files.steps["n1", 0, 1][-1]
    assert last["t"] <= 11.0
    files.steps["n1", 0, 1].append(step(last["t"], 13.0, 6))
    assert not account.of_run(written(files))["wrong"]


def test_a_step_in_a_halt_is_wrong(tmp_path: Path) -> None:
    """Nothing begins then, so a trainer's record of it is not counted."""
    files = resumed(tmp_path)
    files.steps["n1", 0, 1] += seconds(11.1, 6, 2)
    wrong = account.of_run(written(files))["wrong"]
    assert "group 0 generation 1: steps until 2.1 s after a halt: they are not counted" in wrong


def test_a_halt_is_as_long_as_the_journal_says() -> None:
    phases = ((1.0, "running"), (5.0, "halted"), (6.0, "halted"), (9.0, "resuming"), (12.0, "halted"), (20.0, "new"))
    lines = [{"t": at, "entry": "intent", "phase": phase} for at, phase in phases]
    assert account.lasts(lines, 30.0) == account.Lasted(1.0, 30.0, "new", False, halts=((5.0, 9.0), (12.0, 20.0)))
    assert account.lasts(lines[:5], 30.0) == account.Lasted(1.0, 12.0, "halted", True, halts=((5.0, 9.0),))


def test_a_halt_that_was_never_committed_is_none() -> None:
    """Its supervisor died, and the next one gave its number to another decision."""
    lines: list[dict[str, Any]] = [
        {"t": 1.0, "entry": "intent", "phase": "running", "decision": 1, "changed": True},
        {"t": 5.0, "entry": "intent", "phase": "halted", "decision": 2, "changed": True},
        {"t": 40.0, "entry": "intent", "phase": "running", "decision": 2, "changed": True},
    ]
    assert account.lasts(lines, 50.0) == account.Lasted(1.0, 50.0, "running", False)
    waits = lines[0] | {"t": 9.0, "changed": False}  # since the one before it
    assert account.lasts([*lines[:2], waits, lines[2]], 50.0) == account.Lasted(1.0, 50.0, "running", False)
    lines[2]["changed"] = False  # it has found it, and reports what it waits for
    assert account.lasts(lines, 50.0) == account.Lasted(1.0, 50.0, "running", False, halts=((5.0, 40.0),))


def test_a_decision_that_was_refused_ends_no_run() -> None:
    lines = [
        {"t": 1.0, "entry": "intent", "phase": "running"}, {"t": 1.1, "entry": "outcome", "refused": ""},
        {"t": 5.0, "entry": "intent", "phase": "halted"}, {"t": 5.1, "entry": "outcome", "refused": "another leads"},
    ]  # fmt: skip
    assert account.lasts(lines, 9.0) == account.Lasted(1.0, 9.0, "running", False)
    assert account.lasts(lines[:3], 9.0) == account.Lasted(1.0, 5.0, "halted", True)
    assert account.lasts([], 9.0) is None
    assert account.lasts([{"entry": "intent", "phase": "running"}, *lines], 9.0) == account.lasts(lines, 9.0)


def test_a_ledger_that_leaves_out_some_of_the_run_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that covers its given time covers all of it, so the journal determines how much there is."""
    live(folder, 22.95)
    monkeypatch.setattr(account, "_span", lambda history, lasted: (account.Span(1.0, 23.0), 2.0))
    assert account.of_run(folder, now=60.0)["wrong"] == [
        f"group {g}: 22.0 s are under a cause, and the run has lasted 59.0 s by its journal" for g in (0, 1)
    ]


def test_steps_after_the_end_of_the_run_are_wrong(folder: Path) -> None:
    (journal := folder / "journal.jsonl").write_text(journal.read_text().replace('"t": 23.5', '"t": 21.9'))
    wrong = account.of_run(folder)["wrong"]
    assert "group 0 generation 1: steps until 1.1 s after the end of the run: they are not counted" in wrong
