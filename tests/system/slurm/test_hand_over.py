"""Every job is at its limit and no other host is free: the groups are handed over through a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import BEGIN_S, slurm_world
from fault_injection.testbed.waiting import eventually
from tests.system.slurm.test_time_limit import LIMIT_S, WARN_S, no_step_twice

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
]


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(LIMIT_S + 3 * BEGIN_S)
def test_everybody_leaves_and_no_host_is_free(tmp_path: Path) -> None:
    """Two hosts for two groups: they hand over to a checkpoint, and their successors start once the jobs have ended."""
    with slurm_world(tmp_path, toys=False, nodes=2) as w:
        record = w.launch(
            w.spec("full", spares=0, slurm={"time_limit": "3", "warn_s": WARN_S}, start_timeout_s=BEGIN_S)
        )
        eventually(w.running(record, 1, 1), BEGIN_S, "both groups train")
        before = eventually(lambda: w.status(record).step, 60, "they step")
        eventually(
            lambda: all(g.generation > 1 and g.phase == "running" for g in w.status(record).groups),
            LIMIT_S + BEGIN_S,
            "both groups train in their successors",
        )
        assert w.status(record).step > before
        w.digests_equal(record, time.time())
        no_step_twice(w, record)
        w.check(record)
