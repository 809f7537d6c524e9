"""A number that is not finite: all groups end, and their reports show whose it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.attribution.cross_host_recurrence import WITHIN_S
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import SpikeView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec, TitanSpec
from supervisor.core.round.view import MAX_CHANGES
from tests.helpers.reasons import codes, values
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s

ERROR = "NotFinite: loss is nan at step 51"
INTERVAL = TitanSpec().checkpoint_interval_steps


@pytest.fixture
def w() -> World:
    return World(groups=3, spares=2).bring_up()


def ends(w: World, group: int, whose: str) -> None:
    w.fail(group, code=1, error=ERROR, numerics=whose, step=50, commits=1)


def judged(w: World) -> None:
    """Plays rounds until all had time to report."""
    w.round(0.1)
    w.round(LOCAL_WORD_S)


def test_the_one_whose_own_loss_it_was_is_moved_and_its_host_cordoned(w: World) -> None:
    suspect = w.group(1).first_node
    for group, whose in enumerate(("peers", "own", "peers")):
        ends(w, group, whose)
    judged(w)
    kinds = {i.group: (i.kind, i.rung) for i in w.incidents.values()}
    assert kinds == {
        0: (Kind.ERROR, Rung.RESTART),
        1: (Kind.NUMERICS, Rung.REPLACE),
        2: (Kind.ERROR, Rung.RESTART),
    }
    assert set(w.memory.cordons) == {suspect}
    assert Reason.of(Code.OWN_NUMBERS, groups=(0, 2), more=0) in w.incidents["i1"].evidence
    assert Reason.of(Code.OTHERS_NUMBERS, groups=(1,), more=0) in w.incidents["i2"].evidence
    assert w.memory.phase == "running"


def test_of_its_ranks_the_one_whose_own_loss_it_was_is_named_whoever_ended_first() -> None:
    w = World(groups=2, ranks=2, spares=1).bring_up()
    for group, rank, whose, ended_s in (
        (0, 0, "peers", 1.0),
        (0, 1, "peers", 1.1),
        (1, 0, "peers", 1.0),
        (1, 1, "own", 1.1),
    ):
        w.report(
            group, rank, state="exited", exit_code=1, error=ERROR, numerics=whose, step=50, commits=1, ended_s=ended_s
        )
    judged(w)
    assert {(i.kind, i.rank) for i in w.incidents.values() if i.group == 1} == {(Kind.NUMERICS, 1)}


@pytest.mark.parametrize(
    ("words", "left"), [(("group", "group", "group", "own"), {"n4"}), (("own",) * 4, {"n3", "n4"})]
)
def test_of_several_nodes_only_that_of_the_one_rank_whose_own_it_was_is_held_against(
    words: tuple[str, ...], left: set[str]
) -> None:
    """Where all ranks say that it was their own, none of them is known, and the group moves as a whole."""
    w = World(groups=2, ranks=4, size=2, spares=2).bring_up()
    assert [w.group(g).nodes for g in (0, 1)] == [("n1", "n2"), ("n3", "n4")]
    for group, own in enumerate((("peers",) * 4, words)):
        for rank, whose in enumerate(own):
            w.report(
                group, rank, state="exited", exit_code=1, error=ERROR, numerics=whose, step=50, commits=1, ended_s=1.0
            )
    judged(w)
    (found,) = [i for i in w.incidents.values() if i.group == 1]
    assert (found.kind, found.rung, found.rank) == (Kind.NUMERICS, Rung.REPLACE, 3 if len(left) == 1 else None)
    assert set(w.memory.cordons) == ({"n4"} if len(left) == 1 else set())
    assert {seat.node for seat in w.group(1).left} - set(w.group(1).nodes) == left


def test_groups_are_judged_once_all_their_ranks_have_ended() -> None:
    """On a busy machine the neighbour of the one whose number it was ends a while before it."""
    w = World(groups=2, ranks=2, spares=1).bring_up()
    for group, whose in enumerate(("peers", "group")):
        w.report(group, 1, state="exited", exit_code=1, error=ERROR, numerics=whose, step=50, commits=1, ended_s=1.0)
    w.report(0, 0, state="exited", exit_code=1, error=ERROR, numerics="peers", step=50, commits=1, ended_s=1.0)
    judged(w)
    w.round(3 * LOCAL_WORD_S)
    assert w.incidents == {}
    w.report(1, 0, state="exited", exit_code=1, error=ERROR, numerics="own", step=50, commits=1, ended_s=4.0)
    w.round(0.1)
    assert {i.group: (i.kind, i.rank) for i in w.incidents.values()} == {0: (Kind.ERROR, 0), 1: (Kind.NUMERICS, 0)}


def test_a_rank_whose_neighbour_it_was_speaks_for_its_group() -> None:
    """It ends first, and the neighbour is ended with it before it can report anything."""
    w = World(groups=2, ranks=2, spares=1).bring_up()
    for group, whose in enumerate(("group", "peers")):
        w.report(group, 1, state="exited", exit_code=1, error=ERROR, numerics=whose, step=50, commits=1, ended_s=1.0)
        w.report(group, 0, state="exited", signal=15, step=50, commits=1, ended_s=1.1)
    judged(w)
    assert {i.group: (i.kind, i.rank) for i in w.incidents.values()} == {0: (Kind.NUMERICS, None), 1: (Kind.ERROR, 1)}


def test_in_every_group_a_rank_or_its_neighbour_is_the_models_fault() -> None:
    w = World(groups=2, ranks=2, spares=1).bring_up()
    for group, whose in enumerate(("group", "own")):
        w.report(group, 1, state="exited", exit_code=1, error=ERROR, numerics=whose, step=50, commits=1, ended_s=1.0)
        w.report(group, 0, state="exited", signal=15, step=50, commits=1, ended_s=1.1)
    judged(w)
    assert not any(i.kind == Kind.NUMERICS for i in w.incidents.values())
    assert any(i.kind == Kind.SAME_ERROR for i in w.incidents.values())


@pytest.mark.parametrize(("groups", "own", "suspects"), [(2, 1, 1), (5, 2, 2), (4, 2, 0), (3, 2, 0)])
def test_of_fewer_groups_than_were_finite_it_is_their_hardware_of_more_it_is_not(
    groups: int, own: int, suspects: int
) -> None:
    w = World(groups=groups, spares=3).bring_up()
    for group in range(groups):
        ends(w, group, "own" if group < own else "peers")
    judged(w)
    found = {i.group for i in w.incidents.values() if i.kind == Kind.NUMERICS}
    assert found == set(range(suspects))
    assert len(w.memory.cordons) == suspects
    assert w.memory.phase == ("running" if suspects else "stopping")


@pytest.mark.parametrize("first", ["own", "peers"])
def test_those_that_end_one_after_the_other_are_judged_together(first: str) -> None:
    w = World(groups=2, spares=1).bring_up()
    later = "peers" if first == "own" else "own"
    ends(w, 0, first)
    w.round(0.1)
    ends(w, 1, later)
    w.round(LOCAL_WORD_S - 0.05)
    w.round(0.1)
    assert not w.incidents, "the first one's time is over, the second one's is not"
    w.round(LOCAL_WORD_S)
    whose = {0: first, 1: later}
    assert {i.group: i.kind for i in w.incidents.values()} == {
        group: Kind.NUMERICS if said == "own" else Kind.ERROR for group, said in whose.items()
    }


def test_nothing_is_judged_before_the_others_had_time_to_end(w: World) -> None:
    ends(w, 1, "own")
    assert w.verbs(0.1) == []
    for group in (0, 2):
        ends(w, group, "peers")
    w.round(LOCAL_WORD_S)
    assert not w.incidents, "the last of them has only now ended"
    w.round(LOCAL_WORD_S)
    assert {i.group: i.kind for i in w.incidents.values()} == {0: Kind.ERROR, 1: Kind.NUMERICS, 2: Kind.ERROR}


@pytest.mark.parametrize("words", [("own", "own", "own"), ("own", "parameters", "own"), ("parameters",) * 3])
def test_where_all_groups_computed_it_it_is_the_models_fault(w: World, words: tuple[str, ...]) -> None:
    for group, whose in enumerate(words):
        ends(w, group, whose)
    judged(w)
    w.round(1.0)
    assert w.memory.phase in ("stopping", "halted")
    assert [ended["error"] for ended in values([w.memory.halt_reason], Code.EXITED)] == [ERROR]
    assert w.memory.cordons == {}


def spoils(w: World, group: int, step: int) -> None:
    """Makes its own loss not finite at a step, which ends all; then all that may be are started again."""
    for g in range(3):
        whose = "own" if g == group else "peers"
        w.fail(g, code=1, error=f"NotFinite: loss is nan at step {step}", numerics=whose, step=step, commits=1)
    judged(w)
    w.round(1.0)
    if w.memory.phase == "running":
        for g in range(3):
            w.recover(g, after=5.0, step=step + 1)


@pytest.mark.parametrize("again_at", [40, 50, 50 + INTERVAL])
def test_the_same_group_at_the_same_data_on_another_host_is_the_models_or_the_datas_fault(
    w: World, again_at: int
) -> None:
    """A group that was away for some steps comes to that data as many steps later."""
    spoils(w, 1, 50)
    assert (w.group(1).first_node, set(w.memory.cordons)) == ("n4", {"n2"})
    assert [(s.host, s.kind) for s in w.suspicions] == [("n2", Kind.NUMERICS)]
    spoils(w, 1, again_at)
    assert w.memory.phase in ("stopping", "halted")
    halting = next(i for i in w.incidents.values() if i.kind == Kind.SAME_ERROR)
    assert (halting.group, halting.rung, halting.state) == (1, Rung.STOP, "halted")
    assert halting.reason == Reason.of(
        Code.NUMBERS_FOLLOW, host="n2", step=50, host_now="n4", step_now=again_at, before=False
    )
    assert Code.OWN_NUMBERS in codes(*halting.evidence), "with all that was seen"
    assert (w.memory.cordons, w.suspicions) == ({}, []), "neither host is to blame"


def test_one_that_has_come_past_it_goes_on_and_no_host_is_to_blame_until_the_third_time(w: World) -> None:
    again_at, third_at = 50 + INTERVAL + 1, 50 + 40 * INTERVAL
    spoils(w, 1, 50)
    spoils(w, 1, again_at)
    assert w.memory.phase == "running"
    second = next(i for i in w.incidents.values() if i.followed)
    assert (second.kind, second.group, second.rung, second.state) == (Kind.NUMERICS, 1, Rung.REPLACE, "recovered")
    assert Code.FOLLOWS in codes(*second.evidence)
    assert (w.memory.cordons, w.suspicions) == ({}, [])
    spoils(w, 1, third_at)
    assert w.memory.phase in ("stopping", "halted")
    halting = next(i for i in w.incidents.values() if i.kind == Kind.SAME_ERROR)
    assert halting.reason is not None
    assert (halting.reason.about["step"], halting.reason.about["before"]) == (again_at, True)


def test_not_so_in_another_group_nor_after_a_day(w: World) -> None:
    spoils(w, 1, 50)
    spoils(w, 2, 60)
    assert w.memory.phase == "running"
    assert set(w.memory.cordons) == {"n2", "n3"}
    w.bring(6)
    w.round(1.0)
    w.round(WITHIN_S)
    spoils(w, 1, 70)
    assert w.memory.phase == "running"


def test_not_so_on_the_same_host_again() -> None:
    """A host's fault looks like that."""
    w = World(groups=3, first_rung=FirstRungSpec(numerics="restart")).bring_up()
    spoils(w, 1, 50)
    spoils(w, 1, 60)
    assert w.memory.phase == "running"
    assert {i.kind for i in w.incidents.values() if i.group == 1} == {Kind.NUMERICS}


