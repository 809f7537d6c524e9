"""A run with an order to stop ends within its bound, in any state."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.evidence import group_failure
from supervisor.core.model.measured import NOTHING
from supervisor.core.model.reason import Code, Reason
from supervisor.core.remediation import shutdown
from tests.unit.core.world import World


def stop(w: World) -> None:
    w.control = replace(w.control, stop=True)
    w.round()


def spinning() -> World:
    """A world in which both groups train, and neither comes to the last step."""
    w = World(groups=2, start_timeout_s=60.0).bring_up()
    stop(w)
    return w


def test_groups_that_do_not_come_to_the_last_step_are_ended_when_the_drain_is_over() -> None:
    w = spinning()
    limit_s = shutdown.drain_s(w.spec, NOTHING)
    assert w.verbs(limit_s - 1.0) == []
    assert [g.phase for g in w.memory.groups.values()] == ["running", "running"]
    assert w.last.look_again_at is not None
    assert w.last.look_again_at <= w.now + 1.0
    done = w.round(1.0)
    assert [a.verb for a in done.actions] == ["stop", "stop", *["release"] * 3]
    assert done.actions[0].reason == Reason.of(Code.ENDED_LATE, group=0, step=w.memory.stop_at_step)
    w.round()
    assert w.memory.phase == "stopped"


def test_an_engine_that_takes_nothing_back_adds_no_more_than_its_bound() -> None:
    w = spinning()
    w.engine_away = True
    w.round(shutdown.drain_s(w.spec, NOTHING))
    assert w.memory.phase == "stopping"
    w.round(group_failure.ENGINE_AWAY_S)
    assert w.memory.phase == "stopped"
    assert shutdown.longest_s(w.spec, NOTHING) == shutdown.drain_s(w.spec, NOTHING) + group_failure.ENGINE_AWAY_S


def test_the_drain_of_slow_steps_may_take_as_many_of_them() -> None:
    w = World(groups=1, start_timeout_s=60.0).bring_up()
    measured = replace(NOTHING, step_s=100.0)
    w.memory = replace(w.memory, measured=measured)
    stop(w)
    assert w.verbs(shutdown.drain_s(w.spec, NOTHING) + 4 * 100.0 - 1.0) == []
    assert w.verbs(1.0)[0] == "stop"


def test_groups_that_only_start_have_nothing_to_save_and_end_at_once() -> None:
    w = World(groups=2).start_up()
    assert {g.phase for g in w.memory.groups.values()} == {"starting"}
    stop(w)
    assert {g.phase for g in w.memory.groups.values()} == {"finished"}
    w.round()
    assert w.memory.phase == "stopped"


def test_a_run_that_was_paused_before_it_began_ends() -> None:
    w = World()
    w.control = replace(w.control, paused=True)
    w.host()
    w.round()
    assert w.memory.groups == {}
    stop(w)
    assert w.memory.phase == "stopped"


def test_a_halt_drains_within_the_same_time() -> None:
    w = World(groups=2, start_timeout_s=60.0).bring_up()
    w.memory = replace(w.memory, phase="stopping", halt_reason="a person must look")
    w.round()
    w.round(shutdown.drain_s(w.spec, NOTHING))
    w.round()
    assert w.memory.phase == "halted"


def test_a_resumed_run_has_its_whole_time_again() -> None:
    w = World(groups=1).bring_up()
    w.memory = replace(w.memory, phase="halted", stop_by=1.0, stop_at_step=3)
    w.control = replace(w.control, resumes=1, because="mended")
    w.round()
    assert (w.memory.stop_by, w.memory.stop_at_step) == (None, None)
