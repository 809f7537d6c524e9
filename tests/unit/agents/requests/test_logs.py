"""The newest lines of all ranks of a run on a node."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from agents.requests import logs
from supervisor.shell.etcd.inbox import CannotDo, Job
from supervisor.wire import log_follower, node_logs, rotated
from supervisor.wire.node_logs import NodeLog
from supervisor.wire.node_requests import ANSWER_BYTES, TEXT_CHARACTERS, NodeRequest, size
from supervisor.wire.records import decode, encode


def write(node: Path, name: str, *lines: str) -> None:
    rank = node / "ranks" / name
    rank.mkdir(parents=True)
    (rank / "launch.json").touch()
    os.utime(rank / "launch.json", (0, 0))
    (rank / "output.log").write_text("".join(f"{line}\n" for line in lines))


def at(seconds_ago: float) -> str:
    """A time stamp as Python's logging writes it."""
    return time.strftime("%Y-%m-%d %H:%M:%S,000", time.localtime(time.time() - seconds_ago))


def asked(what: str, **wish: Any) -> NodeRequest:
    return NodeRequest(**{"node": "n1", "what": what, "by": "", "limit_s": 20.0, "run": "run", **wish})


def read(node: Path, **wish: Any) -> list[dict[str, Any]]:
    request = asked("logs", **wish)
    return [item for item in logs.read(node, request, Job("i", request, time.monotonic() + 20.0)) if item]


def follow(node: Path, position: dict[str, Any], **wish: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns the texts that came since the position, and the next position, as it comes out of etcd."""
    request = decode(encode(asked("follow", position=position, **wish)), NodeRequest)
    *items, end = [item for item in logs.follow(node, request, Job("i", request, time.monotonic() + 20.0)) if item]
    texts = [item["text"] for item in items]
    while end["behind"]:
        more, end["position"] = follow(node, json.loads(json.dumps(end["position"])), **wish)
        return texts + more, end["position"]
    return texts, json.loads(json.dumps(end["position"]))


def said(found: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    return [(each["group"], each["generation"], each["rank"], each["text"].rpartition(" ")[2]) for each in found]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    write(tmp_path, "run.0.1.0", f"{at(900)} a1", f"{at(600)} a2", "  a3")
    write(tmp_path, "run.0.2.0", f"{at(500)} b1", f"{at(100)} b2")
    write(tmp_path, "run.1.1.1", f"{at(700)} c1", f"{at(550)} c2", f"{at(50)} c3")
    write(tmp_path, "other.0.1.0", f"{at(40)} not-ours")
    write(tmp_path, "run2.0.1.0", f"{at(40)} not-ours")
    return tmp_path


def test_the_newest_lines_of_all_ranks_in_the_order_of_their_times(node: Path) -> None:
    words = [each[3] for each in said(read(node))]
    assert words == ["a1", "c1", "a2", "a3", "c2", "b1", "b2", "c3"], (
        "a line without a time stays behind the one before"
    )
    assert read(node, lines=0) == []
    assert said(read(node, lines=2)) == [(0, 2, 0, "b2"), (1, 1, 1, "c3")]


def test_one_group_one_rank_some_time_some_text(node: Path) -> None:
    assert {each[0] for each in said(read(node, group=1))} == {1}
    assert {each[2] for each in said(read(node, rank=0))} == {0}
    assert [each[3] for each in said(read(node, since_s=520.0))] == ["b1", "b2", "c3"]
    assert [each[3] for each in said(read(node, grep="c"))] == ["c1", "c2", "c3"]
    assert read(node, grep=".*") == [], "it is a text, not a pattern"


@pytest.mark.parametrize("run", ["*", "../..", "run.0", "", "run.0.1.0/.."])
def test_no_path_is_made_of_what_was_sent(node: Path, run: str) -> None:
    assert read(node, run=run) == []


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


# --- following ---


@pytest.mark.parametrize("seed", range(6))
def test_each_line_comes_once_in_order_however_it_is_written(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come in parts, files are rotated, ranks start, and a look may read less than there is."""
    monkeypatch.setattr(logs, "FOLLOWED_BYTES", 100)
    monkeypatch.setattr(node_logs, "LEAST_BYTES", 100)
    rng = random.Random(seed)
    written: dict[str, list[str]] = {}
    given: list[str] = []
    _, position = follow(tmp_path, {})
    for number in range(300):
        name = f"run.{rng.randrange(2)}.{1 + number // 100}.0"
        if name not in written:
            write(tmp_path, name)
            written[name] = []
        line = f"{name} {number} {'x' * rng.choice((0, 5, 60))}é"
        written[name].append(line)
        log = tmp_path / "ranks" / name / "output.log"
        with log.open("ab") as file:
            cut = rng.randrange(len(line))
            file.write(line.encode()[:cut])
            file.flush()
            if rng.random() < 0.2:
                texts, position = follow(tmp_path, position)
                given += texts
            if rng.random() < 0.1:
                rotated.rotate(log, kept=100)
            file.write(line.encode()[cut:] + b"\n")
        if rng.random() < 0.1:
            rotated.rotate(log, kept=100)
    texts, _ = follow(tmp_path, position)
    given += texts
    for name, lines in written.items():
        assert [text for text in given if text.startswith(name)] == lines
    assert len(given) == 300


def test_what_a_look_finds_of_a_rank_comes_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_logs, "LEAST_BYTES", 64)
    monkeypatch.setattr(logs, "FOLLOWED_BYTES", 64)
    write(tmp_path, "run.0.1.0", "before")
    texts, position = follow(tmp_path, {})
    assert texts == ["before"]
    with (tmp_path / "ranks" / "run.0.1.0" / "output.log").open("a") as file:
        file.write("".join(f"line {n}\n" for n in range(50)) + "killed in the mid")
    body = {"t": time.time(), "event": "exited", "name": "run.0.1.0", "signal": 9}
    (tmp_path / "shim.jsonl").write_text(json.dumps(body) + "\n")
    texts, position = follow(tmp_path, position)
    assert texts == [*(f"line {n}" for n in range(50)), "killed in the mid", "ended by SIGKILL (signal 9)"]
    assert follow(tmp_path, position)[0] == []


