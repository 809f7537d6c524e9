"""The gate's rules, without connections."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.gate.state import GateState
from supervisor.wire.records import Admission

BEAT = b"...toy_0:abc..."


NODE = "n1"


def admissions(generations: dict[int, int]) -> dict[int, Admission]:
    return {group: Admission(generation=generation, node=NODE) for group, generation in generations.items()}


def state(admitted: dict[int, int], opened: bool = True) -> GateState:
    made = GateState(heartbeat_timeout_s=1.0, gather_s=2.0, etcd_silence_s=5.0)
    made.admit(admissions(admitted), 0.0)
    made.opened = opened
    return made


def alive(gate: GateState, group: int, generation: int, now: float) -> None:
    gate.came(group, generation)
    gate.built(group, generation, f"toy_{group}:g{generation}", now)
    gate.heard(group, generation, f"\n\x08toy_{group}:g{generation}".encode(), now)


def test_only_the_exact_generation_passes_and_only_when_built() -> None:
    gate = state({0: 2})
    gate.came(0, 2)
    assert [gate.passage(0, g, NODE, 0.5) for g in (1, 2, 3)] == ["cut", "hold", "hold"]
    assert gate.hearing(0, 0.0) == "holding"
    alive(gate, 0, 2, 0.0)
    alive(gate, 0, 3, 0.0)
    assert [gate.passage(0, g, NODE, 0.5) for g in (1, 2, 3)] == ["cut", "admit", "hold"]
    assert gate.beats(0.5) == ("toy_0:g2",)


def test_a_raised_admission_cuts_and_nothing_lowers_it() -> None:
    gate = state({0: 1})
    alive(gate, 0, 1, 0.0)
    alive(gate, 0, 2, 0.0)
    assert gate.admit(admissions({0: 2}), 9.0) == {(0, 1)}
    assert gate.passage(0, 1, NODE, 0.5) == "cut"
    # it was held since 0.0 and could not be heard: its time begins with the admission
    assert gate.beats(9.5) == ("toy_0:g2",)
    gate.admit(admissions({0: 1}), 9.5)
    gate.built(0, 1, "toy_0:g1", 9.5)
    assert gate.passage(0, 1, NODE, 0.5) == "cut"
    assert gate.groups(9.5)[0].generation == 2


def test_silence_drops_and_a_sound_brings_back_but_gone_is_gone() -> None:
    gate = state({0: 1})
    alive(gate, 0, 1, 0.0)
    assert (gate.hearing(0, 1.0), gate.hearing(0, 1.1)) == ("beating", "silent")
    gate.heard(0, 1, b"x", 2.0)
    assert gate.hearing(0, 2.1) == "beating"
    gate.gone(0, 1)
    gate.heard(0, 1, b"x", 2.2)
    assert gate.hearing(0, 2.2) == "gone"
    assert gate.beats(2.2) == ()
    assert gate.passage(0, 1, NODE, 0.5) == "cut"


def test_a_group_that_waits_for_the_lighthouse_is_not_silent_at_once_but_not_for_ever() -> None:
    gate = state({0: 1, 1: 1})
    gate.lighthouse_patience_s = 3.0
    alive(gate, 0, 1, 0.0)
    alive(gate, 1, 1, 0.0)
    gate.answered(0.6)
    assert gate.hearing(0, 1.1) == "silent", "the lighthouse lives, so it is the group's turn"
    gate.heard(0, 1, b"x", 2.0)
    assert gate.hearing(0, 5.9) == "beating", "the lighthouse has answered none since"
    gate.answered(2.1)
    assert gate.hearing(0, 5.9) == "beating", "it answered another, and stands still"
    assert gate.hearing(0, 6.1) == "silent"


def test_a_silence_is_doubted_until_etcd_has_answered_since() -> None:
    gate = state({0: 1, 1: 1})
    alive(gate, 0, 1, 0.0)
    alive(gate, 1, 1, 2.0)
    gate.answered(0.0)
    assert gate.doubted(0.5) == ()
    assert gate.doubted(2.0) == ((0, 1),)
    gate.confirm([(0, 1)])
    assert gate.doubted(2.0) == ()
    gate.heard(0, 1, b"x", 3.0)
    gate.answered(3.0)
    assert gate.doubted(4.5) == ((0, 1), (1, 1)), "each silence is asked about anew"
    gate.confirm([(0, 1), (1, 1)])
    gate.gone(0, 1)
    assert gate.doubted(4.5) == (), "it was confirmed as lost before"
    gate.heard(1, 1, b"x", 5.0)
    gate.gone(1, 1)
    assert gate.doubted(5.0) == ((1, 1),), "the shim's word is a loss like any other"


def test_a_group_takes_no_id_of_another() -> None:
    """Each sees the ids of all in every quorum."""
    gate = state({0: 1, 1: 1})
    alive(gate, 0, 1, 0.0)
    alive(gate, 1, 1, 0.0)
    assert not gate.built(0, 1, "toy_1:g1", 0.1), "it is another's"
    assert not gate.built(0, 1, "toy_0:other", 0.1), "it speaks under its own"
    assert not gate.built(0, 2, "toy_1:g1", 0.1)
    assert gate.built(0, 1, "toy_0:g1", 0.1), "as the forwarder repeats it"
    assert (gate.replica_id(0, 1), gate.replica_id(0, 2), gate.beats(0.5)) == ("toy_0:g1", "", ("toy_0:g1", "toy_1:g1"))
    assert gate.built(0, 2, "toy_0:g1", 0.1), "the group's next process takes its id"


def test_an_id_that_its_manager_never_used_is_not_beaten_for() -> None:
    gate = state({0: 1})
    gate.built(0, 1, "toy_0:typo", 0.0)
    gate.heard(0, 1, b"toy_0:real", 0.1)
    assert gate.beats(0.1) == ()
    assert gate.passage(0, 1, NODE, 0.5) == "hold"
    assert gate.speaks_otherwise(0, 1)
    # cut in two by the network, it is still found
    gate.built(0, 1, "toy_0:long", 0.2)
    gate.heard(0, 1, b"...toy_0", 0.2)
    assert gate.heard(0, 1, b":long...", 0.3)
    assert gate.passage(0, 1, NODE, 0.5) == "admit"
    assert gate.beats(0.3) == ("toy_0:long",)


def test_a_fresh_gate_waits_for_all_or_for_its_time() -> None:
    gate = state({0: 1, 1: 1}, opened=False)
    assert not gate.may_open(0.0)
    alive(gate, 0, 1, 1.0)
    assert not gate.may_open(2.9)
    assert gate.may_open(3.0)
    gate.gone(1, 1)
    assert gate.may_open(1.0)
    assert gate.passage(0, 1, NODE, 0.5) == "hold"
    gate.open(20.0)
    assert gate.beats(20.5) == ("toy_0:g1",)


def test_without_etcd_it_closes_at_the_first_loss_and_opens_after_reading_again() -> None:
    gate = state({0: 1, 1: 1})
    alive(gate, 0, 1, 0.0)
    alive(gate, 1, 1, 0.0)
    assert not gate.judge_etcd(60.0, False, 0.5)
    gate.gone(1, 1)
    assert not gate.judge_etcd(4.0, False, 0.5)
    assert gate.judge_etcd(5.1, False, 0.5)
    assert gate.closed
    assert (gate.passage(0, 1, NODE, 0.5), gate.beats(0.5)) == ("cut", ())
    # back, but later changes are not read yet
    assert not gate.judge_etcd(0.0, False, 0.6)
    assert not gate.judge_etcd(60.0, True, 0.6)
    assert gate.judge_etcd(0.0, True, 9.0)
    assert gate.beats(9.5) == ("toy_0:g1",)


def test_a_gate_that_has_not_opened_does_not_open_without_etcd() -> None:
    gate = state({0: 1}, opened=False)
    alive(gate, 0, 1, 0.0)
    assert gate.judge_etcd(5.1, False, 0.5)
    gate.open(0.5)
    assert (gate.passage(0, 1, NODE, 0.5), gate.beats(0.5)) == ("cut", ())


def test_a_retired_gate_lets_nobody_through() -> None:
    gate = state({0: 1})
    alive(gate, 0, 1, 0.0)
    gate.retired = True
    assert (gate.passage(0, 1, NODE, 0.5), gate.beats(0.5)) == ("cut", ())


def test_a_generation_is_spoken_for_by_its_own_node_alone() -> None:
    gate = state({0: 1})
    alive(gate, 0, 1, 0.0)
    assert (gate.passage(0, 1, NODE, 0.5), gate.passage(0, 1, "n2", 0.5)) == ("admit", "cut")
    # a generation that has no node yet belongs to no node, and neither does the one before it
    gate.admit({0: Admission(generation=2)}, 1.0)
    alive(gate, 0, 2, 1.0)
    assert [gate.passage(0, 2, node, 0.5) for node in (NODE, "n2")] == ["hold", "hold"]
    gate.admit({0: Admission(generation=2, node="n2")}, 1.0)
    assert [gate.passage(0, 2, node, 0.5) for node in (NODE, "n2")] == ["cut", "admit"]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "came", "alive", "gone", "heard", "open"]),
        st.integers(0, 1),
        st.integers(1, 4),
        st.floats(0.0, 1.0),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(EVENTS)
def test_never_two_generations_of_a_group_and_never_an_older_one(events: list[tuple[str, int, int, float]]) -> None:
    gate = state({}, opened=False)
    now, highest = 0.0, {0: 0, 1: 0}
    for event, group, generation, later in events:
        now += later
        match event:
            case "admit":
                gate.admit(admissions({group: generation}), now)
                highest[group] = max(highest[group], generation)
            case "came":
                gate.came(group, generation)
            case "alive":
                alive(gate, group, generation, now)
            case "gone":
                gate.gone(group, generation)
            case "heard":
                gate.heard(group, generation, b"x", now)
            case "open":
                gate.open(now)
        for each in (0, 1):
            through = [g for g in range(1, 5) if gate.passage(each, g, NODE, 0.5) == "admit"]
            assert through in ([], [highest[each]])
            assert all(gate.passage(each, g, NODE, 0.5) == "cut" for g in range(1, highest[each]))
        ids = gate.beats(now)
        assert set(ids) <= {f"toy_{g}:g{highest[g]}" for g in (0, 1)}


def test_a_node_that_closed_its_last_connection_and_makes_none_has_departed() -> None:
    gate = state({0: 1})
    for _ in range(2):
        gate.link(0, 1, NODE)
    alive(gate, 0, 1, 10.0)
    gate.unlink(0, 1, NODE, 10.0)
    assert gate.hearing(0, 10.9) == "beating"  # one is left
    gate.unlink(0, 1, NODE, 10.0)
    assert (gate.hearing(0, 10.4), gate.departed(0, 10.4)) == ("beating", ())
    assert (gate.hearing(0, 10.6), gate.groups(10.6)[0].departed) == ("silent", (NODE,))
    assert gate.doubted(10.6) == ((0, 1),)
    gate.link(0, 1, NODE)
    assert (gate.hearing(0, 10.6), gate.groups(10.6)[0].departed) == ("beating", ())


def test_each_node_of_a_group_departs_by_itself() -> None:
    gate = state({})
    gate.admit({0: Admission(generation=1, node="n1", others=("n2",))}, 0.0)
    for node in ("n1", "n2"):
        gate.link(0, 1, node)
        gate.asked(0, 1, node, 10.0)
    alive(gate, 0, 1, 10.0)
    gate.unlink(0, 1, "n2", 10.0)
    assert gate.groups(10.6)[0].departed == ("n2",)
    assert gate.beats(10.6) == ()
    assert gate.passage(0, 1, "n1", 10.6) == "hold"  # its manager beats by itself, too
    # the other node's ranks end, because they lost a peer
    gate.gone(0, 1)
    assert (gate.groups(10.6)[0].hearing, gate.groups(10.6)[0].departed) == ("gone", ("n2",))
    gate.closed = True
    assert gate.groups(10.6)[0].departed == ()


def test_a_group_is_silent_while_a_further_node_of_it_is_silent() -> None:
    """A machine that loses its power closes no connection, and the manager on the other node beats on."""
    gate = state({})
    gate.admit({0: Admission(generation=1, node="n1", others=("n2",))}, 0.0)
    for node in ("n1", "n2"):
        gate.link(0, 1, node)
        gate.asked(0, 1, node, 10.0)
    alive(gate, 0, 1, 10.0)
    gate.heard(0, 1, b"x", 11.1)
    gate.asked(0, 1, "n1", 11.1)
    assert (gate.hearing(0, 11.0), gate.silent_nodes(11.0)) == ("beating", ())
    assert (gate.hearing(0, 11.1), gate.silent_nodes(11.1)) == ("silent", ((0, "n2"),))
    assert (gate.beats(11.1), gate.passage(0, 1, "n1", 11.1)) == ((), "hold")
    assert gate.groups(11.1)[0].departed == ()
    gate.asked(0, 1, "n2", 11.2)
    assert (gate.hearing(0, 11.2), gate.silent_nodes(11.2), gate.beats(11.2)) == ("beating", (), ("toy_0:g1",))


def test_a_generation_that_is_gone_stale_or_was_cut_by_the_gate_has_not_departed() -> None:
    gate = state({0: 1, 1: 1})
    for group in (0, 1):
        gate.link(group, 1, NODE)
        alive(gate, group, 1, 10.0)
    gate.gone(0, 1)
    gate.unlink(0, 1, NODE, 10.0)
    assert (gate.groups(11.0)[0].hearing, gate.groups(11.0)[0].departed) == ("gone", ())
    gate.admit(admissions({1: 2}), 10.0)
    gate.unlink(1, 1, NODE, 10.0)
    alive(gate, 1, 2, 10.0)
    assert (gate.hearing(1, 10.9), gate.unlinked_at.keys()) == ("beating", {(0, 1, NODE)})
    # closed, the gate cut them all: opened again, they have their time to come back
    cut = state({0: 1})
    cut.link(0, 1, NODE)
    alive(cut, 0, 1, 10.0)
    cut.closed = True
    cut.unlink(0, 1, NODE, 10.0)
    assert cut.judge_etcd(0.0, read_again=True, now=12.0)
    assert cut.hearing(0, 12.9) == "beating"
