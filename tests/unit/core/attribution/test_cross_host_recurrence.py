"""An end that comes again when its group is on another host is held against no host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.attribution.cross_host_recurrence import WITHIN_S
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import CordonView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.policy import cordons
from tests.helpers.reasons import codes, held_against
from tests.unit.core.evidence.test_hang_attribution import hangs
from tests.unit.core.world import World

SIGSEGV = 11


def world(**about: Any) -> World:
    """A world in which a group has one restart: its second crash moves it."""
    return World(**{"groups": 2, "spares": 4, "budget": {"restart": 1, "replace": 9}, **about}).bring_up()


def crash(w: World, step: int, signal: int = SIGSEGV, **about: Any) -> None:
    """Ends group 0 by a signal, and lets it train again."""
    w.crash(0, signal, **{"step": step, "commits": 3, "told": "", "oom": False, **about})
    w.round(61.0)
    w.recover(step=step + 1)


def crashes_until_it_has_moved(w: World) -> None:
    crash(w, 20)
    crash(w, 30)
    assert (w.incident.rung, w.group().first_node) == (Rung.REPLACE, "n3")
    assert [(s.host, s.incident, s.kind) for s in w.suspicions] == [("n1", "i2", Kind.CRASH)]
    assert w.memory.cordons == {"n1": held_against("i2", Kind.CRASH)}


def test_the_same_signal_on_the_next_host_frees_the_first_one_of_it() -> None:
    w = world()
    crashes_until_it_has_moved(w)
    w.crash(0, SIGSEGV, step=77, commits=3, told="", oom=False)
    decision = w.round(61.0)
    assert decision.acquitted == (("n1", "i2"),)
    assert (w.memory.cordons, w.suspicions) == ({}, [])
    freed = next(a for a in decision.actions if a.verb == "uncordon")
    elsewhere = Reason.of(Code.BEFELL_ELSEWHERE, group=0, host="n3")
    assert freed.reason == Reason.of(Code.NOT_TO_BLAME, host="n1", was=held_against("i2", Kind.CRASH), why=elsewhere)
    assert w.incident.evidence[-1] == Reason.of(Code.FOLLOWS, host="n1", incident="i2")


def test_nor_is_it_held_against_any_host_that_comes_after() -> None:
    w = world(spares=6)
    crashes_until_it_has_moved(w)
    homes = set()
    for step in (77, 78, 90, 91):
        crash(w, step)
        homes.add(w.group().first_node)
        assert (w.memory.cordons, w.suspicions) == ({}, [])
    assert len(homes) > 1, "the ladder climbs as ever"
    assert "cordon" not in [a.verb for a in w.last.actions]


def test_a_start_that_hangs_on_the_next_host_too_is_held_against_none() -> None:
    """An image that is slow to load, or a store that is away, hangs wherever the group is started."""
    w = World(groups=1, spares=4, budget={"restart": 1, "replace": 9}, start_timeout_s=60.0).bring_up()
    w.crash(0)
    homes = []
    for _ in range(3):
        w.round(61.0)
        w.start_again(0)
        homes.append(w.group().first_node)
        w.round(61.0)
        assert w.incident.kind == Kind.START_TIMEOUT
    assert homes[0] == "n1"
    assert len(set(homes)) > 1, "the ladder climbs as ever"
    assert (w.memory.cordons, w.suspicions) == ({}, [])


def test_a_hang_on_the_next_host_too_is_held_against_none() -> None:
    """A sample blocks the data loader: at the same step, on any node."""
    w = World(groups=2, spares=3, first_rung=FirstRungSpec(hang="replace")).bring_up()
    for n in range(3):
        hangs(w, 0, "data", stack="in read (loader.py:10)")
        w.others_wait(0)
        w.round(100.0)
        assert (w.incident.kind, w.incident.rung) == (Kind.HANG, Rung.REPLACE)
        assert len(w.suspicions) == (1 if n == 0 else 0), "the second one frees the first host"
        w.recover(0)
        w.go_on(step=51 + n)
    assert Code.FOLLOWS in codes(*w.incident.evidence)


def test_the_host_that_it_left_is_used_again() -> None:
    w = world(spares=1)
    crashes_until_it_has_moved(w)
    w.crash(0, SIGSEGV, step=77, commits=3)
    w.round(61.0)
    w.admit(0)
    for _ in range(2):
        w.round(1.0)
    waits = [a for key, a in w.memory.allocations.items() if key not in w.grants and a.state == "wanted"]
    assert waits
    assert {a.exclude for a in waits} == {()}, "and what was asked for without it is asked for anew"


@pytest.mark.parametrize(("signal", "about"), [(6, {}), (9, {}), (9, {"told": "cut off"}), (9, {"oom": True})], ids=str)
def test_another_end_leaves_it_as_it_is(signal: int, about: dict[str, Any]) -> None:
    w = world()
    crashes_until_it_has_moved(w)
    crash(w, 77, signal, **about)
    assert ("n1" in w.memory.cordons, w.suspicions[0].host) == (True, "n1")


def test_a_kill_of_which_nothing_is_known_is_never_the_same() -> None:
    w = world()
    for step in (20, 30, 40):
        crash(w, step, 9, oom=None)
    assert [s.host for s in w.suspicions] == ["n1", "n3"]


def test_another_groups_crash_leaves_it_as_it_is() -> None:
    w = world()
    crashes_until_it_has_moved(w)
    w.crash(1, SIGSEGV, step=77, commits=3)
    w.round(61.0)
    assert "n1" in w.memory.cordons


def test_after_a_day_it_may_be_the_next_hosts_own_trouble() -> None:
    w = world()
    crashes_until_it_has_moved(w)
    w.round(WITHIN_S + 1.0)
    crash(w, 77)
    assert w.memory.cordons == {"n1": held_against("i2", Kind.CRASH)}


def test_the_same_exception_counts_as_the_same_signal_does() -> None:
    w = world()
    for step in (20, 30, 40):
        w.fail(0, 1, "RuntimeError: CUDA error: an illegal memory access", step=step, commits=3)
        w.round(61.0)
        w.recover(step=step + 1)
        assert (len(w.suspicions), len(w.memory.cordons)) == ((1, 1) if step == 30 else (0, 0))


def test_another_incident_that_is_held_against_the_host_keeps_it_where_it_is() -> None:
    """Two groups of one host: the first one's record explains why the second left it."""
    w = World(groups=3, spares=4, budget={"restart": 1, "replace": 9}).bring_up()
    for number in (1, 2):
        w.node(number, host="h1")
    w.round()
    crash(w, 20)
    crash(w, 30)
    w.hear(1, "gone")
    w.lapse("n2")
    w.round()
    both = {"reason": held_against("i2", Kind.CRASH), "note": held_against("i3", Kind.NODE_LOST)}
    assert w.memory.cordons == {"h1": Reason.of(Code.AND, **both)}
    w.recover(1)
    crash(w, 77)
    assert w.memory.cordons == {"h1": Reason.of(Code.AND, **both)}
    assert [(s.host, s.incident) for s in w.suspicions] == [("h1", "i2")]


