"""The journal: a line before and one after each decision, readable after any torn line."""

from __future__ import annotations

import json
import logging
import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.model.decision import Action, Decision
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.shell.control import journal as journal_module
from supervisor.shell.control.decision_inputs import Given
from supervisor.shell.control.journal import Journal, read
from tests.helpers.reasons import held_against, text
from tests.unit.shell.records import INCIDENT, MEMORY

OBSERVED = Observed(revision=9, now=12.34567, store_stable_s=1.0)
DECISION = Decision(
    memory=MEMORY,
    actions=(Action(verb="cordon", key="cordon:n9:i1", reason=held_against("i1", Kind.CRASH), node="n9", group=0),),
    waits=(
        Reason.of(Code.ABOUT_GROUP, group=1, why=Reason.of(Code.BACKOFF, attempt=2)),
        Reason.of(Code.DRAINING, step=9),
    ),
    incidents=(INCIDENT,),
)


def test_an_intent_says_what_and_why(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "journal.jsonl")
    journal.intent(7, OBSERVED, DECISION)
    (line,) = read(journal.path)
    assert (line["entry"], line["epoch"], line["decision"], line["revision"]) == ("intent", 7, 4, 9)
    assert line["now"] == 12.3457
    assert line["actions"] == [
        {
            "verb": "cordon", "key": "cordon:n9:i1", "reason": "incident i1: crash", "node": "n9", "group": 0,
            "code": "holds_against",
        }
    ]  # fmt: skip
    assert line["waits"] == ["group 1: backoff before attempt 2", "draining: the groups end after step 9"]
    assert line["waits_of"] == [{"code": "about_group", "groups": [1]}, {"code": "draining", "groups": []}]
    assert line["changed"] is True
    assert line["incidents"][0]["id"] == "i1"
    assert line["groups"]["1"] == {"generation": 2, "node": "", "phase": "fencing"}


def test_what_changes_nothing_says_so(tmp_path: Path) -> None:
    """It has the number of the last committed decision."""
    journal = Journal(tmp_path / "journal.jsonl")
    journal.intent(7, OBSERVED, DECISION, MEMORY)
    (line,) = read(journal.path)
    assert line["changed"] is False


def test_of_the_groups_only_those_that_changed_are_told_again(tmp_path: Path) -> None:
    """A leader's first line has all of them, and so does a person's resume, which explains why each was started."""
    journal = Journal(tmp_path / "journal.jsonl")
    later = replace(MEMORY, decisions=5, groups={**MEMORY.groups, 1: replace(MEMORY.groups[1], phase="placing")})
    journal.intent(7, OBSERVED, DECISION, MEMORY)
    journal.intent(7, OBSERVED, replace(DECISION, memory=later), MEMORY)
    journal.intent(7, OBSERVED, replace(DECISION, memory=later), later)
    resume = Action(verb="resume", key="resume:1", reason=text("a person says so"))
    journal.intent(7, OBSERVED, replace(DECISION, memory=later, actions=(resume,)), later)
    Journal(journal.path).intent(8, OBSERVED, replace(DECISION, memory=later), later)
    assert [sorted(line["groups"]) for line in read(journal.path)] == [["0", "1"], ["1"], [], ["0", "1"], ["0", "1"]]


def test_an_outcome_follows_its_intent(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.intent(7, OBSERVED, DECISION)
    journal.outcome(7, 4, 10)
    journal.outcome(7, 5, None, refused="another leader")
    journal.event("term", epoch=8)
    lines = list(read(journal.path))
    assert [line["entry"] for line in lines] == ["intent", "outcome", "outcome", "event"]
    assert (lines[1]["revision"], lines[2]["revision"], lines[2]["refused"]) == (10, None, "another leader")
    assert all(line["t"] > 0 for line in lines)


def test_there_is_none_yet(tmp_path: Path) -> None:
    assert list(read(tmp_path / "journal.jsonl")) == []


@pytest.mark.parametrize("torn", [1, 2, 30])
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: int) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.event("first")
    journal.event("second")
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-torn])
    kept = [line["event"] for line in read(journal.path)]
    assert kept == (["first", "second"] if torn == 1 else ["first"])


