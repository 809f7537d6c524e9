"""A shared resource of the nodes is away, and ends groups: the interplay of the breaker, the ends' own evidence, and
leaving a group out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.attribution import circuit_breaker
from supervisor.core.model.kinds import Rung
from supervisor.core.model.reason import Code, Reason
from supervisor.core.report.notifications import Notice, due
from supervisor.core.round.draft import Round
from tests.helpers.reasons import codes, texts, values
from tests.unit.core.attribution.test_one_cause import (
    EIO,
    Ends,
    all_train,
    bus_error,
    homes,
    no_store,
    nobody_was_moved,
    play,
    world,
)
from tests.unit.core.world import World

THREE = range(3)
SURVIVES_S = 400.0
"""Seconds that a run must survive without a resource that its nodes share."""


def short_lived() -> World:
    w = world()
    w.spec = replace(w.spec, torchft=replace(w.spec.torchft, quorum_timeout_ms=int(1000 * SURVIVES_S)))
    return w


def give(w: World, seconds: float, ends: Ends | None = None, who: range | None = None) -> list[Notice]:
    """Plays, with an engine that grants every request. Returns the notices for a person."""
    told: list[Notice] = []
    for _ in range(int(seconds)):
        for key, allocation in w.memory.allocations.items():
            if allocation.state == "wanted" and key not in w.grants:
                w.bring(int(key.rpartition("a")[2]))
        before = w.memory
        play(w, 1.0, ends, who)
        told += due("run", before, w.last)
    return told


# --- all of them ---


def test_what_the_breaker_holds_is_not_halted_for_how_long_it_takes() -> None:
    """A person was called when the outage began."""
    w = short_lived()
    before = homes(w)
    play(w, 2 * SURVIVES_S, no_store)
    assert w.memory.phase == "running"
    assert codes(*(w.incidents[g.incident].reason for g in w.memory.groups.values())) == {Code.BREAKER_HOLDS}
    nobody_was_moved(w, before)
    play(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)


@pytest.mark.long
def test_a_person_who_has_had_enough_has_nodes_left_and_halts_nothing() -> None:
    w = short_lived()
    play(w, 2 * SURVIVES_S, no_store)
    w.control = replace(w.control, evictions=1, because="these mounts are broken")
    give(w, 50.0, no_store)
    assert w.memory.phase == "running"
    assert {i.rung for i in w.incidents.values()} >= {Rung.REPLACE}
    assert {scope.partition(":")[0] for scope in w.memory.spent} == {"restart"}


def test_the_incident_says_what_ended_it_however_often() -> None:
    w = world()
    play(w, 600.0, no_store)
    evidence = w.incidents[w.group(0).incident].evidence
    assert EIO in texts(evidence[0])
    assert len(values(evidence, Code.SEEN_AGAIN)) == 1
    (why,) = w.waiting(Code.GROUPS_OF_MANY)
    assert why["evidence"] == Reason.of(Code.EXITED, rank=0, exit_code=1, error=EIO)


def test_a_store_that_comes_and_goes_moves_nobody_when_no_restart_is_left() -> None:
    """It is held at the first wave then, and a person is called once for each."""
    w = world()
    before = homes(w)
    for wave in range(2 * w.spec.policy.budget.restart):
        told = give(w, 30.0, no_store)
        told += give(w, 4 * w.spec.policy.breaker.window_s)
        assert len(told) == 1
        assert all_train(w)
        for group in w.memory.groups:
            w.commit(group, step=100 * (wave + 1))
        w.round(1.0)
    assert len(w.memory.spent["restart:0"]) == w.spec.policy.budget.restart
    nobody_was_moved(w, before)


# --- some of them ---


@pytest.mark.parametrize("ends", [no_store, pytest.param(bus_error, marks=pytest.mark.long)])
def test_some_whose_server_is_away_try_one_other_node_each_and_wait(ends: Ends) -> None:
    """They are too few for the breaker. Charged to the run's budgets, they would halt it, while nine train."""
    w = world()
    told = give(w, 600.0, ends, THREE)
    assert (w.memory.phase, told) == ("running", [])
    assert len(w.memory.spent["replace"]) == len(THREE)
    assert "reallocate" not in w.memory.spent
    assert codes(*(w.incidents[w.group(g).incident].reason for g in THREE)) == {Code.SHARED_AWAY}
    assert [g.generation for g in w.memory.groups.values()][3:] == [1] * 9
    assert (w.memory.cordons, w.suspicions) == ({}, []), "it follows the groups"
    give(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)


