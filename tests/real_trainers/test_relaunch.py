"""Real trainers through a scale up, a scale down and a relaunch with another learning rate: replicas stay equal."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.spec import RunSpec, TitanSpec
from supervisor.shell.inspect import client, relaunch, status
from supervisor.wire import keys
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import RunRecord
from tests.helpers.measure import measured

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(1200)]

WITHIN_S = 300.0


def goes_on_by(w: World, record: RunRecord, after: RunSpec, *generations: int, from_memory: bool = False) -> RunRecord:
    """Asks for the spec, and waits until all groups train by it and are equal."""
    relaunch.refuse(w.mirror(), record, after)
    relaunch.relaunch(w.store, w.mirror(), record, after, "the test", from_memory)
    eventually(lambda: client.choose_run(w.mirror(), "toy").number > record.number, WITHIN_S, "it is in force")
    now = client.choose_run(w.mirror(), "toy")
    eventually(w.running(now, *generations), WITHIN_S, "all groups train")
    since = time.time()
    eventually(lambda: equal_digests(w, now, since), WITHIN_S, "all replicas are equal")
    return now


def test_replicas_stay_equal_and_those_that_stay_lose_no_step(tmp_path: Path) -> None:
    with world(tmp_path, nodes=5, toys=False) as w:
        w.supervisor()
        titan = TitanSpec(
            recipe="llama3-debug-small", steps=100_000, digest_interval_steps=5,
            # the pauses that a checkpoint makes are not those of a scale; the relaunch at the end saves its own
            checkpoint_interval_steps=100_000,
        )  # fmt: skip
        spec = replace(toy_spec(groups=2, spares=0, start_timeout_s=WITHIN_S), titan=titan, torchft=TORCHFT)
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), WITHIN_S, "both groups train")
        began = time.time()
        record = goes_on_by(w, record, relaunch.sized(record.spec, 4, None), 1, 1, 1, 1)
        record = goes_on_by(w, record, relaunch.sized(record.spec, 3, None), 1, 1, 1)
        eventually(lambda: keys.memory("toy", "group-3") not in w.mirror().items, WITHIN_S, "the fourth has ended")
        left_at = w.status(record).step
        eventually(lambda: w.status(record).step > left_at + 5, WITHIN_S, "the others step on")
        ended = time.time()
        for group in (0, 1, 2):  # the third stays too, from the first step that it commits with the others
            lines = [x for s in w.history(record).steps if s.group == group for x in s.committed()]
            numbers = [x["step"] for x in lines]
            assert numbers == list(range(numbers[0] if group == 2 else 1, numbers[-1] + 1))
            times = [x["t"] for x in lines if began <= x["t"] <= ended]
            pauses = [b - a for a, b in itertools.pairwise(times)]
            measured("scale: the longest pause of a group that stays", max(pauses), step_s=statistics.median(pauses))
            # heartbeat_timeout_ms: most that the lighthouse waits for a group that leaves. 1 s: what is allowed for the next
            # quorum, its connections, and the first step of a group that heals. Then the step itself, by this run's median.
            bound_s = record.spec.torchft.heartbeat_timeout_ms / 1000 + 1.0 + statistics.median(pauses)
            assert max(pauses) <= bound_s
        faster = replace(record.spec, titan=replace(titan, overrides={"optimizer.lr": 2e-3}))
        record = goes_on_by(w, record, faster, 2, 2, 2)
        assert w.incidents(record) == []
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", WITHIN_S, "it stops")
        w.check(record)


def with_rate(spec: RunSpec, rate: float) -> RunSpec:
    return replace(spec, titan=replace(spec.titan, overrides={**spec.titan.overrides, "optimizer.lr": rate}))


def start_of(w: World, record: RunRecord, group: int, generation: int) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Returns how a generation resumed, and the steps that the one before and this one committed."""
    before, this = (
        next(s for s in w.history(record).steps if (s.group, s.generation) == (group, g))
        for g in (generation - 1, generation)
    )
    (resumed,) = [line for line in this.lines if line.get("event") == "resumed"]
    return resumed, [*before.committed()], [*this.committed()]


def test_states_stay_in_memory_while_the_learning_rate_changes(tmp_path: Path) -> None:
    """No checkpoint is written, no step is made twice, and the optimizer goes on as after a checkpoint."""
    with world(tmp_path, nodes=3, toys=False, warm_torch=True) as w:
        w.supervisor()
        titan = TitanSpec(
            recipe="llama3-debug-small", steps=100_000, checkpoint_interval_steps=100_000, digest_interval_steps=5,
            overrides={"lr_scheduler.warmup_steps": 0},
        )  # fmt: skip
        spec = replace(toy_spec(groups=2, spares=1, start_timeout_s=WITHIN_S), titan=titan, torchft=TORCHFT)
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), WITHIN_S, "both groups train")
        eventually(lambda: w.status(record).step > 10, WITHIN_S, "they step")
        eventually(
            lambda: all(n.warm == "ready" for n in status.node_status(w.mirror()) if n.node != "host"), 120, "warm"
        )
        # the first processes of a run may be started before the warm ones are ready
        record = goes_on_by(w, record, with_rate(record.spec, 1e-3), 2, 2)
        saved = listed(record.run_dir)
        _, before, after = start_of(w, record, 0, 2)
        assert (before[-1]["lr"], after[0]["lr"]) == (pytest.approx(8e-4, rel=1e-3), pytest.approx(1e-3, rel=1e-3))
        record = goes_on_by(w, record, with_rate(record.spec, 2e-3), 3, 3, from_memory=True)
        assert listed(record.run_dir) == saved, "no checkpoint was written"
        firsts = []
        for group in (0, 1):
            resumed, before, after = start_of(w, record, group, 3)
            assert (resumed["from_memory"], resumed["step"]) == (True, before[-1]["step"])
            assert after[0]["lr"] == pytest.approx(2e-3, rel=1e-3)
            firsts.append(after[0]["step"])
        assert min(firsts) == resumed["step"] + 1, "the one that is back first goes on, and the other heals"
        assert max(firsts) < min(firsts) + 20

        # a group whose state is lost meanwhile heals from the other
        fault = with_rate(record.spec, 1e-3)
        relaunch.refuse_from_memory(w.mirror(), record, fault)
        lost = w.status(record).groups[1].node
        relaunch.relaunch(w.store, w.mirror(), record, fault, "the test", from_memory=True)
        drained = w.system / "nodes" / lost / "ranks" / "toy.1.3.0" / "steps.jsonl"
        eventually(lambda: '"event": "kept"' in drained.read_text(), WITHIN_S, "its state is in memory")
        w.kill_node(lost)
        now = client.choose_run(w.mirror(), "toy")
        eventually(w.running(now), WITHIN_S, "all groups train")
        since = time.time()
        eventually(lambda: equal_digests(w, now, since), WITHIN_S, "all replicas are equal")
        resumed, _, _ = start_of(w, record, 0, 4)
        assert resumed["from_memory"]
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", WITHIN_S, "it stops")
        w.check(record)
