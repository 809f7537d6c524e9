"""The places of the output of ranks and hooks, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.observed import Grant
from supervisor.shell.inspect import logs
from supervisor.wire import keys, rotated
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import SPEC

MARKUP = Path(__file__).with_name("markup.txt")


def log_of(home: Path, rank: str = "run.0.1.0", node: str = "n1") -> Path:
    folder = home / "nodes" / node / "ranks" / rank
    folder.mkdir(parents=True)
    return folder / "output.log"


def hook_of(home: Path) -> Path:
    folder = home / "nodes" / "n1" / "hooks" / "run"
    folder.mkdir(parents=True)
    return folder / "before.log"


def tail(home: Path, lines: int) -> logs.HookTail:
    (found,) = logs.of_hooks(home, "run", lines)
    return found


def texts(out: str) -> list[str]:
    """The lines of ranks without their times and labels."""
    return [line.partition(" | ")[2] for line in out.splitlines()]


@pytest.fixture
def asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `supervisor logs`."""

    def run(*options: str) -> Result:
        store = MemoryStore()
        store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir=str(tmp_path), launched_unix_s=0.0)))
        store.put(keys.grant("run", "run-a1"), encode(Grant(key="run-a1", state="granted", nodes=("n1", "n7"))))
        monkeypatch.setattr(common, "connect", lambda *_, **__: store)
        where = ["--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path)]
        return CliRunner().invoke(cli.app, ["logs", *where, *options])

    return run


@pytest.fixture
def command(tmp_path: Path, asks: Callable[..., Result]) -> Callable[..., str]:
    """Runs `supervisor logs` on the log in the argument; returns its output."""

    def run(wrote: bytes, *options: str) -> str:
        log_of(tmp_path).write_bytes(wrote)
        result = asks(*options)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.mark.parametrize("kept", [".supervisor", "."])
def test_all_ranks_are_shown_by_time_in_the_home_of_up_and_in_an_agents_own(
    tmp_path: Path, asks: Callable[..., Result], kept: str
) -> None:
    for node, rank, second in (("n1", "run.0.1.0", 1), ("n1", "run.0.2.0", 3), ("n2", "run.1.1.1", 2)):
        log_of(tmp_path / kept, rank, node).write_text(f"2026-01-02 03:04:0{second},000 of {rank}\n")
    shown = asks()
    assert texts(shown.stdout) == [
        f"2026-01-02 03:04:0{second},000 of {rank}"
        for second, rank in ((1, "run.0.1.0"), (2, "run.1.1.1"), (3, "run.0.2.0"))
    ]
    assert " g1.gen1.r1 | " in shown.stdout
    assert texts(asks("-n", "1").stdout) == texts(shown.stdout)[-1:], "of all together"
    assert texts(asks("--grep", "run.0", "--group", "0").stdout) == texts(shown.stdout)[::2]
    assert texts(asks("--rank", "1").stdout) == texts(shown.stdout)[1:2]


def test_a_node_whose_files_are_elsewhere_is_named(tmp_path: Path, asks: Callable[..., Result]) -> None:
    log_of(tmp_path).write_text("here\n")
    shown = asks()
    assert texts(shown.stdout) == ["here"]
    assert shown.stderr == f"supervisor: n7: its files are not below {tmp_path}: --remote asks it\n"


def test_a_group_that_is_gone_keeps_its_lines_and_one_that_never_was_is_a_mistake(
    tmp_path: Path, asks: Callable[..., Result]
) -> None:
    log_of(tmp_path, f"run.{SPEC.groups.count}.1.0").write_text("scaled away\n")
    assert texts(asks("--group", str(SPEC.groups.count)).stdout) == ["scaled away"]
    none = asks("--group", str(SPEC.groups.count + 1))
    assert none.exit_code == 1
    assert f"has no group {SPEC.groups.count + 1}" in none.stderr


def test_an_unfinished_line_is_shown(command: Callable[..., str]) -> None:
    assert texts(command(b"loading\n 10%\r 20%")) == ["loading", " 10%", " 20%"]


@pytest.mark.parametrize(("lines", "shown"), [(1000, 1000), (30_000, 30_000)])
def test_more_is_read_where_more_lines_are_wanted(command: Callable[..., str], lines: int, shown: int) -> None:
    wrote = b"".join(b"line %d\n" % n for n in range(30_000))
    assert len(command(wrote, "-n", str(lines)).splitlines()) == shown


def test_what_looks_like_markup_is_shown(command: Callable[..., str]) -> None:
    assert texts(command(MARKUP.read_bytes())) == MARKUP.read_text().splitlines()


def test_what_a_terminal_would_obey_is_shown_and_binary_too(command: Callable[..., str]) -> None:
    out = command(b"\x1b[32mstep\x1b[0m 1\n\x1b]0;title\x07\x00\xff\xfe \xc3\xa9\n10%\r20%\r\nend")
    assert texts(out) == ["step 1", "␛]0;title␇␀�� é", "10%", "20%", "end"]


def test_a_long_line_is_whole_at_once(command: Callable[..., str]) -> None:
    """Its time was quadratic: 51 s for a third of this one, and this test's own timeout for all of it."""
    *pieces, end = texts(command(b"x" * 300_000 + b"\nend\n", "-n", "2000"))
    assert ("".join(pieces), end) == ("x" * 300_000, "end")
    assert max(map(len, pieces)) == 64 * 1024


def test_only_a_block_of_a_long_line_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook_of(tmp_path).write_bytes(b"old\n" + "é".encode() * 5000)
    monkeypatch.setattr(logs, "BLOCK_BYTES", 1001)  # and no character is cut in two
    blocks = list(tail(tmp_path, 1).text())
    assert max(map(len, blocks)) <= 1001
    assert "".join(blocks) == "é" * 5000


def test_a_colour_across_two_blocks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook_of(tmp_path).write_text("ab\x1b[38;5;9mcd\x1b")
    for size in range(1, 14):
        monkeypatch.setattr(logs, "BLOCK_BYTES", size)
        assert "".join(tail(tmp_path, 5).text()) == "abcd␛"


def test_as_json_a_long_line_is_cut_with_a_word(
    tmp_path: Path, asks: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LINE_CHARACTERS", 10)
    hook_of(tmp_path).write_bytes(b"x" * 25 + b"\n[rank0]\n")
    (body,) = json.loads(asks("--hooks", "--json").stdout)
    assert body["lines"] == ["x" * 10 + " ... 15 more characters", "[rank0]"]


@pytest.mark.parametrize("block", [3, 64])
def test_the_last_lines_are_found_across_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", block)
    log = tmp_path / "supervisor.log"
    for words in ("1\n2\nthr", "ee\n4\n", "5\n6\n"):
        with log.open("a") as file:
            file.write(words)
        if words != "5\n6\n":
            rotated.rotate(log)
    all_ = ["1", "2", "three", "4", "5", "6"]
    for lines in range(1, 8):
        (found,) = logs.of_supervisors(tmp_path, lines)
        assert list(found.lines()) == all_[-lines:]


def test_a_log_that_goes_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    log = hook_of(tmp_path)
    log.write_text("one\n")
    found = tail(tmp_path, 5)
    log.unlink()
    assert list(found.lines()) == []


def test_the_output_of_hooks_is_shown_by_node(command: Callable[..., str], tmp_path: Path) -> None:
    for node, which in (("n2", "before"), ("n1", "after"), ("n1", "before")):
        folder = tmp_path / "nodes" / node / "hooks" / "run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{which}.log").write_text(f"old\n{which} on {node}\n")
    shown = command(b"of a rank\n", "--hooks", "-n", "1").splitlines()
    assert [line.partition(": ")[0] for line in shown] == [
        *("== hook before on n1", "before on n1", "== hook after on n1", "after on n1"),
        *("== hook before on n2", "before on n2"),
    ]
