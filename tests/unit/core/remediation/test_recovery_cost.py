"""The cost of each option: measured in this run, named for every option, and decisive only where it is clear."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Tried
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.policy import ladder
from supervisor.core.remediation import recovery_cost
from supervisor.core.report.explain import explain
from supervisor.core.report.words import said, say
from supervisor.core.round.draft import Round
from tests.helpers.reasons import codes, passed
from tests.unit.core.world import World

WHAT = ("restart", "replace", "reallocate", "allocation")


def remembers(w: World, **tried: tuple[float | tuple[float, bool], ...]) -> None:
    """Sets the run's measurements, in seconds; with False where the option did not mend it."""
    known = {
        what: tuple(Tried(seconds=t, mended=True) if isinstance(t, float) else Tried(seconds=t[0], mended=t[1]) for t in tries)
        for what, tries in tried.items()
    }  # fmt: skip
    w.memory = replace(w.memory, tried=known)


def test_what_was_not_measured_is_said() -> None:
    w = World(groups=4).bring_up()
    remembers(w)
    w.crash(1)
    w.round(1.0)
    assert said(w.incident.costs) == (
        "restart: not measured yet in this run",
        "replace, by spare n5: not measured yet in this run",
        "reallocate: not measured yet in this run",
        "going on with 3 of 4 groups: 1 a second",
    )


def test_what_was_measured_is_told_in_group_seconds() -> None:
    w = World(groups=4).bring_up()
    remembers(w, restart=(3.0, 2.0, 4.0, (9.0, False)), replace=(8.0,), allocation=(40.0,))
    w.crash(1)
    w.round(1.0)
    assert said(w.incident.costs) == (
        "restart: about 3 (3.0 s x 1 group, so far; 3 of 4 mended it)",
        "replace, by spare n5: about 8 (8.0 s x 1 group, so far)",
        "reallocate: about 43 (43.0 s x 1 group, 40.0 s until an allocation came, 3.0 s to start)",
        "going on with 3 of 4 groups: 1 a second",
    )
    assert "What each would cost, in lost group-seconds until it steps again:" in explain(w.incident)


def test_one_that_is_slow_and_only_observed_is_not_counted_as_lost() -> None:
    """It still steps, unlike one that crashed and is left so."""
    for observed, others in (("straggler", 3), ("crash", 2)):
        w = World(
            groups=4, first_rung=FirstRungSpec(straggler="restart"), observe=(observed,), straggler_for_s=300.0
        ).bring_up()  # fmt: skip
        for step in (50, 114):
            for group in range(4):
                w.commit(group, step=step, compute_s=0.9 if group == 0 and observed == "straggler" else 0.4)
            w.round(301.0)
        if observed == "crash":
            w.crash(0)
            w.round(1.0)
        assert [i.shadow for i in w.memory.incidents.values()] == [True]
        w.fail(1, 1, "KeyError: 'x'")
        w.round(1.0)
        assert said(w.incident.costs)[-1] == f"going on with {others} of 4 groups: 1 a second"


def test_where_too_few_are_left_all_stand_still() -> None:
    w = World(groups=4, min_groups=4).bring_up()
    remembers(w, restart=(3.0,))
    w.crash(1)
    w.round(1.0)
    assert said(w.incident.costs)[0] == "restart: about 12 (3.0 s x 4 groups, so far)"
    assert said(w.incident.costs)[-1] == "waiting, with 3 of 4 groups, which is too few to step: 4 a second"


def test_a_lost_node_is_no_restart_and_without_a_spare_there_is_none() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.hear(1, "gone")
    w.lapse("n2")
    w.round(1.0)
    assert [cost.split(":")[0] for cost in said(w.incident.costs)] == [
        "replace",
        "reallocate",
        "going on with 1 of 2 groups",
    ]
    assert said(w.incident.costs)[0] == "replace: there is no spare"


def test_each_rung_is_measured_from_its_decision_until_the_group_trains_or_fails_again() -> None:
    w = World(groups=2, spares=0, backoff_first_s=0.0).bring_up()
    remembers(w)
    w.crash(0)
    w.round(1.0)
    w.start_again(0, after=2.0)
    w.report(0, phase="starting", state="starting")
    w.round(1.0)
    w.crash(0)
    w.round(4.0)
    assert w.memory.tried["restart"] == (Tried(seconds=5.0, mended=False),)
    w.start_again(0, after=2.0)
    w.report(0, phase="starting", state="starting")
    w.round(1.0)
    w.commit(0, step=20)
    w.round(3.0)
    assert w.memory.tried["restart"] == (Tried(seconds=5.0, mended=False), Tried(seconds=4.0, mended=True))


