"""`decide` on one failure after another, and the action that each leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.evidence.group_failure import ENGINE_AWAY_S
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import ControlView
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import SEGFAULT, codes, held_against, spent
from tests.unit.core.world import HOST, World

LOCAL_WORD_S = TRAITS["local"].word_s


def lose_node(w: World) -> None:
    w.lapse("n1")
    w.hear(0, "silent")


def lose_node_of(w: World, group: int) -> None:
    w.lapse(w.group(group).first_node)
    w.hear(group, "silent")


def lose_allocation(w: World) -> None:
    w.grant(1, "gone", reason="preempted")


def stall(w: World) -> None:
    w.hear(0, "silent")
    w.round()
    w.now += w.spec.policy.silent_timeout_s + 0.1


TABLE: dict[str, tuple[Callable[[World], None], Kind, Rung, list[str], Reason]] = {
    # what happens: (how, kind, rung, actions of the round, evidence)
    "a segfault": (
        lambda w: w.crash(0, 11),
        Kind.CRASH,
        Rung.RESTART,
        ["start"],
        SEGFAULT,
    ),
    "a kill": (
        lambda w: w.crash(0, 9),
        Kind.CRASH,
        Rung.RESTART,
        ["start"],
        Reason.of(Code.KILLED_BY_UNKNOWN, rank=0),
    ),
    "an exception": (
        lambda w: w.fail(0, 1, "ValueError: x"),
        Kind.ERROR,
        Rung.RESTART,
        ["start"],
        Reason.of(Code.EXITED, rank=0, exit_code=1, error="ValueError: x"),
    ),
    "no peers": (
        lambda w: w.fail(0, 75),
        Kind.PEERS_GONE,
        Rung.RESTART,
        ["start"],
        Reason.of(Code.NO_PEERS, rank=0),
    ),
    "a silent process": (
        lambda w: w.hear(0, "silent"),
        Kind.SILENT,
        Rung.RIDE_THROUGH,
        ["ride_through"],
        Reason.of(Code.UNHEARD, timeout_ms=1000),
    ),
    "a silent process for long": (
        stall,
        Kind.STALLED,
        Rung.RESTART,
        ["start"],
        Reason.of(Code.SILENT_FOR, seconds=30),
    ),
    "a lost node": (
        lose_node,
        Kind.NODE_LOST,
        Rung.REPLACE,
        ["cordon", "release", "acquire"],
        Reason.of(Code.LAPSED_UNHEARD, node="n1", lease_s=5, group=0, hearing="silent"),
    ),
    "a lost allocation": (
        lose_allocation,
        Kind.ALLOCATION_LOST,
        Rung.REALLOCATE,
        ["release", "acquire"],
        Reason.of(Code.ALLOCATION_GONE, allocation="run-a1", engine_id="job-1", why="preempted"),
    ),
}


@pytest.mark.parametrize("what", TABLE)
def test_what_happens_picks_kind_rung_and_actions(what: str) -> None:
    happens, kind, rung, verbs, evidence = TABLE[what]
    w = World(groups=2, spares=1).bring_up()
    happens(w)
    w.commit(1, step=7)
    assert w.verbs() == verbs
    assert (w.incident.kind, w.incident.rung, w.incident.state, w.incident.group, w.incident.node) == (
        kind,
        rung,
        "acting",
        0,
        "n1",
    )
    assert evidence in w.incident.evidence
    assert w.incident.reason
    assert w.group(1).phase == "running"
    assert w.group(1).generation == 1, "the other group is left alone"
    assert w.group(0).generation == (1 if rung == Rung.RIDE_THROUGH else 2)
    assert all(a.reason and a.incident == w.incident.id for a in w.last.actions if a.verb not in ("release", "acquire"))


@pytest.mark.parametrize("what", [w for w in TABLE if w != "a silent process"])
def test_each_recovers_and_the_incident_closes_with_its_times(what: str) -> None:
    happens, _, _, _, _ = TABLE[what]
    w = World(groups=2, spares=1).bring_up()
    happens(w)
    w.round()
    w.recover(0)
    assert w.memory.incidents == {}
    assert w.incident.state == "recovered"
    assert w.incident.decided is not None
    assert w.incident.acted is not None
    assert w.incident.recovered is not None
    assert w.incident.opened <= w.incident.decided <= w.incident.acted <= w.incident.recovered
    assert w.group(0).incident == ""


def test_a_crash_is_restarted_in_place_with_the_next_generation() -> None:
    w = World().bring_up()
    w.crash(0)
    decision = w.round()
    (start,) = decision.actions
    assert (start.verb, start.key, start.node, start.generation, start.rung) == ("start", "start:0:2", "n1", 2, 1)
    assert (w.group().generation, w.group().phase, w.group().resume) == (2, "starting", "peers")


def test_alone_it_resumes_from_disk() -> None:
    w = World(groups=1).bring_up()
    w.crash(0)
    w.round()
    assert w.group().resume == "disk"


def test_the_first_cause_is_told_not_its_echo() -> None:
    """The agent ends the other ranks with TERM once one has failed."""
    w = World(groups=2, ranks=3).bring_up()
    w.report(0, 0, state="exited", signal=15)
    w.report(0, 1, state="exited", exit_code=1)
    w.report(0, 2, state="exited", exit_code=1, error="CUDA error")
    w.round()
    w.round(LOCAL_WORD_S + 0.01)
    assert w.incident.evidence == (Reason.of(Code.EXITED, rank=2, exit_code=1, error="CUDA error"),)
    assert w.incident.error == "CUDA error"


def test_an_echo_that_our_own_agent_ended_makes_nobody_wait_for_the_engine() -> None:
    """The echo may be seen together with the end of the rank that failed."""
    w = World(groups=2, ranks=2).bring_up()
    w.report(0, 0, state="exited", signal=9)
    w.report(0, 1, state="exited", signal=15, told="toy.0.1.0, another rank of its generation, has failed")
    w.round()
    assert (w.incident.kind, w.incident.rung, w.incident.rank) == (Kind.CRASH, Rung.RESTART, 0)


@pytest.mark.parametrize("code", [None, 1])
def test_a_node_that_is_ended_in_order_waits_for_the_engines_word(code: int | None) -> None:
    """Its agent ends its ranks, and one may fail for another that is gone before it gets the order."""
    w = World(groups=2, ranks=2).bring_up()
    w.report(0, 0, state="exited", signal=15, told="the node is stopped")
    if code is None:
        w.report(0, 1, state="exited", signal=15, told="the node is stopped")
    else:
        w.report(0, 1, state="exited", exit_code=code, error='RuntimeError: message: "transport error"')
    assert w.verbs() == []
    lose_allocation(w)
    w.round(LOCAL_WORD_S / 2)
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)


def test_a_term_that_we_did_not_send_waits_for_the_engines_word() -> None:
    """A scheduler that takes an allocation away sends TERM first: that is no crash."""
    w = World().bring_up()
    w.crash(0, signal=15)
    assert w.verbs() == []
    assert w.last.look_again_at == pytest.approx(w.now + LOCAL_WORD_S)
    lose_allocation(w)
    w.round(LOCAL_WORD_S / 2)
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)


def test_an_end_before_it_was_finished_is_a_failure_whatever_its_exit_code() -> None:
    w = World().bring_up()
    w.fail(0, code=0, phase="step")
    assert w.verbs() == ["start"]
    assert (w.incident.kind, w.incident.evidence) == (
        Kind.ERROR,
        (Reason.of(Code.EXITED, rank=0, exit_code=0, error=""),),
    )


def test_a_term_without_the_engines_word_is_a_crash() -> None:
    w = World().bring_up()
    w.crash(0, signal=15)
    assert w.verbs() == []
    assert w.verbs(LOCAL_WORD_S + 0.01) == ["start"]
    assert w.incident.kind == Kind.CRASH
    w.recover()
    assert w.memory.suspects == {}


def test_a_lease_that_is_given_back_waits_for_the_engines_word() -> None:
    """Its agent has reported how its ranks ended: the node was ended in order, perhaps by its engine."""
    w = World().bring_up()
    w.report(0, state="exited", exit_code=143)
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    assert w.verbs() == []
    assert w.verbs(LOCAL_WORD_S + 0.01) == ["cordon", "release", "acquire"]
    assert w.incident.kind == Kind.NODE_LOST


def test_an_engine_that_is_slower_than_usual_has_longer_for_its_word() -> None:
    w = World().bring_up()
    w.engine_word_s = 5.0
    w.crash(0, signal=15)
    assert w.verbs() == []
    assert w.last.look_again_at == pytest.approx(w.now + 5.0)
    assert w.verbs(4.9) == []
    lose_allocation(w)
    w.round(0.05)
    assert w.incident.kind == Kind.ALLOCATION_LOST


def test_a_silent_node_is_judged_when_a_slow_engine_was_asked_after_it_fell_silent() -> None:
    w = World().bring_up()
    lease = w.spec.policy.node_lease_s
    w.engine_word_s = lease + 4.0
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    assert (w.verbs(), w.verbs(3.9)) == ([], [])
    assert w.verbs(0.2) == ["cordon", "release", "acquire"]


def test_an_engine_that_was_not_asked_since_is_waited_for() -> None:
    """Another run's requests come first, so its answer takes longer than usual."""
    w = World().bring_up()
    w.engine_listed_at = w.now - 0.1
    w.crash(0, signal=15)
    assert (w.verbs(), w.verbs(LOCAL_WORD_S + 0.1), w.verbs(2.0)) == ([], [], [])
    assert w.last.look_again_at is not None
    lose_allocation(w)
    w.engine_listed_at = w.now
    w.round(0.1)
    assert w.incident.kind == Kind.ALLOCATION_LOST


