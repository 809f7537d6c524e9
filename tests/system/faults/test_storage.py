"""The checkpoint folder is full or gone for real, under a writer that notes each result."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fault_injection.chaos import own
from fault_injection.faults import acts, storage
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Target
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from supervisor.wire.checkpoints import MARKER, folder_of, listed
from supervisor.wire.records import CheckpointMark, encode

NAMES = ("checkpoint_disk_full", "checkpoint_folder_gone")


@dataclass
class Scene:
    run_dir: str
    run: str = "run"

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        try:
            eventually(reached, min(within_s, 10.0), what)
        except AssertionError as error:
            raise Fatal(what) from error


class Writer:
    """Writes a checkpoint of 64 KiB every few milliseconds, and a line in the step record (none if `silent`)."""

    def __init__(self, run_dir: Path, silent: bool = False) -> None:
        self.folder = folder_of(str(run_dir))
        self.record = run_dir / "ranks" / "run.1.2.0" / "steps.jsonl"
        self.record.parent.mkdir(parents=True)
        self.record.write_text(
            json.dumps({"event": "checkpoint_end", "t": 0.0, "complete": False, "error": "long ago"}) + "\n"
        )
        self.step, self.silent, self.enough = 0, silent, threading.Event()
        self.thread = threading.Thread(target=self.writes)

    def writes(self) -> None:
        while not self.enough.wait(0.01):
            self.step += 25
            error = self.once(self.folder / f"step-{self.step}.g1.gen2")
            line = {"event": "checkpoint_end", "t": time.time(), "complete": not error, "error": error}
            if not self.silent:
                with self.record.open("a") as file:
                    file.write(json.dumps(line) + "\n")

    def once(self, folder: Path) -> str:
        try:
            folder.mkdir(parents=True)
            (folder / "__0_0.distcp").write_bytes(b"x" * (1 << 16))
            mark = CheckpointMark(step=self.step, path=str(folder), group=1, generation=2)
            (folder / MARKER).write_bytes(encode(mark))
        except OSError as error:
            return f"checkpoint of step {self.step} failed: {error.strerror}"
        for _, older, _ in listed(str(folder.parents[1]))[2:]:
            for file in older.iterdir():
                file.unlink()
            older.rmdir()
        return ""


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    if why := netns.available():
        pytest.skip(f"NO CHECKPOINT FOLDER WAS FULL OR GONE: {why}")
    with own.disk(folder_of(str(tmp_path)), 1 << 20):
        yield tmp_path


def made(name: str, run_dir: Path, after: ExitStack, silent: bool = False) -> str:
    inject, writer = FAULTS[name].inject, Writer(run_dir, silent)
    assert inject is not None
    target = Target(group=1, generation=2, node="n1", rank=0, pids={0: 1}, allocation="", folder=run_dir)
    scene: Any = Scene(str(run_dir))
    writer.thread.start()
    try:
        return inject(scene, target, after)
    finally:
        writer.enough.set()
        writer.thread.join()


def hidden(run_dir: Path) -> bool:
    return f"{storage.HIDES} {folder_of(str(run_dir))} " in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize(("name", "why"), [(NAMES[0], "No space left"), (NAMES[1], "Read-only file system")])
def test_it_lasts_until_a_checkpoint_has_failed_and_has_happened_when_one_is_written_again(
    run_dir: Path, name: str, why: str
) -> None:
    said = made(name, run_dir, ExitStack())
    assert f"failed: {why}" in said
    assert "long ago" not in said, "of this fault"
    assert "; it was healed, and that of step " in said
    assert not (folder_of(str(run_dir)) / acts.FILLER).exists()
    assert not hidden(run_dir)
    assert listed(str(run_dir)), "what it hid is there again"


@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.long), NAMES[1]])
def test_where_no_checkpoint_fails_it_did_not_happen_and_is_healed_all_the_same(run_dir: Path, name: str) -> None:
    with pytest.raises(Fatal, match="a checkpoint fails"), ExitStack() as after:
        made(name, run_dir, after, silent=True)
    assert not (folder_of(str(run_dir)) / acts.FILLER).exists()
    assert not hidden(run_dir)


def test_where_nothing_is_hidden_nothing_is_unmounted(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is there before the fault: the run's own disk is left alone."""
    monkeypatch.setattr(storage, "HIDES", "\0")
    with pytest.raises((Fatal, ValueError)), ExitStack() as after:
        made("checkpoint_folder_gone", run_dir, after)
    assert folder_of(str(run_dir)).is_mount()
