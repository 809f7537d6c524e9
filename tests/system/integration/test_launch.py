"""A run from its launch to its removal, as a user does it, with real etcd, processes and a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.ports.errors import Fatal
from supervisor.shell.inspect import client, follow, removal
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from tests.helpers.commands import ran
from tests.system.integration.test_cli import fails

pytestmark = pytest.mark.etcd

RUN = """
name = "toy"
titan = { steps = 1000000, checkpoint_interval_steps = 1000000 }
allocation = { nodes = 2, spares = 1 }
policy = { node_lease_s = 5, term_grace_s = 1.0 }
"""


def command(w: World, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "supervisor.cli", *arguments, "--etcd", w.etcd.endpoint, "--home", str(w.runs)]


def said(w: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of `supervisor`; TorchTitan's check is the toys'."""
    env = {name: value for name, value in w.environment.items() if os.environ.get(name) != value}
    return ran(*arguments, "--etcd", w.etcd.endpoint, "--home", str(w.runs), env=env)


@contextlib.contextmanager
def followed(w: World, file: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["env", "--default-signal", *command(w, "launch", str(file), "--follow", *more)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=w.environment,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_a_name_is_used_again_after_a_removal(empty: World) -> None:
    w, spec = empty, toy_spec(groups=1, spares=0)

    def waited(goal: str) -> bool:
        return follow.wait(w.store, "toy", follow.Goal.of(goal), time.monotonic() + 60, print)[0]

    for generation in (1, 2):
        record = w.launch(spec)
        assert waited("running")
        assert [g.generation for g in w.status(record).groups] == [generation]
        with pytest.raises(Fatal, match="is running: end it first"):
            removal.remove(w.store, "toy", with_files=False)
        w.control(record, stop=True)
        assert not waited("finished"), "it was stopped"
        w.check(record)
        removal.remove(w.store, "toy", with_files=generation == 2)
        assert w.mirror().keys(f"{keys.RUNS}toy/") == [keys.removed("toy")]
    assert [path.name for path in w.runs.iterdir() if path.name != ".supervisor"] == ["toy.1"]


@pytest.mark.long
def test_a_run_is_launched_followed_stopped_removed_and_launched_again(empty: World, tmp_path: Path) -> None:
    w, file = empty, tmp_path / "run.toml"
    file.write_text(RUN)
    eventually(w.led, 30, "a supervisor leads")
    with followed(w, file) as first:
        assert first.stdout is not None
        lines = iter(first.stdout.readline, "")
        assert next(lines).startswith("launched toy; folder ")
        eventually(lambda: next(lines).startswith(("group 0: running", "group 1: running")), 60, "it tells of a group")
        first.send_signal(signal.SIGINT)
        _, words = first.communicate(timeout=30)
    assert first.returncode == 1
    assert "run toy goes on without this command" in words
    assert "Traceback" not in words
    assert said(w, "wait", "toy", "--for", "running", "--timeout-s", "60").returncode == 0
    fails(said(w, "launch", str(file)), 1, "a run named 'toy' already exists")
    fails(said(w, "rm", "toy"), 1, "run toy is running: end it first with `supervisor stop toy`")
    fails(said(w, "wait", "toy", "--for", "finished", "--timeout-s", "0.5"), 1, "it is running")
    before = client.choose_run(w.mirror(), "toy")
    assert said(w, "stop", "toy").returncode == 0
    fails(said(w, "wait", "toy", "--for", "finished", "--timeout-s", "60"), 1, "run toy was stopped")
    w.check(before)
    removed = said(w, "rm", "toy")
    assert (removed.returncode, removed.stdout.splitlines()[0]) == (0, "removed run toy")
    assert w.mirror().keys(f"{keys.RUNS}toy/") == [keys.removed("toy")]
    _again(w, file)


def _again(w: World, file: Path) -> None:
    """Launches a run of the name again: it has new generations, and a folder and a journal of its own."""
    with followed(w, file) as second:
        record = eventually(lambda: _known(w), 30, "it is launched")
        eventually(w.running(record, 2, 2), 60, "both groups run, in generations that were not used")
        client.change_control(w.store, "toy", lambda c: type(c)(stop=True))
        words, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"are now in {w.runs / 'toy'}.1" in words
    assert words.splitlines()[-1].startswith("run toy was stopped")
    w.check(record)
    for folder in ("toy.1", "toy"):
        journal = [json.loads(line) for line in (w.runs / folder / "journal.jsonl").read_text().splitlines()]
        assert journal[0]["event"] == "term"
        generations = {g["generation"] for line in journal for g in line.get("groups", {}).values() if g["node"]}
        assert generations == ({1} if folder == "toy.1" else {2})


def _known(w: World) -> RunRecord | None:
    mirror = w.mirror()
    return client.choose_run(mirror, "toy") if keys.spec("toy") in mirror.items else None