def test_a_person_who_restarts_the_group_has_looked_at_its_data(w: World) -> None:
    spoils(w, 1, 50)
    w.control = replace(w.control, restarts={1: 1})
    w.round()
    w.recover(1, step=60)
    spoils(w, 1, 70)
    assert w.memory.phase == "running"


def rises(w: World, *own: float, mean: float, step: int = 120) -> None:
    """Makes all groups report a step, their own losses in spreads; the mean is the same for all."""
    for group, spreads in enumerate(own):
        spike = SpikeView(
            step=step, loss=9.1, usual=2.3, spreads=mean, own=19.1, own_usual=2.3, own_spreads=spreads
        ) if max(spreads, mean) >= 5.0 else None  # fmt: skip
        w.commit(group, step=step + 1, spike=spike)
    w.round(1.0)


def of_all(spreads: float, own: int) -> Reason:
    """Returns the reason of a loss that rose in the mean, and in `own` of three groups by itself."""
    return Reason.of(Code.SPIKE_OF_ALL, step=120, loss=9.1, usual=2.3, spreads=spreads, own=own, of=3)


OF_GROUP_1 = Reason.of(Code.SPIKE_OF_OWN, step=120, groups=(1,), loss=19.1, usual=2.3, spreads=120.0)


@pytest.mark.parametrize(
    ("own", "mean", "why"),
    [
        ((40.0, 34.0, 41.0), 60.0, of_all(60.0, own=3)),
        ((6.0, 7.0, 6.0), 12.0, of_all(12.0, own=0)),
        ((0.0, 120.0, 0.0), 0.0, OF_GROUP_1),
        ((0.0, 120.0, 0.0), 50.0, OF_GROUP_1),
    ],
)
def test_a_loss_that_rose_is_told_with_whose_it_was(w: World, own: tuple[float, ...], mean: float, why: Reason) -> None:
    rises(w, *own, mean=mean)
    assert w.last.waits == (why,)
    assert w.memory.incidents == {}, "it is committed: there is nothing to be done about it"


