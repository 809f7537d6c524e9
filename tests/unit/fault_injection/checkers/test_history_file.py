"""A history is written to one file and read back as it was; an unreadable part makes every checker answer unknown."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from fault_injection.checkers.consistency import CHECKERS, check
from fault_injection.checkers.history_file import KINDS, NoHistory, load, save
from fault_injection.checkers.recovery import ALL
from supervisor.shell.history.files import History
from tests.unit.fault_injection.broken import a_broken_run, broken
from tests.unit.fault_injection.files import story

STEP = '{"type":"step","of":{"group":1,"generation":1,"rank":0,"node":"n2"},"line":{"event":"step",%s}}'
COMMITTED = '"event":"step","committed":true,%s'


def saved(folder: Path) -> Path:
    save(a_broken_run(folder), folder / "history.jsonl")
    return folder / "history.jsonl"


def with_a_signal(folder: Path) -> History:
    files = story(folder)
    files.shim(18.45, "signalled", "n2", 1, 2, signal=15)
    files.journal.append({"t": 22.95, "entry": "event", "event": "store", "up": False, "silent_s": 0.5})
    return broken(files)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    before = with_a_signal(tmp_path)
    save(before, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == before


def test_one_of_before_it_was_said_why_a_plan_was_given_up_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_text(path.read_text().replace(',"given_up":""', ""))
    assert "given_up" not in path.read_text()
    assert load(path) == a_broken_run(tmp_path)


def test_each_line_says_what_it_is(tmp_path: Path) -> None:
    history = with_a_signal(tmp_path)
    save(history, tmp_path / "history.jsonl")
    lines = [json.loads(row) for row in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines[0]["type"] == "history"
    assert {line["type"] for line in lines} == {"history", "step", *KINDS}


def test_the_checkers_say_the_same_of_it(tmp_path: Path) -> None:
    assert check(load(saved(tmp_path)), ALL) == check(a_broken_run(tmp_path), ALL)


def test_what_is_noted_as_unreadable_stays_so(tmp_path: Path) -> None:
    history = a_broken_run(tmp_path)
    history.unreadable.append("journal.jsonl of run: line 3")
    save(history, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl").unreadable == ["journal.jsonl of run: line 3"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"type":"fault","numb', "no JSON"),
        ('{"type":"miracle"}', "there is no type 'miracle'"),
        ('{"type":"left","processes":"many"}', "processes: "),
        ('{"type":"left"}', "processes: Field required"),
        ('{"type":"fault","number":3}', "name: Field required"),
        ('{"type":"step","of":{"group":1},"line":{}}', "there is no type 'generation'"),
        ("[]", ""),
        ("{}", ""),
        (STEP % '"t":1.0,"start":NaN', "its start is no finite number"),
        (STEP % '"t":"x"', "its t is no number"),
        (STEP % '"t":1.0,"seconds":[1]', "its seconds are not numbers by name"),
        (STEP % '"t":1.0,"seconds":{"compute":Infinity}', "its compute is no finite number"),
        ('{"type":"outage","start":1.0,"end":NaN}', "its end is no finite number"),
        (STEP % (COMMITTED % '"step":30'), "it is of a committed step, and has no t"),
        (STEP % (COMMITTED % '"t":1.0'), "it is of a committed step, and has no step"),
        (STEP % (COMMITTED % '"t":1.0,"step":30,"quorum_id":3'), "it is of a committed step, and has no participants"),
        (STEP % (COMMITTED % '"t":1.0,"step":30,"quorum_id":3,"participants":null'), "and has no participants"),
        (
            STEP % (COMMITTED % '"t":1.0,"step":30,"quorum_id":3,"participants":"2"'),
            "its participants is no whole number",
        ),
        (STEP % (COMMITTED % '"t":1.0,"step":30,"quorum_id":3.5,"participants":2'), "its quorum_id is no whole number"),
        (STEP % (COMMITTED % '"t":1.0,"step":30,"loss":"x"'), "its loss is no number"),
        (STEP % (COMMITTED % '"t":1.0,"step":30,"gradient_norm":[]'), "its gradient_norm is no number"),
        ('{"type":"step","of":{"group":1e999,"generation":1,"rank":0,"node":"n2"},"line":{}}', "its group is no finite number"),
        ("[" * 200_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_unknown(tmp_path: Path, row: str, why: str) -> None:
    path = saved(tmp_path)
    path.write_text(path.read_text() + row + "\n")
    history = load(path)
    (said,) = history.unreadable
    assert why in said
    assert {v.answer for v in check(history, ALL)} == {"unknown"}


@pytest.mark.parametrize("name", ["version", "lines", "reached", "epochs"])
def test_a_first_line_with_a_number_that_is_none_is_unknown(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path)
    first, *rows = path.read_text().splitlines(keepends=True)
    body = json.loads(first) | {name: {"1": math.inf} if name == "epochs" else math.inf}
    path.write_text("".join([json.dumps(body) + "\n", *rows]))
    history = load(path)
    assert re.match(r"history.jsonl: line 1: its \w+ is no finite number", history.unreadable[0])
    assert {v.answer for v in check(history, ALL)} == {"unknown"}


@pytest.mark.parametrize("kind", ["outcome", "signal", "process", "step", "observation"])
def test_a_file_that_has_lost_a_line_is_unknown(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "history.jsonl"
    save(with_a_signal(tmp_path), path)
    rows = path.read_text().splitlines(keepends=True)
    lost = max(at for at, row in enumerate(rows) if json.loads(row)["type"] == kind)
    path.write_text("".join(rows[:lost] + rows[lost + 1 :]))
    history = load(path)
    assert history.unreadable == [f"history.jsonl: it had {len(rows)} lines, and has {len(rows) - 1}"]
    assert "pass" not in {v.answer for v in check(history, ALL)}


def test_an_older_one_that_does_not_say_how_many_lines_it_has_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    first, *rows = path.read_text().splitlines(keepends=True)
    body = json.loads(first)
    del body["lines"]
    path.write_text("".join([json.dumps(body) + "\n", *rows]))
    assert load(path) == a_broken_run(tmp_path)


def test_what_is_no_history(tmp_path: Path) -> None:
    for text, what in (("", "empty"), ("hello\n", "no history"), ('{"event": "step"}\n' * 3, "no history")):
        (tmp_path / "other.jsonl").write_text(text)
        with pytest.raises(NoHistory, match=f"other.jsonl is {what}: `supervisor chaos run` writes one"):
            load(tmp_path / "other.jsonl")
    path = saved(tmp_path)
    _, *rows = path.read_text().splitlines(keepends=True)
    (tmp_path / "headless.jsonl").write_text("".join(rows))
    assert load(tmp_path / "headless.jsonl").unreadable[-1] == "headless.jsonl: it does not begin as a history"
    path.write_text(path.read_text().replace('"version":1', '"version":99', 1))
    with pytest.raises(NoHistory, match="is a history of version 99, and this program reads up to 1: check it with"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.jsonl")


def test_one_without_faults_is_still_a_history(tmp_path: Path) -> None:
    history = a_broken_run(tmp_path)
    history.setting, history.faults, history.left, history.seen = None, [], None, []
    save(history, tmp_path / "history.jsonl")
    again = load(tmp_path / "history.jsonl")
    assert again == history
    assert {v.checker: v.answer for v in check(again, ALL)} == {
        **dict.fromkeys(CHECKERS, "pass"), **dict.fromkeys(ALL.keys() - CHECKERS.keys(), "unknown"),
    }  # fmt: skip


def test_an_empty_one(tmp_path: Path) -> None:
    save(History("run"), tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == History("run")
