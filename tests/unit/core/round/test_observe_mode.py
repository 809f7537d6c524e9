"""A policy that only observes: the decisions are written down, and nothing is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.engines import TRAITS
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import GpuFact, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.stacks import of_text
from tests.helpers.reasons import values
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s

STUCK = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)


def hangs(w: World, group: int = 1) -> None:
    w.report(group, commits=1, step=50, stuck=STUCK)
    w.others_wait(group)


def observing(**policy: object) -> World:
    return World(groups=3, **(policy or {"mode": "observe"})).bring_up()


def test_a_hang_is_written_down_and_left_alone() -> None:
    w = observing()
    hangs(w)
    decision = w.round()
    assert [action.verb for action in decision.actions] == ["observe"]
    because = Reason.of(Code.FIRST_RUNG, kind="hang")
    assert decision.actions[0].reason == Reason.of(Code.WOULD, rung="restart", reason=because)
    assert (w.incident.kind, w.incident.rung, w.incident.shadow) == (Kind.HANG, Rung.RESTART, True)
    assert [(why["group"], why["rung"]) for why in w.waiting(Code.WOULD_BE)] == [(1, "restart")]
    assert [w.group(g).generation for g in range(3)] == [1, 1, 1]
    assert w.memory.spent == {}
    before = w.memory
    w.round(60.0)
    assert w.memory == before, "said once"


def test_one_that_steps_again_has_recovered_by_itself() -> None:
    w = observing()
    hangs(w)
    w.round()
    w.go_on()
    w.round(5.0)
    incident = w.incidents["i1"]
    assert (incident.state, incident.shadow) == ("recovered", True)
    assert incident.recovered is not None
    assert w.memory.incidents == {}
    assert w.group(1).incident == ""
    hangs(w)
    w.round()
    assert set(w.memory.incidents) == {"i2"}, "the next one is another"


def test_only_the_kinds_that_are_named_are_observed() -> None:
    w = observing(observe=("hang",))
    hangs(w, 1)
    w.crash(2)
    w.round()
    assert [w.group(g).generation for g in range(3)] == [1, 1, 2]
    assert {(i.kind, i.shadow) for i in w.memory.incidents.values()} == {(Kind.HANG, True), (Kind.CRASH, False)}


def test_what_is_acted_on_after_all_is_another_incident() -> None:
    w = observing(observe=("hang",))
    hangs(w, 1)
    w.round()
    w.crash(1)
    w.round()
    assert w.group(1).generation == 2
    assert (w.incidents["i1"].state, w.incidents["i1"].shadow) == ("halted", True)
    assert (w.incident.id, w.incident.kind, w.incident.shadow) == ("i2", Kind.CRASH, False)
    w.recover(1)
    assert w.incidents["i2"].state == "recovered"


@pytest.mark.parametrize("how", ["hang", "crash"])
def test_a_person_may_restart_what_is_only_observed(how: str) -> None:
    w = observing()
    hangs(w) if how == "hang" else w.crash(1)
    w.round()
    w.control = replace(w.control, restarts={1: 1})
    w.round()
    assert w.group(1).generation == 2
    assert w.incidents["i1"].state == "halted"


@pytest.mark.parametrize("kind", ["node", "crash"])
def test_neither_a_lost_node_nor_a_crash_is_acted_on(kind: str) -> None:
    w = observing()
    if kind == "node":
        w.hear(1, "gone")
        w.lapse(w.group(1).first_node)
    else:
        w.crash(1)
    w.round(1.0)
    assert [i.shadow for i in w.memory.incidents.values()] == [True]
    assert w.group(1).generation == 1
    assert w.memory.cordons == {}


def test_a_hiccup_is_ridden_through_and_its_end_is_observed() -> None:
    """It is silent first, which needs no action; then for too long; then heard again."""
    w = observing()
    w.hear(1, "silent")
    w.round()
    assert (w.incident.kind, w.incident.shadow) == (Kind.SILENT, False)
    w.round(w.spec.policy.silent_timeout_s + 1.0)
    assert (w.incident.kind, w.incident.shadow, w.incident.rung) == (Kind.STALLED, True, Rung.RESTART)
    assert w.group(1).generation == 1
    w.hear(1, "beating")
    w.round(1.0)
    assert (w.incidents["i1"].state, w.incidents["i1"].shadow) == ("recovered", True)


def not_finite(w: World, *whose: str) -> None:
    """Ends all groups because of a number that is not finite; `whose`: its owner in each group's report."""
    for group, word in enumerate(whose):
        w.fail(group, error="NotFinite: loss is nan at step 51", numerics=word, step=50, commits=1)
    w.round(0.1)
    w.round(LOCAL_WORD_S)


