"""Hosts that a person, or repeated incidents, keep groups away from; and the ways to free them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import invariants
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import CordonView, Grant, NodeView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.policy.cordons import REPEATED_S, TOGETHER_S, freeable, repeated, together
from tests.helpers.reasons import held_against
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s

WHY = "cordoned by ann@login: its disk is failing"
DRAIN = "drained by ann@login: its disk is failing"


def bar(w: World, host: str) -> None:
    """Bars a host: a person's word and two incidents of other runs look the same to the core."""
    w.cordons[host] = replace(w.cordons.get(host, CordonView()), why=WHY)


def drain(w: World, host: str) -> None:
    w.cordons[host] = CordonView(why=DRAIN, drain=DRAIN)


def freed_by(by: str) -> Reason:
    return Reason.of(Code.FREED_BY, host="n1", by=by, was=held_against("i1", Kind.NODE_LOST))


def lose(w: World, node: str) -> None:
    """Lapses its lease; the gate hears its groups no more."""
    for g in w.memory.groups.values():
        if g.first_node == node:
            w.hear(g.group, "gone")
    w.lapse(node)


def wanted(w: World) -> list[str]:
    return sorted(key for key, a in w.memory.allocations.items() if a.state == "wanted")


def held(at: float, run: str = "a", incident: str = "i1", kind: Kind = Kind.NODE_LOST) -> Suspicion:
    return Suspicion(host="h1", run=run, incident=incident, kind=kind, at=at)


# --- the rule ---


def test_one_incident_bars_a_host_for_its_own_run_alone() -> None:
    assert repeated([]) == repeated([held(5.0)]) == ()


@pytest.mark.parametrize(("apart", "bars"), [(0.0, True), (REPEATED_S, True), (REPEATED_S + 1.0, False)])
def test_two_within_a_day_bar_it_for_every_run(apart: float, bars: bool) -> None:
    two = held(5.0), held(5.0 + apart, run="b", incident="i4")
    assert repeated(two[::-1]) == (two if bars else ())


def flap(at: float, *hosts: str, kind: Kind = Kind.NODE_LOST) -> list[Suspicion]:
    """A switch takes these hosts away, a second apart."""
    return [replace(held(at + n, incident=f"i{at}-{h}", kind=kind), host=h) for n, h in enumerate(hosts)]


def test_a_switch_that_takes_several_hosts_twice_bars_none_of_them() -> None:
    every = [*flap(0.0, "h1", "h2", "h3"), *flap(40_000.0, "h3", "h1", "h2")]
    shared = together(every)
    assert shared == set(every)
    for host in ("h1", "h2", "h3"):
        own = [s for s in every if s.host == host]
        assert repeated(own), "by itself it would be"
        assert repeated(own, shared) == ()
        passed = [replace(own[0], freed="passed"), own[1]]
        assert freeable(own[1:], passed) == []
        assert freeable(own[1:], passed, together([*passed, *(s for s in every if s.host != host)])) == own[1:]


def test_one_of_them_that_is_lost_alone_besides_is_barred() -> None:
    every = [*flap(0.0, "h1", "h2"), *flap(500.0, "h1"), *flap(9_000.0, "h1")]
    shared = together(every)
    assert shared == set(every[:2])
    assert repeated([s for s in every if s.host == "h1"], shared)


@pytest.mark.parametrize(
    ("hosts", "apart", "kind", "together_"),
    [
        (("h1", "h2"), TOGETHER_S, Kind.NODE_LOST, True),
        (("h1", "h2"), TOGETHER_S + 1.0, Kind.NODE_LOST, False),
        (("h1", "h1"), 1.0, Kind.NODE_LOST, False),
        (("h1", "h2"), 1.0, Kind.STALLED, True),
        (("h1", "h2"), 1.0, Kind.GPU, False),
    ],
)
def test_what_befell_others_at_the_same_time(hosts: tuple[str, str], apart: float, kind: Kind, together_: bool) -> None:
    one, two = flap(0.0, hosts[0], kind=kind) + flap(apart, hosts[1], kind=kind)
    assert together([two, one]) == ({one, two} if together_ else set())


def test_several_of_one_host_before_another_are_all_of_that_time() -> None:
    every = [*flap(0.0, "h1"), *flap(10.0, "h1"), *flap(20.0, "h2"), *flap(30.0, "h2")]
    assert together(every) == set(every)