def test_an_engine_that_is_away_is_not_waited_for_for_ever() -> None:
    w = World().bring_up()
    w.engine_listed_at = w.now - 60.0
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    assert (w.verbs(), w.verbs(ENGINE_AWAY_S - 0.5)) == ([], [])
    assert w.verbs(0.6) == ["cordon", "release", "acquire"]


def test_a_silent_node_is_judged_by_a_list_of_the_time_of_its_silence() -> None:
    w = World().bring_up()
    w.engine_listed_at = w.now - w.spec.policy.node_lease_s + 0.5
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    assert w.verbs() == ["cordon", "release", "acquire"]


def test_a_lease_that_lapses_in_silence_is_judged_at_once() -> None:
    """The engine was asked for a whole lease, and did not report that it took the node."""
    w = World().bring_up()
    w.nodes["n1"] = replace(w.nodes["n1"], registered=False)
    w.hear(0, "gone")
    assert w.verbs() == ["cordon", "release", "acquire"]
    assert w.incident.kind == Kind.NODE_LOST


def test_a_stale_generations_end_is_nobodys_business() -> None:
    w = World().bring_up()
    w.crash(0)
    w.round()
    w.recover(0)
    w.report_on("n1", 0, 1, state="exited", signal=9)
    assert w.verbs() == []


