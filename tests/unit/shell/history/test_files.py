"""The history read from a run's files, and the treatment of missing parts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.shell.control.journal import Journal
from supervisor.shell.history.files import without_later
from tests.unit.fault_injection.files import Files, answers, place, story


def test_everything_is_read(tmp_path: Path) -> None:
    history = story(tmp_path).history()
    assert [d.number for d in history.decisions] == [1, 2, 3, 4, 5, 6, 7]
    assert history.committed() == history.decisions
    assert [(p.group, p.generation, p.node, p.spawned) for p in history.processes] == [
        (0, 1, "n1", 2.0), (1, 1, "n2", 2.0), (1, 2, "n2", 11.0), (1, 3, "n3", 19.5),
    ]  # fmt: skip
    assert [(p.exited, p.exit_code, p.signal) for p in history.processes] == [
        (23.2, 0, None), (10.6, None, 9), (18.375, None, None), (23.2, 0, None),
    ]  # fmt: skip
    assert [s.generation for s in history.of_group(1)] == [1, 2, 3]
    assert [s.node for s in history.of_group(1)] == ["n2", "n2", "n3"]
    assert history.unreadable == []


def test_another_run_and_other_processes_are_left_out(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.shims["n1"].append({"t": 3.0, "event": "spawned", "name": "run-2.0.1.0", "pid": 9, "start_ticks": 9})
    files.shims["n1"].append({"t": 3.0, "event": "spawned", "name": "lighthouse.run.1", "pid": 8, "start_ticks": 8})
    files.write()
    other = tmp_path / "system" / "nodes" / "n1" / "ranks" / "run-2.0.1.0"
    other.mkdir()
    (other / "steps.jsonl").write_text('{"event":"step"}\n')
    history = files.load()
    assert len(history.processes) == 4
    assert len(history.steps) == 4


def test_runs_that_had_its_name_before_or_since_are_left_out(tmp_path: Path) -> None:
    """They have used other generations of the same groups, on the same nodes."""
    files = story(tmp_path)
    for generation in (0, 9):
        spawned = {"t": 1.0, "event": "spawned", "name": f"run.1.{generation}.0", "pid": 9, "start_ticks": 9}
        files.shims["n1"].append(spawned)
    files.write()
    for generation in (0, 9):
        other = tmp_path / "system" / "nodes" / "n1" / "ranks" / f"run.1.{generation}.0"
        other.mkdir()
        (other / "steps.jsonl").write_text('{"event":"step","t":1.0}\n')
    history = files.load()
    assert [s.generation for s in history.of_group(1)] == [1, 2, 3, 9], "a checker must see what no journal knows"
    assert [p.generation for p in history.processes if p.group == 1] == [9, 1, 2, 3]
    alone = without_later(history)
    assert [s.generation for s in alone.of_group(1)] == [1, 2, 3]
    assert [p.generation for p in alone.processes if p.group == 1] == [1, 2, 3]


def test_nothing_there_is_an_empty_history(tmp_path: Path) -> None:
    files = story(tmp_path)
    history = files.load()  # nothing was written
    assert (history.decisions, history.processes, history.steps, history.unreadable) == ([], [], [], [])


def file_of(files: Files, name: str) -> Path:
    return {"journal": files.journal_file(), "shim": files.shim_file("n3"), "steps": files.steps_file("n3", 1, 3)}[name]


@pytest.mark.parametrize("file", ["journal", "shim", "steps"])
def test_a_torn_last_line_is_no_loss(tmp_path: Path, file: str) -> None:
    files = story(tmp_path)
    files.write()
    path = file_of(files, file)
    with path.open("a") as opened:
        opened.write('{"t":24.0,"entry":"inte')
    history = files.load()
    assert history.unreadable == []
    assert set(answers(history).values()) == {"pass"}


@pytest.mark.parametrize("row", ["{\0\0", "[" * 200_000], ids=["torn", "deep"])
@pytest.mark.parametrize("file", ["journal", "shim", "steps"])
def test_an_unreadable_line_is_unknown(tmp_path: Path, file: str, row: str) -> None:
    files = story(tmp_path)
    files.write()
    path = file_of(files, file)
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{first}\n{row}\n{rest}")
    history = files.load()
    assert history.unreadable == [f"{path.name} of {path.parent.name}: line 2"]
    assert set(answers(history).values()) == {"unknown"}


@pytest.mark.parametrize(
    ("entry", "change", "why"),
    [
        ("outcome", {"epoch": None}, "epoch: Input should be a valid integer"),
        ("outcome", {"t": "x"}, "t: Input should be a valid number"),
        ("outcome", {"revision": [1]}, "revision: Input should be a valid integer"),
        ("intent", {"actions": None}, "actions: Input should be a valid list"),
        ("intent", {"incidents": 0}, "incidents: Input should be a valid list"),
        ("intent", {"groups": {"x": {}}}, "groups.x.[key]: String should match"),
        ("event", {"t": math.nan}, "t: Input should be a finite number"),
    ],
)  # fmt: skip
def test_a_line_of_the_journal_with_something_else_in_it_is_unknown(
    tmp_path: Path, entry: str, change: dict[str, object], why: str
) -> None:
    files = story(tmp_path)
    next(line for line in files.journal if line["entry"] == entry).update(change)
    files.write()
    history = files.load()
    assert [said.startswith(f"journal.jsonl of run: {why}") for said in history.unreadable] == [True]
    assert "pass" not in answers(history).values()


@pytest.mark.parametrize(
    ("event", "change", "why"),
    [
        ("exited", {"t": None}, "t: Input should be a valid number"),
        ("spawned", {"pid": None}, "pid: Input should be a valid integer"),
        ("exited", {"exit_code": "0"}, "exit_code: Input should be a valid integer"),
        ("signalled", {"signal": None}, "signal: Input should be a valid integer"),
        ("shim_started", {"t": "x"}, "t: Input should be a valid number"),
    ],
)
def test_a_line_of_a_shim_with_something_else_in_it_is_unknown(
    tmp_path: Path, event: str, change: dict[str, object], why: str
) -> None:
    files = story(tmp_path)
    files.shim(22.8, "signalled", "n3", 1, 3, signal=15, why="the run is stopped")
    next(line for line in files.shims["n3"] if line["event"] == event).update(change)
    files.write()
    history = files.load()
    assert [said.startswith(f"shim.jsonl of n3: {why}") for said in history.unreadable] == [True]
    assert "pass" not in answers(history).values()


def test_a_line_that_a_killed_supervisor_left_torn_is_no_loss_either(tmp_path: Path) -> None:
    """The next supervisor ends the line before it writes its own."""
    files = story(tmp_path)
    files.write()
    with files.journal_file().open("a") as opened:
        opened.write('{"t":24.0,"entry":"inte')
    Journal(files.journal_file()).event("term", epoch=2)
    assert set(answers(files.load()).values()) == {"pass"}


# --- which decisions took effect ---


def test_a_refused_decision_did_not(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.of_decision(5, "outcome")["refused"] = "does not hold any more"
    assert [d.number for d in files.history().committed()] == [1, 2, 3, 4, 6, 7]


def test_one_without_an_outcome_did_if_a_later_one_built_on_it(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.journal.remove(files.of_decision(2, "outcome"))
    history = files.history()
    assert [d.number for d in history.committed()] == [1, 2, 3, 4, 5, 6, 7]
    assert history.decisions[1].committed_at is None
    assert set(answers(history).values()) == {"pass"}


def test_the_last_one_without_an_outcome_did_not(tmp_path: Path) -> None:
    files = story(tmp_path)
    files.journal.remove(files.of_decision(7, "outcome"))
    assert [d.number for d in files.history().committed()] == [1, 2, 3, 4, 5, 6]


def test_one_that_a_later_epoch_repeated_did_not(tmp_path: Path) -> None:
    files = story(tmp_path)
    for line in files.journal:
        if line.get("decision", 0) >= 5:
            line["epoch"] = 2
    files.intent(18.9, 5, {0: 1, 1: 3}, [place(1, 3, "n4")], epoch=1)
    files.journal.sort(key=lambda x: x["t"])
    history = files.history()
    assert [(d.number, d.epoch) for d in history.committed()][3:] == [(4, 1), (5, 2), (6, 2), (7, 2)]
    assert set(answers(history).values()) == {"pass"}


def test_one_that_its_own_epoch_repeated_after_an_outage_did_not(tmp_path: Path) -> None:
    """The store went away during the transaction, so the outcome is unknown. The memory is read again, and the same
    supervisor decides the same number once more."""
    files = story(tmp_path)
    files.intent(18.9, 5, {0: 1, 1: 3}, [place(1, 3, "n4")])
    files.journal.sort(key=lambda x: x["t"])
    history = files.history()
    assert [d.number for d in history.committed()] == [1, 2, 3, 4, 5, 6, 7]
    assert set(answers(history).values()) == {"pass"}


def test_of_two_without_an_outcome_only_the_second_did(tmp_path: Path) -> None:
    """Two supervisors died one after the other, the second of them between the commit and its outcome."""
    files = story(tmp_path)
    files.journal.remove(files.of_decision(5, "outcome"))
    files.of_decision(5, "intent")["epoch"] = 2
    files.intent(18.9, 5, {0: 1, 1: 3}, [place(1, 3, "n4")], epoch=1)
    for line in files.journal:
        if line.get("decision", 0) >= 6:
            line["epoch"] = 3
    files.journal.sort(key=lambda x: x["t"])
    history = files.history()
    assert [(d.number, d.epoch) for d in history.committed()][3:] == [(4, 1), (5, 2), (6, 3), (7, 3)]
    assert set(answers(history).values()) == {"pass"}


@pytest.mark.parametrize("epoch", [1, 2], ids=["of the same term", "of the next"])
def test_one_whose_number_a_decision_without_actions_took_did_not(tmp_path: Path, epoch: int) -> None:
    files = story(tmp_path)
    files.intent(14.0, 3, {0: 1, 1: 7}, [place(1, 7, "n7")])
    files.journal = [x for x in files.journal if x.get("decision") != 3 or x["t"] == 14.0]
    for line in files.journal:
        if line.get("decision", 0) > 3:
            line["epoch"] = epoch
    files.decide(14.2, 3, {0: 1, 1: 2}, epoch=epoch)
    files.journal.sort(key=lambda x: x["t"])
    history = files.history()
    assert [d.number for d in history.committed()] == [1, 2, 4, 5, 6, 7]
    assert set(answers(history).values()) == {"pass"}


def test_one_whose_number_was_given_to_a_decision_without_actions_and_without_an_outcome_did_not(
    tmp_path: Path,
) -> None:
    """Two supervisors died: the first before it committed its noted decision, the second after it committed its own."""
    files = story(tmp_path)
    files.intent(14.0, 3, {0: 1, 1: 7}, [place(1, 7, "n7")])
    files.journal = [x for x in files.journal if x.get("decision") != 3 or x["t"] == 14.0]
    files.intent(14.2, 3, {0: 1, 1: 2}, epoch=2)
    files.journal[-1]["changed"] = True
    for line in files.journal:
        if line.get("decision", 0) > 3:
            line["epoch"] = 3
    files.journal.sort(key=lambda x: x["t"])
    assert [d.number for d in files.history().committed()] == [1, 2, 4, 5, 6, 7]
    next(x for x in files.journal if x["t"] == 14.2)["changed"] = (
        False  # it reports what it waits for, and has found the first
    )
    assert [d.number for d in files.history().committed()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_later_decision_that_acts_on_nothing_tells_of_the_one_before_too(tmp_path: Path) -> None:
    """The last action has no outcome; after it the new leader only saw the group run."""
    files = story(tmp_path)
    files.journal = [x for x in files.journal if x.get("decision", 0) < 5]
    files.intent(19.0, 5, {0: 1, 1: 3}, [place(1, 3, "n3")])
    files.decide(22.2, 6, {0: 1, 1: 3}, epoch=2)
    history = files.history()
    assert [d.number for d in history.committed()] == [1, 2, 3, 4, 5]
    assert set(answers(history).values()) == {"pass"}


def test_what_a_dead_shim_left_had_ended_when_the_next_one_began(tmp_path: Path) -> None:
    """No one saw its end; a generation that begins there afterwards has no second owner beside it."""
    files = story(tmp_path)
    files.shims["n2"].remove(files.of_shim("n2", "exited", 1, 1))
    assert files.answers()["single_owner"] == "fail"
    files.shims["n2"].append({"t": 10.8, "event": "shim_started", "pid": 3, "allocation": "a-n2"})
    files.shims["n2"].sort(key=lambda x: x["t"])
    history = files.history()
    assert [(p.exited, p.over_by) for p in history.processes if p.generation == 1 and p.group == 1] == [(None, 10.8)]
    assert set(answers(history).values()) == {"pass"}
