"""Blame for a hang: the ranks' own reports of their activity, compared over the groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.evidence.hang_attribution import TOLD_S
from supervisor.core.model.incident import Confidence
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.measured import Measured
from supervisor.core.model.observed import GpuFact, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.stacks import of_text
from tests.helpers.reasons import values
from tests.unit.core.world import World


def hangs(
    w: World, group: int, activity: str, rank: int = 0, step: int = 50, process: str = "", stack: str = ""
) -> None:
    stuck = StuckView(
        activity=activity,
        activity_s=31.0,
        bound_s=30.0,
        usual_s=1.5,
        lasted_s=31.4,
        process=process,
        where=of_text(stack),
    )
    w.report(group, rank, commits=1, step=step, stuck=stuck)


def stack(evidence: Reason) -> Mapping[str, Any]:
    """The values of the stack that an evidence names."""
    found = evidence.about["stack"]
    assert isinstance(found, Reason)
    return found.about


@pytest.fixture
def w() -> World:
    return World(groups=3).bring_up()


@pytest.mark.parametrize("activity", ["data", "compute", "checkpoint", "evaluate", "compile", "save", "other"])
@pytest.mark.parametrize("waits_in", ["quorum", "collective", "commit", "heal"])
def test_one_that_waits_for_nobody_hangs_and_is_restarted(w: World, activity: str, waits_in: str) -> None:
    hangs(w, 0, waits_in)
    hangs(w, 1, activity)
    hangs(w, 2, waits_in)
    w.round()
    incident = w.incident
    assert (incident.kind, incident.group, incident.rung) == (Kind.HANG, 1, Rung.RESTART)
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]
    assert incident.evidence == (
        Reason.of(
            Code.NO_STEP, rank=0, bound_s=30.0, usual_s=1.5, activity=activity, activity_s=31.0, process="", stack=""
        ),
    )
    assert (incident.rank, incident.confidence, incident.took_s) == (0, Confidence.LIKELY, 31.4)


def test_what_the_kernel_says_is_part_of_the_evidence(w: World) -> None:
    hangs(w, 1, "compute", process="busy")
    w.others_wait(1)
    w.round()
    assert values(w.incident.evidence, Code.NO_STEP)[0]["process"] == "busy"


def test_one_that_is_stopped_while_it_waits_hangs(w: World) -> None:
    hangs(w, 0, "collective")
    hangs(w, 1, "collective", process="stopped")
    hangs(w, 2, "collective")
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)
    assert values(w.incident.evidence, Code.NO_STEP)[0]["process"] == "stopped"


@pytest.mark.parametrize("waits_in", ["quorum", "collective", "heal", "commit"])
def test_of_two_the_one_whose_lock_another_thread_holds_hangs(waits_in: str) -> None:
    """Its main thread waits like the other's, and can never go on."""
    w = World(groups=2).bring_up()
    hangs(w, 0, "collective", stack=REDUCES)
    hangs(w, 1, waits_in, stack=f"{REDUCES}; another thread holds the interpreter's lock, in copies (loader.py:7)")
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 0)
    assert stack(w.incident.evidence[0])["held_at"] == (("copies", "loader.py", 7),)


def test_the_others_are_not_touched_while_it_comes_back(w: World) -> None:
    hangs(w, 0, "collective")
    hangs(w, 1, "data")
    hangs(w, 2, "collective")
    w.round()
    w.recover(1)
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]
    assert w.incidents["i1"].state == "recovered"


def test_two_that_hang_are_both_restarted(w: World) -> None:
    hangs(w, 0, "data")
    hangs(w, 1, "data")
    hangs(w, 2, "quorum")
    w.round()
    assert [w.group(g).generation for g in range(3)] == [2, 2, 1]


def test_where_every_group_hangs_by_itself_nobody_is_ended(w: World) -> None:
    for group in range(3):
        hangs(w, group, "checkpoint")
    w.round()
    assert not w.memory.incidents
    assert w.waiting(Code.ALL_HANG) == [{"activities": ("checkpoint",)}]