def test_a_spent_budget_climbs_and_says_so() -> None:
    w = World(budget={"restart": 1}).bring_up()
    w.crash(0)
    w.round()
    w.recover()
    w.crash(0)
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.REPLACE)
    assert w.incident.considered == (spent("restart"),)
    assert Code.BUDGET_SPENT in codes(w.incident.reason)
    assert w.memory.cordons == {"n1": held_against("i2", Kind.CRASH)}


def test_the_whole_ladder_in_one_incident() -> None:
    """A group crashes at every start, and the others cannot step without it. It climbs rung by rung to the halt, each
    with its sentence."""
    w = World(groups=2, min_groups=2, spares=1, budget={"restart": 1, "replace": 1, "reallocate": 1}).bring_up()
    rungs = []
    for number in range(4, 8):
        w.crash(0)
        w.round(61.0)
        if w.memory.phase == "stopping":
            break
        rungs.append(w.incident.rung)
        w.admit(0)
        w.bring(number)
        for _ in range(3):
            w.round(61.0)
        assert w.group().phase == "starting", w.last.waits
    assert rungs == [Rung.RESTART, Rung.REPLACE, Rung.REALLOCATE]
    assert w.incident.id == "i1"
    assert (w.incident.rung, w.incident.state) == (Rung.STOP, "halted")
    assert spent("restart") in w.incident.considered
    assert spent("replace") in w.incident.considered
    assert spent("reallocate") in w.incident.considered
    assert Code.NOTHING_LEFT in codes(w.memory.halt_reason)
    assert SEGFAULT in w.memory.halt_reason.about["evidence"]


def test_no_spare_climbs_to_a_new_allocation() -> None:
    w = World(groups=2, spares=0).bring_up()
    lose_node(w)
    assert w.verbs() == ["cordon", "release", "acquire"]
    assert w.incident.rung == Rung.REALLOCATE
    assert w.incident.considered == (Reason.of(Code.NO_SPARE),)
    assert w.memory.allocations["run-a3"].exclude == ("n1",)
    w.admit(0)
    assert w.verbs() == ["fence"]
    assert w.waiting(Code.PENDING) == [{"group": 0, "allocation": "run-a3", "word": "", "usual_s": 0.0}]
    w.bring(3)
    assert w.verbs() == ["place"]
    assert w.group().first_node == "n3"


def test_a_lost_node_is_asked_for_again_in_its_place_at_the_replacements_own_budget() -> None:
    """This keeps the run's number of spares; the engine keeps others off the suspect host."""
    w = World(groups=2, spares=1).bring_up()
    lose_node(w)
    w.round()
    asked = w.memory.allocations["run-a4"]
    assert (asked.instead_of, asked.exclude, asked.state) == ("run-a1", ("n1",), "wanted")
    assert set(w.memory.spent) == {"replace"}
    w.recover(0)
    w.bring(4)
    assert w.verbs() == []
    assert sorted(a.key for a in w.memory.allocations.values() if a.state == "wanted") == ["run-a2", "run-a3", "run-a4"]


