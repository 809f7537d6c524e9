"""The newest lines of all ranks of a run on a node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from agents.requests import logs
from agents.requests.inbox import Job
from supervisor.wire.node_requests import ANSWER_BYTES, TEXT_CHARACTERS, NodeRequest, size


def write(ranks: Path, name: str, *lines: str) -> None:
    (ranks / name).mkdir(parents=True)
    (ranks / name / "launch.json").touch()
    os.utime(ranks / name / "launch.json", (0, 0))
    (ranks / name / "output.log").write_text("".join(f"{line}\n" for line in lines))


def at(seconds_ago: float) -> str:
    """A time stamp as Python's logging writes it."""
    return time.strftime("%Y-%m-%d %H:%M:%S,000", time.localtime(time.time() - seconds_ago))


def read(ranks: Path, **wish: Any) -> list[dict[str, Any]]:
    request = NodeRequest(**{"node": "n1", "what": "logs", "by": "", "limit_s": 20.0, "run": "run", **wish})
    return [item for item in logs.read(ranks, request, Job("i", request, time.monotonic() + 20.0)) if item]


def said(found: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    return [(each["group"], each["generation"], each["rank"], each["text"].rpartition(" ")[2]) for each in found]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    write(tmp_path, "run.0.1.0", f"{at(900)} a1", f"{at(600)} a2", "  a3")
    write(tmp_path, "run.0.2.0", f"{at(500)} b1", f"{at(100)} b2")
    write(tmp_path, "run.1.1.1", f"{at(700)} c1", f"{at(550)} c2", f"{at(50)} c3")
    write(tmp_path, "other.0.1.0", f"{at(40)} not-ours")
    write(tmp_path, "run2.0.1.0", f"{at(40)} not-ours")
    return tmp_path


def test_the_newest_lines_of_all_ranks_in_the_order_of_their_times(ranks: Path) -> None:
    words = [each[3] for each in said(read(ranks))]
    assert words == ["a1", "c1", "a2", "a3", "c2", "b1", "b2", "c3"], (
        "a line without a time stays behind the one before"
    )
    assert said(read(ranks, lines=2)) == [(0, 2, 0, "b2"), (1, 1, 1, "c3")]


def test_one_group_one_rank_some_time_some_text(ranks: Path) -> None:
    assert {each[0] for each in said(read(ranks, group=1))} == {1}
    assert {each[2] for each in said(read(ranks, rank=0))} == {0}
    assert [each[3] for each in said(read(ranks, since_s=520.0))] == ["b1", "b2", "c3"]
    assert [each[3] for each in said(read(ranks, grep="c"))] == ["c1", "c2", "c3"]
    assert read(ranks, grep=".*") == [], "it is a text, not a pattern"


@pytest.mark.parametrize("run", ["*", "../..", "run.0", "", "run.0.1.0/.."])
def test_no_path_is_made_of_what_was_sent(ranks: Path, run: str) -> None:
    assert read(ranks, run=run) == []


def test_there_is_no_folder(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []


def test_a_line_of_a_megabyte_takes_time_in_proportion(tmp_path: Path) -> None:
    """Showing one of 100 kB took 51 s once."""
    took = {}
    for length in (2**17, 2**20):
        write(tmp_path / str(length), "run.0.1.0", "[a] " * (length // 4), "end")
        began = time.perf_counter()
        found = read(tmp_path / str(length), grep="[a]", lines=1000)
        took[length] = time.perf_counter() - began
        assert "".join(each["text"] for each in found) == "[a] " * (length // 4), "all of it, in pieces"
        assert max(len(each["text"]) for each in found) <= TEXT_CHARACTERS
    assert took[2**20] < 40 * took[2**17], "eight times as long a line takes not much more than eight times as long"


def test_many_lines_stay_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINES", 50)
    write(tmp_path, "run.0.1.0", *(f"line {n}" for n in range(1000)))
    found = read(tmp_path, lines=10**9)
    assert [each[3] for each in said(found)] == [str(n) for n in range(950, 1000)]
    assert size(found) < ANSWER_BYTES
