"""The lighthouse's seat: its holder, its removal, and the proof that two never serve at once (ADR 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.core import invariants
from supervisor.core.model.memory import Lighthouse, Memory
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S, NodeView, RankView
from supervisor.core.model.reason import Code
from tests.unit.core.world import HOST, World

OTHER = "other-host"


def world(**about: Any) -> World:
    """A world in which two groups train, with a second service host to move to."""
    w = World(**about).bring_up()
    w.nodes[OTHER] = NodeView(name=OTHER, registered=True, role="service")
    for g in w.memory.groups:
        w.commit(g, gate="host:1", reaches_gate=True, quorum_id=40 + g)
    assert w.verbs() == []
    return w


def cut_off(w: World, *groups: int, gate: str | None = "") -> None:
    """Cuts these groups' forwarders off from the gate (and they have cut, if asked)."""
    for g in groups:
        w.commit(g, gate=gate, reaches_gate=False, quorum_id=40 + g)


def lose_host(w: World) -> None:
    w.nodes[HOST] = replace(w.nodes[HOST], registered=False)
    w.mute()


def test_a_lighthouse_whose_shim_says_that_it_ended_is_followed_at_once_on_the_same_host() -> None:
    w = world()
    w.nodes[HOST] = replace(w.nodes[HOST], lighthouses_ended=(1,))
    assert w.verbs() == ["lighthouse"]
    seat = w.memory.lighthouse
    assert (seat.node, seat.generation, seat.address, seat.quorum_ids_above) == (HOST, 2, "", 141)


def test_a_node_that_reports_a_quorum_that_never_was_does_not_keep_the_next_lighthouse_from_beginning() -> None:
    """It would raise its ids for ever."""
    for of_gate, reported, above in ((40, 2**62, 10_140), (40, 41, 141), (300, 41, 400), (0, 2**62, 10_100)):
        w = world()
        w.gate = replace(w.gate, quorum_id=of_gate)
        w.commit(1, gate="host:1", reaches_gate=True, quorum_id=reported)
        w.nodes[HOST] = replace(w.nodes[HOST], lighthouses_ended=(1,))
        assert w.verbs() == ["lighthouse"]
        assert w.memory.lighthouse.quorum_ids_above == above


def test_a_mute_lighthouse_that_forwarders_reach_is_unknown_and_held() -> None:
    w = world()
    w.mute()
    for _ in range(5):
        assert w.verbs(after=10.0) == []
    assert w.waiting(Code.SEAT_REACHED) == [{"by": 0}]
    assert w.memory.lighthouse.address == "host:1"


def test_right_after_a_store_outage_a_mute_lighthouse_says_nothing() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1, gate="host:1")
    w.stable = 1.0
    assert w.verbs() == []
    assert w.waiting(Code.SEAT_AWAY) == [{}]
    w.stable = 60.0
    assert w.verbs(after=1.0) == ["close_lighthouse"]


def test_a_lost_lighthouse_is_closed_cut_waited_for_and_only_then_replaced() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1, gate="host:1")
    assert w.verbs() == ["close_lighthouse"]
    assert (w.memory.lighthouse.address, w.memory.lighthouse.closing) == ("", True)
    assert w.verbs(after=60.0) == [], "nobody has cut yet"
    assert w.waiting(Code.SEAT_UNCUT) == [{"node": "host", "uncut": (0, 1)}]
    cut_off(w, 0)
    assert w.verbs(after=60.0) == []
    assert w.waiting(Code.SEAT_UNCUT) == [{"node": "host", "uncut": (1,)}]
    cut_off(w, 1)
    assert w.verbs() == [], "the old gate has its time"
    heartbeat_s = w.spec.torchft.heartbeat_timeout_ms / 1000
    assert w.verbs(after=heartbeat_s) == []
    assert w.last.look_again_at is not None
    assert w.verbs(after=w.last.look_again_at - w.now) == ["lighthouse"]
    assert (w.memory.lighthouse.node, w.memory.lighthouse.generation) == (OTHER, 2)


def test_its_time_counts_from_its_silence_too() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1)
    assert w.verbs() == ["close_lighthouse"]
    assert w.verbs() == []
    assert w.verbs(after=GATE_ETCD_SILENCE_S) == []
    assert w.verbs(after=1.1) == ["lighthouse"]


def test_a_forwarder_that_connects_again_before_the_end_starts_the_wait_anew() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1)
    w.round()
    w.round(5.0)
    cut_off(w, 1, gate="host:1")
    assert w.verbs(after=30.0) == []
    cut_off(w, 1)
    assert w.verbs() == []
    assert w.verbs(after=2.5) == ["lighthouse"]


def test_a_fenced_rank_that_will_not_die_does_not_hold_it() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1)
    stuck = RankView(group=0, generation=0, rank=0, state="running", gate="host:1", reaches_gate=False)
    w.nodes["n3"] = replace(w.nodes["n3"], ranks=(stuck,))
    w.round()
    w.round()
    assert w.verbs(after=GATE_ETCD_SILENCE_S + 2) == ["lighthouse"]


def test_when_all_groups_are_on_its_side_nothing_is_opened_here() -> None:
    """The groups may be training there: the gate hears them all, and goes on without etcd."""
    w = world()
    lose_host(w)
    for node in ("n1", "n2"):
        w.nodes[node] = replace(w.nodes[node], registered=False)
    for _ in range(10):
        assert w.verbs(after=30.0) == []
    assert w.waiting(Code.SEAT_MUTE) == [{}]
    assert w.memory.lighthouse.address == "host:1", "when the network heals they go on as they are"


