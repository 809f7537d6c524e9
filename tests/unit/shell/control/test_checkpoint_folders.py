"""Folders of checkpoints, listed aside."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import DiskView
from supervisor.shell.control import checkpoint_folders
from supervisor.shell.control.checkpoint_folders import ANSWERS_WITHIN_S, Folders
from supervisor.wire import checkpoints
from supervisor.wire.records import CheckpointMark, encode


def save(run_dir: Path, step: int, generation: int = 1) -> Path:
    path = run_dir / "checkpoints" / f"step-{step}.g0.gen{generation}"
    path.mkdir(parents=True)
    mark = CheckpointMark(step=step, path=str(path), group=0, generation=generation)
    (path / checkpoints.MARKER).write_bytes(encode(mark))
    return path


def test_what_is_there_is_told_apart(tmp_path: Path) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200, generation=2)
    (save(tmp_path, 250) / checkpoints.MARKER).unlink()
    shutil.copytree(save(tmp_path, 50), tmp_path / "checkpoints" / "step-900.g0.gen1")
    (tmp_path / "checkpoints" / "from-elsewhere").mkdir()
    (tmp_path / "checkpoints" / ".nfs0001").touch()
    found = checkpoint_folders.read(str(tmp_path))
    assert [(mark.step, mark.generation) for mark in found.complete] == [(200, 2), (100, 1), (50, 1)]
    assert found.others == (
        "from-elsewhere (foreign: its name is not that of a checkpoint)",
        "step-250.g0.gen1 (torn: it has no complete.json)",
        "step-900.g0.gen1 (foreign: its complete.json does not match its name)",
    )
    assert found.unseen == ""


def test_a_folder_that_is_not_there_is_said_not_to_be_seen(tmp_path: Path) -> None:
    found = checkpoint_folders.read(str(tmp_path))
    assert f"{tmp_path}/checkpoints cannot be listed on " in found.unseen
    assert "No such file or directory" in found.unseen


def test_many_are_not_all_told(tmp_path: Path) -> None:
    for number in range(20):
        save(tmp_path, number + 1)
        (tmp_path / "checkpoints" / f"x{number:02}").mkdir()
    found = checkpoint_folders.read(str(tmp_path))
    assert [mark.step for mark in found.complete] == list(range(20, 12, -1))
    assert len(found.others) == checkpoint_folders.SHOWN + 1
    assert found.others[-1] == "12 more"


RUNNING = {0: GroupMemory(group=0, generation=1, phase="running", since=5.0)}


def waiting(since: float) -> dict[int, GroupMemory]:
    return {0: GroupMemory(group=0, generation=2, phase="placing", since=since)}


def test_it_lists_in_each_term_and_again_when_a_group_may_start_from_there() -> None:
    asked: list[str] = []

    def read(run_dir: str) -> DiskView:
        asked.append(run_dir)
        return DiskView(at=-1.0, others=(f"list {len(asked)}",))

    made = Folders(read)
    assert made.look("run", "/run", RUNNING, 10.0).at == -1.0, "it waits for nothing"
    eventually(lambda: made.look("run", "/run", RUNNING, 11.0).others == ("list 1",), 5)
    assert made.look("run", "/run", RUNNING, 12.0).at == 10.0, "as of when it was begun"
    made.look("run", "/run", waiting(since=9.0), 13.0)
    assert asked == ["/run"], "it is newer than what the group waits for"
    made.look("run", "/run", waiting(since=14.0), 14.5)
    eventually(lambda: made.look("run", "/run", waiting(since=14.0), 15.0).others == ("list 2",), 5)
    assert made.look("run", "/run", waiting(since=14.0), 16.0).at == 14.5
    made.forget("run")
    assert made.look("run", "/run.of.the.next", waiting(since=0.0), 17.0) == DiskView(at=-1.0), "it is another's folder"


def test_a_disk_that_hangs_holds_up_nothing_for_long() -> None:
    answers = threading.Event()

    def read(run_dir: str) -> DiskView:
        if run_dir == "/hangs":
            answers.wait(60)
        return DiskView(at=-1.0, others=("listed",))

    made = Folders(read)
    made.look("run", "/hangs", waiting(since=1.0), 10.0)
    made.look("other", "/well", waiting(since=1.0), 10.0)
    eventually(lambda: made.look("other", "/well", waiting(since=1.0), 11.0).others == ("listed",), 5)
    assert made.look("run", "/hangs", waiting(since=1.0), 11.0) == DiskView(at=-1.0)
    late = 10.0 + ANSWERS_WITHIN_S
    given_up = made.look("run", "/hangs", waiting(since=late), late)
    assert (given_up.at, given_up.unseen) == (late, "/hangs/checkpoints does not answer")
    answers.set()
    eventually(lambda: made.look("run", "/hangs", waiting(since=1.0), late).others == ("listed",), 5)
