"""Many groups fail by one shared cause outside their nodes: a store, or a switch, that is away and comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.attribution import circuit_breaker
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.report.notifications import due
from supervisor.core.round.draft import Round
from tests.unit.core.world import World

EIO = "OSError: [Errno 5] Input/output error: '/shared/shard-7'"
START_S = 20.0
"""Seconds from the start of a group to its first commit, or to its end when the store is away."""

SIGBUS = Reason.of(Code.ENDED_BY_SIGNAL, rank=0, name="SIGBUS", signal=7)
LATE = Reason.of(Code.START_LATE, limit_s=300.0)

Ends = Callable[[World, int], None]


def of_many(failing: int, of: int, kind: Kind, evidence: Reason) -> dict[str, Any]:
    """Returns the values of the reason that the breaker holds `failing` of `of` groups."""
    about = {"kinds": (kind.value,), "times": (failing,), "given_up": 0, "evidence": evidence}
    return {"run": "run", "failing": failing, "of": of, **about}


def no_store(w: World, group: int) -> None:
    w.fail(group, 1, EIO, step=20)


def bus_error(w: World, group: int) -> None:
    """Ends the group by the kernel's signal for a read of a mapped file that is away."""
    w.crash(group, signal=7, step=20)


def segfault(w: World, group: int) -> None:
    w.crash(group, signal=11, step=20)


def killed_for_memory(w: World, group: int) -> None:
    w.crash(group, signal=9, step=20, oom=True, told="")


def bug(w: World, group: int) -> None:
    w.fail(group, 1, "ValueError: bad batch", step=20)


def other_bugs(w: World, group: int) -> None:
    """Ends groups by errors that all differ, and none names anything that nodes share."""
    w.fail(group, 1, f"KeyError: 'column {'abcdefghijklmnop'[group]}'", step=20 + group)


def world(groups: int = 12, spares: int = 2, **about: object) -> World:
    return World(groups=groups, spares=spares, **about).bring_up()  # type: ignore[arg-type]


def play(w: World, seconds: float, ends: Ends | None = None, who: range | None = None) -> None:
    """Plays second by second. A started group trains after its time if `ends` is None; else those in `who` end."""
    hit = who if who is not None else range(len(w.memory.groups))
    until = w.now + seconds
    while w.now < until and w.memory.phase == "running":
        for g, group in w.memory.groups.items():
            assert w.gate is not None
            if group.generation > w.gate.admitted[g]:
                w.admit(g)
            starts = group.phase == "starting"
            if starts and w.now < group.since + START_S + g % 7:
                continue
            if ends is not None and g in hit and (starts or group.phase == "running"):
                ends(w, g)
            elif starts:
                w.commit(g, step=30)
                w.hear(g, "beating")
        w.round(1.0)


def all_train(w: World) -> bool:
    return all(g.phase == "running" for g in w.memory.groups.values()) and not w.memory.incidents


def homes(w: World) -> list[str]:
    return [group.first_node for group in w.memory.groups.values()]


def nobody_was_moved(w: World, before: list[str]) -> None:
    assert homes(w) == before
    assert (w.memory.cordons, w.suspicions) == ({}, [])
    assert set(w.memory.spent) <= {f"restart:{g}" for g in range(12)}, "nothing dearer than a restart was paid for"
    assert all(i.rung <= Rung.RESTART for i in w.incidents.values())


# --- a store ---