def test_neither_order_nor_older_incidents_matter() -> None:
    old, one, two = held(0.0, run="z"), held(9e6), held(9e6 + 5.0, run="b")
    assert repeated([old, one, two]) == repeated([two, one, old]) == repeated([two, one]) != ()


@pytest.mark.parametrize("kind", [Kind.ERROR, Kind.PEERS_GONE])
def test_what_a_program_says_of_itself_does_not_count(kind: Kind) -> None:
    assert repeated([held(1.0, kind=kind), held(2.0, run="b")]) == ()
    assert repeated([held(1.0), held(1.5, run="c", kind=kind), held(2.0, run="b")]) != ()


# --- incidents that leave a suspicion ---


def test_a_lost_node_leaves_one_and_a_restart_none() -> None:
    w = World().bring_up()
    w.crash(1)
    assert "start" in w.verbs()
    assert (w.suspicions, w.cordons) == ([], {})
    began = w.now
    lose(w, "n1")
    w.round()
    w.round(5.0)
    (found,) = w.suspicions
    assert (found.host, found.run, found.incident, found.kind) == ("n1", "run", "i2", Kind.NODE_LOST)
    assert began <= found.at < w.now - 5.0, "it is the time of the decision"


def test_what_the_engine_takes_leaves_none() -> None:
    w = World().bring_up()
    w.grant(1, "gone", reason="preempted")
    w.round()
    assert (w.suspicions, w.memory.cordons) == ([], {})
    assert w.incident.kind == Kind.ALLOCATION_LOST


def test_two_groups_that_one_host_takes_with_it_are_one_trouble() -> None:
    w = World(groups=3, spares=2).bring_up()
    for number in (1, 2):
        w.node(number, host="h1")
    w.round()
    for node in ("n1", "n2"):
        lose(w, node)
    w.round(1.0)
    assert [i.kind for i in w.memory.incidents.values()] == [Kind.NODE_LOST] * 2
    assert [(s.host, s.incident) for s in w.suspicions] == [("h1", "i1")]


# --- barred for every run ---


def test_no_group_is_placed_on_a_host_that_is_barred_for_all() -> None:
    w = World(groups=2, spares=2).bring_up()
    bar(w, "n3")
    lose(w, "n1")
    w.round()
    w.recover(0)
    assert w.group().first_node == "n4"
    assert "n3" in w.memory.allocations["run-a5"].exclude


def test_the_invariant_sees_a_group_on_a_barred_host() -> None:
    w = World(groups=2, spares=1).bring_up()
    before = replace(w.memory, groups={**w.memory.groups, 0: replace(w.group(), phase="placing", seats=())})
    after = replace(
        before, groups={**before.groups, 0: replace(w.group(), phase="starting", seats=(Seat("n3", "n3"),))}
    )
    assert not [v for v in invariants.violations(before, after, w.observed(), w.spec) if "I20" in v]
    bar(w, "n3")
    assert "I20: group 0 is placed on n3, whose host n3 is cordoned: " + WHY in invariants.violations(
        before, after, w.observed(), w.spec
    )


def test_what_runs_on_a_cordoned_host_goes_on_and_is_restarted_there() -> None:
    w = World(groups=2, spares=1).bring_up()
    bar(w, "n1")
    assert w.verbs(after=30.0) == []
    w.crash(0)
    assert w.verbs() == ["start"]
    assert (w.group().first_node, w.group().generation) == ("n1", 2)


def test_a_spare_on_it_is_given_up_for_another_at_no_budget() -> None:
    w = World(groups=2, spares=1).bring_up()
    bar(w, "n3")
    assert w.verbs() == ["release", "acquire"]
    assert (w.memory.allocations["run-a4"].exclude, w.memory.spent) == (("n3",), {})
    assert w.verbs() == [], "once"


def test_a_run_that_begins_is_told_to_leave_it_out_and_starts_elsewhere() -> None:
    w = World(groups=1, spares=0)
    bar(w, "n9")
    w.host()
    w.round()
    assert [a.exclude for a in w.memory.allocations.values()] == [("n9",)]
    w.grants["run-a1"] = Grant(key="run-a1", state="granted", nodes=("n9",), engine_id="job-1")
    w.nodes["n9"] = NodeView(name="n9", registered=True, allocation="run-a1")
    for _ in range(3):
        w.open_gate()
        w.round()
    assert w.group().phase == "unplaced", "given all the same, it is not used"


# --- freed ---


def lost(w: World) -> World:
    """Loses n1, whose group then trains on the spare."""
    lose(w, "n1")
    w.round()
    w.recover(0)
    assert w.memory.cordons == {"n1": held_against("i1", Kind.NODE_LOST)}
    return w