@pytest.mark.parametrize(
    ("says", "held"),
    [
        ({0, 1, 2}, True),
        ({1}, False),
        ({0, 1}, False),
    ],
)
def test_who_alone_hangs_on_a_storage_that_is_away_for_all_is_not_ended(w: World, says: set[int], held: bool) -> None:
    """The others had come past it, and wait for that one."""
    away = "/runs/x has not answered for over 10 s"
    for group in range(3):
        hangs(w, group, "data" if group == 1 else "collective")
        node = w.group(group).first_node
        w.nodes[node] = replace(w.nodes[node], facts={"file_system_stalled": away} if group in says else {})
    w.round()
    assert w.waiting(Code.HANG_OF_SHARED) == ([{"groups": (1,), "fact": away}] if held else [])
    assert [w.group(g).generation for g in range(3)] == [1, 1 if held else 2, 1]
    if not held:
        return
    for group in range(3):
        node = w.group(group).first_node
        w.nodes[node] = replace(w.nodes[node], facts={})
    w.round(1.0)
    assert w.group(1).generation == 2, "once it answers, a hang is a hang"


def test_what_all_share_is_told_also_where_other_ranks_wait_in_the_next_quorum() -> None:
    """Rank 0 alone writes the checkpoints: the others go on as far as they can without it."""
    w = World(groups=2, ranks=2).bring_up()
    for group in (0, 1):
        hangs(w, group, "checkpoint", stack="in write (store.py:1)")
        hangs(w, group, "quorum", rank=1, stack="in start_quorum (manager.py:2)")
    assert w.round(100.0).actions == ()
    assert w.waiting(Code.ALL_HANG) == [{"activities": ("checkpoint",)}]
    hangs(w, 1, "quorum", stack="in start_quorum (manager.py:2)")
    assert w.round(TOLD_S - 1.0).actions == ()
    assert w.waiting(Code.HUNG_TOGETHER) == [{"groups": (0,)}]
    w.round(1.0)
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 0)


def test_of_those_that_all_hung_the_one_whose_node_tells_last_that_it_goes_on_is_not_ended(w: World) -> None:
    for group in range(3):
        hangs(w, group, "checkpoint")
    w.round()
    for group in range(2):
        w.report(group, commits=9, step=59, stuck=None)
    assert w.round(0.5).actions == ()
    w.report(2, commits=9, step=59, stuck=None)
    w.round(0.5)
    assert not w.memory.incidents
    assert w.memory.held_hang is None


def test_of_those_that_all_hung_the_one_that_never_goes_on_is_ended(w: World) -> None:
    for group in range(3):
        hangs(w, group, "checkpoint")
    w.round()
    for group in range(2):
        w.report(group, commits=9, step=59, stuck=None)
    w.round(TOLD_S)
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 2)


def test_where_all_wait_nobody_is_blamed(w: World) -> None:
    for group in range(3):
        hangs(w, group, "collective")
    w.round(3600.0)
    assert not w.memory.incidents
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (0, 1, 2), "activities": ("collective",)}]


REDUCES = "in wait (gloo.py:91) < allreduce (manager.py:412)"


def test_where_all_wait_the_one_that_waits_elsewhere_left_a_collective_out(w: World) -> None:
    hangs(w, 0, "collective", stack=REDUCES)
    hangs(w, 1, "quorum", stack="in wait_quorum (manager.py:600)")
    hangs(w, 2, "collective", stack=REDUCES.replace("91", "93"))
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.HANG, 1, Rung.RESTART)
    assert stack(w.incident.evidence[0])["frames"] == (("wait_quorum", "manager.py", 600),)
    assert w.incident.confidence == Confidence.SUSPECTED


def test_one_rank_of_a_group_that_waits_elsewhere() -> None:
    w = World(groups=2, ranks=2).bring_up()
    for group, rank in ((0, 0), (0, 1), (1, 0)):
        hangs(w, group, "collective", rank=rank, stack=REDUCES)
    hangs(w, 1, "commit", rank=1, stack="in should_commit (manager.py:700)")
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)


@pytest.mark.parametrize(
    "stacks",
    [
        ["in a (x.py:1)", "in b (x.py:1)", "in c (x.py:1)"],  # no place that the others share
        ["in a (x.py:1)", "in b (x.py:1)", ""],  # one is not known yet
        ["in a (x.py:1)", "in b (x.py:1)", "its stack is not known (no such process)"],
        ["in a (x.py:1)", "in a (x.py:2)", "in a (x.py:3)"],  # lines of one loop
    ],
)
def test_stacks_that_tell_nobody_apart_blame_nobody(w: World, stacks: list[str]) -> None:
    for group, stack in enumerate(stacks):
        hangs(w, group, "collective", stack=stack)
    w.round(3600.0)
    assert not w.memory.incidents
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (0, 1, 2), "activities": ("collective",)}]