def test_an_incident_that_goes_on_is_told_as_it_is() -> None:
    """A group that crashes at every start, without which no other can step, is one incident, on all its hosts."""
    w = World(groups=2, min_groups=2, spares=4, budget={"restart": 1, "replace": 9}).bring_up()
    for _ in range(4):
        w.crash(0, SIGSEGV, step=20)
        w.round(61.0)
        w.start_again()
    assert (len(w.incidents), w.incident.rung, w.incident.followed) == (1, Rung.REPLACE, True)
    assert (w.memory.cordons, w.suspicions) == ({}, [])
    assert Reason.of(Code.FOLLOWS, host="n1", incident="i1") in w.incident.evidence


def test_at_a_halt_too_the_first_host_is_free() -> None:
    w = World(groups=1, spares=1).bring_up()
    for rung in (Rung.RESTART, Rung.REPLACE, Rung.STOP):
        w.crash(0, SIGSEGV, step=20, commits=3)
        w.round(61.0)
        assert w.incident.rung == rung
        if rung != Rung.STOP:
            w.recover(step=10)
    assert (w.incident.kind, w.memory.cordons, w.suspicions) == (Kind.SAME_ERROR, {}, [])


def test_a_bug_that_is_launched_twice_bars_no_host_for_others() -> None:
    held: list[Suspicion] = []
    for _ in range(2):
        w = world()
        crashes_until_it_has_moved(w)
        assert not cordons.repeated([*held, *w.suspicions])
        crash(w, 77)
        held += w.suspicions
    assert held == []


def test_a_person_who_resumes_or_restarts_begins_anew() -> None:
    w = world()
    crashes_until_it_has_moved(w)
    w.control = replace(w.control, restarts={0: 1})
    w.round(61.0)
    w.recover(step=40)
    assert w.group().failures == ()
    crash(w, 77)
    assert "n1" in w.memory.cordons


def test_what_was_freed_meanwhile_is_deleted_all_the_same_and_nothing_said() -> None:
    """A passed check of the host leaves the record, and a later incident would be counted with it."""
    w = world()
    crashes_until_it_has_moved(w)
    w.cordons["n1"] = CordonView(passed="the checks that it passed")
    w.round()
    assert w.memory.cordons == {}
    w.crash(0, SIGSEGV, step=77, commits=3)
    decision = w.round(61.0)
    assert decision.acquitted == (("n1", "i2"),)
    assert "uncordon" not in [a.verb for a in decision.actions]


def test_a_hang_in_the_kernel_that_follows_its_group_costs_no_third_node() -> None:
    """A file system that both hosts mount does not answer."""
    w = World(groups=3, spares=2).bring_up()
    for step in (50, 60):
        hangs(w, 0, "data", process="uninterruptible", step=step)
        w.others_wait(0, step=step)
        w.round()
        if step == 50:
            assert w.incident.rung == Rung.REPLACE
            w.recover(0, step=55)
            w.go_on(step=56)
            w.round(200.0)
    assert w.incident.kind == Kind.HANG
    assert Code.FOLLOWS in codes(*w.incident.evidence)
    assert w.incident.rung == Rung.RESTART