def test_a_follower_begins_with_the_newest_and_chooses_by_text(node: Path) -> None:
    texts, position = follow(node, {}, lines=2, grep="b")
    assert [text.rpartition(" ")[2] for text in texts] == ["b1", "b2"]
    with (node / "ranks" / "run.0.2.0" / "output.log").open("a") as file:
        file.write("b3\nd\n")
    assert follow(node, position, lines=2, grep="b")[0] == ["b3"]
    assert follow(node, {}, lines=9, since_s=70.0)[0][0].endswith("c3")


@pytest.mark.parametrize("line", ["", "\U0001f600" * 4000, "\x00" * 9000])
def test_an_answer_to_a_follower_is_never_cut(tmp_path: Path, line: str) -> None:
    """Its position would be missing: it would ask for the same for ever."""
    write(tmp_path, "run.0.1.0")
    _, position = follow(tmp_path, {})
    with (tmp_path / "ranks" / "run.0.1.0" / "output.log").open("a") as file:
        file.write(f"{line}\n" * (2**17 // (len(line.encode()) + 1)))
    for wish in ({"position": position}, {"lines": 100_000, "grep": ""}):
        request = asked("follow", **wish)
        items = [i for i in logs.follow(tmp_path, request, Job("i", request, time.monotonic() + 20.0)) if i]
        assert "position" in items[-1]
        assert size(items) < ANSWER_BYTES
    assert log_follower.READ_BYTES > logs.FOLLOWED_BYTES


@pytest.mark.parametrize("position", [{"logs": 7}, {"logs": {"run.0.1.0": ["x", 0, 0.0]}}, {"logs": {}, "shim": [0]}])
def test_what_is_no_position_is_refused(node: Path, position: dict[str, Any]) -> None:
    with pytest.raises(CannotDo, match="cannot read the position"):
        follow(node, position)


def test_no_path_is_made_of_a_position(node: Path) -> None:
    _, position = follow(node, {})
    secret = node / "secret"
    secret.mkdir()
    (secret / "output.log").write_text("secret\n")
    position["logs"] = {"../secret": [1, 0, 0.0]}
    log = NodeLog(node, "run")
    log.go_on(position)
    assert log.position()["logs"] == {}
    assert "secret" not in follow(node, position)[0]


# --- hooks ---


def test_the_newest_lines_of_each_hook_of_the_run(node: Path) -> None:
    for run, which in (("run", "before"), ("run", "after"), ("run2", "before")):
        folder = node / "hooks" / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{which}.log").write_text("".join(f"{run} {which} {n}\n" for n in range(5)) + "no end")
    found = [item for item in logs.hooks(node, asked("hooks", lines=2)) if item]
    assert [(item["hook"], item["text"]) for item in found] == [
        ("before", "run before 4\n"), ("before", "no end\n"), ("after", "run after 4\n"), ("after", "no end\n"),
    ]  # fmt: skip
    assert [item["text"] for item in logs.hooks(node, asked("hooks", grep="4")) if item] == [
        "run before 4\n", "run after 4\n",
    ]  # fmt: skip
    assert list(logs.hooks(node, asked("hooks", run="*"))) == []