def test_while_a_rank_has_not_told_nobody_is_blamed() -> None:
    w = World(groups=2, ranks=2).bring_up()
    for group, rank in ((0, 0), (0, 1)):
        hangs(w, group, "collective", rank=rank, stack=REDUCES)
    hangs(w, 1, "commit", rank=1, stack="in should_commit (manager.py:700)")
    w.round()
    assert not w.memory.incidents


def test_of_two_that_differ_either_may_be_the_odd_one() -> None:
    w = World(groups=2).bring_up()
    hangs(w, 0, "collective", stack=REDUCES)
    hangs(w, 1, "quorum", stack="in wait_quorum (manager.py:600)")
    w.round(3600.0)
    assert not w.memory.incidents


def facts(w: World, group: int, **about: str) -> None:
    node = w.group(group).first_node
    w.nodes[node] = replace(w.nodes[node], facts=about)


def test_where_all_wait_the_one_whose_machine_is_not_well_is_to_blame(w: World) -> None:
    for group in range(3):
        hangs(w, group, "quorum")
        facts(w, group, clock_unsynchronised="nobody keeps it")
    w.round()
    assert not w.memory.incidents
    facts(w, 1, disk_full="/var: No space left on device")
    w.round()
    incident = w.incident
    assert (incident.kind, incident.group, incident.rank) == (Kind.HANG, 1, None)
    assert incident.confidence == Confidence.SUSPECTED
    assert Reason.of(Code.ON_ITS_NODE, fact="/var: No space left on device") in incident.evidence


def test_where_several_machines_are_not_well_nobody_is_blamed(w: World) -> None:
    for group in range(3):
        hangs(w, group, "quorum")
    for group in range(2):
        facts(w, group, file_system_stalled="/shared has not answered for 11 s")
    w.round()
    assert not w.memory.incidents


def test_a_machine_that_is_not_well_is_no_reason_while_its_group_steps(w: World) -> None:
    for group in range(2):
        hangs(w, group, "quorum")
    facts(w, 0, disk_full="/var: No space left on device")
    w.round()
    assert not w.memory.incidents


@pytest.mark.parametrize("kind", ["nvml_stalled", "gpu_rows_failed", "gpu_nvlink_down"])
def test_a_gpu_that_has_failed_is_no_reason_while_one_is_at_something_that_the_others_may_wait_for(kind: str) -> None:
    """It compiles, or evaluates, within its own bound."""
    w = World(groups=3).bring_up()
    for group in (1, 2):
        hangs(w, group, "collective")
    name = w.group(1).first_node
    w.nodes[name] = replace(w.nodes[name], gpus=(GpuFact(kind=kind, evidence=f"GPU 0 {kind}"),))
    w.round()
    assert not w.memory.incidents
    hangs(w, 0, "collective")
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.GPU, 1)


def test_a_machine_that_is_not_well_is_no_reason_where_every_group_has_a_rank_that_waits_for_nobody() -> None:
    """All machines share a file system, but do not report it at the same moment."""
    w = World(groups=2, ranks=2).bring_up()
    for group in range(2):
        hangs(w, group, "checkpoint")
        hangs(w, group, "quorum", rank=1)
    facts(w, 0, file_system_stalled="/shared has not answered for over 10 s")
    w.round()
    assert not w.memory.incidents
    assert w.waiting(Code.ALL_HANG) == [{"activities": ("checkpoint",)}]


def test_one_whose_ranks_cannot_be_seen_is_to_blame_once_all_others_wait(w: World) -> None:
    """Its agent cannot report that it hangs: the ranks' files do not answer."""
    facts(w, 1, ranks_unseen="their files do not answer")
    hangs(w, 0, "quorum")
    w.round()
    assert not w.memory.incidents, "another may still step"
    hangs(w, 2, "quorum")
    facts(w, 1)
    w.round()
    assert not w.memory.incidents, "its agent would say so"
    facts(w, 1, ranks_unseen="their files do not answer", file_system_stalled="/var has not answered for over 10 s")
    w.round()
    incident = w.incident
    assert (incident.kind, incident.group, incident.rank, incident.rung) == (Kind.HANG, 1, None, Rung.RESTART)
    assert incident.confidence == Confidence.SUSPECTED
    assert incident.evidence == (
        Reason.of(Code.STEPS_UNSEEN),
        Reason.of(Code.ON_ITS_NODE, fact="/var has not answered for over 10 s"),
        Reason.of(Code.ON_ITS_NODE, fact="their files do not answer"),
    )


