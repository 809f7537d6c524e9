"""Runs in etcd by the Python API: the commands' values and sentences, as values and one exception."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import supervisor.client as everstep
from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.measured import Measured
from supervisor.core.model.spec import RunSpec
from supervisor.ports.errors import Retryable
from supervisor.shell import etcd
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client as requests
from supervisor.shell.runfile import timeout_fit
from supervisor.wire import keys
from supervisor.wire.records import Account, Control, LeaderRecord, RunRecord, decode, encode
from tests.unit.shell.records import MEMORY, SPEC, run_values

LEADER = {keys.LEADER: encode(LeaderRecord(host="h", pid=1, home=""))}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUPERVISOR_ETCD", "SUPERVISOR_HOME", "SUPERVISOR_SECURITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """An etcd with a run, which the API and the commands find."""
    made = MemoryStore()
    made.commit({**run_values(), **LEADER})
    monkeypatch.setattr(etcd, "connect", lambda *_, **__: made)
    monkeypatch.setattr(common, "connect", lambda *_, **__: made)
    monkeypatch.setattr(made, "close", lambda: None)  # one for all
    return made


@pytest.fixture
def client(store: MemoryStore, tmp_path: Path) -> Iterator[everstep.Client]:
    with everstep.connect("127.0.0.1:1", home=tmp_path) as made:
        yield made


def at(store: MemoryStore, phase: Any) -> None:
    store.commit(run_values(replace(MEMORY, phase=phase)))


def control(store: MemoryStore) -> Control:
    item = store.get(keys.control("run"))
    return decode(item.value, Control) if item is not None else Control()


def command(*arguments: str, code: int = 0) -> str:
    """The output of a command on the same etcd."""
    result = CliRunner().invoke(cli.app, [*arguments, "--etcd", "127.0.0.1:1"])
    assert result.exit_code == code, result.output
    return result.output


# --- what is read ---


def test_a_status_is_the_commands(client: everstep.Client, store: MemoryStore) -> None:
    store.alarms = ("NOSPACE",)
    found = client.run("run").status()
    assert isinstance(found, everstep.RunStatus)
    said = json.loads(command("status", "run", "--json"))
    assert (found.phase, list(found.warnings), found.groups[1].incident) == (
        said["phase"], said["warnings"], said["groups"][1]["incident"],
    )  # fmt: skip
    assert "NOSPACE" in found.warnings


def test_incidents_are_the_commands_with_sentences_and_times(client: everstep.Client, store: MemoryStore) -> None:
    store.put(keys.account("run"), encode(Account(clocks=((0.0, 1000.0),))))
    (found,) = client.run().incidents()
    (said,) = json.loads(command("incidents", "run", "--json"))
    assert (found.id, found.kind, found.rung, found.state) == ("i1", "node_lost", 2, "acting")
    assert (found.reason, list(found.evidence)) == (said["reason"], said["evidence"])
    assert found.seen_unix_s == said["seen_unix_s"] == 1005.0
    assert (found.recovered_unix_s, found.lasted_s) == (said["recovered_unix_s"], said["lasted_s"]) == (None, None)


def test_an_explanation_prints_what_the_command_prints(client: everstep.Client) -> None:
    found = client.run().explain("i1")
    assert str(found) + "\n" == command("explain", "i1", "--run", "run", code=1)
    assert not found.same
    with pytest.raises(everstep.EverstepError, match="run run has no incident 'i9'; known: i1"):
        client.run().explain("i9")
    assert "supervisor: run run has no incident 'i9'; known: i1" in command("explain", "i9", "--run", "run", code=1)


def test_metrics_of_a_run_without_a_step(client: everstep.Client) -> None:
    found = client.run().metrics()
    assert (found.step, found.loss, found.tokens_per_s, len(found.groups)) == (0, None, 0.0, 2)


def test_runs_come_newest_first(client: everstep.Client, store: MemoryStore) -> None:
    record = RunRecord(spec=replace(SPEC, name="later"), run_dir="/runs/later", launched_unix_s=2.0)
    store.put(keys.spec("later"), encode(record))
    assert [run.name for run in client.runs()] == ["later", "run"]
    assert (client.run().name, client.run("run").folder) == ("later", Path("/runs/run"))
    with pytest.raises(everstep.EverstepError, match=r"there is no run 'none'; known: later, run"):
        client.run("none")


def test_logs_of_all_ranks_or_one(client: everstep.Client, tmp_path: Path) -> None:
    run = client.run()
    with pytest.raises(everstep.EverstepError, match=f"no logs of run run below {tmp_path}: look on a node"):
        run.logs(remote=False)
    with pytest.raises(everstep.EverstepError, match="no node has logs of run run: the nodes that ran it are gone"):
        run.logs()
    for group, t in ((0, 10.0), (1, 20.0)):
        folder = tmp_path / "nodes" / "n1" / "ranks" / f"run.{group}.1.0"
        folder.mkdir(parents=True)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
        (folder / "output.log").write_text(f"[a] {stamp},500 group {group}\n")
        # an older file than its lines: a line is no older than its rank
        (folder / "launch.json").touch()
        os.utime(folder / "launch.json", (0, 0))
    assert [(line.group, line.t, line.text.partition("500 ")[2]) for line in run.logs()] == [
        (0, 10.5, "group 0"), (1, 20.5, "group 1"),
    ]  # fmt: skip
    assert [line.group for line in run.logs(since=10.6)] == [line.group for line in run.logs(tail=1)] == [1]
    assert ([line.group for line in run.logs(group=0)], list(run.logs(tail=0))) == ([0], [])
    assert [line.group for line in run.logs(grep="group 1")] == [1]
    assert [line.group for line in run.logs(since=10.5)] == [0, 1], "one of that very time may be new"
    with pytest.raises(everstep.EverstepError, match="run run has no group 7: it has 0 to 1"):
        run.logs(group=7)


# --- what is waited for and requested ---


def test_a_wait_ends_with_a_sentence(client: everstep.Client, store: MemoryStore) -> None:
    run = client.run()
    with pytest.raises(everstep.EverstepError, match=r"for_: 'stopped': give running, step=N or finished"):
        run.wait("stopped")
    with pytest.raises(everstep.EverstepError, match="run run is not at step 7 in time: it is running"):
        run.wait("step=7", timeout_s=0)
    at(store, "finished")
    assert run.wait("finished", timeout_s=0) == "run run is finished: step 0"
    with pytest.raises(everstep.EverstepError, match="run run is finished at step 0; it is not at step 7"):
        run.wait("step=7")


def test_requests_are_the_commands(client: everstep.Client, store: MemoryStore) -> None:
    run = client.run()
    assert run.pause() == "run: paused"
    assert control(store).paused
    assert run.resume() == "run: acting again"
    assert not control(store).paused
    assert run.restart(1) == "run: group 1 will be restarted"
    assert control(store).restarts == {1: 1}
    assert run.stop().startswith("run: stopping: groups that train end after one common step")
    assert control(store).stop


@pytest.mark.parametrize("request_", ["pause", "stop", "restart"])
def test_what_has_no_effect_is_refused(client: everstep.Client, store: MemoryStore, request_: str) -> None:
    at(store, "finished")
    arguments = (1,) if request_ == "restart" else ()
    with pytest.raises(everstep.EverstepError, match=f"run run is finished: {request_} does nothing any more"):
        getattr(client.run(), request_)(*arguments)
    assert control(store) == Control()


def test_a_halted_run_is_resumed_with_a_reason_alone(client: everstep.Client, store: MemoryStore) -> None:
    at(store, "halted")
    with pytest.raises(everstep.EverstepError, match="run run is halted; give a reason to resume it"):
        client.run().resume(because=" ")
    assert "because: it is mended" in client.run().resume("it is mended", they_are_down=True)
    assert control(store).resumes == 1


def test_a_run_that_has_ended_is_removed(client: everstep.Client, store: MemoryStore) -> None:
    run = client.run()
    with pytest.raises(everstep.EverstepError, match=r"run run is running: end it first"):
        run.remove()
    at(store, "stopped")
    assert run.remove().startswith("removed run run")
    assert client.runs() == ()
    with pytest.raises(everstep.EverstepError, match="there is no run 'run'; known: none"):
        run.status()


# --- a launch ---


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """The specs that were checked with TorchTitan: that takes a process of its own."""
    seen: list[RunSpec] = []

    def check(spec: RunSpec, tree: object = None) -> tuple[list[str], list[str]]:
        seen.append(spec)
        return (["titan.overrides.x = 1: no such key"] if "x" in spec.titan.overrides else []), ["a change"]

    monkeypatch.setattr(requests, "check_titan", check)
    return seen


def launched(store: MemoryStore, name: str) -> RunRecord:
    return requests.choose_run(Mirror(store.list(keys.PREFIX)), name)


def test_a_run_file_is_launched_with_changes(
    client: everstep.Client, store: MemoryStore, tmp_path: Path, checked: list[RunSpec]
) -> None:
    file = tmp_path / "run.toml"
    overrides = '[titan.overrides]\n"training.seq_len" = 32\n'
    file.write_text(f'name = "run"\n[groups]\ncount = 2\nmin_groups = 2\n[allocation]\nnodes = 2\n{overrides}')
    with pytest.raises(everstep.EverstepError, match="a run named 'run' already exists: choose another name"):
        client.launch(file)
    assert checked == []
    changes = {
        "groups.count": 4,
        "groups.min_groups": None,
        "allocation.nodes": 5,
        "titan.overrides.training.seq_len": 64,
    }
    run = client.launch(file, name="other", set=changes)
    spec = launched(store, "other").spec
    assert (run.name, run.folder) == ("other", tmp_path / "other")
    assert (spec.groups.count, spec.groups.min_groups, spec.allocation.nodes) == (4, 1, 5)
    assert dict(spec.titan.overrides) == {"training.seq_len": 64}
    assert "a change" in run.notes


@pytest.mark.parametrize("given", [{"name": "a"}, RunSpec(name="a")], ids=["dictionary", "spec"])
def test_a_dictionary_and_a_spec_are_launched(
    client: everstep.Client, store: MemoryStore, checked: list[RunSpec], given: Any
) -> None:
    assert client.launch(given).name == "a"
    assert launched(store, "a").spec == RunSpec(name="a") == checked[0]


def test_all_problems_are_named_at_once(client: everstep.Client, tmp_path: Path, checked: list[RunSpec]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "x"\n[torchft]\nhearbeat_timeout_ms = 5\n')
    with pytest.raises(everstep.EverstepError) as error:
        client.launch(file, set={"titan.steps": "many"})
    first, second = str(error.value).splitlines()
    assert first.startswith(f"{file}: torchft.hearbeat_timeout_ms = 5: there is no such key; nearest: ")
    assert second.startswith(f"{file}: titan.steps = 'many'")
    with pytest.raises(everstep.EverstepError, match=r"run: name.x: its parent is not a table"):
        client.launch({"name": "b"}, set={"name.x": 1})
    with pytest.raises(everstep.EverstepError, match=r"run: titan.overrides.x = 1: no such key"):
        client.launch({"name": "b"}, set={"titan.overrides.x": 1})
    with pytest.raises(everstep.EverstepError, match=f"cannot read the run file {tmp_path}/none.toml: No such file"):
        client.launch(tmp_path / "none.toml")
    assert [run.name for run in client.runs()] == ["run"]


def test_timeouts_that_are_unsafe_as_measured_are_refused(
    client: everstep.Client, checked: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeout_fit, "of_one_like_it", lambda mirror, spec: ("run", Measured(step_s=900.0)))
    with pytest.raises(everstep.EverstepError, match=r"\(measured in run run, which trained the same\)"):
        client.launch({"name": "b"})


# --- the connection ---


@pytest.mark.parametrize("given", ["", "127.0.0.1", "a:1,,b:1"])
def test_an_endpoint_that_is_none(given: str) -> None:
    with pytest.raises(everstep.EverstepError, match="etcd: "):
        everstep.connect(given)


def test_without_an_etcd_the_sentence_is_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def away(endpoints: Any, **_: Any) -> MemoryStore:
        asked.append(endpoints)
        raise Retryable("no etcd answers")

    monkeypatch.setattr(etcd, "connect", away)
    with pytest.raises(
        everstep.EverstepError, match=f"no etcd found: no `supervisor up` in {tmp_path} has recorded one"
    ):
        everstep.connect(home=tmp_path)
    monkeypatch.setenv("SUPERVISOR_ETCD", "127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(everstep.EverstepError, match=r"^no etcd answers$") as error:
        everstep.connect(home=tmp_path)
    assert isinstance(error.value.__cause__, Retryable)
    assert asked == [["127.0.0.1:2379"], ["127.0.0.1:1", "127.0.0.1:2"]]


def test_an_etcd_that_falls_silent_later(client: everstep.Client, store: MemoryStore) -> None:
    run = client.run()
    store.away = True
    with pytest.raises(everstep.EverstepError):
        run.status()


def test_an_error_of_ours_is_not_made_a_sentence(client: everstep.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a fault of ours")

    run = client.run()
    monkeypatch.setattr(requests, "choose_run", broken)
    with pytest.raises(ValueError, match="a fault of ours"):
        run.status()