def test_a_little_is_not_told_and_the_policy_says_what_is_little(w: World) -> None:
    rises(w, 9.0, 9.0, 9.0, mean=9.0)
    assert w.last.waits == ()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, loss_spike_factor=8.0))
    w.round(1.0)
    assert w.last.waits == (of_all(9.0, own=3),)


def test_whose_it_was_is_said_when_all_are_past_it(w: World) -> None:
    w.commit(0, step=119)
    rises(w, 120.0, 120.0, 120.0, mean=120.0)
    w.commit(2, step=119)
    w.round(1.0)
    assert w.last.waits == ()
    w.commit(2, step=121)
    w.round(1.0)
    assert w.last.waits == (of_all(120.0, own=2),)


def test_of_another_generation_nothing_is_told(w: World) -> None:
    rises(w, 120.0, 120.0, 120.0, mean=120.0)
    for group in range(3):
        w.crash(group)
    w.round(1.0)
    for group in range(3):
        w.recover(group)
    w.round(1.0)
    assert codes(*w.last.waits).isdisjoint({Code.SPIKE_OF_OWN, Code.SPIKE_OF_ALL})


def test_the_innocent_pay_nothing_however_often_another_group_spoils_the_mean() -> None:
    w = World(groups=3, spares=8, budget={"restart": 1, "replace": 9}).bring_up()
    homes = (w.group(0).first_node, w.group(2).first_node)
    for time in range(4):
        step = 100 * (time + 1)
        for group, whose in enumerate(("peers", "own", "peers")):
            w.fail(group, code=1, error=f"NotFinite: loss is nan at step {step}", numerics=whose, step=step, commits=1)
        judged(w)
        w.round(1.0)
        assert w.memory.phase == "running"
        for group in range(3):
            w.recover(group, after=5.0, step=step + 1)
        w.round(WITHIN_S)  # sooner, the same group again is the data's fault
    assert not [scope for scope in w.memory.spent if scope.startswith("restart")]
    assert (w.group(0).first_node, w.group(2).first_node) == homes
    assert not set(homes) & set(w.memory.cordons)