def test_some_whose_server_stays_away_are_left_out() -> None:
    w = short_lived()
    told = give(w, 2 * SURVIVES_S, no_store, THREE)
    assert [bool(g.left_out) for g in w.memory.groups.values()] == [True] * 3 + [False] * 9
    out = w.group(0).left_out
    assert out is not None
    assert (out.code, out.about["limit_s"]) == (Code.SHARED_TOO_LONG, 400.0)
    assert sorted(notice.group for notice in told) == [*THREE]
    assert w.memory.phase == "running"
    for group in (3, 4):
        no_store(w, group)
    give(w, 50.0, no_store, range(3, 5))
    assert w.memory.breaker_since is None, "who is left out is not counted"
    give(w, 60.0, no_store, range(3, 8))
    assert [(why["failing"], why["of"]) for why in w.waiting(Code.GROUPS_OF_MANY)] == [(5, 12)]
    held = circuit_breaker.why_it_holds(Round(w.observed(), w.spec, w.memory))
    assert (held.code, held.about["failing"], held.about["of"]) == (Code.GROUPS_OF_MANY, 5, 12), "as status has it"
    give(w, 120.0)
    w.control = replace(w.control, restarts=dict.fromkeys(THREE, 1))
    give(w, 15.0)
    assert {w.incidents[w.group(g).incident].state for g in THREE} == {"acting"}, "nothing was committed yet"
    give(w, 30.0)
    assert all_train(w)


def test_a_disk_of_a_nodes_own_is_left_for_another_and_held_to_it() -> None:
    w = world()
    broken = set(homes(w)[:3])

    def ends(w: World, group: int) -> None:
        if w.group(group).first_node in broken:
            no_store(w, group)
        elif w.group(group).phase == "starting":
            w.commit(group, step=60)
            w.hear(group, "beating")

    told = give(w, 600.0, ends, THREE)
    assert all_train(w)
    assert told == []
    assert w.memory.cordons.keys() == broken
    assert len(w.memory.spent["replace"]) == len(THREE)


def test_errors_of_one_store_need_not_be_alike() -> None:
    """The lone group waits for it after one other node, though no two ends in a row are the same."""
    w = World(groups=1, spares=1).bring_up()
    texts = ("TimeoutError: read /data", "ConnectionError: hub")
    rungs = []
    for number in range(8):
        w.fail(0, 1, texts[number % 2], step=20)
        w.round(1.0)
        rungs.append(w.incident.rung)
        w.start_again(0)
    assert rungs == [Rung.RESTART] * 3 + [Rung.REPLACE] + [Rung.RESTART] * 4
    assert w.memory.phase == "running"


def test_a_store_that_takes_one_after_the_other_is_one_cause_and_a_person_is_called() -> None:
    """The ends come a minute apart and more. The worst outcome would be an endless wait of all, without a notice."""
    w = World(groups=5, spares=3, budget={"replace": 20, "reallocate": 20}).bring_up()
    told: list[Notice] = []
    for group in range(5):
        told += give(w, 90.0, no_store, range(group + 1))
    told += give(w, 120.0, no_store)
    assert w.memory.breaker_since is not None
    assert [notice.about.partition("-")[0] for notice in told] == ["breaker"]
    (why,) = w.waiting(Code.GROUPS_OF_MANY)
    assert (why["failing"], why["of"], why["kinds"], why["times"]) == (5, 5, ("error",), (5,))
    give(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)
    assert w.memory.breaker_since is None