def steps(w: World, step: int, participants: int) -> None:
    for group in (0, 2):
        for rank in range(w.ranks):
            w.report(group, rank, commits=step, step=step, participants=participants)


def test_one_whose_ranks_cannot_be_seen_is_to_blame_once_the_others_step_without_it(w: World) -> None:
    facts(w, 1, ranks_unseen="their files do not answer")
    steps(w, 50, participants=3)
    w.round()
    steps(w, 60, participants=3)
    w.round(2 * w.spec.policy.hang.at_least_s)
    assert not w.memory.incidents, "it steps with them: that its steps are not told says nothing"
    facts(w, 1)
    w.round()
    facts(w, 1, ranks_unseen="their files do not answer")
    steps(w, 70, participants=2)
    w.round()
    steps(w, 80, participants=2)
    w.round(w.spec.policy.hang.at_least_s - 1.0)
    assert not w.memory.incidents, "it may answer again"
    w.round(1.0)
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, None)
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]


def test_one_that_cannot_be_seen_and_misses_a_quorum_is_given_the_time_of_a_hang(w: World) -> None:
    """Its storage has been away for long, and it trains all the same; then it heals, or its network has a hiccup."""
    facts(w, 1, ranks_unseen="their files do not answer")
    steps(w, 50, participants=3)
    w.round()
    steps(w, 90, participants=3)
    w.round(10 * w.spec.policy.hang.at_least_s)
    for back in range(5):
        steps(w, 91 + 4 * back, participants=2)
        w.round(1.0)
        assert not w.memory.incidents, "they have made one step without it"
        steps(w, 93 + 4 * back, participants=2)
        w.round(w.spec.policy.hang.at_least_s - 2.0)
        assert not w.memory.incidents, "it may come again"
        steps(w, 94 + 4 * back, participants=3)
        w.round(1.0)
        assert not w.memory.behind, "it is there again: what it missed before says nothing"


@pytest.mark.parametrize("pause", ["apart_s", "pause_s"])
def test_one_that_cannot_be_seen_may_take_as_long_as_it_has_taken_for_a_checkpoint(w: World, pause: str) -> None:
    w.report(1, 0, commits=50, step=50, measured=Measured(step_s=2.0, **{pause: 8.0}))
    facts(w, 1, ranks_unseen="their files do not answer")
    steps(w, 50, participants=2)
    w.round()
    steps(w, 90, participants=2)
    w.round(99.0)
    assert not w.memory.incidents
    w.round(1.0)
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)


def test_one_that_cannot_be_seen_is_not_taken_for_the_one_that_is_missing(w: World) -> None:
    """Group 2 trains alone: group 0 steps with group 1."""
    facts(w, 1, ranks_unseen="their files do not answer")
    w.report(2, 0, commits=50, step=50, participants=2)
    for step in range(50, 200, 10):
        w.report(0, 0, commits=step, step=step, participants=2)
        w.round(w.spec.policy.hang.at_least_s)
        assert not w.memory.incidents


def test_where_the_ranks_of_several_groups_cannot_be_seen_nobody_is_blamed(w: World) -> None:
    hangs(w, 0, "quorum")
    for group in (1, 2):
        facts(w, group, ranks_unseen="their files do not answer")
    w.round()
    assert not w.memory.incidents


def test_waiting_for_a_group_that_is_being_started_is_nobodys_hang(w: World) -> None:
    w.crash(2)
    w.round()
    for group in range(2):
        hangs(w, group, "quorum")
    w.round(60.0)
    assert [i.kind for i in w.memory.incidents.values()] == [Kind.CRASH]
    assert w.waiting(Code.ALL_WAIT) == []


def test_who_waits_while_the_others_step_on_is_to_blame(w: World) -> None:
    hangs(w, 1, "quorum", step=50)
    for step in (51, 52, 53):
        w.report(0, commits=1, step=step)
        w.report(2, commits=1, step=step)
        w.round()
        assert not w.memory.incidents, "one is in flight, and it may have come back in the middle of the next"
    w.report(0, commits=1, step=54)
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)
    w.round()
    assert w.memory.behind == {}