# --- more groups than one round changes ---


@pytest.mark.parametrize(("groups", "culprit"), [(60, 0), (61, 60), (120, 0)])
def test_of_many_groups_only_the_one_whose_number_it_was_pays(groups: int, culprit: int) -> None:
    w = World(groups=groups, spares=1).bring_up()
    for g in range(groups):
        ends(w, g, "own" if g == culprit else "peers")
    judged(w)
    for _ in range(groups // MAX_CHANGES + 4):
        w.admit(culprit)  # it is started elsewhere before the last are judged
        w.round(0.1)
    assert len(w.incidents) == groups
    assert next(i for i in w.incidents.values() if i.group == culprit).kind == Kind.NUMERICS
    assert {scope: len(times) for scope, times in w.memory.spent.items()} == {"replace": 1}


def test_an_end_by_another_number_is_not_put_down_to_the_one_that_is_being_mended() -> None:
    w = World(groups=3, spares=1).bring_up()
    for g, whose in enumerate(("peers", "own", "peers")):
        ends(w, g, whose)
    judged(w)
    for g in (0, 2):
        w.recover(g, step=55)
    w.report(0, state="exited", exit_code=1, error=ERROR, numerics="peers", step=60, commits=3)
    w.report(2, state="exited", exit_code=1, error=ERROR, numerics="peers", step=60, commits=3)
    judged(w)
    assert w.memory.spent.keys() >= {"restart:0", "restart:2"}


def test_who_is_not_to_blame_pays_nothing_the_second_time_either() -> None:
    w = World(groups=2, spares=1, first_rung=FirstRungSpec(numerics="restart")).bring_up()
    for n in range(5):
        for g, whose in enumerate(("own", "peers")):
            w.fail(g, code=1, error=ERROR, numerics=whose, step=50, commits=int(n == 0))
        judged(w)
        if w.memory.phase != "running":
            break
        for g in range(2):
            w.admit(g)
        for _ in range(5):
            w.round(30.0)
            w.open_gate()
    assert w.memory.spent
    assert "restart:1" not in w.memory.spent
