"""A group that was started to heal from its peers, and finds that they have ended meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.wire.records import TrainerLaunch, decode

pytestmark = [pytest.mark.etcd, pytest.mark.trainers, pytest.mark.timeout(900)]

CHECKPOINT_STEPS = 5
SPEC = RunSpec(
    name="peers",
    titan=TitanSpec(
        recipe="tests.real_trainers.titan.recipes:whose_checkpoints_load_slowly", steps=10**6,
        checkpoint_interval_steps=CHECKPOINT_STEPS, digest_interval_steps=1,
    ),
    groups=GroupsSpec(count=2),
    allocation=AllocationSpec(nodes=2, spares=0),
    torchft=TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=3000, process_group_timeout_ms=6000),
)  # fmt: skip


def resumed(w: World) -> dict[tuple[int, int], str]:
    """(group, generation) -> the source of the state that it was started from."""
    launches = (decode(file.read_bytes(), TrainerLaunch) for file in w.system.glob("nodes/*/ranks/*/launch.json"))
    return {(each.group, each.generation): each.resume for each in launches}


@pytest.mark.long
def test_it_ends_before_a_step_and_comes_back_from_the_checkpoint(tmp_path: Path) -> None:
    """It never trains from scratch, no other group is blamed, and the run goes on from the newest checkpoint."""
    with world(tmp_path, nodes=2, toys=False) as w:
        w.supervisor()
        record = w.launch(SPEC)
        eventually(w.running(record, 1, 1), 120, "both groups run")
        eventually(lambda: (w.status(record).checkpoint_step or 0) >= CHECKPOINT_STEPS, 60, "one is written")
        before = w.status(record).checkpoint_step or 0
        w.kill_trainer(record, 1)
        eventually(lambda: resumed(w).get((1, 2)) == "peers", 30, "group 1 starts, to heal from group 0")
        w.kill_trainer(record, 0)
        eventually(w.running(record, 2, 3), 120, "both are back")
        assert resumed(w) == {(0, 1): "disk", (1, 1): "disk", (1, 2): "peers", (0, 2): "disk", (1, 3): "disk"}
        told = {i.group: (i.kind, i.rung, i.node, i.rank, i.generation_after) for i in w.incidents(record)}
        nodes = {g.group: g.node for g in w.status(record).groups}
        assert told == {
            1: (Kind.PEERS_GONE, Rung.RESTART, nodes[1], 0, 3),
            0: (Kind.CRASH, Rung.RESTART, nodes[0], 0, 2),
        }
        made = {(s.group, s.generation): [line["step"] for line in s.committed()] for s in w.history(record).steps}
        assert not made.get((1, 2)), "without a peer it makes no step"
        eventually(lambda: min(g.step for g in w.status(record).groups) > before, 60, "the run goes on")
        assert min(made.get((0, 2), [before + 1])) > before, "what was saved is not trained again"
        w.check(record)
