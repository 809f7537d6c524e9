"""Which ranks stand in the debugger, as a person is shown them, and how one is named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.observed import DebugView
from supervisor.ports.errors import Fatal
from supervisor.shell.control import observe
from supervisor.shell.inspect import debugging, status
from supervisor.wire import keys
from supervisor.wire.records import NodeObserved, Progress, RunRecord, TrainerObserved, encode
from tests.unit.shell.records import MEMORY, SPEC, mirror_of, registration, run_values

AT = DebugView(function="train_step", file="/code/\x1b[2Jtrainer.py", line=7, since_unix_s=1_700_000_000.0)


def rank(group: int, rank: int, at: DebugView | None, state: Any = "running", run: str = "run") -> TrainerObserved:
    progress = Progress(
        run=run, group=group, generation=2, rank=rank, pid=1, sequence=1, phase="step", debugging=at
    )  # fmt: skip
    return TrainerObserved(run=run, group=group, generation=2, rank=rank, pid=1, state=state, progress=progress)


def values(*trainers: TrainerObserved) -> dict[str, bytes]:
    seen = NodeObserved(node="n1", sequence=1, trainers=trainers)
    return {**run_values(), **registration("n1"), keys.observed("n1"): encode(seen)}


STOPPED = values(
    rank(1, 1, AT), rank(0, 0, AT), rank(1, 0, None), rank(2, 0, AT, state="exited"), rank(0, 0, AT, run="other")
)


def test_those_of_the_run_that_live_are_listed_in_order() -> None:
    found = debugging.stopped(mirror_of(STOPPED), "run")
    assert [(each.name, each.node, each.generation, each.function, each.line) for each in found] == [
        ("0.0", "n1", 2, "train_step", 7),
        ("1.1", "n1", 2, "train_step", 7),
    ]


def test_the_status_of_the_run_says_so() -> None:
    mirror = mirror_of(STOPPED)
    sentences = status.run_status(mirror, RunRecord(spec=SPEC, run_dir="/r", launched_unix_s=1.0)).waiting
    (first, _) = [each for each in sentences if "debugger" in each]
    assert first.startswith("group 0: a person has rank 0 in the debugger, in train_step (")
    assert first.endswith("trainer.py:7) on n1; the others go on without its group: supervisor debug run attach 0.0")
    assert "\x1b" not in first


def test_the_rules_see_it_of_ended_ranks_too() -> None:
    nodes = observe.observed(mirror_of(STOPPED), "run", MEMORY, 0.0, 0.0).nodes
    seen = {(each.group, each.rank): each.debugging for each in nodes["n1"].ranks}
    assert seen == {(1, 1): True, (0, 0): True, (1, 0): False, (2, 0): True}


@pytest.mark.parametrize(
    ("names", "found"), [("", ["0.0", "1.1"]), ("all", ["0.0", "1.1"]), ("1.1", ["1.1"]), ("1.1,0.0", ["1.1", "0.0"])]
)
def test_ranks_are_chosen_by_name(names: str, found: list[str]) -> None:
    stopped = debugging.stopped(mirror_of(STOPPED), "run")
    assert [each.name for each in debugging.chosen(stopped, names)] == found


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("1.0", "rank 1.0 is not stopped in the debugger; stopped: 0.0, 1.1"),
        ("1", "'1' is no rank: give GROUP.RANK"),
        ("1.1,", "'' is no rank"),
    ],
)
def test_a_rank_that_is_not_stopped_is_refused(names: str, why: str) -> None:
    with pytest.raises(Fatal, match=re.escape(why)):
        debugging.chosen(debugging.stopped(mirror_of(STOPPED), "run"), names)
    with pytest.raises(Fatal, match="no rank is stopped"):
        debugging.chosen([], names)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 0, "1.1"),
        (("run",), 0, "train_step (/code/"),
        (("run", "attach"), 2, "attach takes one GROUP.RANK"),
        (("attach", "all"), 2, "attach takes one GROUP.RANK"),
        (("run", "jump", "0.0"), 2, "'jump' is none of attach, cast, continue"),
        (("cast", "0.0"), 2, "cast takes RANKS and a command"),
        (("continue", "0.0", "1.1"), 2, "continue takes one list of RANKS"),
        (("continue", "5.5"), 1, "rank 5.5 is not stopped"),
        (("elsewhere", "continue"), 1, "there is no run 'elsewhere'"),
    ],
)
def test_the_command(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, says: str) -> None:
    store = MemoryStore()
    for key, value in STOPPED.items():
        store.put(key, value)
    monkeypatch.setattr(common, "connect", lambda *_, **__: store)
    result = CliRunner().invoke(cli.app, ["debug", *words, "--etcd", "127.0.0.1:1"])
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert "\x1b" not in result.output
