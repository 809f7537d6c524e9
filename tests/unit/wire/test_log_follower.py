"""A log is read as it grows: across rotations, in bounded parts, each byte once."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.wire import log_follower, rotated
from supervisor.wire.log_follower import Followed, begun


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "output.log"
    path.touch()
    return path


def write(log: Path, words: str | bytes) -> None:
    with log.open("ab") as file:
        file.write(words.encode() if isinstance(words, str) else words)


def test_a_line_that_a_rotation_cut_in_two_is_one(log: Path) -> None:
    file = Followed(log)
    write(log, "one\ntw")
    assert list(file.pieces()) == ["one"]
    write(log, "o\nthr")
    rotated.rotate(log)
    write(log, "ee\nfour\n")
    assert list(file.pieces()) == ["two", "three", "four"]
    assert not file.behind


def test_several_rotations_between_two_looks_lose_nothing_that_is_kept(log: Path) -> None:
    file = Followed(log)
    write(log, "1\n")
    assert list(file.pieces()) == ["1"]
    for n in range(2, 7):
        write(log, f"{n}\n")
        rotated.rotate(log, kept=10)
    assert list(file.pieces()) == ["2", "3", "4", "5", "6"]
    write(log, "7\n")
    rotated.rotate(log, kept=1)  # only 7 is left of all
    write(log, "8\n")
    assert list(file.pieces()) == ["7", "8"]
    assert list(file.pieces()) == []


def test_a_log_that_is_cut_off_and_has_no_number_yet_is_read_from_its_copy(log: Path) -> None:
    file = Followed(log)
    write(log, "one\n")
    assert list(file.pieces()) == ["one"]
    write(log, "two\n")
    rotated.copying(log).write_bytes(log.read_bytes())
    log.write_bytes(b"")
    assert list(file.pieces()) == ["two"]
    rotated.copying(log).rename(log.with_name("output.log.1"))
    write(log, "three\n")
    assert list(file.pieces()) == ["three"]


def test_a_line_without_end_is_shown_in_pieces_and_no_look_reads_all(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "PIECE_BYTES", 10)
    monkeypatch.setattr(log_follower, "READ_BYTES", 40)
    write(log, "é" * 100)  # two bytes each
    file, looks = Followed(log), []
    while not looks or file.behind:
        looks.append(list(file.pieces()))
    assert max(map(len, looks)) <= 5
    assert {piece for look in looks for piece in look} == {"é" * 5}
    write(log, "x\nend\n")
    assert "".join(p for look in looks for p in look) + "".join(file.pieces()) == "é" * 100 + "xend"


def test_a_carriage_return_ends_a_line_also_where_its_newline_comes_later(log: Path) -> None:
    file = Followed(log)
    write(log, "10%\r20%\r")
    assert list(file.pieces()) == ["10%"]
    write(log, "\nnext\r\n")
    assert list(file.pieces()) == ["20%", "next"]


def test_the_end_of_a_log_that_was_just_rotated_is_in_its_newest_part(log: Path) -> None:
    write(log, "a line\n" * 100)
    rotated.rotate(log)
    write(log, "new\n")
    assert list(begun(log, 18).pieces()) == ["a line", "new"]
    assert list(begun(log, 4).pieces()) == ["new"]


def test_the_end_of_a_line_without_an_end_is_there(log: Path) -> None:
    """The line may be a progress bar, or longer than the part that is read."""
    write(log, "".join(f"\r{n}/40000 it/s" for n in range(40_000)))
    assert list(begun(log, 256 * 1024).pieces())[-1] == "39998/40000 it/s"
    write(log, "\n" + "x" * 900_000)
    found = list(begun(log, 256 * 1024).pieces(whole=True))
    assert set("".join(found)) == {"x"}
    assert sum(map(len, found)) == 256 * 1024
