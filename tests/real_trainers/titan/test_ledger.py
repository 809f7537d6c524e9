"""A rank's step record on a disk that is full for a while."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from titan_actor import ledger
from titan_actor.ledger import Ledger


class Disk:
    """Stands for os.write, on a disk with limited room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, file: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(file, data[: self.room])
        self.room -= written
        return written


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


@pytest.mark.parametrize("room", [0, 7])
def test_what_finds_no_room_is_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "steps.jsonl"
    written = Ledger(path, 0.0, rank=3)
    written.event("start")
    before, disk.room = path.read_bytes(), room
    written.note("batch", samples=["a"])
    written.step({"data": 0.0}, step=1)
    assert path.read_bytes() == before + b'{"event"'[:room], "as much as there was room for"
    disk.room = 1 << 30
    written.event("finished")
    assert [(line["event"], line["rank"]) for line in lines(path)] == [
        ("start", 3), ("batch", 3), ("step", 3), ("finished", 3),
    ]  # fmt: skip
    written.close()
    written.event("too late")
    assert len(lines(path)) == 4


def test_no_more_is_kept_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "steps.jsonl"
    monkeypatch.setattr(ledger, "KEPT_BYTES", 300)
    written = Ledger(path, 0.0)
    disk.room = 0
    for _ in range(10):
        written.note("batch", samples=["a"])
    disk.room = 1 << 30
    written.event("finished")
    kept = lines(path)
    assert 2 < len(kept) < 10
    assert {line["event"] for line in kept} == {"batch"}, "in order, and whole"
    written.event("finished")
    assert lines(path)[-1]["event"] == "finished"


def test_the_seconds_by_cause_are_all_of_the_time(tmp_path: Path) -> None:
    born = time.time() - 10.0
    written = Ledger(tmp_path / "steps.jsonl", born)
    written.event("built")
    written.event("admitted")
    written.note("heal", start=born)
    written.step({"data": 0.0, "quorum": 0.0}, step=1, committed=True)
    written.step({"data": 0.0}, step=1, committed=False)
    found = written.seconds
    assert found["start"] == pytest.approx(10.0, abs=0.5)
    assert found.keys() == {"start", "admission", "data", "quorum", "productive", "failed_step"}
    ended = lines(tmp_path / "steps.jsonl")[-1]["t"]
    assert sum(found.values()) == pytest.approx(ended - born, abs=0.01)
