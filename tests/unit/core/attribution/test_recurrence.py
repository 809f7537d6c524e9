"""The same end again and again: when the program is at fault, when another node is tried, and when it is forgotten."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.core.evidence.exit_status import MISCONFIGURED_EXIT, PEERS_GONE_EXIT
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import ControlView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec, TrainerSpec
from supervisor.wire.records import decode, encode
from tests.helpers.reasons import codes, texts, values
from tests.unit.core.world import World, replace

BUG = "ValueError: bad batch at 0x7f10"
SAME_BUG = "ValueError: bad batch at 0x55aa"
DEVICE = "RuntimeError: CUDA error: an illegal memory access was encountered"


TWICE_HERE = Reason.of(Code.PASSED, rung="restart", why=Reason.of(Code.SAME_END_HERE, times=2, host="n1"))


def why_halted(w: World) -> Reason:
    assert w.memory.halt_reason is not None
    why = w.memory.halt_reason.about["reason"]
    assert isinstance(why, Reason)
    return why


def trains(groups: int = 1, **about: Any) -> World:
    """A world of one group and a spare; group 0 has saved step 8."""
    w = World(groups=groups, **{"spares": 1, **about}).bring_up()
    w.save(0, step=8)
    w.round()
    return w


def fails(w: World, error: str = BUG, step: int = 20, group: int = 0, commits: int = 3) -> Rung:
    """Ends a group with an error at a step; returns the rung that follows."""
    w.fail(group, 1, error, step=step, commits=commits)
    w.round(61.0)
    return w.incident.rung


def outcome(w: World) -> tuple[Kind, Rung, str]:
    return w.incident.kind, w.incident.rung, w.incident.state


STOPPED = (Kind.SAME_ERROR, Rung.STOP, "halted")


# --- at the same step again ---


def test_a_lone_group_that_ends_at_the_same_step_again_is_the_programs_fault() -> None:
    w = trains()
    assert fails(w) == Rung.RESTART
    assert w.group().checkpoint is not None
    w.recover(step=10)
    fails(w, SAME_BUG)
    assert outcome(w) == STOPPED
    assert Reason.of(Code.SEEN_AGAIN, step=20, times=2, hosts=("n1",)) in w.incident.evidence
    assert why_halted(w) == Reason.of(Code.SAME_STEP_AGAIN, step=20, hosts=("n1",))
    assert [ended["error"] for ended in values([w.memory.halt_reason], Code.EXITED)] == [SAME_BUG]
    assert w.memory.spent == {"restart:0": w.memory.spent["restart:0"]}, "one restart is all that was spent"


def test_also_when_the_checkpoint_is_of_that_very_step() -> None:
    w = trains()
    fails(w, step=8)
    w.start_again()
    fails(w, step=0, commits=0)
    assert outcome(w) == STOPPED


@pytest.mark.parametrize(("error", "step"), [(BUG, 21), (BUG, 19), ("KeyError: 'x'", 20), ("", 20)])
def test_another_error_or_another_step_is_none(error: str, step: int) -> None:
    w = trains()
    fails(w)
    w.recover(step=10)
    assert fails(w, error, step) == Rung.RESTART


@pytest.mark.parametrize("between", [("KeyError: 'x'", 20), (BUG, 15), ("", 20)])
def test_another_end_in_between_begins_the_count_anew(between: tuple[str, int]) -> None:
    w = trains(budget={"restart": 9})
    for error, step in ((BUG, 20), between, (BUG, 20)):
        assert fails(w, error, step) == Rung.RESTART
        w.recover(step=10)
    fails(w)
    assert outcome(w) == STOPPED, "and now twice in a row"


def test_a_node_that_is_lost_in_between_changes_nothing() -> None:
    w = trains()
    fails(w)
    w.recover(step=10)
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    assert w.incident.kind == Kind.NODE_LOST
    w.recover(step=10)
    assert w.group().first_node == "n2"
    fails(w)
    assert outcome(w) == STOPPED
    assert Reason.of(Code.SEEN_AGAIN, step=20, times=2, hosts=("n1", "n2")) in w.incident.evidence


def test_a_step_past_it_is_forgotten() -> None:
    w = trains()
    fails(w)
    assert w.group().seen is not None
    w.recover(step=10)
    assert w.group().seen is not None
    w.commit(0, step=20)
    w.round(1.0)
    assert w.group().seen is not None
    w.commit(0, step=21)
    w.round(1.0)
    assert w.group().seen is None
    assert fails(w) == Rung.RESTART


def test_another_group_that_trains_shows_that_the_program_works() -> None:
    w = trains(groups=2)
    for _ in range(2):
        assert fails(w) == Rung.RESTART, "nor is its node suspect"
        w.commit(1, step=30)
        w.recover(step=10)
    assert w.group(1).generation == 1
    assert w.memory.phase == "running"


def test_what_a_device_may_cause_is_tried_elsewhere_first() -> None:
    w = trains()
    assert fails(w, DEVICE) == Rung.RESTART
    w.recover(step=10)
    assert fails(w, DEVICE) == Rung.REPLACE
    assert w.incident.considered == (TWICE_HERE,)
    w.recover(step=10)
    assert w.group().first_node == "n2"
    fails(w, DEVICE)
    assert outcome(w) == STOPPED


def test_without_a_spare_the_ladder_goes_on_as_ever() -> None:
    w = trains(spares=0)
    for rung in (Rung.RESTART, Rung.RESTART, Rung.RESTART, Rung.REALLOCATE):
        assert fails(w, DEVICE) == rung
        if rung == Rung.RESTART:
            w.recover(step=10)


# --- before the first commit ---


def starts(**about: Any) -> World:
    return World(groups=1, **{"spares": 1, **about}).start_up()


def test_a_start_that_fails_in_place_and_elsewhere_is_the_programs_fault() -> None:
    w = starts()
    assert fails(w, step=0, commits=0) == Rung.RESTART
    w.start_again()
    assert fails(w, SAME_BUG, step=0, commits=0) == Rung.REPLACE
    w.start_again()
    assert w.group().first_node == "n2"
    fails(w, step=0, commits=0)
    assert outcome(w) == STOPPED
    assert Reason.of(Code.SEEN_AGAIN, step=-1, times=3, hosts=("n1", "n2")) in w.incident.evidence
    assert why_halted(w) == Reason.of(Code.SAME_END_AGAIN, step=-1, times=3, hosts=("n1", "n2"))
    assert sorted(w.memory.spent) == ["replace", "restart:0"]


def test_without_a_spare_three_times_in_place_are_enough() -> None:
    w = starts(spares=0)
    for rung in (Rung.RESTART, Rung.RESTART, Rung.STOP):
        assert fails(w, step=0, commits=0) == rung
        if rung == Rung.RESTART:
            w.start_again()
    assert outcome(w) == STOPPED


def test_not_so_when_it_may_be_the_node() -> None:
    """The node may lack a mounted file, or an installed library."""
    w = starts(spares=0)
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data'"
    for rung in (Rung.RESTART, Rung.RESTART, Rung.RESTART, Rung.REALLOCATE):
        assert fails(w, missing, step=0, commits=0) == rung
        if rung == Rung.RESTART:
            w.start_again()


def test_a_start_that_ends_otherwise_in_between_counts_anew() -> None:
    w = starts(spares=0, budget={"restart": 9})
    for error in (BUG, BUG, "KeyError: 'x'", BUG, BUG):
        assert fails(w, error, step=0, commits=0) == Rung.RESTART
        w.start_again()
    fails(w, step=0, commits=0)
    assert outcome(w) == STOPPED


def test_an_error_that_says_nothing_is_never_the_same() -> None:
    w = starts(spares=0, budget={"restart": 5})
    for _ in range(5):
        assert fails(w, "", step=0, commits=0) == Rung.RESTART
        w.start_again()


def test_while_another_group_trains_the_run_is_not_halted() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.crash(0)
    w.round()
    for _ in range(3):
        w.start_again()
        w.commit(1, step=30)
        assert fails(w, step=0, commits=0) != Rung.STOP
    assert w.memory.phase == "running"
    assert TWICE_HERE in w.incident.considered


def test_a_segfault_at_every_start_is_the_programs_too_but_only_on_two_nodes() -> None:
    w = starts()
    for rung in (Rung.RESTART, Rung.REPLACE, Rung.STOP):
        w.crash(0, 11)
        w.round(61.0)
        assert w.incident.rung == rung
        if rung != Rung.STOP:
            w.start_again()
    assert outcome(w) == STOPPED
    alone = starts(spares=0)
    for _ in range(3):
        alone.crash(0, 11)
        alone.round(61.0)
        assert alone.incident.rung == Rung.RESTART
        alone.start_again()


def test_a_segfault_at_the_same_step_stops_at_the_third_and_on_another_node() -> None:
    w = trains()
    for rung in (Rung.RESTART, Rung.REPLACE, Rung.STOP):
        w.crash(0, 11, step=20, commits=3)
        w.round(61.0)
        assert w.incident.rung == rung
        if rung != Rung.STOP:
            w.recover(step=10)
    assert why_halted(w) == Reason.of(Code.SAME_END_AGAIN, step=20, times=3, hosts=("n1", "n2"))


def test_a_pause_does_not_count_one_end_twice() -> None:
    w = starts(spares=0)
    fails(w, step=0, commits=0)
    w.start_again()
    w.control = ControlView(paused=True)
    for _ in range(4):
        w.fail(0, 1, BUG, step=0)
        w.round(61.0)
    w.control = ControlView()
    w.round()
    assert w.incident.rung == Rung.RESTART
    seen = w.group().seen
    assert seen is not None
    assert seen.times == 2


def test_a_person_who_resumes_the_run_begins_anew() -> None:
    w = trains()
    fails(w)
    w.recover(step=10)
    fails(w)
    for _ in range(3):
        w.round(1.0)
    assert w.memory.phase == "halted"
    assert w.group().seen is not None
    assert w.group().failures != ()
    w.control = ControlView(resumes=1, because="the data set is mended")
    w.round()
    assert (w.group().seen, w.group().failures) == (None, ())


def test_a_person_who_restarts_the_group_begins_anew() -> None:
    w = trains()
    fails(w)
    w.recover(step=10)
    w.control = ControlView(restarts={0: 1})
    w.round()
    w.recover(step=10)
    assert fails(w) == Rung.RESTART


# --- in every group ---


def test_in_every_group_addresses_do_not_make_it_another() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, BUG, step=40)
    w.fail(1, 1, SAME_BUG, step=40)
    w.round()
    assert outcome(w) == STOPPED
    assert w.incident.reason == Reason.of(Code.SAME_EVERYWHERE)


def end_all(w: World, error: str, step: int = 40, commits: int = 1) -> None:
    """Ends every group with an error, and lets it be decided about."""
    for group in w.memory.groups:
        w.fail(group, 1, error, step=step, commits=commits)
    w.round(1.0)


def start_all(w: World) -> None:
    """Starts every group again, after any pause."""
    for group in w.memory.groups:
        w.start_again(group)


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: The size of tensor a (501) must match the size of tensor b (512)",
        "RuntimeError: The size of tensor a (500) must match the size of tensor b (512)",
        "ValueError: unknown option 'timeout_s' in [data]",
        "AssertionError: residual connection of 504 features, expected 502",
    ],
)
def test_in_every_group_whatever_words_and_numbers_are_in_it(error: str) -> None:
    w = World(groups=2).bring_up()
    end_all(w, error)
    assert outcome(w) == STOPPED
    assert error in texts(*w.incident.evidence)


@pytest.mark.parametrize("error", ["ValueError: hidden size 500", "ValueError: unknown option 'timeout_s' in [data]"])
def test_nor_do_they_keep_a_lone_group_from_being_stopped(error: str) -> None:
    again = trains()
    assert fails(again, error) == Rung.RESTART
    again.recover(step=10)
    fails(again, error)
    assert outcome(again) == STOPPED
    never = starts()
    for rung in (Rung.RESTART, Rung.REPLACE, Rung.STOP):
        assert fails(never, error, step=0, commits=0) == rung
        if rung != Rung.STOP:
            never.start_again()
    assert outcome(never) == STOPPED


AWAY = "HfHubHTTPError: 503 Server Error: Service Unavailable for url: https://hub/x"
AWAY_TOO = "ConnectionError: Couldn't reach 'c4' on the Hub (LocalEntryNotFoundError)"


def test_a_store_that_is_away_for_ten_minutes_stops_nothing_and_costs_no_node() -> None:
    w = World(groups=2, spares=1).bring_up()
    began = w.now
    ends = 0
    while w.now < began + 600.0:
        end_all(w, AWAY if ends % 3 else AWAY_TOO, step=40 if not ends else 0, commits=not ends)
        assert w.memory.phase == "running"
        ends += 1
        start_all(w)
    assert ends > 10, "it is tried again at least once a minute"
    assert {w.group(g).first_node for g in (0, 1)} == {"n1", "n2"}
    assert w.memory.cordons == {}
    assert sorted(w.memory.spent) == ["restart:0"], "but for the first, which came before the other group's was seen"
    assert w.incidents[w.group(1).incident].reason == Reason.of(Code.SHARED_AWAY)
    for group in (0, 1):
        w.recover(group, step=41)
    assert w.memory.incidents == {}
    assert (w.group(0).seen, w.group(1).seen) == (None, None)


def test_one_that_is_away_for_longer_than_the_run_is_to_survive_stops_it_with_the_trace() -> None:
    w = World(groups=2, spares=1).bring_up()
    longest_s = w.spec.torchft.quorum_timeout_ms / 1000
    began = w.now
    while w.memory.phase == "running":
        assert w.now < began + longest_s + 130.0
        assert max(g.attempts for g in w.memory.groups.values()) < 60
        end_all(w, AWAY)
        if w.memory.phase == "running":
            start_all(w)
    assert w.now >= began + longest_s
    halted = next(i for i in w.incidents.values() if i.state == "halted")
    assert (halted.kind, halted.rung, halted.error) == (Kind.SAME_ERROR, Rung.STOP, AWAY)
    why = why_halted(w)
    assert (why.code, why.about["limit_s"]) == (Code.SHARED_TOO_LONG, 1800.0)
    assert sorted(w.memory.spent) == ["restart:0"]


def test_two_ends_far_apart_are_too_few_to_stop_it() -> None:
    """Each may have waited itself: for a quorum, or with a start that takes long."""
    w = World(groups=2).bring_up()
    end_all(w, "TimeoutError: the quorum timed out after 1800 s")
    start_all(w)
    w.now += w.spec.torchft.quorum_timeout_ms / 1000
    end_all(w, "TimeoutError: the quorum timed out after 1800 s")
    assert w.memory.phase == "running"
    start_all(w)
    end_all(w, "TimeoutError: the quorum timed out after 1800 s")
    assert w.memory.phase == "stopping"


def test_what_was_waited_for_begins_anew_after_another_end() -> None:
    w = World(groups=2).bring_up()
    for error in (AWAY, AWAY, "KeyError: 'x'"):
        end_all(w, error) if error == AWAY else w.fail(0, 1, error, step=40)
        w.round(1.0)
        start_all(w) if error == AWAY else w.start_again(0)
    w.now += w.spec.torchft.quorum_timeout_ms / 1000
    end_all(w, AWAY)
    assert w.memory.phase == "running"


def test_in_one_group_alone_it_is_its_nodes_or_its_links() -> None:
    w = World(groups=2, spares=1).bring_up()
    rungs = []
    for _ in range(4):
        rungs.append(fails(w, AWAY, step=40))
        w.commit(1, step=50)
        w.start_again()
    assert rungs == [Rung.RESTART, Rung.RESTART, Rung.RESTART, Rung.REPLACE]


def test_a_lone_group_tries_one_other_node_and_then_waits() -> None:
    w = trains()
    rungs = []
    for _ in range(9):
        rungs.append(fails(w, AWAY, step=40))
        w.start_again()
    assert rungs == [Rung.RESTART] * 3 + [Rung.REPLACE] + [Rung.RESTART] * 5
    assert w.memory.phase == "running"


def test_who_finds_no_peer_then_is_waited_for_too_but_not_for_ever() -> None:
    """It was started to heal from another, which has since ended by it as well."""
    w = World(groups=2, spares=1).bring_up()
    end_all(w, AWAY)
    start_all(w)
    for _ in range(5):
        w.fail(0, PEERS_GONE_EXIT)
        w.round(1.0)
        assert (w.incidents[w.group(0).incident].kind, w.incidents[w.group(0).incident].rung) == (
            Kind.PEERS_GONE,
            Rung.RESTART,
        )
        w.start_again(0)
    assert len(w.memory.spent["restart:0"]) == 1
    w.now += w.spec.torchft.quorum_timeout_ms / 1000
    w.fail(0, PEERS_GONE_EXIT)
    w.round(1.0)
    assert len(w.memory.spent["restart:0"]) == 2


def test_where_errors_are_not_to_be_restarted_nothing_is_waited_for() -> None:
    w = World(groups=2, spares=1, first_rung=FirstRungSpec(error="stop")).bring_up()
    end_all(w, AWAY)
    assert w.memory.phase == "stopping"


def test_in_every_group_another_place_is_another_error() -> None:
    w = World(groups=2).bring_up()
    for group in range(2):
        trace = f'Traceback (most recent call last):\n  File "/x.py", line {group}, in f\nAssertionError'
        w.fail(group, 1, "AssertionError: ", step=40, trace=trace)
    assert w.verbs() == ["start", "start"]


def test_in_every_group_also_when_the_first_ones_had_started_again_meanwhile() -> None:
    """A node may report late how its group ended. The others run again, and have not come past that step."""
    w = World(groups=2).bring_up()
    w.fail(0, 1, BUG, step=40)
    w.round()
    w.recover(0, step=40)
    assert w.memory.incidents == {}
    w.fail(1, 1, BUG, step=40)
    w.round()
    assert outcome(w) == STOPPED


def test_in_every_group_not_when_one_has_come_past_it() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, BUG, step=40)
    w.round()
    w.recover(0, step=41)
    w.round()
    w.fail(1, 1, BUG, step=40)
    w.round()
    assert outcome(w) == (Kind.ERROR, Rung.RESTART, "acting")


def test_in_every_group_not_when_one_has_ended_otherwise_since() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, BUG, step=40)
    w.round()
    w.start_again()
    w.crash(0, 11, step=40)
    w.round(61.0)
    w.fail(1, 1, BUG, step=40)
    w.round()
    assert outcome(w) == (Kind.ERROR, Rung.RESTART, "acting")


def test_an_end_without_a_text_does_not_keep_that_of_the_one_before() -> None:
    w = starts(spares=0)
    fails(w, BUG, step=0, commits=0)
    w.start_again()
    fails(w, "", step=0, commits=0)
    assert (w.incident.id, w.incident.kind, w.incident.error) == ("i1", Kind.ERROR, "")
    w.start_again()
    w.crash(0, 11)
    w.round(61.0)
    assert (w.incident.kind, w.incident.error) == (Kind.CRASH, "")


# --- killed for memory ---


def killed(w: World, step: int, **how: Any) -> Rung:
    w.crash(0, 9, **{"oom": True, "told": "", "step": step, "commits": 3, **how})
    w.round(61.0)
    return w.incident.rung


def test_the_second_kill_for_memory_on_a_node_moves_the_group() -> None:
    w = trains(groups=2)
    assert killed(w, 20) == Rung.RESTART
    assert w.incident.kind == Kind.OOM
    assert w.incident.reason == Reason.of(Code.FIRST_RUNG, kind="oom")
    w.recover(step=30)
    assert killed(w, 50) == Rung.REPLACE
    assert codes(*w.incident.considered) == {Code.PASSED, Code.OOM_TWICE}
    w.recover(step=60)
    w.bring(4)
    assert w.round(61.0).memory.groups[0].first_node == "n3"
    assert killed(w, 70) == Rung.RESTART, "on this node it is the first"


def test_memory_of_a_program_that_kept_the_kill_twice_is_read() -> None:
    w = trains(groups=2)
    killed(w, 20)
    body = json.loads(encode(w.memory))
    body["groups"]["0"] |= {"oom_at": w.now, "oom_host": "n1"}
    assert decode(json.dumps(body).encode(), Memory) == w.memory


def test_without_a_spare_it_is_restarted_as_long_as_there_is_budget() -> None:
    w = trains(spares=0)
    for step in (20, 30):
        assert killed(w, step) == Rung.RESTART
        w.recover(step=step + 5)


def test_a_kill_for_memory_long_ago_is_forgotten() -> None:
    w = trains()
    killed(w, 20)
    w.recover(step=30)
    w.now += w.spec.policy.budget.window_s
    assert killed(w, 50) == Rung.RESTART


@pytest.mark.parametrize("how", [{"oom": False}, {"oom": None}, {"told": "cut off"}])
def test_a_kill_that_is_not_for_memory_is_a_crash(how: dict[str, Any]) -> None:
    w = trains()
    killed(w, 20)
    w.recover(step=30)
    assert killed(w, 50, **how) == Rung.RESTART
    assert w.incident.kind == Kind.CRASH


def test_what_no_node_has_the_memory_to_start_is_the_configurations_fault() -> None:
    w = starts()
    for rung in (Rung.RESTART, Rung.REPLACE, Rung.STOP):
        assert killed(w, 0, commits=0) == rung
        if rung != Rung.STOP:
            w.start_again()
    assert outcome(w) == STOPPED


def test_a_crash_after_it_counts_anew() -> None:
    w = starts()
    assert killed(w, 0, commits=0) == Rung.RESTART
    w.start_again()
    w.crash(0, 11)
    w.round(61.0)
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert w.group().seen == replace(w.group().seen, same="ended by SIGSEGV", times=1)


# --- by its own word ---


def misconfigured(w: World, group: int) -> None:
    error = f"NoData: group {group} gets no document of /data"
    w.fail(group, MISCONFIGURED_EXIT, error, phase="failed", step=0, commits=0)
    w.round()


def test_a_group_that_no_machine_can_train_halts_the_run_at_once_and_holds_no_host() -> None:
    w = World(groups=2).start_up()
    w.commit(0)
    w.round()
    misconfigured(w, 1)
    assert outcome(w) == STOPPED
    assert why_halted(w) == Reason.of(Code.MISCONFIGURED, group=1)
    ended = {"rank": 0, "exit_code": 78, "error": "NoData: group 1 gets no document of /data"}
    assert values([w.memory.halt_reason], Code.EXITED) == [ended]
    assert (w.memory.spent, w.memory.cordons, w.suspicions) == ({}, {}, [])


def test_one_that_is_started_beside_others_that_train_does_not_halt_them() -> None:
    w = World(groups=2).bring_up()
    w.crash(1)
    w.start_again(1)
    assert w.group(1).resume == "peers"
    misconfigured(w, 1)
    assert w.memory.phase == "running"
    assert w.incident.rung < Rung.STOP


def test_a_late_start_names_the_heal_that_fails() -> None:
    w = World(groups=2, start_timeout_s=60.0).bring_up()
    w.crash(1)
    w.start_again(1)
    w.report(1, phase="step", heal_failed="its heal from 10.0.0.1:43 has failed 3 times in 41 s: URLError: refused")
    w.round(61.0)
    assert w.incident.kind == Kind.START_TIMEOUT
    assert "its heal from 10.0.0.1:43 has failed 3 times" in texts(*w.incident.evidence), w.incident


def test_a_node_on_which_no_heal_succeeds_is_left_for_another() -> None:
    w = World(groups=2, spares=1, budget={"restart": 1}).bring_up()
    node, why = w.group(1).first_node, "its heal from 10.0.0.1:43 has failed 3 times in 4 s: URLError: refused"
    w.commit(0, step=50)
    for rung in (Rung.RESTART, Rung.REPLACE):
        w.fail(1, code=75, heal_failed=why)
        w.round(1.0)
        assert (w.incident.kind, w.incident.rung) == (Kind.PEERS_GONE, rung)
        assert why in texts(*w.incident.evidence)
        w.start_again(1)
    assert w.group(1).first_node != node


# --- a command that reports no steps ---

BASH = "train.sh: line 3: trian: command not found"


def plain(groups: int = 1) -> World:
    w = World(groups=groups, spares=1).bring_up()
    w.spec = replace(w.spec, trainer=TrainerSpec(command=("x",), reports="output"))
    return w


def ends(w: World, error: str = "", words: str = "", code: int = 1, group: int = 0) -> None:
    """Ends a group that has written some output."""
    w.fail(group, code, error, step=0, commits=3, last_words=words)
    w.round(61.0)


@pytest.mark.parametrize(
    ("error", "words"), [(BUG, ""), ("", BASH), ("", "")], ids=["traceback", "last words", "silent"]
)
def test_a_command_that_always_ends_at_once_stops_the_run_with_its_own_error(error: str, words: str) -> None:
    w = plain()
    for rung in (Rung.RESTART, Rung.REPLACE):
        ends(w, error, words)
        assert (w.incident.id, w.incident.rung) == ("i1", rung)
        w.recover(step=0)
        assert w.incident.state == "acting", "that its process is up is no recovery"
    ends(w, error, words)
    assert outcome(w) == STOPPED
    assert why_halted(w).code == Code.SAME_END_AGAIN
    assert (error or words) in texts(w.memory.halt_reason)


def test_such_a_command_in_all_groups_stops_the_run_once_each_has_ended() -> None:
    w = plain(groups=2)
    ends(w, words=BASH, group=0)
    w.recover(0, step=0)
    ends(w, words=BASH, group=1)
    assert outcome(w) == STOPPED
    assert why_halted(w) == Reason.of(Code.SAME_EVERYWHERE)


def test_such_a_command_in_one_group_suspends_that_one() -> None:
    w = plain(groups=2)
    for _ in range(2):
        ends(w, words=BASH, group=1)
        w.recover(1, step=0)
    ends(w, words=BASH, group=1)
    assert w.memory.phase == "running"
    assert w.group(1).left_out == Reason.of(Code.NO_NODE_CURES, times=3, hosts=("n2", "n3"))


def test_another_exit_code_or_other_last_words_are_another_end() -> None:
    w = plain()
    for code, words in ((1, BASH), (2, BASH), (2, "bad disk")):
        ends(w, words=words, code=code)
        assert w.group().seen == replace(w.group().seen, times=1)
        w.recover(step=0)
    assert w.memory.phase == "running"


@pytest.mark.parametrize(("ran_s", "halts"), [(1.0, True), (121.0, False)])
def test_a_command_that_ran_well_in_between_has_recovered_and_come_past_its_end(ran_s: float, halts: bool) -> None:
    w = plain()
    for _ in range(2):
        ends(w, BUG)
        w.recover(step=0)
        w.round(ran_s)
        assert (w.incident.state == "recovered") != halts
    ends(w, SAME_BUG)
    assert (outcome(w) == STOPPED) == halts


def test_a_command_whose_node_was_lost_has_recovered_once_it_is_up() -> None:
    w = plain()
    w.hear(0, "absent")
    w.lapse("n1")
    w.round()
    assert w.incident.kind == Kind.NODE_LOST
    w.recover(step=0)
    assert w.incident.state == "recovered"