def test_a_freed_host_is_let_go_of_by_the_runs_own_memory_and_may_be_cordoned_again() -> None:
    w = lost(World(groups=2, spares=1).bring_up())
    assert w.verbs(after=5.0) == []
    del w.cordons["n1"]
    decision = w.round()
    assert (decision.actions[0].verb, decision.actions[0].key.split(":")[1]) == ("uncordon", "n1")
    assert decision.actions[0].reason == freed_by("a person")
    assert w.memory.cordons == {}
    assert "uncordon" not in w.verbs(), "once"
    (pending,) = [key for key in wanted(w) if key not in w.grants]
    w.grants[pending] = Grant(key=pending, state="granted", nodes=("n1",), engine_id="again")
    w.nodes["n1"] = NodeView(name="n1", registered=True, allocation=pending)
    lose(w, w.group(1).first_node)
    w.round()
    w.recover(1)
    assert w.group(1).first_node == "n1", "it is used again"
    w.now += 1.0
    lose(w, "n1")
    w.round()
    assert [(s.host, s.incident) for s in w.suspicions] == [("n1", "i1"), ("n2", "i2"), ("n1", "i3")]
    assert "n1" in w.memory.cordons


def test_a_host_that_is_freed_while_a_person_still_bars_it_stays_barred() -> None:
    w = lost(World(groups=2, spares=1).bring_up())
    w.cordons["n1"] = CordonView(why=WHY)
    assert "uncordon" in w.verbs()
    assert "n1" in w.memory.allocations[wanted(w)[-1]].exclude


def test_a_paused_run_notes_it_too_and_does_nothing_else() -> None:
    w = lost(World(groups=2, spares=1).bring_up())
    w.control = replace(w.control, paused=True)
    w.cordons.clear()
    assert w.verbs() == ["uncordon"]


def test_what_still_waits_is_asked_for_anew_without_the_exclusion() -> None:
    w = lost(World(groups=2, spares=1).bring_up())
    (pending,) = [key for key in wanted(w) if key not in w.grants]
    assert w.memory.allocations[pending].exclude == ("n1",)
    spent = w.memory.spent
    w.cordons.clear()
    w.round()
    assert [a.verb for a in w.last.actions] == ["uncordon", "release", "acquire"]
    assert w.last.actions[1].reason == Reason.of(Code.HOST_FREE_AGAIN, host="n1")
    (again,) = [key for key in wanted(w) if key not in w.grants]
    assert (w.memory.allocations[again].exclude, w.memory.spent) == ((), spent)
    assert w.verbs() == [], "once"


def test_what_the_engine_has_granted_meanwhile_is_kept() -> None:
    w = lost(World(groups=2, spares=1).bring_up())
    w.bring(4)
    w.cordons.clear()
    assert w.verbs() == ["uncordon"]


# --- drained ---


def test_a_drained_host_is_left_at_no_budget_and_its_group_moves_to_a_spare() -> None:
    w = World(groups=2, spares=1).bring_up()
    drain(w, "n1")
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["acquire", "move"]
    assert decision.actions[0].reason == Reason.of(Code.IN_PLACE_OF_LEAVING, allocation="run-a1", why=DRAIN)
    assert "n1" in w.memory.allocations["run-a4"].exclude
    assert (w.group().phase, w.group().last_node, w.incident.kind) == ("fencing", "n1", Kind.LEAVING)
    w.recover(0)
    w.round()
    assert (w.group().first_node, wanted(w)) == ("n3", ["run-a2", "run-a3", "run-a4"])
    assert (w.memory.spent, w.memory.cordons, w.suspicions) == ({}, {}, [])
    assert w.incident.state == "recovered"


def test_it_is_left_only_while_another_group_trains_and_a_node_is_there() -> None:
    w = World(groups=2, spares=0).bring_up()
    drain(w, "n1")
    assert w.verbs() == ["acquire"]
    assert w.verbs(after=1e4) == [], "nobody hurries it: a person's drain has no deadline"
    (waits,) = w.waiting(Code.NO_OTHER_YET)
    assert (waits["group"], waits["node"], waits["why"]) == (0, "n1", DRAIN)
    w.hear(1, "silent")
    w.bring(3)
    w.round()
    assert w.group().phase == "running"
    w.hear(1, "beating")
    w.round()
    w.round()
    assert w.group().phase == "fencing"


