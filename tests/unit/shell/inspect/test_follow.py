"""Waiting for a run and following it, on a store in memory: what ends a wait, and what is printed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.spec import TrainerSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.inspect import follow
from supervisor.shell.inspect.follow import Goal
from supervisor.wire import keys
from supervisor.wire.records import Account, RunRecord, decode, encode
from tests.helpers.reasons import text
from tests.unit.shell.records import INCIDENT, MEMORY, run_values

SOON_S = 20.0


def store_at(phase: Any, step: int = 7, **more: Any) -> MemoryStore:
    store = MemoryStore()
    store.commit(run_values(replace(MEMORY, phase=phase, **more)))
    store.put(keys.account("run"), encode(Account(step=step)))
    return store


def turned(store: MemoryStore, phase: Any) -> Callable[[], object]:
    """Lets the run of the store reach a phase."""
    base = replace(MEMORY, phase=phase, groups={}, allocations={}, incidents={})
    return lambda: store.put(keys.memory("run", "run"), encode(base))


def waited(store: MemoryStore, goal: str, within_s: float = SOON_S) -> tuple[bool, str]:
    return follow.wait(store, "", Goal.of(goal), time.monotonic() + within_s, pytest.fail)


@pytest.mark.parametrize(
    ("goal", "phase", "reached", "words"),
    [
        ("running", "running", True, "run run is running"),
        ("step=7", "running", True, "run run is at step 7: step 7"),
        ("step=7", "finished", True, "run run is at step 7"),
        ("step=8", "finished", False, "run run is finished at step 7; it is not at step 8"),
        ("finished", "finished", True, "run run is finished: step 7"),
        ("finished", "stopped", False, "run run was stopped at step 7 (to let it go on: supervisor resume run"),
        ("running", "halted", False, "run run is halted at step 7: its disk is full"),
    ],
)
def test_a_wait_ends_where_the_run_is_there_or_cannot_get_there(
    goal: str, phase: Any, reached: bool, words: str
) -> None:
    why = text("its disk is full") if phase == "halted" else None
    found = waited(store_at(phase, halt_reason=why), goal)
    assert found[0] is reached
    assert found[1].startswith(words)


def test_a_wait_ends_by_a_change_or_with_its_time() -> None:
    store = store_at("running")
    reached, words = waited(store, "finished", within_s=0.0)
    assert (reached, words) == (False, "run run is not finished in time: it is running, at step 7")
    unplaced = waited(store_at("running", groups={}), "running", within_s=0.0)[1]
    assert (
        unplaced == "run run is not running in time: it is running, with 0 of 2 groups running (groups.min_groups = 1)"
    )
    timer = threading.Timer(0.1, turned(store, "finished"))
    timer.start()
    assert waited(store, "finished") == (True, "run run is finished: step 7")
    timer.join()


def test_groups_of_a_command_that_reports_no_steps_run_without_a_step() -> None:
    store = store_at("running", step=0)
    record = decode(store.get(keys.spec("run")).value, RunRecord)  # type: ignore[union-attr]
    plain = replace(record.spec, trainer=TrainerSpec(command=("x",), reports="output"))
    store.put(keys.spec("run"), encode(replace(record, spec=plain)))
    assert waited(store, "running") == (True, "run run is running")


def test_a_run_that_is_not_there_and_one_that_is_removed_meanwhile() -> None:
    with pytest.raises(Fatal, match="there is no run yet"):
        waited(MemoryStore(), "running")
    store = store_at("running")
    timer = threading.Timer(0.1, lambda: store.commit({}, [keys.spec("run"), keys.memory("run", "run")]))
    timer.start()
    assert waited(store, "finished") == (False, "run run was removed: it is not finished")
    timer.join()


def test_a_run_that_is_followed_is_told_once_and_to_its_end() -> None:
    store, lines = store_at("running"), list[str]()
    recovered = encode(replace(INCIDENT, state="recovered", recovered=9.0))
    happens = {
        "step 7 of 1000": lambda: store.put(keys.incident("run", "i1"), recovered),
        "incident i1: node_lost of group 1 on n9 (recovered)": turned(store, "finished"),
    }

    def heard(line: str) -> None:
        lines.append(line)
        happens.get(line, lambda: None)()

    assert follow.follow(store, "run", heard, pytest.fail) == "finished"
    assert len(lines) == len(set(lines))
    wanted = [
        "group 0: running on n1, generation 1",
        "incident i1: node_lost of group 1 on n9 (acting): rung 2 replace, its node is gone",
        "step 7 of 1000",
        "incident i1: node_lost of group 1 on n9 (recovered)",
        "run run is finished at step 7",
    ]
    assert [line for line in lines if line in wanted] == wanted


def test_goals_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for goal in ("step", "step=", "step=-1", "step=x", "stopped", ""):
        with pytest.raises(ValueError, match=r"give running, step=N or finished"):
            Goal.of(goal)
        result = CliRunner().invoke(cli.app, ["wait", "run", "--for", goal, "--etcd", "127.0.0.1:1"])
        assert (result.exit_code, "give running, step=N or finished" in result.output) == (2, True)
    for phase, code in (("finished", 0), ("stopped", 1)):
        monkeypatch.setattr(common, "connect", lambda *_, phase=phase, **__: store_at(phase))
        result = CliRunner().invoke(cli.app, ["wait", "run", "--for", "finished", "--etcd", "127.0.0.1:1"])
        assert (result.exit_code, bool(result.stdout)) == (code, code == 0)


def test_a_run_is_named_as_an_argument_or_by_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "connect", lambda *_, **__: store_at("running"))
    for command in ("status", "incidents"):
        for name in (["run"], ["--run", "run"], ["run", "--run", "run"]):
            assert CliRunner().invoke(cli.app, [command, *name, "--etcd", "127.0.0.1:1"]).exit_code == 0
        result = CliRunner().invoke(cli.app, [command, "run", "--run", "other", "--etcd", "127.0.0.1:1"])
        assert (result.exit_code, "name it once" in result.output) == (2, True)
        result = CliRunner().invoke(cli.app, [command, "none", "--etcd", "127.0.0.1:1"])
        assert (result.exit_code, "there is no run 'none'; known: run" in result.output) == (1, True)
