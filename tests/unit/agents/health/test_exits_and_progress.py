"""Decoding of a rank's end, and following of its progress file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from agents.health import exit_decoder
from agents.health.progress_file import ProgressFile, milestones
from supervisor.core.model.spec import TrainerSpec
from supervisor.wire.records import CheckpointMark, ProcessRecord, Progress, TrainerLaunch, encode
from titan_actor.ledger import write_error_file


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
    assert exit_decoder.how(ended(tmp_path, **how)) == word


def test_nothing_left_behind(tmp_path: Path) -> None:
    found = exit_decoder.decode(ended(tmp_path, signal=9))
    assert (found.exit_code, found.signal, found.error_file, found.last_words) == (None, 9, "", "")


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
    assert exit_decoder.decode(ended(tmp_path, exit_code=1)).error_file == message


def test_a_broken_error_file_is_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message": {"mess')
    assert exit_decoder.decode(ended(tmp_path, exit_code=1)).error_file == ""


def test_a_log_that_is_no_utf_8_is_read(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"".join(b"line %d \xc3\xa9\xff\n" % n for n in range(1000)))
    assert exit_decoder.decode(ended(tmp_path, exit_code=1)).last_words == "line 999 é\ufffd"


TRACE = """Traceback (most recent call last):
  File "/home/u/model.py", line 88, in forward
    return self.layers[index](x)
KeyError: 'layer 9'
"""


def test_the_error_files_traceback_is_kept(tmp_path: Path) -> None:
    write_error_file(tmp_path, KeyError("layer 9"), TRACE)
    found = exit_decoder.decode(ended(tmp_path, exit_code=1))
    assert (found.error_file, found.trace, found.raised) == ("KeyError: 'layer 9'", TRACE.strip(), "")


def test_of_a_long_traceback_the_newest_frames_are_kept(tmp_path: Path) -> None:
    frames = [f'  File "/home/u/model.py", line {n}, in forward\n' for n in range(500)]
    write_error_file(
        tmp_path, KeyError("x"), "Traceback (most recent call last):\n" + "".join(frames) + "KeyError: 'x'\n"
    )
    trace = exit_decoder.decode(ended(tmp_path, exit_code=1)).trace
    assert len(trace.encode()) <= exit_decoder.TRACE_BYTES
    assert trace.splitlines()[-2:] == [frames[-1].rstrip(), "KeyError: 'x'"]
    assert trace.startswith("  File ")


def test_without_an_error_file_the_log_says_what_was_raised(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text(f"step 1\n{TRACE}")
    found = exit_decoder.decode(ended(tmp_path, exit_code=1))
    assert (found.error_file, found.raised, found.trace) == ("", "KeyError: 'layer 9'", TRACE.strip())


def test_a_traceback_that_a_rotation_cut_in_two_is_whole(tmp_path: Path) -> None:
    (tmp_path / "output.log.1").write_text("older: KeyError\n")
    (tmp_path / "output.log.2").write_text(f"step 1\n{TRACE[:70]}")
    (tmp_path / "output.log").write_text(TRACE[70:])
    found = exit_decoder.decode(ended(tmp_path, exit_code=1))
    assert (found.raised, found.trace) == ("KeyError: 'layer 9'", TRACE.strip())


@pytest.mark.parametrize("how", [{"exit_code": 3}, {"signal": 11}, {"exit_code": 75}])
def test_a_traceback_in_the_log_is_no_cause_where_python_was_not_ended_by_it(
    tmp_path: Path, how: dict[str, int]
) -> None:
    """The program had caught the exception, and logged it."""
    (tmp_path / "output.log").write_text(TRACE)
    found = exit_decoder.decode(ended(tmp_path, **how))
    assert (found.raised, found.trace) == ("", "")
    assert found.last_words == "KeyError: 'layer 9'"


def test_a_segfaults_words_are_found_before_the_stacks_and_modules_that_follow(tmp_path: Path) -> None:
    """Python writes kilobytes of stacks and modules."""
    thread = (
        "Thread 0x1 (most recent call first):\n" + '  File "/usr/lib/python3.12/threading.py", line 359 in wait\n' * 99
    )
    current = 'Current thread 0x2 (most recent call first):\n  File "/home/u/kernels.py", line 12 in fused\n'
    modules = f"Extension modules: {', '.join(f'torch._C{n}' for n in range(1000))} (total: 1000)\n"
    text = f"step 1\nFatal Python error: Segmentation fault\n\n{thread}\n{current}\n{modules}"
    (tmp_path / "output.log").write_text(text)
    found = exit_decoder.decode(ended(tmp_path, signal=11))
    assert found.last_words == "Fatal Python error: Segmentation fault (/home/u/kernels.py, line 12, in fused)"


RED, OFF, OWNED = "\x1b[1;31m", "\x1b[0m", "\x1b]0;owned\x07\x1b[2J"


def test_a_log_in_colour_is_read_as_one_without(tmp_path: Path) -> None:
    """The words are evidence, which a person reads in a terminal."""
    lines = [f"{RED}{line}{OFF}{OWNED}" for line in TRACE.splitlines()]
    (tmp_path / "output.log").write_text("\x1b[32mstep\x1b[0m 1\n" + "\n".join(lines) + "\n")
    found = exit_decoder.decode(ended(tmp_path, exit_code=1))
    assert (found.raised, found.trace) == ("KeyError: 'layer 9'", TRACE.strip())
    assert found.last_words == found.raised


def test_so_is_an_error_file(tmp_path: Path) -> None:
    said = {"message": f"{RED}KeyError{OFF}: 'layer 9'{OWNED}", "extraInfo": {"py_callstack": f"{RED}{TRACE}{OFF}"}}
    (tmp_path / "error.json").write_text(json.dumps({"message": said}))
    found = exit_decoder.decode(ended(tmp_path, exit_code=1))
    assert (found.error_file, found.trace) == ("KeyError: 'layer 9'", TRACE.strip())


def test_a_clean_end_has_no_last_words(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("step 1: no error\n")
    assert exit_decoder.decode(ended(tmp_path, exit_code=0)).last_words == ""


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


def plain(folder: Path, reports: Literal["steps", "output"] = "output") -> ProgressFile:
    launch = TrainerLaunch(
        run="r", group=1, generation=2, rank=0, world_size=1, groups=2, min_groups=1, node="n",
        node_address="127.0.0.1", master_port=1, lighthouse="", run_dir="", rank_dir=str(folder),
        trainer=TrainerSpec(command=("x",), reports=reports),
    )  # fmt: skip
    (folder / "launch.json").write_bytes(encode(launch))
    return ProgressFile(str(folder))


def test_output_and_heartbeat_stand_for_the_steps_of_a_command_that_reports_none(tmp_path: Path) -> None:
    file = plain(tmp_path)
    assert not file.poll(0.0)
    (tmp_path / "output.log").write_text("begins\n")
    assert file.poll(1.0)
    assert not file.poll(2.0)
    assert file.stuck_s(3.0) == 2.0
    (tmp_path / "heartbeat").touch()
    assert file.poll(4.0)
    assert file.newest is not None
    assert (file.newest.phase, file.newest.commits, file.newest.step) == ("step", 2, 0)
    last = plain(tmp_path)
    last.poll(0.0)
    last.ended(0)
    assert last.newest is not None
    assert last.newest.phase == "finished"
    assert last.newer_than(file)


def test_a_command_that_reports_steps_is_not_taken_to_live_by_its_output(tmp_path: Path) -> None:
    file = plain(tmp_path, "steps")
    (tmp_path / "output.log").write_text("imports\n")
    assert not file.poll(1.0)
    assert file.newest is None