@pytest.mark.parametrize("ends", [no_store, pytest.param(bus_error, marks=pytest.mark.long)])
@pytest.mark.parametrize("minutes", [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_store_that_dies_and_comes_back_costs_restarts_in_place_alone(ends: Ends, minutes: int) -> None:
    w = world()
    before = homes(w)
    play(w, 60.0 * minutes, ends)
    assert w.memory.phase == "running"
    assert w.memory.breaker_since is not None
    nobody_was_moved(w, before)
    spent = w.memory.spent
    assert {len(times) for times in spent.values()} <= {1}, "what is held draws on no budget"
    play(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)
    assert w.memory.breaker_since is None
    nobody_was_moved(w, before)
    assert w.memory.spent == spent
    assert all(group.seen is None for group in w.memory.groups.values())


def test_it_says_what_is_held_and_why() -> None:
    w = world()
    play(w, 60.0, no_store)
    why = of_many(12, 12, Kind.ERROR, Reason.of(Code.EXITED, rank=0, exit_code=1, error=EIO))
    assert w.waiting(Code.GROUPS_OF_MANY) == [why]
    held = [i for i in w.incidents.values() if i.reason == Reason.of(Code.BREAKER_HOLDS)]
    assert len(held) == 12
    now = circuit_breaker.why_it_holds(Round(w.observed(), w.spec, w.memory))
    assert now == Reason.of(Code.GROUPS_OF_MANY, **why), "as status has it"


def test_what_is_held_is_paged_once() -> None:
    w = world()
    told = []
    for _ in range(120):
        before = w.memory
        play(w, 1.0, no_store)
        told += due("run", before, w.last)
    (notice,) = told
    assert notice.about.startswith("breaker-")


@pytest.mark.parametrize("groups", [2, 4])
def test_a_small_run_is_mended_as_ever(groups: int) -> None:
    """A share of a few groups is no evidence."""
    w = world(groups)
    play(w, 300.0, segfault)
    assert any(i.rung >= Rung.REPLACE for i in w.incidents.values())


@pytest.mark.parametrize("ends", [no_store, bus_error])
@pytest.mark.parametrize("groups", [2, 4])
def test_a_store_costs_a_small_run_restarts_in_place_too(groups: int, ends: Ends) -> None:
    """No person is called before the run stands still for long: the way it ends shows the cause."""
    w = world(groups)
    before = homes(w)
    play(w, 600.0, ends)
    assert (w.memory.phase, w.memory.breaker_since) == ("running", None)
    nobody_was_moved(w, before)
    assert {len(times) for times in w.memory.spent.values()} == {1}
    play(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)
    nobody_was_moved(w, before)


def test_a_first_wave_of_ends_is_no_page() -> None:
    """Each is started again in place in any case. So a bug that ends every group is reported as such, and nothing
    else."""
    w = world()
    for group in range(12):
        no_store(w, group)
    assert "hold" not in w.verbs()
    assert {g.generation for g in w.memory.groups.values()} == {2}


def test_a_policy_by_which_a_crash_leaves_its_node_is_held_at_the_first_wave() -> None:
    w = world()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, first_rung=FirstRungSpec(error="replace")))
    before = homes(w)
    for group in range(12):
        no_store(w, group)
    w.round()
    assert w.memory.breaker_since is not None
    nobody_was_moved(w, before)
    assert w.memory.spent == {}


def test_a_policy_by_which_a_crash_stops_the_run_is_kept() -> None:
    w = world()
    w.spec = replace(w.spec, policy=replace(w.spec.policy, first_rung=FirstRungSpec(error="stop")))
    for group in range(12):
        no_store(w, group)
    assert "halt" in w.verbs()
    assert w.memory.breaker_since is None


def test_a_few_that_are_left_when_it_is_over_climb_the_ladder() -> None:
    """Four of twelve are not many; a moment later they are judged as ever."""
    w = world()
    play(w, 120.0, bus_error)
    assert w.memory.breaker_since is not None
    play(w, 90.0, bus_error, who=range(3))
    assert w.memory.breaker_since is None
    assert not w.memory.cordons, "what began before it let go is given its time"
    play(w, 3 * w.spec.policy.backoff_max_s, bus_error, who=range(3))
    assert any(i.rung == Rung.REPLACE for i in w.incidents.values())


def test_a_third_that_fails_while_the_others_train_is_held_too() -> None:
    """They are behind one of several servers of a store."""
    w = world(15)
    before = homes(w)
    play(w, 600.0, bus_error, who=range(5))
    assert w.waiting(Code.GROUPS_OF_MANY) == [of_many(5, 15, Kind.CRASH, SIGBUS)]
    assert (homes(w), w.memory.cordons) == (before, {})
    play(w, 2 * w.spec.policy.backoff_max_s)
    assert all_train(w)


# --- the program's own ---


@pytest.mark.parametrize("ends", [segfault, killed_for_memory])
def test_what_a_program_does_to_every_group_stops_the_run_and_costs_no_node(ends: Ends) -> None:
    w = world()
    before = homes(w)
    play(w, 600.0, ends)
    assert w.memory.phase == "stopping"
    halt = w.memory.halt_reason
    assert halt is not None
    again = halt.about["reason"]
    assert (again.code, again.about["times"], again.about["hosts"]) == (Code.SAME_END_AGAIN, 3, ())
    assert w.memory.breaker_since is None
    assert (homes(w), w.memory.cordons, w.suspicions) == (before, {}, [])


def test_a_bug_in_every_group_stops_the_run_at_once() -> None:
    w = world()
    play(w, 1.0, bug)
    assert w.memory.phase == "stopping"
    assert w.memory.breaker_since is None
    assert "hold" not in [a.verb for a in w.last.actions]


