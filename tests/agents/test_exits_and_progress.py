"""How an end is decoded, and how a progress file is followed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agents import exits
from agents.progress import ProgressFile, milestones
from supervisor.wire.records import CheckpointMark, ProcessRecord, Progress, encode


def ended(folder: Path, **how: int) -> ProcessRecord:
    return ProcessRecord(name="toy.0.1.0", pid=1, start_ticks=1, folder=str(folder), exited=True, **how)


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ({"exit_code": 0}, "clean"),
        ({"exit_code": 75}, "peers_gone"),
        ({"exit_code": 1}, "error"),
        ({"signal": 9}, "signal"),
    ],
)
def test_an_end_in_one_word(tmp_path: Path, how: dict[str, int], word: str) -> None:
    assert exits.how(ended(tmp_path, **how)) == word


def test_nothing_left_behind(tmp_path: Path) -> None:
    found = exits.decode(ended(tmp_path, signal=9))
    assert (found.exit_code, found.signal, found.error_file, found.stderr_tail) == (None, 9, "", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": {"message": "ValueError: no", "extraInfo": {"timestamp": "1"}}}, "ValueError: no"),
        ({"message": "plain"}, "plain"),
        ({"other": 1}, ""),
        ([], ""),
    ],
)
def test_error_file(tmp_path: Path, content: object, message: str) -> None:
    (tmp_path / "error.json").write_text(json.dumps(content))
    assert exits.decode(ended(tmp_path, exit_code=1)).error_file == message


def test_a_broken_error_file_is_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message": {"mess')
    assert exits.decode(ended(tmp_path, exit_code=1)).error_file == ""


def test_the_tail_is_whole_lines_and_at_most_2_kib(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"".join(b"line %d \xc3\xa9\xff\n" % n for n in range(1000)))
    tail = exits.decode(ended(tmp_path, exit_code=1)).stderr_tail
    assert len(tail.encode()) <= exits.TAIL_BYTES
    assert tail.splitlines()[-1] == "line 999 é?"
    assert all(line.startswith("line ") for line in tail.splitlines())


PROGRESS = Progress(run="toy", group=0, generation=1, rank=0, pid=7, sequence=1, phase="step", step=3, commits=1)


def write(folder: Path, progress: Progress) -> None:
    temporary = folder / "progress.tmp"
    temporary.write_bytes(encode(progress))
    temporary.replace(folder / "progress.json")


def test_a_progress_file_is_read_when_it_changes(tmp_path: Path) -> None:
    file = ProgressFile(str(tmp_path))
    assert not file.poll(0.0)
    write(tmp_path, PROGRESS)
    assert file.poll(1.0)
    assert not file.poll(2.0)
    write(tmp_path, replace(PROGRESS, sequence=2))
    assert file.poll(3.0)
    assert file.stuck_s(4.0) == 3.0
    write(tmp_path, replace(PROGRESS, sequence=3, step=4))
    assert file.poll(5.0)
    assert file.stuck_s(5.5) == 0.5


def test_a_progress_that_cannot_be_read_keeps_the_last_good_one(tmp_path: Path) -> None:
    file = ProgressFile(str(tmp_path))
    write(tmp_path, PROGRESS)
    file.poll(0.0)
    (tmp_path / "progress.json").write_bytes(b'{"kind":"Progr')
    assert not file.poll(1.0)
    assert file.newest == PROGRESS
    assert "progress.json cannot be read" in file.problem
    write(tmp_path, replace(PROGRESS, sequence=9))
    assert file.poll(2.0)
    assert file.problem == ""


def test_what_is_worth_a_report_at_once() -> None:
    for same in (
        replace(PROGRESS, step=4, commits=2, sequence=2, loss=1.0),
        replace(PROGRESS, phase="quorum"),
        replace(PROGRESS, phase="healing"),
    ):
        assert milestones(same) == milestones(PROGRESS)
    mark = CheckpointMark(step=3, path="x", group=0, generation=1)
    for other in (
        replace(PROGRESS, commits=0),
        replace(PROGRESS, checkpoint=mark),
        replace(PROGRESS, phase="finished"),
        replace(PROGRESS, phase="built"),
        replace(PROGRESS, error="no"),
    ):
        assert milestones(other) != milestones(PROGRESS)