def test_what_the_engine_took_away_is_asked_for_without_suspecting_its_host() -> None:
    w = World(groups=2, spares=0).bring_up()
    lose_allocation(w)
    w.round()
    assert w.memory.allocations["run-a3"].instead_of == ""
    lose_node_of(w, 1)
    w.round()
    assert w.memory.allocations["run-a4"].instead_of == "run-a2"


def test_a_cordon_is_of_a_host_and_outlives_the_node_that_was_on_it() -> None:
    w = World(groups=2, spares=2)
    w.host()
    w.round()
    for number, host in ((1, "h1"), (2, "h2"), (3, "h1"), (4, "h3")):
        w.grant(number)
        w.node(number, host=host)
    w.bring_up()
    assert (w.group(0).first_node, w.group(0).seats[0].host) == ("n1", "h1")
    w.nodes["n1"] = replace(w.nodes["n1"], host="")
    lose_node(w)
    w.round()
    assert list(w.memory.cordons) == ["h1"]
    assert w.memory.allocations["run-a5"].exclude == ("h1",)
    w.recover(0)
    assert w.group(0).first_node == "n4", "n3 is on the same host"


def test_a_spare_that_vanished_after_the_decision_is_replaced_by_an_allocation() -> None:
    w = World(groups=2, spares=1).bring_up()
    lose_node(w)
    w.round()
    w.grant(3, "gone", reason="preempted")
    w.lapse("n3")
    w.grant(4, "gone", reason="preempted")
    w.admit(0)
    assert w.verbs() == ["fence", "release", "acquire"]
    assert (w.incident.rung, w.incident.considered) == (Rung.REALLOCATE, (Reason.of(Code.SPARE_GONE),))
    assert len(w.memory.spent["reallocate"]) == 1


def test_a_spare_that_lapsed_after_the_decision_does_not_hold_the_group_for_ever() -> None:
    """Its engine still calls it granted: a network that is down is not the engine's business."""
    w = World(groups=2, spares=1, allocation_timeout_s=60.0).bring_up()
    w.now += 100.0
    lose_node(w)
    w.round()
    assert w.incident.rung == Rung.REPLACE
    w.lapse("n3")
    w.admit(0)
    w.round(30.0)
    assert w.waiting(Code.PENDING) == [{"group": 0, "allocation": "run-a4", "word": "", "usual_s": 0.0}]
    w.round(61.0)
    assert w.waiting(Code.LATE) == [{"group": 0, "allocation": "run-a4", "word": ""}]
    assert w.memory.allocations["run-a4"].late
    w.bring(4)
    assert w.verbs() == ["place"]


# --- two owners never ---


def test_a_group_that_was_moved_once_can_be_restarted_in_place() -> None:
    """The node that it left long ago does not matter."""
    w = World(healthy_after_s=120.0).bring_up()
    lose_node(w)
    w.round()
    w.recover()
    w.round(121.0)
    assert (w.group().first_node, w.group().attempts) == ("n3", 0)
    w.crash(0)
    assert w.verbs() == ["start"]
    assert (w.group().first_node, w.group().generation) == ("n3", 3)


def test_a_lost_node_is_fenced_by_the_gate_before_the_spare_starts() -> None:
    w = World().bring_up()
    lose_node(w)
    w.round()
    assert (w.group().phase, w.group().first_node, w.group().last_node) == ("fencing", "", "n1")
    for _ in range(3):
        assert w.verbs(after=10.0) == []
        assert w.waiting(Code.NOT_FENCED) == [{"group": 0, "node": "n1"}]
    w.admit(0)
    assert w.verbs() == ["fence", "place"]
    assert w.last.actions[0].reason == Reason.of(Code.GATE_ADMITS, generation=2)
    assert w.group().first_node == "n3"


def test_an_older_admission_is_no_proof() -> None:
    w = World().bring_up()
    lose_node(w)
    w.round()
    assert w.gate is not None
    assert w.gate.admitted[0] == 1
    assert w.verbs() == []


def test_without_a_gate_the_nodes_own_word_is_a_proof() -> None:
    w = World(budget={"restart": 0}).bring_up()
    w.crash(0)
    w.gate = None
    assert w.verbs() == ["cordon", "release", "fence", "place"] or w.verbs() == ["fence", "place"]
    assert w.group().first_node == "n3"


