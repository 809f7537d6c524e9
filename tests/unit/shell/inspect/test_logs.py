"""The places of the ranks' output, and how it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.shell.inspect import logs
from supervisor.wire import keys, rotated
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import SPEC

MARKUP = Path(__file__).with_name("markup.txt")


def log_of(home: Path, generation: int = 1) -> Path:
    folder = home / "nodes" / "n1" / "ranks" / f"run.0.{generation}.0"
    folder.mkdir(parents=True)
    return folder / "output.log"


def tail(home: Path, lines: int) -> logs.LogTail:
    (found,) = logs.tails(home, "run", 0, rank=0, lines=lines)
    return found


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs `supervisor logs` on the log in the argument; returns its output."""

    def run(wrote: bytes, *options: str) -> str:
        log_of(tmp_path).write_bytes(wrote)
        store = MemoryStore()
        store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir=str(tmp_path), launched_unix_s=0.0)))
        monkeypatch.setattr(common, "connect", lambda *_, **__: store)
        where = ["--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path)]
        result = CliRunner().invoke(cli.app, ["logs", *where, *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.mark.parametrize("kept", [".supervisor", "."])
def test_it_is_found_in_the_home_of_up_and_in_an_agents_own(tmp_path: Path, kept: str) -> None:
    for generation, words in ((1, "first\n"), (2, "one\ntwo\nthree\n")):
        log_of(tmp_path / kept, generation).write_text(words)
    found = logs.tails(logs.kept_in(tmp_path), "run", 0, rank=0, lines=2)
    assert [(t.node, t.generation, tuple(t.lines())) for t in found] == [
        ("n1", 1, ("first",)),
        ("n1", 2, ("two", "three")),
    ]


def test_what_looks_like_markup_is_shown(command) -> None:  # type: ignore[no-untyped-def]
    assert command(MARKUP.read_bytes()).splitlines()[1:] == MARKUP.read_text().splitlines()


def test_what_a_terminal_would_obey_is_shown_and_binary_too(command) -> None:  # type: ignore[no-untyped-def]
    out = command(b"\x1b[32mstep\x1b[0m 1\n\x1b]0;title\x07\x00\xff\xfe \xc3\xa9\n10%\r20%\r\nend")
    assert out.splitlines()[1:] == ["step 1", "␛]0;title␇␀�� é", "10%", "20%", "end"]


def test_a_long_line_is_whole_at_once(command) -> None:  # type: ignore[no-untyped-def]
    """Its time was quadratic: 51 s for a third of this one, and this test's own timeout for all of it."""
    out = command(b"x" * 300_000 + b"\nend\n", "-n", "2")
    assert out.splitlines()[1:] == ["x" * 300_000, "end"]


def test_only_a_block_of_a_long_line_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path).write_bytes(b"old\n" + "é".encode() * 5000)
    monkeypatch.setattr(logs, "BLOCK_BYTES", 1001)  # and no character is cut in two
    blocks = list(tail(tmp_path, 1).text())
    assert max(map(len, blocks)) <= 1001
    assert "".join(blocks) == "é" * 5000


def test_a_colour_across_two_blocks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path).write_text("ab\x1b[38;5;9mcd\x1b")
    for size in range(1, 14):
        monkeypatch.setattr(logs, "BLOCK_BYTES", size)
        assert "".join(tail(tmp_path, 5).text()) == "abcd␛"


def test_as_json_a_long_line_is_cut_with_a_word(command, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(logs, "LINE_CHARACTERS", 10)
    (body,) = json.loads(command(b"x" * 25 + b"\n[rank0]\n", "--json"))
    assert body["lines"] == ["x" * 10 + " ... 15 more characters", "[rank0]"]


@pytest.mark.parametrize("block", [3, 64])
def test_the_last_lines_are_found_across_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", block)
    log = log_of(tmp_path)
    for words in ("1\n2\nthr", "ee\n4\n", "5\n6\n"):
        with log.open("a") as file:
            file.write(words)
        if words != "5\n6\n":
            rotated.rotate(log)
    all_ = ["1", "2", "three", "4", "5", "6"]
    for lines in range(1, 8):
        assert list(tail(tmp_path, lines).lines()) == all_[-lines:]


def test_a_log_that_goes_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write_text("one\n")
    found = tail(tmp_path, 5)
    log.unlink()
    assert list(found.lines()) == []


def test_the_output_of_hooks_is_shown_by_node(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for node, which in (("n2", "before"), ("n1", "after"), ("n1", "before")):
        folder = tmp_path / "nodes" / node / "hooks" / "run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{which}.log").write_text(f"old\n{which} on {node}\n")
    shown = command(b"of a rank\n", "--hooks", "-n", "1").splitlines()
    assert [line.partition(": ")[0] for line in shown] == [
        *("== hook before on n1", "before on n1", "== hook after on n1", "after on n1"),
        *("== hook before on n2", "before on n2"),
    ]
