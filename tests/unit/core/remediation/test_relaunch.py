"""A relaunch: the groups end after one step, and start again by another spec on the nodes that the run has."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.observed import NextSpec
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec, only_scales
from supervisor.core.remediation.restore import GENERATIONS, restored
from tests.unit.core.world import World


def longer(w: World) -> RunSpec:
    return replace(w.spec, titan=replace(w.spec.titan, steps=5000))


def of(w: World, count: int) -> RunSpec:
    """The spec with another number of groups, all of which must be there, on the same nodes."""
    return replace(w.spec, groups=replace(w.spec.groups, count=count, min_groups=count))


def relaunch(w: World, spec: RunSpec, number: int = 2) -> None:
    w.relaunch = NextSpec(number=number, spec=spec, scales=only_scales(w.spec, spec), because="a longer run")


def drained(w: World) -> None:
    """Lets all groups come to the last step, and the next spec take effect, as the loop writes it."""
    for g in w.memory.groups:
        w.fail(g, code=0)
    w.round()
    w.round()
    w.take_spec()


def test_its_groups_drain_and_no_node_is_given_back() -> None:
    w = World(groups=2).bring_up()
    before = dict(w.memory.allocations)
    relaunch(w, longer(w))
    first = w.round()
    why = Reason.of(Code.RELAUNCH_ASKED, number=2, because="a longer run")
    assert [(a.verb, a.key, a.reason) for a in first.actions] == [("stop", "stop:run:2", why)]
    assert w.memory.stop_at_step is not None
    assert [g.phase for g in w.memory.groups.values()] == ["running", "running"]
    w.save(0, step=50)
    w.round()
    drained(w)
    assert [a.verb for a in w.last.actions] == ["relaunch"]
    assert w.last.actions[0].reason == Reason.of(Code.RELAUNCHED, number=2, step=50)
    assert (w.memory.phase, w.memory.relaunches, w.memory.relaunching) == ("resuming", 2, False)
    assert w.memory.allocations == before


def test_they_start_on_the_same_nodes_above_their_generations_with_the_lighthouse_that_is_there() -> None:
    w = World(groups=2).bring_up()
    w.cordon("n9")
    seat, nodes = w.memory.lighthouse, {g: group.nodes for g, group in w.memory.groups.items()}
    relaunch(w, longer(w))
    w.round()
    drained(w)
    for _ in range(3):
        w.round()
    assert {g: (group.phase, group.nodes) for g, group in w.memory.groups.items()} == {
        g: ("starting", on) for g, on in nodes.items()
    }
    assert [g.generation for g in w.memory.groups.values()] == [2, 2]
    assert w.memory.lighthouse == seat
    assert "n9" in w.memory.cordons, "the host is as bad as it was"


def test_budgets_are_full_again_since_the_program_is_another() -> None:
    w = World(groups=2).bring_up()
    w.crash(0)
    w.round()
    assert w.memory.spent
    relaunch(w, longer(w))
    w.round()
    drained(w)
    assert w.memory.spent == {}
    assert w.memory.incidents == {}


def test_a_smaller_spec_drops_groups_and_a_larger_one_after_it_uses_none_of_their_generations() -> None:
    w = World(groups=3).bring_up()
    for _ in range(2):
        w.crash(2)
        w.recover(2)
    assert w.group(2).generation == 3
    relaunch(w, of(w, 2))
    w.round()
    drained(w)
    assert "close_lighthouse" in [a.verb for a in w.last.actions], "one reads groups.min_groups at its start"
    for _ in range(3):
        w.round()
    assert sorted(w.memory.groups) == [0, 1]
    assert w.memory.generations_above == 4
    w.memory = replace(
        w.memory, phase="running", groups={g: replace(m, phase="finished") for g, m in w.memory.groups.items()}
    )
    relaunch(w, of(w, 3), number=3)
    for _ in range(3):
        w.round()
    w.take_spec()
    for _ in range(3):
        w.round()
    assert w.memory.groups[2].generation == 5


def test_a_backup_of_a_run_that_is_relaunched_goes_on_with_it() -> None:
    w = World(groups=2).bring_up()
    relaunch(w, longer(w))
    w.round()
    assert w.memory.relaunching
    after = restored(w.memory, w.spec.groups, None, {})
    assert (after.phase, after.relaunching, after.surplus) == ("new", False, 0)


def test_a_restored_run_uses_no_generation_of_a_group_that_it_once_had() -> None:
    w = World(groups=2).bring_up()
    w.memory = replace(w.memory, relaunches=3, generations_above=2)
    assert restored(w.memory, w.spec.groups, None, {2: 7, 3: 9}).generations_above == 9 + GENERATIONS


def test_a_stop_in_the_middle_ends_the_run() -> None:
    w = World(groups=2).bring_up()
    relaunch(w, longer(w))
    w.round()
    w.control = replace(w.control, stop=True)
    w.round()
    for g in w.memory.groups:
        w.fail(g, code=0)
    for _ in range(3):
        w.round()
    assert w.memory.phase == "stopped"
    assert {a.state for a in w.memory.allocations.values()} == {"released"}


def test_a_run_that_is_paused_is_left_alone() -> None:
    w = World(groups=2).bring_up()
    w.control = replace(w.control, paused=True)
    relaunch(w, longer(w))
    assert w.verbs() == []
    assert w.memory.phase == "running"


def test_a_finished_run_goes_on_by_a_spec_with_more_steps() -> None:
    w = World(groups=2).bring_up()
    for g in w.memory.groups:
        w.fail(g, code=0)
    for _ in range(3):
        w.round()
    assert w.memory.phase == "finished"
    assert w.verbs() == []
    relaunch(w, longer(w))
    w.control = replace(w.control, resumes=1, because="more steps")
    assert w.verbs() == ["resume", "relaunch"]
    w.take_spec()
    w.round()
    assert w.memory.phase in ("new", "running")
    assert [g.phase for g in w.memory.groups.values()] == ["unplaced", "unplaced"]


def from_memory(w: World, number: int = 2) -> None:
    spec = longer(w)
    w.relaunch = NextSpec(number=number, spec=spec, scales=False, because="", from_memory=True)


def test_states_stay_in_memory_until_a_group_trains_again() -> None:
    w = World(groups=2).bring_up()
    from_memory(w)
    w.round()
    assert (w.memory.relaunching, w.memory.from_memory) == (True, 2)
    drained(w)
    (begun,) = w.last.actions
    kept = Reason.of(Code.STATE_IN_MEMORY, number=2)
    assert begun.reason == Reason.of(Code.AND, reason=Reason.of(Code.RELAUNCHED, number=2, step=None), note=kept)
    for _ in range(3):
        w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting"]
    assert w.memory.from_memory == 2
    w.commit(0, step=51)
    w.commit(1, step=51)
    w.round()
    assert w.group(0).phase == "running"
    assert w.memory.from_memory == 0, "a state that is left on a node is older than the training now"


def test_no_state_is_kept_for_a_run_that_ends() -> None:
    w = World(groups=2).bring_up()
    from_memory(w)
    w.round()
    w.control = replace(w.control, stop=True)
    w.round()
    assert (w.memory.relaunching, w.memory.from_memory) == (False, 0)


def test_a_later_wish_leaves_states_in_memory_that_no_group_has_trained_on() -> None:
    """While they drain, some may have kept theirs and ended; and the program of the first wish may fail at its start."""
    w = World(groups=2).bring_up()
    from_memory(w)
    w.round()
    relaunch(w, longer(w), number=3)
    drained(w)
    assert (w.memory.relaunches, w.memory.from_memory) == (3, 2)
    for _ in range(3):
        w.round()
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting"]
    from_memory(w, number=4)
    w.round()
    drained(w)
    assert (w.memory.relaunches, w.memory.from_memory) == (4, 2)