def test_a_node_that_still_runs_the_old_generation_is_no_proof() -> None:
    w = World().bring_up()
    lose_allocation(w)
    w.gate = None
    w.round()
    assert w.verbs(after=5.0) == []
    w.report_on("n1", 0, 1, state="exited", signal=15)
    w.bring(4)
    assert w.verbs()[:1] == ["fence"]
    assert w.last.actions[0].reason == Reason.of(Code.NODE_HAS_NONE, node="n1")


def test_a_node_that_never_spoke_of_the_group_does_not_say_that_it_is_gone() -> None:
    """The start was commanded, and the agent may be about to obey: silence about it is no report of its end."""
    w = World(groups=2, spares=1)
    w.host()
    w.round()
    for number in (1, 2, 3):
        w.bring(number)
    w.open_gate()
    w.round()
    assert w.group().phase == "starting"
    assert w.nodes["n1"].ranks == ()
    lose_allocation(w)
    assert "fence" not in w.verbs()
    assert "fence" not in w.verbs(after=1.0)
    assert w.group().phase == "fencing"


def test_the_end_of_an_older_generation_does_not_say_that_the_newest_is_gone() -> None:
    """It was restarted in place, but that is not reported yet: the node still lists the crash before."""
    w = World(groups=2, spares=1).bring_up()
    w.crash(0)
    w.round()
    assert (w.group().generation, w.group().phase) == (2, "starting")
    assert [r.generation for r in w.nodes["n1"].ranks] == [1]
    lose_allocation(w)
    assert "fence" not in w.verbs()
    assert "fence" not in w.verbs(after=1.0)
    assert w.group().phase == "fencing"


def test_no_gate_and_a_silent_node_holds_with_the_reason() -> None:
    w = World().bring_up()
    w.lapse("n1")
    w.gate = None
    for _ in range(3):
        assert w.verbs(after=100.0) == []
        assert w.waiting(Code.LAPSED_NO_GATE) == [{"group": 0, "node": "n1"}]
    assert w.memory.incidents == {}


def test_a_silent_node_whose_group_steps_is_unknown() -> None:
    w = World().bring_up()
    w.lapse("n1")
    for _ in range(3):
        assert w.verbs(after=100.0) == []
        assert w.waiting(Code.LAPSED_BUT_HEARD) == [{"group": 0, "node": "n1"}]
        assert w.last.look_again_at == pytest.approx(w.now + 1.0)
    w.hear(0, "silent")
    assert w.verbs() == ["cordon", "release", "acquire"]


def test_the_word_of_a_gate_whose_host_is_gone_is_old() -> None:
    """The gate's record outlives it: what it heard last is not what it hears."""
    w = World(silent_timeout_s=30.0).bring_up()
    w.hear(0, "silent")
    assert w.verbs() == ["ride_through"]
    w.lapse(HOST)
    w.mute()
    assert w.verbs(after=31.0) == ["close_lighthouse"], "nobody listens any more: that is no sign of a stalled group"


# --- the store was away ---


def test_a_lapsed_lease_right_after_a_store_outage_holds() -> None:
    w = World(node_lease_s=5).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.stable = 0.0
    assert w.verbs() == []
    assert w.waiting(Code.STORE_AWAY) == [{"group": 0, "seconds": 0.0, "lease_s": 5}]
    w.stable = 4.9
    assert w.verbs() == []
    w.stable = 5.0
    assert w.verbs() == ["cordon", "release", "acquire"]


def test_a_stall_is_not_seen_right_after_a_store_outage() -> None:
    """The gate could not report meanwhile that it hears the group again."""
    w = World(node_lease_s=5, silent_timeout_s=30.0).bring_up()
    w.hear(0, "silent")
    assert w.verbs() == ["ride_through"]
    w.stable = 0.5
    assert w.verbs(after=60.0) == []
    w.hear(0, "beating")
    w.stable = 1.5
    w.round(1.0)
    assert w.memory.incidents == {}
    assert w.group().generation == 1


def test_a_start_timeout_is_not_seen_right_after_a_store_outage() -> None:
    """The agents could not report the first commits meanwhile."""
    w = World(node_lease_s=5, start_timeout_s=60.0).bring_up()
    w.crash(0)
    w.round()
    w.admit(0)
    w.stable = 0.5
    assert w.verbs(after=100.0) == []
    assert w.group().generation == 2


def test_what_a_node_says_counts_at_once_after_a_store_outage() -> None:
    w = World(node_lease_s=5).bring_up()
    w.stable = 0.0
    w.crash(0)
    assert w.verbs() == ["start"]


# --- the same error everywhere ---