def test_who_waits_for_a_group_that_evaluates_alone_blames_it_only_once_it_hangs_itself(w: World) -> None:
    for group in (0, 2):
        hangs(w, group, "quorum")
    w.report(1, commits=1, step=50)
    assert w.round(600.0).actions == ()
    assert not w.memory.incidents
    hangs(w, 1, "evaluate")
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rung) == (Kind.HANG, 1, Rung.RESTART)
    assert values(w.incident.evidence, Code.NO_STEP)[0]["activity"] == "evaluate"


def test_who_was_passed_by_and_waits_now_is_not_to_blame_for_what_keeps_the_others(w: World) -> None:
    """It was stopped for a moment, came back, and asks for a quorum while the others evaluate beyond its bound."""
    for group in (0, 2):
        w.report(group, commits=1, step=60)
    hangs(w, 1, "quorum", step=50)
    for _ in range(10):
        w.round(5.0)
        assert not w.memory.incidents
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (1,), "activities": ("quorum",)}]
    for group in (0, 2):
        w.report(group, commits=1, step=61)
    w.round(5.0)
    w.report(1, commits=2, step=61)
    w.round(5.0)
    assert not w.memory.incidents
    assert w.memory.behind == {}


def test_how_far_the_others_were_is_asked_anew_of_each_generation(w: World) -> None:
    w.report(0, commits=1, step=60)
    hangs(w, 1, "quorum", step=50)
    w.round()
    w.memory = replace(w.memory, behind={1: replace(w.memory.behind[1], generation=0, step=50)})
    w.round()
    assert not w.memory.incidents


def test_a_shard_that_waits_for_one_that_waits_for_a_peer_is_not_to_blame() -> None:
    """Two ranks a group: of group 0 one waits for group 1, the other, unseen, for the first one's shard."""
    w = World(groups=2, ranks=2).bring_up()
    hangs(w, 0, "collective", rank=0)
    hangs(w, 0, "compute", rank=1)
    w.round()
    assert not w.memory.incidents
    hangs(w, 1, "data", rank=0)
    hangs(w, 1, "commit", rank=1)
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 1)
    assert w.incident.evidence[0].about["rank"] == 0


@pytest.mark.parametrize("culprit", ["compute", "commit"])
def test_a_rank_inside_a_collective_of_its_group_waits_for_one_that_is_elsewhere(culprit: str) -> None:
    """The other rank computes, or has left the collective out and is at the commit."""
    w = World(groups=2, ranks=2).bring_up()
    inside = "in all_reduce (distributed_c10d.py:3252) < step (train.py:9)"
    for rank, activity, stack in ((0, "compute", inside), (1, culprit, "in step (train.py:7)")):
        stuck = StuckView(activity=activity, activity_s=31.0, bound_s=30.0, usual_s=1.5, where=of_text(stack))
        w.report(1, rank, commits=1, step=50, stuck=stuck)
    w.others_wait(1)
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 1)
    assert [seen.about["rank"] for seen in w.incident.evidence] == [1, 0]


def one_inside_a_collective() -> World:
    """A world in which one of group 1's two ranks has reported that it hangs, inside a collective of theirs."""
    w = World(groups=2, ranks=2).bring_up()
    hangs(w, 1, "compute", rank=1, stack="in all_reduce (distributed_c10d.py:3252) < step (train.py:9)")
    w.others_wait(1)
    w.round()
    assert not w.memory.incidents
    assert w.waiting(Code.HANG_OF_RANKS) == [{"groups": (1,), "others": (1,)}]
    return w


def test_who_waits_for_a_rank_that_has_not_told_yet_is_not_taken_for_it() -> None:
    """Each rank has learned a bound of its own: the shorter may be that of one that waits."""
    w = one_inside_a_collective()
    hangs(w, 1, "commit", rank=0, stack="in step (train.py:7)")
    w.round(0.5)
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 0)


def test_a_rank_that_tells_nothing_is_not_waited_for_for_ever() -> None:
    w = one_inside_a_collective()
    w.round(w.spec.policy.hang.at_least_s - 0.5)
    assert not w.memory.incidents
    w.round(0.5)
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, None)