def untouched(w: World) -> bool:
    return (
        w.memory.phase == "running"
        and {g.generation for g in w.memory.groups.values()} == {1}
        and w.memory.spent == w.memory.cordons == {}
    )


@pytest.mark.parametrize("names", [("error",), ("same_error",)])
def test_the_same_error_everywhere_halts_nobody_who_observes_errors(names: tuple[str, ...]) -> None:
    """The consequences of an error are observed with it, also the halt that it would lead to."""
    w = observing(observe=names)
    for group in range(3):
        w.fail(group, error="ValueError: no batch", step=40)
    for _ in range(3):
        w.round(5.0)
    if names == ("error",):
        assert untouched(w)
    assert w.memory.phase == "running"
    assert (w.incidents["i3"].kind, w.incidents["i3"].rung) == (Kind.SAME_ERROR, Rung.STOP)
    assert w.incidents["i3"].shadow
    stopped = range(3) if names == ("error",) else (2,)
    assert [(why["group"], why["rung"]) for why in w.waiting(Code.WOULD_BE)] == [(g, "stop") for g in stopped]


def test_it_is_said_once_and_takes_nothing_from_the_rounds_of_others() -> None:
    w = observing()
    for group in range(3):
        w.fail(group, error="ValueError: no batch", step=40)
    for _ in range(3):
        w.round(5.0)
    before = w.memory
    decision = w.round(5.0)
    assert (w.memory, decision.actions, decision.incidents) == (before, (), ())


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.OOM])
def test_what_comes_back_on_every_host_is_observed_as_it_was_the_first_time(kind: Kind) -> None:
    """It had moved the group before a person chose to observe its kind."""
    w = World(groups=1, spares=2).bring_up()
    for _ in range(2):
        w.crash(0, 9 if kind == Kind.OOM else 11, oom=kind == Kind.OOM, told="", step=20, commits=3)
        w.round(61.0)
        w.recover(step=10)
    w.spec = replace(w.spec, policy=replace(w.spec.policy, observe=(kind.value,)))
    w.crash(0, 9 if kind == Kind.OOM else 11, oom=kind == Kind.OOM, told="", step=20, commits=3)
    w.round(61.0)
    assert (w.incident.kind, w.incident.rung, w.incident.shadow) == (Kind.SAME_ERROR, Rung.STOP, True)
    assert w.memory.phase == "running"


def test_a_number_that_is_not_finite_is_observed_in_all_groups_that_it_ended() -> None:
    w = observing(observe=("numerics",))
    not_finite(w, "peers", "own", "peers")
    w.round(60.0)
    assert untouched(w)
    assert {i.group: (i.kind, i.shadow) for i in w.memory.incidents.values()} == {
        0: (Kind.ERROR, True),
        1: (Kind.NUMERICS, True),
        2: (Kind.ERROR, True),
    }


def test_also_where_every_group_computed_it() -> None:
    w = observing(observe=("numerics",))
    not_finite(w, "own", "own", "own")
    w.round(60.0)
    assert untouched(w)


def test_whose_it_was_is_not_forgotten_when_the_others_have_started_again() -> None:
    """A person restarts them, so no group reports any more that its own loss was finite."""
    w = observing(observe=("numerics",))
    not_finite(w, "peers", "own", "peers")
    w.control = replace(w.control, restarts={0: 1, 2: 1})
    w.round()
    for group in (0, 2):
        w.recover(group, step=60)
    before = w.incidents[w.group(1).incident]
    w.round(60.0)
    assert (w.group(1).generation, w.memory.spent) == (1, {})
    assert w.memory.incidents == {before.id: before}
    assert (before.kind, before.rung, before.shadow) == (Kind.NUMERICS, Rung.REPLACE, True)


def test_a_crash_whose_gpu_is_said_to_be_well_again_is_still_that_gpus() -> None:
    w = observing(observe=("gpu",))
    w.node(2, gpus=(GpuFact(kind="nvml_stalled", evidence="NVML has not answered for 30 s"),))
    w.crash(1)
    w.round()
    assert (w.incident.kind, w.incident.shadow) == (Kind.GPU, True)
    w.node(2, gpus=())
    w.round(60.0)
    assert (w.group(1).generation, w.incident.kind) == (1, Kind.GPU)
    w.spec = replace(w.spec, policy=replace(w.spec.policy, observe=()))
    w.round()
    assert (w.group(1).generation, w.incident.rung, w.incident.shadow) == (2, Rung.REPLACE, False)