def test_the_same_error_at_the_same_step_in_every_group_halts() -> None:
    w = World(groups=3).bring_up()
    for group in range(3):
        w.fail(group, 1, "ValueError: bad data", step=40)
    w.round()
    assert (w.incident.kind, w.incident.rung, w.incident.state) == (Kind.SAME_ERROR, Rung.STOP, "halted")
    assert Code.SAME_EVERYWHERE in codes(w.memory.halt_reason)
    w.round()
    assert w.memory.phase == "halted"
    assert {a.state for a in w.memory.allocations.values()} == {"released"}


def test_the_same_error_one_after_the_other_halts_too() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, "ValueError: bad data", step=40)
    assert w.verbs() == ["start"]
    w.fail(1, 1, "ValueError: bad data", step=40)
    assert "halt" in w.verbs(after=0.3)


@pytest.mark.parametrize(("error", "step"), [("RuntimeError: other", 40), ("ValueError: bad data", 41), ("", 40)])
def test_another_error_or_step_is_not_the_same(error: str, step: int) -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, "ValueError: bad data", step=40)
    w.fail(1, 1, error, step=step)
    assert w.verbs() == ["start", "start"]


def test_a_group_alone_has_nobody_to_share_its_error_with() -> None:
    w = World(groups=1).bring_up()
    w.fail(0, 1, "ValueError: bad data", step=40)
    assert w.verbs() == ["start"]


# --- silence ---


def test_a_hiccup_is_ridden_through_and_recovers() -> None:
    w = World(silent_timeout_s=30.0).bring_up()
    w.hear(0, "silent")
    assert w.verbs() == ["ride_through"]
    assert w.memory.silent == (0,)
    assert w.last.look_again_at == pytest.approx(w.now + 30.001)
    assert w.verbs(after=29.0) == []
    w.hear(0, "beating")
    assert w.verbs() == []
    assert (w.incident.state, w.incident.rung) == ("recovered", Rung.RIDE_THROUGH)
    assert w.group() == replace(w.group(), incident="", generation=1, attempts=0)
    w.round()
    assert w.memory.silent == ()


def test_the_others_hear_of_one_that_falls_silent_as_it_heals() -> None:
    """They wait for it in a collective for as long as a heal may take, and its node may be gone without a word."""
    w = World(groups=2).bring_up()
    w.crash(0)
    w.start_again(0)
    w.admit(0)
    w.hear(0, "beating")
    w.round(1.0)
    assert (w.group(0).phase, w.memory.silent) == ("starting", ())
    w.hear(0, "silent")
    w.round(1.0)
    assert (w.group(0).phase, w.memory.silent) == ("starting", (0,))


def test_silence_then_a_lost_node_climbs_within_the_same_incident() -> None:
    w = World().bring_up()
    w.hear(0, "silent")
    w.round()
    opened, began = w.incident.opened, w.incident.opened - w.incident.took_s
    assert began < opened
    w.now += w.spec.policy.node_lease_s
    w.lapse("n1")
    assert w.memory.cordons == {"n1": held_against("i1", Kind.NODE_LOST)}
    assert (w.incident.id, w.incident.kind, w.incident.rung) == ("i1", Kind.NODE_LOST, Rung.REPLACE)
    assert w.incident.opened == opened
    assert w.incident.opened - w.incident.took_s == began, "it was lost when it fell silent, not a lease before that"
    assert len(w.incident.evidence) == 2
    w.recover()
    assert list(w.incidents) == ["i1"]


def test_silence_of_a_stale_generation_is_not_silence() -> None:
    w = World().bring_up()
    w.crash(0)
    w.round()
    assert w.gate is not None
    w.commit(0)
    w.hear(0, "silent")
    assert w.gate.admitted[0] == 1
    assert w.verbs() == []
    assert w.group().phase == "running"
    assert w.verbs() == [], "the gate does not admit it yet, so it cannot say that it is silent"


# --- times ---


def test_a_start_that_never_commits_is_tried_again() -> None:
    w = World(start_timeout_s=60.0).bring_up()
    w.crash(0)
    w.round()
    w.admit(0)
    w.report(0, phase="built")
    assert w.verbs(after=60.0) == []
    w.round(1.0)
    assert (w.incident.kind, w.incident.rung) == (Kind.START_TIMEOUT, Rung.RESTART)
    assert Reason.of(Code.START_LATE, limit_s=60) in w.incident.evidence
    assert w.group().generation == 3


