"""Scripts of the user's own under the whole system: one that knows nothing of it, and the two examples."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import EnvSpec, HangSpec, RunSpec, TrainerSpec
from supervisor.shell.runfile import parse
from supervisor.wire.records import RunRecord
from tests.helpers.reasons import values
from tests.system.integration.test_cli import cli

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[3] / "examples" / "own_script"
SILENT_S = 3.0
HEALTHY_AFTER_S = 1.0

PLAIN = """
import pathlib, sys, time
order = pathlib.Path(sys.argv[1])
while True:
    text = order.read_text() if order.exists() else ""
    order.unlink(missing_ok=True)
    if text == "finish":
        break
    if text == "exit":
        sys.exit(3)
    if text == "always":
        order.write_text("always")
        sys.exit("no such corpus")
    while text == "silent":
        time.sleep(0.1)
    print("still there")
    time.sleep(0.1)
"""


def plain_spec(folder: Path, groups: int = 1, name: str = "plain") -> RunSpec:
    (folder / "plain.py").write_text(PLAIN)
    command = ("python", "plain.py", str(folder / "order"))
    trainer = TrainerSpec(command=command, reports="output", silent_after_s=SILENT_S)
    hang = HangSpec(at_least_s=2 * SILENT_S)
    policy = {"backoff_first_s": 0.0, "healthy_after_s": HEALTHY_AFTER_S, "hang": hang}
    made = toy_spec(name, groups=groups, spares=1, **policy)
    return replace(made, trainer=trainer, env=EnvSpec(directory=str(folder)))


def tell(order: Path, what: str) -> None:
    """Gives the script an order, whole: it reads and removes the file at any moment."""
    scratch = order.with_suffix(".tmp")
    scratch.write_text(what)
    scratch.replace(order)


def recovered(w: World, record: RunRecord, count: int) -> Incident:
    """Waits until that many incidents are over; returns the newest."""

    def newest() -> Incident | None:
        found = w.incidents(record)
        return found[-1] if len(found) == count and found[-1].state == "recovered" else None

    return eventually(newest, 90, f"{count} incidents are over")


def test_a_script_that_knows_no_supervisor_is_restarted_after_an_exit_and_after_silence_until_it_always_fails(
    empty: World, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    record = empty.launch(plain_spec(tmp_path))
    eventually(empty.running(record, 1), 60, "it runs")
    tell(order, "exit")
    ended = recovered(empty, record, 1)
    assert (ended.kind, ended.rung, ended.generation_after) == (Kind.ERROR, Rung.RESTART, 2)
    assert values(ended.evidence, Code.EXITED)[0]["exit_code"] == 3
    eventually(empty.running(record, 2), 30, "it runs again")
    assert "last output" in cli("status", world=empty).stdout
    tell(order, "silent")
    hung = recovered(empty, record, 2)
    assert (hung.kind, hung.rung, hung.generation_after) == (Kind.HANG, Rung.RESTART, 3)
    seen = values(hung.evidence, Code.NO_STEP)[0]
    assert seen["bound_s"] == SILENT_S
    assert "plain.py" in {file for _, file, _ in seen["stack"].about["frames"]}
    eventually(empty.running(record, 3), 30, "it runs again")
    tell(order, "finish")
    eventually(lambda: empty.status(record).phase == "finished", 30, "exit code 0 is the end")
    empty.check(record, stepped=False)
    tell(order, "always")
    spec = plain_spec(tmp_path, name="always")
    always = empty.launch(replace(spec, policy=replace(spec.policy, healthy_after_s=60.0)))
    eventually(lambda: empty.status(always).phase == "halted", 60, "it fails at each start")
    [only] = empty.incidents(always)
    assert (only.kind, only.state) == (Kind.SAME_ERROR, "halted")
    assert values(only.evidence, Code.LOG_ENDS)[0]["words"] == "no such corpus"
    empty.check(always, stepped=False)


@pytest.mark.long
def test_one_of_two_groups_loses_its_node_is_drained_and_falls_silent_and_a_stop_ends_both(
    empty: World, tmp_path: Path
) -> None:
    record = empty.launch(plain_spec(tmp_path, groups=2))
    eventually(empty.running(record, 1, 1), 60, "both groups run")
    other = empty.trainer(record, 0).pid
    empty.kill_node(empty.status(record).groups[1].node)
    assert recovered(empty, record, 1).kind == Kind.NODE_LOST
    eventually(empty.running(record, 1, 2), 30, "it runs on another node")
    drained = empty.status(record).groups[1].node
    eventually(lambda: empty.status(record).spares, 30, "a spare is there")
    done = cli("drain", drained, "--because", "a new card", world=empty)
    assert done.returncode == 0, done.stderr
    assert recovered(empty, record, 2).kind == Kind.LEAVING
    eventually(empty.running(record, 1, 3), 30, "it runs on the spare")
    assert empty.status(record).groups[1].node != drained
    assert empty.trainer(record, 0).pid == other
    (tmp_path / "order").write_text("silent")  # for the group that reads it first
    hung = recovered(empty, record, 3)
    assert (hung.kind, hung.rung) == (Kind.HANG, Rung.RESTART)
    eventually(empty.running(record), 30, "it runs again")
    empty.control(record, stop=True)
    eventually(lambda: empty.status(record).phase == "stopped", 60, "the run ends")
    assert len(empty.incidents(record)) == 3
    empty.check(record, stepped=False)


def example(name: str) -> RunSpec:
    """The example's own run file, without its end and with short leases."""
    spec = parse.load(EXAMPLES / f"{name}.toml")
    policy = replace(spec.policy, node_lease_s=LEASE_S, term_grace_s=1.0, backoff_first_s=0.0)
    titan = replace(spec.titan, steps=10**6, checkpoint_interval_steps=20)
    return replace(spec, titan=titan, policy=policy, torchft=TORCHFT)


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.parametrize("name", ["torchft_ddp", "callback"])
def test_an_example_goes_on_through_a_kill_a_lost_node_and_a_drain(tmp_path: Path, name: str) -> None:
    with world(tmp_path, toys=False) as w:
        w.supervisor()
        record = w.launch(example(name))
        eventually(w.running(record, 1, 1), 120, "both groups train")
        other = w.trainer(record, 0).pid
        began = time.time()
        w.kill_trainer(record, 1)
        assert recovered(w, record, 1).kind == Kind.CRASH
        eventually(w.running(record, 1, 2), 60, "it is back")
        w.kill_node(w.status(record).groups[1].node)
        assert recovered(w, record, 2).kind == Kind.NODE_LOST
        eventually(w.running(record, 1, 3), 60, "it trains on another node")
        healed = w.trainer(record, 1).progress
        assert healed is not None
        assert healed.healed
        drained = w.status(record).groups[1].node
        eventually(lambda: w.status(record).spares, 60, "a spare is there")
        done = cli("drain", drained, "--because", "a new card", world=w)
        assert done.returncode == 0, done.stderr
        assert recovered(w, record, 3).kind == Kind.LEAVING
        eventually(w.running(record, 1, 4), 60, "it trains on the spare")
        assert w.status(record).groups[1].node != drained
        eventually(lambda: equal_digests(w, record, began), 60, "both have the same weights")
        assert w.trainer(record, 0).pid == other, "the other group has gone on"
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", 120, "the run ends")
        codes = [
            line.get("exit_code")
            for line in w.shim_history(w.status(record).groups[0].node)
            if line["event"] == "exited"
        ]
        assert 0 in codes, "it ended at the common step by itself"
        w.check(record)


@pytest.mark.long
@pytest.mark.trainers
def test_the_only_group_is_handed_over_through_its_last_checkpoint(tmp_path: Path) -> None:
    with world(tmp_path, toys=False) as w:
        w.supervisor()
        spec = example("torchft_ddp")
        titan = replace(spec.titan, checkpoint_interval_steps=10**6)
        record = w.launch(replace(spec, titan=titan, groups=replace(spec.groups, count=1)))
        eventually(w.running(record, 1), 120, "it trains")
        drained = w.status(record).groups[0].node
        eventually(lambda: w.status(record).spares, 60, "a spare is there")
        done = cli("drain", drained, "--because", "a new card", world=w)
        assert done.returncode == 0, done.stderr
        eventually(w.running(record, 2), 120, "it trains on the spare")
        state = w.status(record)
        assert state.groups[0].node != drained
        assert state.checkpoint_step is not None
        eventually(lambda: w.status(record).step > state.step, 60, "it steps on")
        lines = [line for of in w.history(record).steps if of.generation == 2 for line in of.lines]
        assert next(line["step"] for line in lines if line["event"] == "step") == state.checkpoint_step + 1
        w.check(record)