@pytest.mark.parametrize("said", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_the_breaker_holds_is_not_halted_for_some_of_them(said: bool) -> None:
    """Two had shown it on two hosts each before; the others end by it, or because they have no peer to heal from. The
    same holds where a person has just ordered nodes to be left."""
    w = short_lived()
    give(w, 120.0, no_store, range(2))
    assert w.memory.breaker_since is None

    def ends(w: World, group: int) -> None:
        if group < 6:
            no_store(w, group)
        else:
            w.fail(group, 75, step=20)

    give(w, 60.0, ends)
    assert w.memory.breaker_since is not None
    give(w, 2 * SURVIVES_S, ends)
    assert w.memory.phase == "running"
    if said:
        w.control = replace(w.control, evictions=1, because="these mounts are broken")
        give(w, 50.0, ends)
        assert w.memory.phase == "running"
    give(w, 4 * w.spec.policy.backoff_max_s)
    assert all_train(w)


def test_a_bug_of_one_while_a_store_holds_the_others_halts_nobody_and_it_is_left_out_when_they_train() -> None:
    """The others go on when the store is back, without it."""
    w = world()

    def ends(w: World, group: int) -> None:
        if group == 0:
            w.fail(0, 1, "ValueError: no shard 7", step=0, commits=0)
        else:
            no_store(w, group)

    give(w, 100.0, no_store)
    told = give(w, 600.0, ends)
    assert (w.memory.phase, told) == ("running", [])
    told = give(w, 600.0, ends, range(1))
    assert [g.phase for g in w.memory.groups.values()][1:] == ["running"] * 11
    assert w.group(0).left_out
    assert w.memory.breaker_since is None
    assert [notice.group for notice in told] == [0]


@pytest.mark.long
def test_a_store_that_takes_one_after_the_other_of_many_halts_nobody() -> None:
    """Ten of 51 are too few for the breaker, and more than the run's budgets could move."""
    w = World(groups=51, spares=2).bring_up()
    for group in range(10):
        give(w, 100.0, no_store, range(group + 1))
    assert w.memory.phase == "running"
    assert (len(w.memory.spent["replace"]), "reallocate" in w.memory.spent) == (1, False), (
        "the first has shown it for all"
    )
    back = give(w, 2 * w.spec.policy.backoff_max_s)
    assert (all_train(w), back) == (True, [])


@pytest.mark.long
def test_nor_when_it_stays_away() -> None:
    w = World(groups=51, spares=2).bring_up()
    w.spec = replace(w.spec, torchft=replace(w.spec.torchft, quorum_timeout_ms=200_000))
    for group in range(10):
        give(w, 30.0, no_store, range(group + 1))
    told = give(w, 700.0, no_store, range(10))
    assert w.memory.phase == "running"
    assert [g.group for g in w.memory.groups.values() if g.left_out] == [*range(10)]
    assert {notice.group for notice in told if notice.rung == 0} <= {*range(10)}
    assert [g.generation for g in w.memory.groups.values()][10:] == [1] * 41


@pytest.mark.parametrize("groups", [1, 2, 5, 12])
def test_a_read_that_ends_all_at_one_step_again_and_again_is_not_waited_for_for_ever(groups: int) -> None:
    """A shard of the evaluation is unreadable: each time they train up to it first, for longer than an attempt
    counts."""
    w = World(groups=groups, spares=1, healthy_after_s=120.0).bring_up()
    w.spec = replace(w.spec, torchft=replace(w.spec.torchft, quorum_timeout_ms=int(1000 * SURVIVES_S)))
    before, told = w.memory, []
    for _ in range(30):
        for g in range(groups):
            w.fail(g, 1, EIO, step=60, commits=40)
        w.round()
        told += due("run", before, w.last)
        if w.memory.phase != "running" or told:
            break
        for g in range(groups):
            w.recover(g, step=30)
        for _ in range(2):
            before = w.memory
            w.round(130.0)
            told += due("run", before, w.last)
    assert told, "a person is called"
    assert w.now < 10 * SURVIVES_S
