"""Real trainers through a scale up, a scale down and a relaunch with another learning rate: replicas stay equal."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, equal_digests, toy_spec, world
from supervisor.core.model.spec import RunSpec, TitanSpec
from supervisor.shell.inspect import client, relaunch
from supervisor.wire.records import RunRecord
from tests.helpers.measure import measured

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(1200)]

WITHIN_S = 300.0


def goes_on_by(w: World, record: RunRecord, after: RunSpec, *generations: int) -> RunRecord:
    """Asks for the spec, and waits until all groups train by it and are equal."""
    relaunch.refuse(w.mirror(), record, after)
    relaunch.relaunch(w.store, w.mirror(), record, after, "the test")
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
            recipe="llama3-debug-small", steps=100_000, checkpoint_interval_steps=20, digest_interval_steps=5
        )
        spec = replace(toy_spec(groups=2, spares=0, start_timeout_s=WITHIN_S), titan=titan, torchft=TORCHFT)
        record = w.launch(spec)
        eventually(w.running(record, 1, 1), WITHIN_S, "both groups train")
        began = time.time()
        record = goes_on_by(w, record, relaunch.sized(record.spec, 4, None), 1, 1, 1, 1)
        record = goes_on_by(w, record, relaunch.sized(record.spec, 3, None), 1, 1, 1)
        ended = time.time()
        for group in (0, 1):
            lines = [x for s in w.history(record).steps if s.group == group for x in s.committed()]
            numbers = [x["step"] for x in lines]
            assert numbers == list(range(1, numbers[-1] + 1))
            times = [x["t"] for x in lines if began <= x["t"] <= ended]
            measured("scale: the longest pause of a group that stays", max(b - a for a, b in itertools.pairwise(times)))
        faster = replace(record.spec, titan=replace(titan, overrides={"optimizer.lr": 2e-3}))
        record = goes_on_by(w, record, faster, 2, 2, 2)
        assert w.incidents(record) == []
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", WITHIN_S, "it stops")
        w.check(record)