def test_a_node_that_is_lost_while_it_is_drained_pays_nothing() -> None:
    w = World(groups=2, spares=0).bring_up()
    drain(w, "n1")
    w.round()
    lose(w, "n1")
    w.round()
    assert w.incident.kind == Kind.NODE_LOST
    assert (w.memory.spent, w.memory.cordons, w.suspicions) == ({}, {}, [])


def test_all_nodes_of_a_drained_host_are_left_one_at_a_time() -> None:
    w = World(groups=3, spares=2).bring_up()
    for number in (1, 2):
        w.node(number, host="big")
    w.round()
    drain(w, "big")
    w.round()
    w.round(5.0)
    assert [g.phase for g in w.memory.groups.values()] == ["fencing", "running", "running"]
    w.recover(0)
    w.round()
    w.recover(1)
    assert {g.first_node for g in w.memory.groups.values()} == {"n3", "n4", "n5"}
    assert w.memory.spent == {}


def test_an_idle_spare_that_is_drained_has_one_successor() -> None:
    w = World(groups=2, spares=1).bring_up()
    drain(w, "n3")
    assert sorted(w.verbs()) == ["acquire", "release"]
    assert wanted(w) == ["run-a1", "run-a2", "run-a4"]
    assert w.verbs() == []


def test_a_drain_that_is_taken_back_in_time_changes_nothing_more() -> None:
    w = World(groups=2, spares=0).bring_up()
    drain(w, "n1")
    w.round()
    w.cordons.clear()
    w.round()
    assert w.memory.allocations["run-a1"].leaving_since is None
    w.bring(3)
    assert w.verbs(after=5.0) == []
    assert w.group().first_node == "n1"


def test_a_restart_on_a_drained_host_goes_elsewhere() -> None:
    w = World(groups=2, spares=2).bring_up()
    drain(w, "n1")
    w.crash(0)
    for _ in range(3):
        w.round()
    w.recover(0)
    assert w.group().first_node in ("n3", "n4")
    assert w.incident.kind == Kind.CRASH


# --- kills from outside ---

FROM_OUTSIDE = {"told": "", "oom": False}
"""Facts of a kill from outside, as its node's agent and cgroup report them."""


def kill_until_it_leaves(w: World, *kills: dict[str, Any]) -> None:
    """Kills group 1 each time before it is back. The last kill is repeated until the group is given a spare."""
    waiting = list(kills)
    while not w.memory.incidents or w.incident.rung < Rung.REPLACE:
        w.crash(1, **(waiting.pop(0) if len(waiting) > 1 else waiting[0]))
        w.round()
        w.round(LOCAL_WORD_S + 0.01)
        if w.incident.rung < Rung.REPLACE:
            w.start_again(1)
    assert w.incident.rung == Rung.REPLACE


@pytest.mark.parametrize("number", [9, 15])
def test_kills_from_outside_are_held_against_no_host(number: int) -> None:
    w = World(groups=2, spares=1).bring_up()
    kill_until_it_leaves(w, {"signal": number, **FROM_OUTSIDE})
    assert (w.suspicions, w.memory.cordons) == ([], {})
    assert (w.incident.rung, w.incident.outside) == (Rung.REPLACE, True)


FROM_INSIDE: list[dict[str, Any]] = [
    {"signal": 11, **FROM_OUTSIDE},
    {"signal": 9, "told": "", "oom": True},
    {"signal": 9, "told": "", "oom": None},  # it cannot be seen if it was the kernel
    {"signal": 9, "told": None, "oom": False},
    {"signal": 15, "told": None},
]


@pytest.mark.parametrize("other", FROM_INSIDE)
@pytest.mark.parametrize("last", [True, False])
def test_an_end_in_the_same_incident_that_may_be_the_hosts_is_held_against_it(
    other: dict[str, Any], last: bool
) -> None:
    w = World(groups=2, spares=1).bring_up()
    host, kill = w.group(1).first_node, {"signal": 9, **FROM_OUTSIDE}
    kill_until_it_leaves(w, *((kill, other) if last else (other, kill)))
    assert [s.host for s in w.suspicions] == [host]


def test_many_kills_from_outside_within_a_day_do_not_make_a_host_suspect() -> None:
    w = World(groups=2, spares=0).bring_up()
    for _ in range(12):
        w.now += 22 * 60.0
        w.round()
        w.crash(1, signal=9, **FROM_OUTSIDE)
        w.round()
        assert w.incident.rung == Rung.RESTART
        w.recover(1)
    assert (w.suspicions, w.memory.cordons) == ([], {})