def test_backoff_grows_up_to_its_ceiling() -> None:
    w = World(budget={"restart": 100}, backoff_first_s=1.0, backoff_max_s=5.0).bring_up()
    pauses = []
    for _ in range(6):
        w.crash(0)
        w.round(0.5)
        pauses.append(round(max(0.0, w.group().not_before - w.now), 3))
        if pauses[-1]:
            assert w.group().phase == "placing"
            assert w.waiting(Code.BACKOFF) == [{"group": 0, "attempt": len(pauses)}]
            assert w.last.look_again_at == pytest.approx(w.group().not_before)
        w.recover()
    assert pauses == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_healthy_stretch_forgets_the_attempts() -> None:
    w = World(budget={"restart": 100}, healthy_after_s=120.0).bring_up()
    for _ in range(3):
        w.crash(0)
        w.round()
        w.recover()
    assert w.group().attempts == 3
    w.round(119.0)
    assert w.group().attempts == 3
    assert w.last.look_again_at == pytest.approx(w.group().since + 120.0)
    w.round(2.0)
    assert w.group().attempts == 0
    w.crash(0)
    assert w.verbs() == ["start"]


def test_the_window_forgets_what_was_spent() -> None:
    w = World(budget={"restart": 1, "window_s": 600.0}).bring_up()
    w.crash(0)
    w.round()
    w.recover()
    w.crash(0)
    w.round(601.0)
    assert w.incident.rung == Rung.RESTART


def test_a_lost_node_during_the_backoff_moves_the_group() -> None:
    w = World(budget={"restart": 100}, backoff_first_s=60.0).bring_up()
    w.crash(0)
    w.round()
    w.recover()
    w.crash(0)
    w.round()
    assert w.group().phase == "placing"
    w.lapse("n1")
    assert w.verbs(after=1.0) == ["cordon", "release", "acquire"]
    assert w.group().phase == "fencing"


def test_a_spent_budget_for_allocations_lets_fewer_groups_go_on() -> None:
    """The spare is lost between the decision and the start, and the budget allows no other allocation."""
    w = World(groups=2, spares=1, budget={"reallocate": 0}).bring_up()
    lose_node(w)
    w.round()
    w.grant(3, "gone")
    w.lapse("n3")
    w.grant(4, "gone")
    w.admit(0)
    assert w.verbs() == ["fence"]
    assert w.waiting(Code.FEWER_GO_ON) == [{"group": 0, "why": Reason.of(Code.ALLOCATIONS_SPENT)}]
    assert w.memory.phase == "running"


def test_many_crashes_are_answered_over_several_rounds_each_at_once_after_the_other() -> None:
    w = World(groups=90, spares=0, budget={"restart": 10}).bring_up()
    for group in range(90):
        w.crash(group)
    started, rounds = 0, 0
    while started < 90:
        started += w.verbs().count("start")
        rounds += 1
        assert started == 90 or w.last.look_again_at == w.now, w.last.waits
        assert rounds < 20
    assert rounds > 1
    assert {g.generation for g in w.memory.groups.values()} == {2}


def test_an_incident_that_was_only_opened_has_tried_nothing() -> None:
    """It was opened while paused as a lost node. The node comes back with a dead process: a restart is due."""
    w = World().bring_up()
    w.control = replace(w.control, paused=True)
    lose_node(w)
    w.round()
    w.node(1)
    w.crash(0)
    w.control = replace(w.control, paused=False)
    w.round(1.0)
    assert w.memory.groups[0].first_node == "n1"
    assert next(iter(w.memory.incidents.values())).rung == Rung.RESTART


def test_right_after_a_store_outage_a_silent_group_says_nothing() -> None:
    """The gate may have closed meanwhile, and then it had cut all groups."""
    w = World(groups=2, node_lease_s=5).bring_up()
    w.hear(0, "silent")
    w.stable = 1.0
    assert w.verbs() == []
    assert w.memory.incidents == {}
    w.stable = 60.0
    w.round()
    assert [i.kind for i in w.memory.incidents.values()] == [Kind.SILENT]


def test_a_group_that_starts_in_a_run_that_halts_is_ended_at_once() -> None:
    """No group trains from which it could heal, and it has no step to save: the run does not wait for its start."""
    w = World(groups=2).bring_up()
    w.fail(0, 1, "ValueError: a bug", step=20)
    w.round()
    assert w.memory.groups[0].phase == "starting"
    w.fail(1, 1, "ValueError: a bug", step=20)
    w.round()
    assert w.memory.halt_reason
    assert [g.phase for g in w.memory.groups.values()] == ["finished", "finished"]


def test_a_group_that_starts_in_a_run_that_a_person_stops_drains_as_the_others() -> None:
    w = World(groups=2).bring_up()
    w.fail(0, 1, "ValueError: a bug", step=20)
    w.round()
    w.control = replace(w.control, stop=True)
    w.round()
    assert w.memory.phase == "stopping"
    assert w.memory.groups[0].phase == "starting"


