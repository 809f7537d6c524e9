"""Logs are kept within a size while others append to them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from supervisor.wire import rotated


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def kept(log: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in log.parent.iterdir()}


def test_what_a_writer_appends_goes_on_in_the_same_file(log: Path) -> None:
    with log.open("ab", buffering=0) as writer:
        for word in (b"one", b"two", b"three", b"four", b"five"):
            writer.write(word)
            rotated.keep_small([log], limit=2, kept=2)
        writer.write(b"6")
        rotated.keep_small([log], limit=2, kept=2)
    assert kept(log) == {"output.log": "6", "output.log.4": "four", "output.log.5": "five"}
    assert [path.name for path in rotated.parts(log)] == ["output.log.4", "output.log.5"]


def test_the_oldest_is_that_of_the_lowest_number(log: Path) -> None:
    for number in (9, 10, 11):
        log.with_name(f"output.log.{number}").write_text(str(number))
    log.with_name("output.log.old").write_text("a person's")
    log.write_text("12")
    rotated.rotate(log, kept=3)
    assert sorted(kept(log)) == ["output.log", "output.log.10", "output.log.11", "output.log.12", "output.log.old"]


def test_a_full_disk_leaves_the_log_as_it_is(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log.write_text("words")
    with monkeypatch.context() as patched:
        patched.setattr(rotated.os, "sendfile", full)
        rotated.keep_small([log], limit=2)
    assert kept(log) == {"output.log": "words"}
    rotated.keep_small([log], limit=2)
    assert kept(log) == {"output.log": "", "output.log.1": "words"}


@pytest.mark.parametrize(
    ("copied", "there", "then"),
    [
        ("wor", "words", {"output.log": "", "output.log.1": "words"}),  # killed while it copied
        ("words", "", {"output.log": "", "output.log.1": "words", "output.log.2": ""}),  # and after it had cut the log
        ("words", "new", {"output.log": "", "output.log.1": "words", "output.log.2": "new"}),
    ],
)
def test_a_rotation_that_was_killed_is_taken_over(log: Path, copied: str, there: str, then: dict[str, str]) -> None:
    log.write_text(there)
    rotated.copying(log).write_text(copied)
    rotated.rotate(log)
    assert kept(log) == then


def test_of_two_that_look_at_once_one_does_it(log: Path) -> None:
    log.write_text("words")
    with log.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        rotated.keep_small([log], limit=2)
        assert kept(log) == {"output.log": "words"}
    rotated.keep_small([log, log.with_name("none.log")], limit=2)
    assert rotated.parts(log)