def test_the_first_line_after_a_torn_one_is_not_lost_with_it(tmp_path: Path) -> None:
    """The next supervisor goes on in the same file."""
    path = tmp_path / "journal.jsonl"
    Journal(path).event("first")
    with path.open("ab") as file:
        file.write(b'{"t":1.0,"entry":"event","ev')
    Journal(path).event("second")
    assert [line["event"] for line in read(path)] == ["first", "second"]


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"7", b'"text"', b"\xff\xfe{"])
def test_what_is_no_line_of_ours_is_left_out(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.event("first")
    with journal.path.open("ab") as file:
        file.write(line + b"\n")
    journal.event("second")
    assert [entry["event"] for entry in read(journal.path)] == ["first", "second"]


def test_line_separators_in_a_text_do_not_tear_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.event("a\u2028b\nc\x85d")
    assert [line["event"] for line in read(journal.path)] == ["a\u2028b\nc\x85d"]
    assert len(journal.path.read_bytes().splitlines()) == 1
    assert json.loads(journal.path.read_text())["event"] == "a\u2028b\nc\x85d"


def test_a_journal_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    journal = Journal(blocker / "journal.jsonl")
    with caplog.at_level(logging.ERROR):
        journal.event("first")
        journal.intent(1, OBSERVED, DECISION)
    assert len(caplog.records) == 1
    blocker.unlink()
    journal.event("second")
    assert [line["event"] for line in read(journal.path)] == ["second"]


def test_of_a_line_that_finds_room_for_a_part_nothing_is_left(tmp_path: Path) -> None:
    """The disk is full: the next line is whole, and a line of its own."""
    journal = Journal(tmp_path / "journal.jsonl")
    journal.event("one")
    size = (tmp_path / "journal.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        journal.event("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "journal.jsonl").stat().st_size == size
    journal.event("three")
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "three"]


def test_an_input_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(*_: object) -> Given:
        raise ValueError("no JSON")

    monkeypatch.setattr(journal_module, "take", take)
    assert Journal(tmp_path / "journal.jsonl").take(OBSERVED, RunSpec(name="run"), MEMORY) is None
    assert "they cannot be written" in caplog.text


def test_a_disk_that_stalls_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("supervisor.shell.control.journal.LINES", 4)
    journal, answers = Journal(tmp_path / "journal.jsonl"), threading.Event()
    journal.event("first")
    monkeypatch.setattr("supervisor.shell.control.journal._ends_a_line", lambda file: answers.wait(30))
    journal._first = True
    try:
        with caplog.at_level(logging.INFO), monkeypatch.context() as hurried:
            hurried.setattr("supervisor.shell.control.journal.ANSWERS_WITHIN_S", 0.05)
            for number in range(6):
                journal.event(str(number))
        assert [line["event"] for line in read(journal.path)] == ["first"]
    finally:
        answers.set()
    journal._aside.ask(lambda: None).result(10)
    with caplog.at_level(logging.INFO):
        journal.event("and on")
    *_, lost, _ = lines = list(read(journal.path))
    assert [line["event"] for line in lines] == ["first", "0", "1", "2", "3", "lines_lost", "and on"]
    assert lost["lines"] == 2
    assert [record.message.replace(str(journal.path), "it") for record in caplog.records] == [
        "the disk of the journal it does not answer; the run goes on without waiting for it",
        "the disk of the journal it answers again",
    ]


def test_a_slow_disk_takes_the_last_lines_of_a_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.shell.control.journal.ANSWERS_WITHIN_S", 0.01)
    journal, answers, before = Journal(tmp_path / "journal.jsonl"), threading.Event(), threading.active_count()
    journal._aside.ask(lambda: answers.wait(30))
    for number in range(3):
        journal.event(str(number))
    threading.Timer(0.1, answers.set).start()
    journal.close(10.0)
    assert [line["event"] for line in read(journal.path)] == ["0", "1", "2"]
    assert threading.active_count() <= before + 1, "no thread of it is left but the timer of this test"


def test_the_end_of_a_term_does_not_wait_for_a_disk_that_stalls(tmp_path: Path) -> None:
    journal, answers = Journal(tmp_path / "journal.jsonl"), threading.Event()
    journal._aside.ask(lambda: answers.wait(30))
    try:
        journal.close(0.01)
        assert journal._aside.left == 1
    finally:
        answers.set()


def test_inputs_that_wait_for_a_disk_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One input of a thousand groups is a megabyte."""
    monkeypatch.setattr("supervisor.shell.control.journal.ANSWERS_WITHIN_S", 0.0)
    monkeypatch.setattr("supervisor.shell.control.journal.INPUTS", 3)
    journal, answers = Journal(tmp_path / "journal.jsonl"), threading.Event()
    journal._aside.ask(lambda: answers.wait(30))
    try:
        for number in range(10):
            journal.keep(Given(b"{}", str(number)))
        assert journal._aside.left == 3
    finally:
        answers.set()
        journal.close(10.0)