def test_a_late_start_of_a_paused_run_does_not_keep_the_leader_awake() -> None:
    w = World(groups=2, spares=0).start_up()
    w.control = ControlView(paused=True)
    w.round(w.spec.policy.start_timeout_s + 10)
    w.round(1.0)
    assert w.last.look_again_at is None or w.last.look_again_at >= w.now


def test_beside_one_that_trains_behind_the_checkpoint_it_resumes_from_disk() -> None:
    """It was started when there was no checkpoint. Others then saved one, but were lost before its first quorum, so it
    has none of their steps. A group that healed from it would end, as it finds no peer that is as far as the
    checkpoint."""
    w = World(groups=2, spares=1).bring_up()
    w.report(1, commits=0, step=0)
    w.save(0, step=100)
    w.round(1.0)
    w.crash(0, step=100, commits=5)
    w.round(1.0)
    w.commit(1, step=3)
    w.start_again(0)
    assert (w.group(0).resume, w.group(0).checkpoint and w.group(0).checkpoint.step) == ("disk", 100)


def no_peers(**policy: Any) -> World:
    """A world in which group 1 is frozen; group 0 crashed, was started again, and found no peer to heal from."""
    w = World(groups=2, **policy).bring_up()
    w.hear(1, "silent")
    w.crash(0)
    w.round()
    w.now += 1
    w.fail(0, 75)
    return w


def test_who_found_no_peer_is_not_started_again_while_the_others_are_not_heard() -> None:
    w = no_peers(backoff_first_s=0.0)
    assert w.verbs() == []
    assert w.waiting(Code.NO_PEER_HEARD) == [{"group": 0}]
    for _ in range(10):
        assert w.verbs(2.0) == []
    assert w.group(0).generation == 3
    w.hear(1, "beating")
    assert w.verbs(1.0) == ["start"]
    assert (w.group(0).resume, w.group(0).generation, w.group(0).attempts) == ("peers", 3, 2)


def test_it_is_started_from_disk_once_they_are_found_hung() -> None:
    w = no_peers(backoff_first_s=0.0, silent_timeout_s=10.0)
    w.round()
    assert w.verbs(9.0) == []
    starts = {a.group: a for a in w.round(1.2).actions if a.verb == "start"}
    assert w.group(0).phase == w.group(1).phase == "starting"
    assert set(starts) == {0, 1}
    assert w.group(0).resume == w.group(1).resume == "disk"


def test_one_that_starts_from_disk_waits_for_nobody() -> None:
    w = World(groups=2, backoff_first_s=0.0).bring_up()
    w.report(1, commits=0, step=0)
    w.save(0, step=100)
    w.round(1.0)
    w.commit(1, step=3)
    w.hear(1, "silent")
    w.crash(0, step=100, commits=5)
    w.round(1.0)
    w.now += 1
    w.fail(0, 75)
    assert [a.key for a in w.round().actions] == ["start:0:3"]
    assert w.group(0).resume == "disk"


def test_a_person_who_asks_for_it_meanwhile_has_it_started_once() -> None:
    w = no_peers(backoff_first_s=0.0)
    assert w.verbs() == []
    w.control = replace(w.control, restarts={0: 1})
    assert w.verbs(1.0) == ["start"]
    assert w.verbs(1.0) == []
    assert (w.group(0).generation, w.group(0).phase) == (3, "starting")


def test_a_spare_that_it_is_moved_to_waits_too() -> None:
    w = no_peers(backoff_first_s=0.0, budget={"restart": 1})
    assert "start" not in w.verbs()
    w.admit(0)
    assert {"start", "place"}.isdisjoint([*w.verbs(1.0), *w.verbs(10.0)])
    w.hear(1, "beating")
    assert "place" in w.verbs(1.0)
    assert w.group(0).first_node == "n3"


@pytest.mark.parametrize("why", ["too long", "another is heard"])
def test_it_is_started_all_the_same(why: str) -> None:
    w = World(groups=3, backoff_first_s=0.0, silent_timeout_s=10.0, observe=("stalled",)).bring_up()
    w.hear(1, "silent")
    w.hear(2, "beating" if why == "another is heard" else "silent")
    w.crash(0)
    w.round()
    w.now += 1
    w.fail(0, 75)
    if why == "too long":
        assert "start" not in [*w.verbs(), *w.verbs(9.5)]
        w.now += 1
    assert "start:0:3" in [a.key for a in w.round().actions]


def test_beside_one_that_is_past_the_checkpoint_it_heals() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.save(0, step=100)
    w.commit(1, step=101)
    w.round(1.0)
    w.crash(0, step=101, commits=5)
    w.round(1.0)
    w.start_again(0)
    assert w.group(0).resume == "peers"