def test_an_allocation_is_measured_from_asking_until_a_group_is_on_it() -> None:
    w = World(groups=2, spares=0).bring_up()
    started = w.memory.tried["allocation"]
    assert len(started) == 2
    w.hear(1, "gone")
    w.lapse("n2")
    w.round(1.0)
    w.admit(1)
    w.round(10.0)
    assert "is pending (before, one took " in w.waits()
    w.bring(3)
    w.round(30.0)
    assert w.group(1).phase == "starting"
    waited_s = w.now - w.memory.allocations["run-a3"].since
    assert waited_s >= 40.0
    assert w.memory.tried["allocation"] == (*started, Tried(seconds=pytest.approx(waited_s, abs=0.01), mended=True))


def test_a_person_s_restart_of_one_that_is_being_mended_is_no_failed_try() -> None:
    w = World(groups=2).bring_up()
    remembers(w)
    w.crash(0)
    w.round(1.0)
    w.start_again(0)
    w.report(0, phase="starting", state="starting")
    w.round(1.0)
    w.control = replace(w.control, restarts={0: 1})
    w.round(1.0)
    assert w.memory.tried == {}


FAILING = ((20.0, False), (20.0, False), (20.0, False), 3.0)


def test_a_spare_is_taken_where_restarts_do_not_mend_it_and_cost_more() -> None:
    w = World(groups=4).bring_up()
    remembers(w, restart=FAILING, replace=(8.0,))
    w.crash(1)
    w.round(1.0)
    assert w.incident.rung == Rung.REPLACE
    (considered,) = w.incident.considered
    assert codes(considered) == {Code.PASSED, Code.SPARE_CHEAPER}
    assert say(considered) == "restart: 3 of the last 4 did not mend it, so it costs about 22 group-seconds, a spare 8"


@pytest.mark.parametrize(
    "why", ["few", "mended", "cheaper", "no spare", "no budget", "not measured", "program", "policy"]
)
def test_else_the_ladder_s_rung_stays(why: str) -> None:
    first = {"first_rung": FirstRungSpec(crash="replace")} if why == "policy" else {}
    budget = {"replace": 0} if why == "no budget" else {}
    w = World(groups=4, spares=0 if why == "no spare" else 1, budget=budget, **first).bring_up()
    restart = {"few": FAILING[:3], "mended": (*FAILING[:1], 3.0, 3.0, 3.0)}.get(why, FAILING)
    replaces = {"cheaper": (1000.0,), "not measured": ()}.get(why, (8.0,))
    remembers(w, restart=restart, replace=replaces)
    if why == "program":
        w.fail(1, code=1, error="ValueError: no", step=50, commits=1)
    else:
        w.crash(1)
    w.round(1.0)
    assert not any("did not mend" in said for said in w.incident.considered)
    assert w.incident.rung == (Rung.REPLACE if why == "policy" else Rung.RESTART)


tries = st.lists(
    st.builds(Tried, seconds=st.floats(0.0, 1e5), mended=st.booleans()), max_size=recovery_cost.KEPT
).map(tuple)  # fmt: skip


@given(st.data())
def test_no_cost_is_negative_and_every_option_is_named(data: st.DataObject) -> None:
    w = TRAINS[data.draw(st.booleans())]
    memory = replace(w.memory, tried=data.draw(st.dictionaries(st.sampled_from(WHAT), tries)))
    r = Round(w.observed(), w.spec, memory)
    kind = data.draw(st.sampled_from([Kind.CRASH, Kind.HANG, Kind.NODE_LOST, Kind.ALLOCATION_LOST, Kind.STRAGGLER]))
    costs = said(recovery_cost.of(r, r.groups[1], kind))
    first = max(Rung.RESTART, ladder.first_rung(kind, w.spec.policy))
    assert [s.split(":")[0].split(",")[0] for s in costs[:-1]] == [
        Rung(x).name.lower() for x in range(first, Rung.STOP)
    ]
    assert costs[-1].startswith("going on with ")
    assert not re.search(r"-\d", "; ".join(costs))
    choice = r.choose(kind, 1)
    names = {s.split(":")[0].split(",")[0] for s in costs}
    assert set(passed(choice.considered)) - {"ride_through"} <= names


@given(st.lists(st.tuples(st.floats(-5.0, 1e6), st.booleans()), min_size=1))
def test_the_newest_tries_are_kept_and_none_is_negative(done: list[tuple[float, bool]]) -> None:
    tried: dict[str, tuple[Tried, ...]] = {}
    for seconds, mended in done:
        tried = recovery_cost.after(tried, "restart", seconds, mended)
    kept = tried["restart"]
    assert [t.mended for t in kept] == [mended for _, mended in done][-recovery_cost.KEPT :]
    assert all(t.seconds >= 0 for t in kept)
    usual = recovery_cost.usual_s(tried, "restart")
    assert usual is None or min(t.seconds for t in kept) <= usual <= max(t.seconds for t in kept)


TRAINS = {spare: World(groups=3, spares=int(spare)).bring_up() for spare in (False, True)}