def test_bugs_that_differ_stop_the_run_at_the_third_time() -> None:
    w = world()
    before = homes(w)
    play(w, 600.0, other_bugs)
    assert w.memory.phase == "stopping"
    assert (w.memory.breaker_since, homes(w), w.memory.cordons) == (None, before, {})


def test_a_number_that_is_not_finite_ends_all_and_is_no_store() -> None:
    """All end by it; its host alone is suspect. A node lost at the same time, and one soon after, are two nodes."""
    w = world()
    before = homes(w)
    for group in (g for g in range(12) if g != 5):
        w.fail(group, 1, "FloatingPointError: loss", step=20, numerics="own" if group == 3 else "peers")
    w.round()
    for group in (5, 8):
        w.hear(group, "silent")
        w.nodes[before[group]] = replace(w.nodes[before[group]], registered=False)
        w.round(1.0)
        assert w.memory.breaker_since is None
    w.round(1.0)
    assert w.memory.breaker_since is None
    assert w.memory.cordons.keys() == {before[3], before[5], before[8]}


# --- a switch ---


def behind_a_switch(w: World, groups: range) -> None:
    for group in groups:
        w.hear(group, "silent")


def test_a_switch_between_the_gate_and_half_the_nodes_ends_nobody() -> None:
    """Their nodes reach etcd. Each process lives, and goes on when the switch is back."""
    w = world()
    before = homes(w)
    behind_a_switch(w, range(6))
    for _ in range(600):
        w.round(1.0)
    assert w.memory.breaker_since is not None
    assert w.waiting(Code.GROUPS_OF_MANY) == [of_many(6, 12, Kind.STALLED, Reason.of(Code.UNHEARD, timeout_ms=1000))]
    for group in range(6):
        w.hear(group, "beating")
        w.round(5.0)
    assert w.memory.breaker_since is None
    w.round(1.0)
    assert all_train(w)
    assert [g.generation for g in w.memory.groups.values()] == [1] * 12
    assert w.memory.spent == {}
    nobody_was_moved(w, before)
    assert {i.state for i in w.incidents.values()} == {"recovered"}


def test_those_that_fall_silent_one_after_the_other_are_one_cause() -> None:
    w = world()
    for group in range(6):
        behind_a_switch(w, range(group, group + 1))
        w.round(5.0)
    for _ in range(100):
        w.round(1.0)
    assert {g.generation for g in w.memory.groups.values()} == {1}


def test_a_hiccup_of_many_is_no_page() -> None:
    w = world()
    behind_a_switch(w, range(12))
    for _ in range(int(w.spec.policy.silent_timeout_s) - 1):
        w.round(1.0)
        assert w.memory.breaker_since is None
    for group in range(12):
        w.hear(group, "beating")
    w.round(1.0)
    assert all_train(w)


def test_a_hiccup_of_many_while_one_ends_again_is_none_either() -> None:
    w = world()
    no_store(w, 11)
    w.round()
    w.start_again(11)
    no_store(w, 11)
    behind_a_switch(w, range(6))
    w.round()
    assert w.group(11).generation == 3
    assert w.memory.breaker_since is None


def test_who_is_still_silent_when_it_lets_go_has_the_time_of_a_hiccup() -> None:
    w = world()
    behind_a_switch(w, range(6))
    for _ in range(100):
        w.round(1.0)
    for group in range(5):
        w.hear(group, "beating")
    w.round(1.0)
    assert w.memory.breaker_since is None
    back = w.now
    w.round()
    assert w.last.look_again_at is not None
    assert back < w.last.look_again_at <= back + w.spec.policy.silent_timeout_s
    w.round(w.spec.policy.silent_timeout_s - 1.0)
    assert w.group(5).generation == 1
    w.round(1.0)
    assert w.incidents[w.group(5).incident].kind == Kind.STALLED
    assert w.group(5).generation == 2


def test_a_person_has_the_silent_ones_started_again_at_no_budget() -> None:
    w = world()
    behind_a_switch(w, range(6))
    for _ in range(100):
        w.round(1.0)
    w.control = replace(w.control, evictions=1, because="they hang")
    w.round(1.0)
    assert w.memory.breaker_since is None
    assert [g.generation for g in w.memory.groups.values()] == [2] * 6 + [1] * 6
    assert w.memory.spent == {}
    for group in range(6):
        w.start_again(group)
    for _ in range(10):
        w.round(w.spec.policy.start_timeout_s / 5)
    assert w.waiting(Code.GROUPS_OF_MANY) == [of_many(6, 12, Kind.START_TIMEOUT, LATE)]
    assert not w.memory.cordons
    w.control = replace(w.control, evictions=2, because="and still do")
    w.round(1.0)
    assert [g.first_node != "" for g in w.memory.groups.values()] == [False] * 6 + [True] * 6, (
        "a restart did not mend them"
    )
    assert w.memory.spent == {}


