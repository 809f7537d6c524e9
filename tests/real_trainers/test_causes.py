"""Every kind of failure by a real cause, with the right kind, group, node, rank and rung. `benchmarks.detection`
measures the same causes and expectations; here each happens once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents.health.facts.files import EVERY_S
from benchmarks import detection
from benchmarks.detection import Bench, trial
from benchmarks.detection_cases import CASES
from benchmarks.detection_rows import RIGHT
from fault_injection.faults import acts
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.testbed.unavailable import NotHere
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.wire import keys
from supervisor.wire.records import Health

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900)]

SEED = 1
HANG_AT_LEAST_S = 8.0
"""Twice the benchmark's value: other tests run beside this one."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with detection.bench(tmp_path_factory.mktemp("causes"), detection.spec(hang_at_least_s=HANG_AT_LEAST_S)) as made:
        yield made


OTHERS = (
    "abort", "sigkill", "exception", "stopped", "disk_full", "allocation_gone", "exit_code", "gil_held", "gil_held_aside", "endless_loop", "checkpoint_blocked", "data_blocked",
    "nan_everywhere", "straggler", "slow_steps", "agent_killed", "node_killed", "noisy_neighbours", "hiccup", "collective_skipped",
)  # fmt: skip
"""Causes with a similar one in the fast lane; `make bench-detection` makes all of them ten times."""
EACH = [pytest.param(name, marks=pytest.mark.long if name in OTHERS else ()) for name in CASES]


@pytest.mark.parametrize("name", EACH)
def test_the_verdict_is_right(bench: Bench, name: str) -> None:
    try:
        found = trial(bench, name, SEED)
    except NotHere as error:
        pytest.skip(f"NOT MADE HERE: {error}")
    assert "helped_before" not in found, "what was broken before did not come back by itself"
    wrong = [what for what in RIGHT if not found[what]]
    assert wrong == [], json.dumps(found, indent=1)


@pytest.mark.long
@pytest.mark.parametrize("quiet", [True, False])
def test_a_full_disk_is_told_as_what_its_node_says_of_it(tmp_path_factory: pytest.TempPathFactory, quiet: bool) -> None:
    """A write of the rank's own fails. Or TorchFT's manager, which logs there, hangs in the middle of a line, and all
    groups wait in the quorum. That does not happen if another write of the rank meets the full disk first."""
    # the fact, which is looked for every 10 s, must be there before anything counts as a hang
    spec = detection.spec(checkpoint_steps=10**6, hang_at_least_s=25.0)
    spec = replace(spec, titan=replace(spec.titan, overrides={**spec.titan.overrides, "toy.quiet": quiet}))
    with detection.bench(tmp_path_factory.mktemp("full"), spec) as made:
        if not made.disks:
            pytest.skip("nodes have no disk of their own here: a tmpfs needs root")
        made.settle()
        target = made.targets(1)[1]
        acts.fill_disk(target.group, target.node, target.folder)

        def told() -> bool:
            with made.watcher.mirror() as mirror:
                health = mirror.record(keys.health(target.node), Health)
            return health is not None and any(fact.kind == "disk_full" for fact in health.facts)

        if quiet:  # else its rank may have failed before, and left it with some room
            eventually(told, 4 * EVERY_S, "its node says that the disk is full")
            assert made.acted(0) == {}, "nothing is done for a fact alone"
            made.ordered(target, Order(cause=causes.WRITE))
        _, incident = eventually(lambda: next(iter(made.acted(0).values()), None), 60, "the group has failed")
        (target.folder / acts.FILLER).unlink()
        assert incident.kind in ({Kind.ERROR} if quiet else {Kind.ERROR, Kind.HANG})
        assert incident.rung == Rung.RESTART
        assert (incident.group, incident.node) == (target.group, target.node)
        assert incident.rank == 1 or not quiet
        assert Reason.of(Code.ON_ITS_NODE, fact=f"{target.folder}: No space left on device") in incident.evidence
        made.settle()