def test_when_the_last_of_our_side_goes_while_it_is_closed_nothing_is_opened() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1, gate="host:1")
    assert w.verbs() == ["close_lighthouse"]
    for node in ("n1", "n2"):
        w.nodes[node] = replace(w.nodes[node], registered=False)
    for _ in range(10):
        assert w.verbs(after=30.0) == []
    assert w.waiting(Code.SEAT_CLOSING) == [{"node": "host"}]


def test_a_silent_node_is_made_up_for_by_one_that_has_cut() -> None:
    w = world()
    lose_host(w)
    w.nodes["n2"] = replace(w.nodes["n2"], registered=False)
    cut_off(w, 0)
    assert w.verbs() == ["close_lighthouse"]
    w.round()
    assert w.verbs(after=GATE_ETCD_SILENCE_S + 2) == ["lighthouse"]


def test_a_group_that_the_old_gate_admits_in_an_older_generation_elsewhere_is_no_proof() -> None:
    w = world()
    assert w.gate is not None
    w.gate = replace(w.gate, admitted={0: 0, 1: 1})
    lose_host(w)
    w.nodes["n2"] = replace(w.nodes["n2"], registered=False)
    cut_off(w, 0)
    for _ in range(5):
        assert w.verbs(after=30.0) == []
    assert w.waiting(Code.SEAT_MUTE) == [{}]


def test_a_host_that_comes_back_while_it_is_closed_ends_it_by_its_shims_word() -> None:
    w = world()
    lose_host(w)
    cut_off(w, 0, 1, gate="host:1")
    w.round()
    w.nodes[HOST] = replace(w.nodes[HOST], registered=True, lighthouses_ended=(1,))
    assert w.verbs() == ["lighthouse"]
    assert (w.memory.lighthouse.node, w.memory.lighthouse.generation) == (HOST, 2)


def test_without_another_service_host_it_waits_for_one() -> None:
    w = World().bring_up()
    lose_host(w)
    cut_off(w, 0, 1)
    w.round()
    w.round()
    assert w.verbs(after=10.0) == []
    assert w.waiting(Code.SEAT_NO_HOST) == [{}]
    w.nodes[OTHER] = NodeView(name=OTHER, registered=True, role="service")
    assert w.verbs() == ["lighthouse"]


def test_a_paused_run_keeps_its_lighthouse_as_it_is() -> None:
    w = world()
    w.control = replace(w.control, paused=True)
    lose_host(w)
    cut_off(w, 0, 1)
    for _ in range(3):
        assert w.verbs(after=30.0) == []
    assert w.memory.lighthouse.generation == 1


def test_nobody_is_judged_or_blamed_for_its_start_while_there_is_no_gate() -> None:
    w = world(start_timeout_s=20.0)
    w.crash(1)
    w.round()
    w.admit(1)
    w.round()
    assert w.group(1).phase == "starting"
    w.report(1, state="running", gate="", reaches_gate=False)
    lose_host(w)
    cut_off(w, 0)
    w.round()
    w.round()
    assert w.verbs(after=60.0) == ["lighthouse"]
    assert w.verbs(after=60.0) == []
    assert w.group(1).generation == 2


def test_a_host_that_dies_before_its_gate_ever_listened_is_given_up() -> None:
    w = World()
    w.host()
    w.round()
    w.nodes[OTHER] = NodeView(name=OTHER, registered=True, role="service")
    w.nodes[HOST] = replace(w.nodes[HOST], registered=False)
    assert w.verbs() == ["close_lighthouse"]
    w.round()
    assert w.verbs(after=GATE_ETCD_SILENCE_S + 2) == ["lighthouse"]


def test_a_host_that_comes_back_after_its_gate_was_given_up_before_it_listened_does_not_hold_the_seat() -> None:
    """The lighthouse is never started again, so no shim will ever report its end."""
    w = world()
    w.nodes[HOST] = replace(w.nodes[HOST], lighthouses_ended=(1,))
    assert w.verbs() == ["lighthouse"]
    w.gate = None
    w.nodes[HOST] = replace(w.nodes[HOST], registered=False)
    cut_off(w, 0, 1)
    assert w.verbs() == ["close_lighthouse"]
    w.nodes[HOST] = replace(w.nodes[HOST], registered=True)
    verbs = [verb for _ in range(5) for verb in w.verbs(after=5.0)]
    assert verbs == ["lighthouse"]
    assert w.memory.lighthouse.generation == 3


def test_a_seat_that_is_given_away_before_it_is_closed_breaks_an_invariant() -> None:
    w = world()
    observed = w.observed()
    moved = replace(w.memory, lighthouse=Lighthouse(node=OTHER, generation=2))
    assert any("I13" in v for v in invariants.violations(w.memory, moved, observed, w.spec))
    back = replace(w.memory, lighthouse=Lighthouse(node=HOST, generation=0))
    assert any("I13" in v for v in invariants.violations(w.memory, back, observed, w.spec))
    assert invariants.violations(w.memory, w.memory, observed, w.spec) == []
    assert invariants.violations(Memory(), replace(Memory(), lighthouse=moved.lighthouse), observed, w.spec) == []


def test_quorum_ids_never_go_back_even_when_nobody_reports_any() -> None:
    w = world()
    for n in (1, 2):
        w.nodes[HOST] = replace(w.nodes[HOST], lighthouses_ended=(n,))
        assert w.verbs() == ["lighthouse"]
        assert w.memory.lighthouse.quorum_ids_above == 141
        w.nodes = {
            name: replace(node, ranks=tuple(replace(rank, quorum_id=-1) for rank in node.ranks))
            for name, node in w.nodes.items()
        }
        assert all(isinstance(rank, RankView) for node in w.nodes.values() for rank in node.ranks)