def test_a_start_that_hangs_everywhere_costs_no_host_when_a_person_has_mended_the_image() -> None:
    """The incident began with a restart after an earlier end: that is not the restart that a person asks for."""
    w = world(6)
    before = homes(w)
    for group in range(6):
        w.crash(group, signal=15)
    w.round(1.0)
    for group in range(6):
        w.start_again(group)
    for _ in range(20):
        w.round(w.spec.policy.start_timeout_s / 5)
    assert w.waiting(Code.GROUPS_OF_MANY) == [of_many(6, 6, Kind.START_TIMEOUT, LATE)]
    spent = w.memory.spent
    w.control = replace(w.control, evictions=1, because="the old image is back")
    play(w, 60.0)
    assert all_train(w)
    nobody_was_moved(w, before)
    assert w.memory.spent == spent


def test_a_person_has_nodes_left_where_a_restart_has_not_mended_what_ends() -> None:
    w = world()
    play(w, 120.0, no_store)
    paid = {scope for scope in w.memory.spent if not scope.startswith("restart:")}
    w.control = replace(w.control, evictions=1, because="these disks are gone")
    play(w, 59.0, no_store)
    assert any(i.rung >= Rung.REPLACE for i in w.incidents.values())
    assert {scope for scope in w.memory.spent if not scope.startswith("restart:")} == paid == set()


def test_a_start_that_takes_all_groups_too_long_ends_none() -> None:
    w = world(start_timeout_s=60.0)
    before = homes(w)
    play(w, 1.0, no_store)
    for g in range(12):
        w.start_again(g)
    w.round(61.0)
    assert w.memory.breaker_since is not None
    for _ in range(100):
        w.round(1.0)
    assert {g.generation for g in w.memory.groups.values()} == {2}
    for g in range(12):
        w.commit(g, step=30)
        w.hear(g, "beating")
        w.round(2.0)
    w.round(1.0)
    assert all_train(w)
    assert w.memory.breaker_since is None
    nobody_was_moved(w, before)


def test_groups_that_hang_by_themselves_are_not_ended_if_they_are_many() -> None:
    """A third of them read from one server of the store."""
    w = world(15)
    reads = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)
    waits = StuckView(activity="quorum", activity_s=31.0, bound_s=30.0, usual_s=1.0)
    for group in range(15):
        w.report(group, commits=1, step=50, stuck=reads if group < 5 else waits)
    for _ in range(60):
        w.round(1.0)
    assert {g.generation for g in w.memory.groups.values()} == {1}
    hangs = Reason.of(
        Code.NO_STEP, rank=0, bound_s=30.0, usual_s=1.0, activity="data", activity_s=31.0, process="", stack=""
    )  # fmt: skip
    assert w.waiting(Code.GROUPS_OF_MANY) == [of_many(5, 15, Kind.HANG, hangs)]
    for group in range(15):
        w.commit(group, step=51)
    w.round(1.0)
    w.round(1.0)
    assert all_train(w)
    assert w.memory.breaker_since is None


def test_nothing_is_held_of_a_run_that_drains() -> None:
    w = world()
    behind_a_switch(w, range(6))
    for _ in range(100):
        w.round(1.0)
    assert w.memory.breaker_since is not None
    w.control = replace(w.control, stop=True)
    assert "hold" not in [verb for _ in range(5) for verb in w.verbs(1.0)]
    assert w.memory.breaker_since is None


@pytest.mark.parametrize("kind", ["hang", "stalled", "node_lost"])
def test_what_is_only_observed_keeps_no_other_from_being_mended(kind: str) -> None:
    w = world(15, observe=(kind,))
    if kind == "hang":
        reads = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)
        for group in range(15):
            w.report(group, commits=1, step=50, stuck=reads if group < 5 else replace(reads, activity="quorum"))
    else:
        behind_a_switch(w, range(5))
    if kind == "node_lost":
        for group in range(5):
            node = w.group(group).first_node
            w.nodes[node] = replace(w.nodes[node], registered=False)
    for _ in range(100):
        w.round(1.0)
    assert w.memory.breaker_since is None
    assert {(i.kind.value, i.shadow) for i in w.memory.incidents.values()} == {(kind, True)}
    w.crash(9)
    w.round(1.0)
    assert w.group(9).generation == 2
    assert [w.group(g).generation for g in range(5)] == [1] * 5