def test_one_that_is_stopped_inside_a_collective_is_no_riddle() -> None:
    w = World(groups=2, ranks=2).bring_up()
    stack = "in all_reduce (distributed_c10d.py:3252) < step (train.py:9)"
    hangs(w, 1, "compute", rank=1, process="stopped", stack=stack)
    w.others_wait(1)
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 1)


def test_of_two_inside_collectives_the_one_that_is_stopped_is_named() -> None:
    """It was stopped in one, and the other waits for it in the next."""
    w = World(groups=2, ranks=2).bring_up()
    for rank, process, line in ((0, "sleeping", 144), (1, "stopped", 134)):
        stack = f"in all_reduce (distributed_c10d.py:3252) < step (train.py:{line})"
        hangs(w, 1, "compute", rank=rank, process=process, stack=stack)
    w.others_wait(1)
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 1)
    assert [seen.about["rank"] for seen in w.incident.evidence] == [1, 0]


def test_one_group_alone_is_restarted() -> None:
    w = World(groups=1).bring_up()
    hangs(w, 0, "compute")
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.HANG, Rung.RESTART)


def test_one_that_does_not_say_what_it_does_is_not_blamed(w: World) -> None:
    hangs(w, 1, "")
    w.round()
    assert not w.memory.incidents


def test_the_word_of_an_older_generation_does_not_count(w: World) -> None:
    hangs(w, 1, "data")
    w.others_wait(1)
    w.round()
    w.go_on()
    w.recover(1)
    old = StuckView(activity="data", bound_s=30.0)
    w.report_on(w.group(1).first_node, 1, 1, commits=1, step=50, stuck=old)
    for _ in range(3):
        w.round(1.0)
    assert w.group(1).generation == 2


def test_nothing_is_done_on_what_was_said_before_the_store_was_away(w: World) -> None:
    hangs(w, 1, "data")
    w.others_wait(1)
    w.stable = 1.0
    w.round()
    assert not w.memory.incidents
    w.stable = 100.0
    w.round()
    assert w.incident.kind == Kind.HANG


def test_nothing_is_done_on_the_word_of_a_node_that_is_gone(w: World) -> None:
    hangs(w, 1, "data")
    node = w.group(1).first_node
    w.nodes[node] = replace(w.nodes[node], registered=False)
    w.round()
    assert Kind.HANG not in {i.kind for i in w.memory.incidents.values()}


def test_one_that_steps_again_while_the_run_is_paused_is_left_alone(w: World) -> None:
    w.control = replace(w.control, paused=True)
    hangs(w, 1, "data")
    w.others_wait(1)
    w.round()
    assert w.incident.state == "open"
    w.go_on()
    w.control = replace(w.control, paused=False)
    w.round()
    assert w.group(1).generation == 1
    assert w.incidents["i1"].state == "recovered"


# --- one cause for all, seen one after the other ---


def test_the_first_that_says_so_may_be_one_of_many(w: World) -> None:
    hangs(w, 0, "data")
    w.round()
    assert not w.memory.incidents
    assert w.waiting(Code.HANG_OF_OTHERS) == [{"groups": (0,), "others": (1, 2)}]
    for group in (1, 2):
        hangs(w, group, "data")
    w.round(5.0)
    assert w.waiting(Code.ALL_HANG) == [{"activities": ("data",)}]
    for group in (2, 0, 1):  # the shared cause is over, and one after the other reports it
        w.commit(group, step=51)
        w.round(1.0)
    assert not w.memory.incidents
    w.round(TOLD_S)
    assert w.memory.suspects == {}


def test_it_is_not_waited_for_ever_for_what_the_others_say(w: World) -> None:
    hangs(w, 0, "data")
    w.round()
    w.round(w.spec.policy.hang.at_least_s - 1.0)
    assert not w.memory.incidents
    w.round(1.0)
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 0)


def test_one_that_the_others_have_left_behind_is_to_blame_at_once(w: World) -> None:
    hangs(w, 0, "data", step=50)
    for group in (1, 2):
        w.commit(group, step=52)
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.HANG, 0)


