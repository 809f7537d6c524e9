"""The cost of each option: measured in this run, named for every option, and decisive only where it is clear."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Tried
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.policy import ladder
from supervisor.core.remediation import recovery_cost
from supervisor.core.round.draft import Round
from tests.helpers.reasons import codes, passed, values
from tests.unit.core.world import World

WHAT = ("restart", "replace", "reallocate", "allocation")


def remembers(w: World, **tried: tuple[float | tuple[float, bool], ...]) -> None:
    """Sets the run's measurements, in seconds; with False where the option did not mend it."""
    known = {
        what: tuple(Tried(seconds=t, mended=True) if isinstance(t, float) else Tried(seconds=t[0], mended=t[1]) for t in tries)
        for what, tries in tried.items()
    }  # fmt: skip
    w.memory = replace(w.memory, tried=known)


def remedy(rung: str) -> Reason:
    return Reason.of(Code.REMEDY, rung=rung)


BY_SPARE = Reason.of(Code.BY_SPARE, node="n5")
SO_FAR = Reason.of(Code.SO_FAR)


def costs(
    what: Reason, seconds: float, idle: int = 1, measured: Reason = SO_FAR, mended: int = 0, tries: int = 0
) -> Reason:
    """Returns the reason that names what a remedy costs while `idle` groups stand still for these seconds."""
    about = {"measured": measured, "mended": mended, "tries": tries}
    return Reason.of(Code.COSTS, what=what, cost=seconds * idle, seconds=seconds, idle=idle, **about)


def rung_of(option: Reason) -> str:
    """Returns the rung whose cost the reason names."""
    what = option.about.get("what", option)
    return "replace" if what.code in (Code.BY_SPARE, Code.WITHOUT_SPARE) else str(what.about["rung"])


def test_what_was_not_measured_is_said() -> None:
    w = World(groups=4).bring_up()
    remembers(w)
    w.crash(1)
    w.round(1.0)
    assert w.incident.costs == (
        Reason.of(Code.COST_UNKNOWN, what=remedy("restart")),
        Reason.of(Code.COST_UNKNOWN, what=BY_SPARE),
        Reason.of(Code.COST_UNKNOWN, what=remedy("reallocate")),
        Reason.of(Code.COST_GOES_ON, others=3, count=4),
    )


def test_what_was_measured_is_told_in_group_seconds() -> None:
    w = World(groups=4).bring_up()
    remembers(w, restart=(3.0, 2.0, 4.0, (9.0, False)), replace=(8.0,), allocation=(40.0,))
    w.crash(1)
    w.round(1.0)
    as_granted = Reason.of(Code.AS_GRANTED, granted_s=40.0, start_s=3.0)
    assert w.incident.costs == (
        costs(remedy("restart"), 3.0, mended=3, tries=4),
        costs(BY_SPARE, 8.0),
        costs(remedy("reallocate"), 43.0, measured=as_granted),
        Reason.of(Code.COST_GOES_ON, others=3, count=4),
    )


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
        assert w.incident.costs[-1] == Reason.of(Code.COST_GOES_ON, others=others, count=4)


def test_where_too_few_are_left_all_stand_still() -> None:
    w = World(groups=4, min_groups=4).bring_up()
    remembers(w, restart=(3.0,))
    w.crash(1)
    w.round(1.0)
    assert w.incident.costs[0] == costs(remedy("restart"), 3.0, idle=4)
    assert w.incident.costs[-1] == Reason.of(Code.COST_WAITS, others=3, count=4, idle=4)


def test_a_lost_node_is_no_restart_and_without_a_spare_there_is_none() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.hear(1, "gone")
    w.lapse("n2")
    w.round(1.0)
    no_spare, reallocate, goes_on = w.incident.costs
    assert no_spare == Reason.of(Code.WITHOUT_SPARE)
    assert reallocate.about["what"] == remedy("reallocate")
    assert goes_on == Reason.of(Code.COST_GOES_ON, others=1, count=2)


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
    pending = {"allocation": "run-a3", "word": "", "usual_s": started[0].seconds}
    assert w.waiting(Code.PENDING) == [{"group": 1, **pending}]
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
    cheaper = Reason.of(Code.SPARE_CHEAPER, failed=3, tries=4, restart_cost=21.75, spare_cost=8.0)
    assert considered == Reason.of(Code.PASSED, rung="restart", why=cheaper)


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
    assert Code.SPARE_CHEAPER not in codes(*w.incident.considered)
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
    *options, going_on = recovery_cost.of(r, r.groups[1], kind)
    first = max(Rung.RESTART, ladder.first_rung(kind, w.spec.policy))
    named = [rung_of(option) for option in options]
    assert named == [Rung(x).name.lower() for x in range(first, Rung.STOP)]
    assert going_on.code == Code.COST_GOES_ON
    for known in values(options, Code.COSTS):
        assert min(known["cost"], known["seconds"], known["mended"]) >= 0
    for granted in values(options, Code.AS_GRANTED):
        assert min(granted["granted_s"], granted["start_s"]) >= 0
    choice = r.choose(kind, 1)
    assert set(passed(choice.considered)) - {"ride_through"} <= set(named)


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
