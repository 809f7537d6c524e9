"""etcd's data is lost, a backup is restored, and the runs go on from their checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec, world
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import TitanSpec
from supervisor.core.remediation.restore import GENERATIONS
from supervisor.shell.control import observe
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.wire import checkpoints, keys
from supervisor.wire.records import CheckpointMark, NodeDesired, RunRecord, TrainerDesired, encode
from tests.helpers.etcd import kill
from tests.system.integration.test_cli import cli, fails

START_S = 180
"""Real trainers import torch, several at once on a busy machine."""


@contextmanager
def _world(folder: Path, toys: bool = True) -> Iterator[tuple[World, ExitStack]]:
    """A world, and the stack that ends the etcds which took the place of its first."""
    with ExitStack() as after, world(folder, toys=toys) as made:
        yield made, after


def _lose(w: World, after: ExitStack) -> None:
    """Kills etcd and removes its data; an empty one listens on the same port."""
    port = int(w.etcd.endpoint.rpartition(":")[2])
    kill(w.etcd)
    shutil.rmtree(w.etcd.data_dir / "data")
    w.etcd = start_etcd(w.etcd.data_dir, port)
    after.callback(w.etcd.stop)


def _end_supervisors(w: World) -> None:
    for process in w.supervisors:
        process.terminate()
        process.wait(30)


def _complete(record: RunRecord, step: int, group: int, generation: int) -> str:
    folder = checkpoints.folder_of(record.run_dir) / f"step-{step}.g{group}.gen{generation}"
    folder.mkdir(parents=True)
    mark = CheckpointMark(step=step, path=str(folder), group=group, generation=generation)
    (folder / checkpoints.MARKER).write_bytes(encode(mark))
    return str(folder)


def _memory(w: World, record: RunRecord) -> Memory:
    return observe.memory(w.mirror(), record.spec.name)


def _wanted(w: World, record: RunRecord) -> list[TrainerDesired]:
    found = [r for _, r in w.mirror().records(keys.DESIRED, NodeDesired)]
    return sorted((t for node in found for t in node.trainers), key=lambda t: t.group)


@pytest.mark.etcd
def test_a_run_goes_on_from_a_backup_that_is_older_than_what_happened(tmp_path: Path) -> None:
    file = tmp_path / "backup.json.gz"
    with _world(tmp_path) as (w, after):
        w.supervisor()
        record = w.launch(toy_spec())
        eventually(w.running(record, 1, 1), 60, "both groups run")
        assert cli("backup", "--out", str(file), world=w).returncode == 0
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 2), 60, "more happens than the backup knows")
        before, known = w.status(record), _memory(w, record)
        newest = _complete(record, 40, 0, 1)
        _lose(w, after)
        eventually(w.led, 30 + 10 * LEASE_S, "the supervisor leads on an etcd that is empty")
        fails(cli("restore", str(file), world=w), 1, "leads: stop every supervisor")
        _end_supervisors(w)
        done = cli("restore", str(file), world=w)
        assert done.returncode == 0, done.stderr
        assert "step 40, the newest complete one" in done.stdout
        fails(cli("restore", str(file), world=w), 1, "holds", "runs toy", "overwrites nothing")
        w.supervisor()
        again = 1 + GENERATIONS
        eventually(w.running(record, again, again), 60 + 10 * LEASE_S, "both groups run above every generation")
        state, memory = w.status(record), _memory(w, record)
        assert state.epoch > before.epoch
        assert memory.decisions > known.decisions
        assert memory.lighthouse.generation > known.lighthouse.generation
        assert [t.checkpoint.path for t in _wanted(w, record) if t.checkpoint is not None] == [newest, newest]
        assert state.checkpoint_step == 40
        assert len(state.spares) == record.spec.allocation.spares
        assert state.problems == ()
        w.kill_trainer(record, 0)
        eventually(w.running(record, again + 1, again), 60, "and the ladder works as ever")
        assert json.loads(cli("status", "--json", world=w).stdout)["epoch"] == state.epoch
        w.check(record)


@pytest.mark.long
@pytest.mark.etcd
def test_runs_that_had_ended_stay_ended(tmp_path: Path) -> None:
    file = tmp_path / "backup.json"
    with _world(tmp_path) as (w, after):
        w.supervisor()
        record = w.launch(toy_spec())
        eventually(w.running(record, 1, 1), 60, "both groups run")
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", 60, "the run ends")
        assert cli("backup", "--out", str(file), world=w).returncode == 0
        _end_supervisors(w)
        _lose(w, after)
        assert cli("restore", str(file), world=w).returncode == 0
        w.supervisor()
        eventually(w.led, 30, "it leads")
        second = w.launch(toy_spec(name="second"))
        eventually(w.running(second, 1, 1), 60, "the next run has the nodes")
        assert w.status(record).phase == "stopped"
        w.check(second)


@pytest.mark.etcd
@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(4 * START_S)
def test_real_trainers_resume_from_the_newest_checkpoint_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "backup.json.gz"
    spec = replace(
        toy_spec(name="real", spares=0),
        titan=TitanSpec(recipe="llama3-debug-small", steps=100_000, checkpoint_interval_steps=5, checkpoints_kept=2),
    )
    with _world(tmp_path, toys=False) as (w, after):
        w.supervisor()
        record = w.launch(spec)
        eventually(lambda: w.status(record).checkpoint_step, START_S, "a checkpoint is complete")
        assert cli("backup", "--out", str(file), world=w).returncode == 0
        old = w.status(record).checkpoint_step or 0
        # The checkpoint that the backup names is purged by then.
        eventually(lambda: (w.status(record).checkpoint_step or 0) >= old + 20, START_S, "newer ones are")
        before = w.status(record)
        _end_supervisors(w)
        _lose(w, after)
        done = cli("restore", str(file), world=w)
        assert done.returncode == 0, done.stderr
        memory = _memory(w, record)
        assert memory.checkpoint is not None
        resumed = memory.checkpoint.step
        assert resumed >= (before.checkpoint_step or 0)
        w.supervisor()
        again = 1 + GENERATIONS
        eventually(w.running(record, again, again), START_S, "both groups run")
        eventually(lambda: w.status(record).step > resumed, START_S, "they go on after the checkpoint")
        first = min(
            line["step"] for steps in w.history(record).steps if steps.generation == again for line in steps.committed()
        )
        # the old ones train on until they are ended, and may complete one more checkpoint
        assert (first - 1) % spec.titan.checkpoint_interval_steps == 0
        assert first > resumed
        assert w.status(record).epoch > before.epoch
        w.check(record)