def test_who_observes_errors_alone_has_the_others_act() -> None:
    """The echo of a number that is not finite is an error and stays; the group whose number it was is moved."""
    w = observing(observe=("error",))
    not_finite(w, "peers", "own", "peers")
    w.round(60.0)
    assert [w.group(g).generation for g in range(3)] == [1, 2, 1]


# --- groups that have ended and are left so ---


def ended_and_saved(**about: object) -> World:
    """A world in which group 0 has crashed and is left so; step 50 is on disk."""
    w = World(**(about or {"groups": 2, "observe": ("crash",)})).bring_up()  # type: ignore[arg-type]
    w.save(1, step=50)
    w.round(1.0)
    w.crash(0)
    w.round(1.0)
    assert w.incident.shadow
    return w


def test_nobody_heals_from_it() -> None:
    w = ended_and_saved()
    for n in range(2):
        w.fail(1, error="RuntimeError: x", step=50 + n, commits=1)
        w.round(1.0)
        w.start_again(1)
        assert w.group(1).resume == "disk"
    assert (w.memory.phase, w.memory.cordons) == ("running", {})


def test_that_another_heals_from_a_group_which_is_only_silent_stays() -> None:
    w = World(groups=2, observe=("crash",)).bring_up()
    w.save(1, step=50)
    w.commit(0, step=50)
    w.hear(0, "silent")
    w.round(1.0)
    w.fail(1, error="RuntimeError: x", step=50, commits=1)
    w.round(1.0)
    w.start_again(1)
    assert w.group(1).resume == "peers"


def test_a_silence_that_is_observed_is_the_same_while_the_store_is_away() -> None:
    w = World(groups=3, mode="observe", silent_timeout_s=3.0, node_lease_s=2).bring_up()
    w.hear(1, "silent")
    w.round(1.0)
    w.round(5.0)
    assert (w.incident.id, w.incident.kind, w.incident.shadow) == ("i1", Kind.STALLED, True)
    w.stable = 0.5
    w.round(1.0)
    assert (w.incident.id, w.incident.kind, w.incident.shadow) == ("i1", Kind.STALLED, True)
    w.stable = 1e6
    w.hear(1, "beating")
    w.round(1.0)
    assert (w.incident.id, w.incident.state) == ("i1", "recovered")


def test_it_does_not_show_that_the_program_trains() -> None:
    w = ended_and_saved()
    for n in range(2):
        w.fail(1, error="ValueError: x", step=52, commits=2)
        w.round(1.0)
        if n == 0:
            w.start_again(1)
    assert w.memory.phase == "stopping"
    assert values([w.memory.halt_reason], Code.SAME_STEP_AGAIN) == [{"step": 52, "hosts": ("n2",)}]


def test_a_run_of_which_the_others_have_finished_is_over() -> None:
    w = ended_and_saved()
    w.fail(1, code=0, step=10000, commits=1)
    for _ in range(5):
        w.round(100.0)
    assert w.memory.phase == "finished"
    assert not w.memory.incidents


def test_a_run_of_which_every_group_has_ended_so_waits_for_a_person() -> None:
    w = ended_and_saved()
    w.crash(1)
    for _ in range(5):
        w.round(100.0)
    assert w.memory.phase == "running"
    assert {i.state for i in w.memory.incidents.values()} == {"open"}
    w.control = replace(w.control, restarts={0: 1})
    w.round(1.0)
    w.start_again(0)
    assert w.group(0).resume == "disk"


@pytest.mark.parametrize("beside", [False, True])
def test_who_left_a_collective_out_is_told_beside_it(beside: bool) -> None:
    w = World(groups=4, observe=("crash",)).bring_up()
    if beside:
        w.crash(3)
        w.round(1.0)
    for g in range(4 - beside):
        at = "in barrier (a.py:7)" if g == 1 else "in allreduce (b.py:9)"
        w.report(g, commits=1, step=50, stuck=replace(STUCK, activity="collective", where=of_text(at)))
    w.round(1.0)
    assert any(i.kind == Kind.HANG and i.group == 1 for i in w.incidents.values())


@pytest.mark.parametrize("paused", [False, True])
def test_a_hang_that_nothing_is_done_about_is_one_incident_beside_a_group_that_says_nothing(paused: bool) -> None:
    w = World(groups=3, mode="act" if paused else "observe").bring_up()
    w.control = replace(w.control, paused=paused)
    w.report(0, commits=1, step=50, stuck=STUCK)
    w.report(1, commits=1, step=50, stuck=replace(STUCK, activity="collective"))
    w.report(2, commits=1, step=50)
    for _ in range(10):
        w.round(w.spec.policy.hang.at_least_s / 2 + 0.1)
    assert (w.incident.kind, w.incident.state, len(w.incidents)) == (Kind.HANG, "open", 1)