def test_one_that_has_started_and_cannot_be_seen_is_not_late_while_the_others_step_with_it(w: World) -> None:
    """Its disk stalled before its first commit was reported."""
    w.crash(1)
    w.round()
    w.start_again(1)
    facts(w, 1, ranks_unseen="their files do not answer")
    steps(w, 60, participants=3)
    w.round(w.spec.policy.start_timeout_s + 1.0)
    assert (w.group(1).phase, w.group(1).generation) == ("starting", 2)
    steps(w, 70, participants=2)
    w.round()
    assert (w.incident.kind, w.group(1).generation) == (Kind.START_TIMEOUT, 3)


# --- several ranks a group, of which one hangs and others wait for other groups already ---


def several(culprit: str, neighbour: str, stack: str = "", process: str = "", others: str = "") -> World:
    """A world with rank 1 of group 0 at `culprit`, its neighbour at `neighbour`, all the others in the next quorum."""
    w = World(groups=3, ranks=2).bring_up()
    for group in range(3):
        for rank in range(2):
            hangs(w, group, "quorum", rank, stack=others)
    hangs(w, 0, neighbour, 0, stack=others)
    hangs(w, 0, culprit, 1, stack=stack, process=process)
    w.round()
    return w


@pytest.mark.parametrize("activity", ["data", "checkpoint", "save", "evaluate", "compile"])
@pytest.mark.parametrize("neighbour", ["quorum", "collective", "heal"])
def test_what_a_rank_does_for_itself_tells_it_without_any_stack(activity: str, neighbour: str) -> None:
    w = several(activity, neighbour)
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 0, 1)


@pytest.mark.parametrize("activity", ["compute", "other"])
def test_what_may_be_a_wait_for_a_shard_tells_nobody_without_a_stack(activity: str) -> None:
    w = several(activity, "quorum")
    assert not w.incidents
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (0, 1, 2), "activities": (activity, "quorum")}]


def test_one_whose_stack_no_debugger_can_read_for_its_sleep_is_elsewhere() -> None:
    waits = "in wait (manager.py:1) < step (train.py:1)"
    asleep = "its stack is not known (py-spy does not end)"
    assert not several("compute", "quorum", stack=asleep, others=waits).incidents
    w = several("compute", "quorum", stack=asleep, process="uninterruptible", others=waits)
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 0, 1)


def test_the_others_may_wait_in_several_places_if_several_groups_do() -> None:
    w = World(groups=3, ranks=2).bring_up()
    for group in range(3):
        hangs(w, group, "quorum", 0, stack="in wait (manager.py:1)")
        hangs(w, group, "compute", 1, stack="in item (tensor.py:1)" if group != 1 else "in forever (kernel.py:1)")
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 1, 1)


def test_where_two_groups_have_a_place_of_their_own_nobody_is_blamed() -> None:
    w = World(groups=3, ranks=2).bring_up()
    for group in range(3):
        hangs(w, group, "quorum", 0, stack="in wait (manager.py:1)")
        hangs(w, group, "compute", 1, stack=f"in place{group if group else 1} (kernel.py:1)")
    w.round()
    assert w.incident.group == 2
    w = World(groups=3, ranks=2).bring_up()
    for group in range(3):
        hangs(w, group, "quorum", 0, stack="in wait (manager.py:1)")
        hangs(w, group, "compute", 1, stack=f"in place{group} (kernel.py:1)")
    w.round()
    assert not w.incidents


@pytest.mark.parametrize("first", ["quorum", "collective"])
def test_the_one_that_waits_where_several_others_do_not_is_not_to_blame(first: str) -> None:
    w = World(groups=3, ranks=2).bring_up()
    for group in range(3):
        waits = group == 1
        hangs(w, group, first if waits else "quorum", 0, stack="in wait (manager.py:1)")
        hangs(
            w,
            group,
            "collective" if waits else "compute",
            1,
            stack="in wait (manager.py:1)" if waits else "in read (nfs.py:1)",
        )
    w.round()
    assert not w.incidents


@pytest.mark.parametrize(("first", "second", "named"), [
    ("other", "data", 1), ("compute", "save", 1), ("data", "other", 0),
    ("compute", "other", None), ("checkpoint", "compute", None),
])  # fmt: skip
def test_a_rank_is_named_only_where_the_other_is_not_as_likely(first: str, second: str, named: int | None) -> None:
    w = World(groups=2, ranks=2).bring_up()
    hangs(w, 0, first, 0)
    hangs(w, 0, second, 1)
    w.others_wait(0)
    w.round()
    assert (w.incident.kind, w.incident.group, w.incident.rank) == (Kind.HANG, 0, named)
