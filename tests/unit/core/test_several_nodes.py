"""Groups on several nodes: started on all of them or none, and only what is lost is replaced (ADR 20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.core.evidence import group_nodes, hang_attribution
from supervisor.core.evidence.exit_status import PEERS_GONE_EXIT
from supervisor.core.invariants import violations
from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory, Tried
from supervisor.core.model.observed import ControlView, CordonView, GpuFact, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import MAX_NODES_PER_GROUP
from supervisor.core.policy.cordons import accuses
from supervisor.core.remediation.restore import restored
from supervisor.core.round.draft import Round
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.control import projection
from supervisor.shell.web.verdicts import of_groups
from supervisor.wire.records import NodeDesired, TrainerDesired
from tests.helpers.reasons import codes, values
from tests.unit.core.test_decide_scale import size as size_of
from tests.unit.core.world import LOCAL_WORD_S, World

OF_THE_RUN = 2
"""Records beside those of the memory: the decision's digest, and the account."""


def wide(groups: int = 2, spares: int = 2, size: int = 2) -> World:
    """Groups of `size` nodes with two ranks each, in the order of their names."""
    return World(groups=groups, spares=spares, ranks=2 * size, size=size)


def desired(w: World) -> dict[str, NodeDesired]:
    return projection.desired(w.spec, "/run", w.memory)


def trainer(w: World, node: str) -> TrainerDesired:
    (found,) = desired(w)[node].trainers
    return found


def seats(w: World, group: int) -> tuple[str, ...]:
    return w.group(group).nodes


def lose(w: World, *numbers: int) -> None:
    """The nodes and all that runs there are silent, which the gate notices."""
    for number in numbers:
        holder = next(g.group for g in w.memory.groups.values() if g.holds(f"n{number}"))
        w.hear(holder, "silent")
    for number in numbers:
        w.nodes[f"n{number}"] = replace(w.nodes[f"n{number}"], registered=False)
    w.round()
    w.round(1.0)


def end_the_old(w: World, *numbers: int) -> None:
    """The agents of these nodes report that what is older than the wanted generation has ended there."""
    for number in numbers:
        view = w.nodes[f"n{number}"]
        ranks = tuple(replace(rank, state="exited", signal=15, told="replaced") for rank in view.ranks)
        w.nodes[f"n{number}"] = replace(view, ranks=ranks)


def test_groups_start_on_all_of_their_nodes() -> None:
    w = wide().bring_up()
    assert (seats(w, 0), seats(w, 1)) == (("n1", "n2"), ("n3", "n4"))
    assert [[*trainer(w, node).ranks] for node in ("n1", "n2")] == [[0, 1], [2, 3]]
    assert {trainer(w, node).store for node in ("n1", "n2")} == {"n1:1"}
    assert {trainer(w, node).store for node in ("n3", "n4")} == {"n3:1"}
    assert Round(w.observed(), w.spec, w.memory).spares() == ["n5", "n6"]


def test_nothing_starts_on_a_part() -> None:
    w = wide(spares=0)
    w.host()
    for number in (1, 2, 3):
        w.round()
        w.bring(number)
    w.open_gate()
    w.round(w.spec.policy.allocation_timeout_s + 1)
    w.round()
    assert (seats(w, 0), seats(w, 1)) == (("n1", "n2"), ()), "min_groups start; the third node is no half of a group"
    w.bring(4)
    w.round()
    assert seats(w, 1) == ("n3", "n4")


def test_a_node_that_names_no_port_is_waited_for() -> None:
    w = wide(groups=1, spares=0)
    w.host()
    w.round()
    for number in (1, 2):
        w.bring(number)
        w.node(number, store="")
    w.open_gate()
    w.round()
    assert (w.group().phase, codes(*w.last.waits) & {Code.NO_STORE_YET}) == ("unplaced", {Code.NO_STORE_YET})
    w.node(1, store="n1:7")
    w.round()
    assert (w.group().phase, w.group().store) == ("starting", "n1:7")


def test_a_dead_process_restarts_all_ranks_on_the_same_nodes() -> None:
    w = wide().bring_up()
    w.report(1, 3, state="exited", signal=11)
    w.round()
    group = w.group(1)
    assert (w.incident.kind, w.incident.node, w.incident.rung) == (Kind.CRASH, "n4", Rung.RESTART)
    assert (group.phase, group.nodes, group.generation) == ("fencing", ("n3", "n4"), 2)
    assert [trainer(w, n).hold for n in ("n3", "n4")] == [True, True], "what is left of the old generation ends there"
    w.round(1.0)
    assert w.group(1).phase == "fencing", "neither node has reported its ends, and the gate admits the old one"
    end_the_old(w, 3)
    w.round()
    assert w.group(1).phase == "fencing", "ranks of the old generation run on the other node"
    end_the_old(w, 4)
    w.round()
    assert (w.group(1).phase, seats(w, 1)) == ("starting", ("n3", "n4"))
    assert trainer(w, "n4").store == "n3:2", "no store serves two generations"
    assert not w.memory.cordons
    assert w.group(0).phase == "running"


LOST_PEER = "RuntimeError: Connection closed by peer [10.0.0.4]:4711"


@pytest.mark.parametrize("error", [LOST_PEER, 'RuntimeError: status: Unavailable, message: "tcp connect error"'])
def test_ranks_that_lost_a_peer_wait_for_the_lease_of_its_node(error: str) -> None:
    w = wide().bring_up()
    w.report(1, 0, state="exited", exit_code=1, error=error)
    w.report(1, 1, state="exited", signal=15, told="rank 0 has failed")
    w.round()
    assert not w.incidents
    w.round(w.spec.policy.node_lease_s)
    assert not w.incidents, "its node's lease may lapse a little later still"
    lose(w, 4)
    assert (w.incident.kind, w.incident.node, w.group(1).generation) == (Kind.NODE_LOST, "n4", 2)


def test_ranks_that_lost_a_peer_whose_node_lives_fail_by_themselves() -> None:
    w = wide().bring_up()
    w.report(1, 0, state="exited", exit_code=1, error=LOST_PEER)
    w.round()
    assert w.last.look_again_at is not None
    w.round(w.last.look_again_at - w.now)
    assert (w.incident.kind, w.incident.node) == (Kind.ERROR, "n3")


def test_a_node_that_ended_in_order_is_for_its_engine_to_explain() -> None:
    """Its job was cancelled: its neighbour's ranks, of which one still runs, say nothing of how it ended."""
    w = wide().bring_up()
    w.engine_word_s, w.engine_listed_at = 2.1, w.now - 0.5
    w.report(1, 2, state="exited", signal=15)
    w.report(1, 3, state="exited", signal=15)
    w.report(1, 1, state="exited", exit_code=1, error=LOST_PEER)
    w.round()
    w.nodes["n4"] = replace(w.nodes["n4"], registered=False)
    w.round(0.02)
    assert not w.incidents
    w.grants["run-a4"] = replace(w.grants["run-a4"], state="gone", reason="CANCELLED")
    w.engine_listed_at = w.now + 0.5
    w.round(0.5)
    assert (w.incident.kind, w.incident.node) == (Kind.ALLOCATION_LOST, "n4")


@pytest.mark.parametrize("lost", [3, 4])
def test_only_the_lost_node_is_replaced(lost: int) -> None:
    w = wide().bring_up()
    lose(w, lost)
    kept = 7 - lost
    assert (w.incident.kind, w.incident.node, w.incident.rung) == (Kind.NODE_LOST, f"n{lost}", Rung.REPLACE)
    assert (seats(w, 1), [seat.node for seat in w.group(1).left]) == ((f"n{kept}",), ["n3", "n4"])
    assert set(w.memory.cordons) == {f"n{lost}"}
    assert [key for key, a in w.memory.allocations.items() if a.state == "released"] == [f"run-a{lost}"]
    assert trainer(w, f"n{kept}").hold
    assert f"n{lost}" not in desired(w)
    w.start_again(1)
    assert seats(w, 1) == (f"n{kept}", "n5")
    assert [[*trainer(w, node).ranks] for node in seats(w, 1)] == [[0, 1], [2, 3]]
    assert trainer(w, "n5").store.startswith(f"n{kept}:")
    assert w.group(0).phase == "running"


def test_both_nodes_of_a_group_are_lost_at_once() -> None:
    w = wide().bring_up()
    lose(w, 3, 4)
    assert (seats(w, 1), set(w.memory.cordons)) == ((), {"n3", "n4"})
    assert lapsed_nodes(w) == ("n3", "n4")
    w.start_again(1)
    assert seats(w, 1) == ("n5", "n6")


def lapsed_nodes(w: World) -> tuple[str, ...]:
    """The nodes that the incident names, each of which its evidence must name once."""
    seen = w.incident.evidence
    named = [why for code in (Code.LAPSED_UNHEARD, Code.LEASE_LAPSED) for why in values(seen, code)]
    assert [why["node"] for why in named] == [*w.incident.nodes]
    return w.incident.nodes


def test_all_nodes_of_a_large_group_are_lost_at_once() -> None:
    """The incident is not written again each round, as it would be if it had no room for all that is seen."""
    size = MAX_NODES_PER_GROUP
    w = wide(size=size, spares=0).bring_up()
    w.control = ControlView(paused=True)
    first, *others = (int(node[1:]) for node in seats(w, 1))
    lose(w, first)
    lose(w, *others)
    assert (lapsed_nodes(w), len(others)) == (seats(w, 1), size - 1)
    assert not w.round(1.0).incidents


def test_one_spare_is_not_enough_for_two() -> None:
    w = wide(spares=1).bring_up()
    lose(w, 3, 4)
    assert w.incident.rung == Rung.REALLOCATE
    assert sum(a.state == "wanted" for a in w.memory.allocations.values()) == 5, "one for each that was lost"


def test_a_lost_node_is_only_observed() -> None:
    """Nothing is done to its neighbour either, and once it is back the group has recovered by itself."""
    w = World(groups=2, spares=2, ranks=4, size=2, mode="observe").bring_up()
    before = [desired(w)[node] for node in ("n3", "n4")]
    lose(w, 4)
    assert (w.incident.shadow, w.incident.rung, w.incident.nodes) == (True, Rung.REPLACE, ("n4",))
    assert [(why["group"], why["rung"]) for why in w.waiting(Code.WOULD_BE)] == [(1, "replace")]
    assert (w.group(1).phase, seats(w, 1), dict(w.memory.cordons)) == ("running", ("n3", "n4"), {})
    assert [desired(w)[node] for node in ("n3", "n4")] == before
    w.nodes["n4"] = replace(w.nodes["n4"], registered=True)
    w.hear(1, "beating")
    w.round(1.0)
    assert (w.incidents["i1"].state, w.group(1).incident, w.memory.spent) == ("recovered", "", {})


def test_costs_and_the_account_of_tries_are_of_a_group_however_many_nodes_it_lost() -> None:
    w = wide(groups=3, spares=1).bring_up()
    w.memory = replace(w.memory, tried={"replace": (Tried(seconds=8.0, mended=True),)})
    lose(w, 3)
    by_spare = w.incident.costs[0]
    assert (by_spare.about["what"], by_spare.about["cost"]) == (Reason.of(Code.BY_SPARE, node="n7"), 8.0)
    w.recover(1)
    assert [t.mended for t in w.memory.tried["replace"]] == [True, True]
    lose(w, 5, 6)
    assert w.incident.costs[0] == Reason.of(Code.WITHOUT_SPARE), "one is no replacement for two"
    assert w.incident.costs[-1] == Reason.of(Code.COST_GOES_ON, others=2, count=3)
    assert len(w.memory.spent["reallocate"]) == 1, "one recovery of one group"


def test_a_kept_node_that_is_lost_meanwhile_is_left_too() -> None:
    w = wide().bring_up()
    lose(w, 3)
    w.nodes["n4"] = replace(w.nodes["n4"], registered=False)
    w.admit(1)
    w.round(1.0)
    w.round(1.0)
    assert (w.group(1).phase, seats(w, 1), set(w.memory.cordons)) == ("starting", ("n5", "n6"), {"n3", "n4"})
    assert lapsed_nodes(w) == ("n3", "n4")
    assert sum(a.state == "wanted" for a in w.memory.allocations.values()) == 6, "one for each that was lost"


def test_the_idle_node_of_a_group_that_waits_serves_another() -> None:
    w = wide(groups=3, spares=0).bring_up()
    lose(w, 5)
    assert (w.incident.rung, seats(w, 2)) == (Rung.REALLOCATE, ("n6",))
    w.admit(2)
    w.round(1.0)
    lose(w, 2)
    assert w.incident.rung == Rung.REPLACE
    w.start_again(0)
    assert (seats(w, 0), seats(w, 2)) == (("n1", "n6"), ())


def test_a_drained_node_is_left_alone() -> None:
    w = wide().bring_up()
    w.cordons["n4"] = CordonView(drain="new firmware")
    for _ in range(4):
        w.round(1.0)
    assert (w.incident.kind, seats(w, 1), w.group(1).phase) == (Kind.LEAVING, ("n3",), "fencing")
    assert (w.incident.node, values(w.incident.evidence, Code.NODE_LEAVING)[0]["node"]) == ("n4", "n4")
    assert not w.memory.cordons
    w.start_again(1)
    assert seats(w, 1) == ("n3", "n5")


def test_a_group_has_as_many_nodes_after_a_halt_and_after_a_restore() -> None:
    w = wide().bring_up()
    partly = replace(w.memory, groups={0: w.group(0)})
    assert {g.size for g in restored(partly, w.spec.groups, None, {}).groups.values()} == {2}
    w.memory = replace(w.memory, phase="halted", halt_reason=Reason.of(Code.TEXT, text="a budget is spent"))
    w.control = ControlView(resumes=1, because="mended")
    w.round()
    assert [(g.size, g.seats) for g in w.memory.groups.values()] == [(2, ())] * 2
    w.memory = replace(w.memory, groups={0: replace(w.group(0), size=1), 1: w.group(1)})
    assert "I21: group 0 must be on 1 nodes, and the run's groups on 2" in violations(
        w.memory, w.memory, w.observed(), w.spec
    )


def test_two_groups_lose_a_node_at_once() -> None:
    w = wide(groups=4, spares=2).bring_up()
    lost = [w.group(0).nodes[1], w.group(1).nodes[0]]
    lose(w, *(int(node[1:]) for node in lost))
    w.start_again(0)
    w.start_again(1)
    now = [*seats(w, 0), *seats(w, 1)]
    assert len({*now}) == 4
    assert not {*now} & {*lost}


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_whose_peers_are_lost_before_it_healed_restarts_where_it_is(size: int) -> None:
    w = wide(groups=2, spares=3, size=size).bring_up()
    lose(w, 1)
    w.start_again(0)
    now = seats(w, 0)
    assert w.group(0).resume == "peers"
    lose(w, int(w.group(1).first_node[1:]))
    w.start_again(1)
    w.fail(0, PEERS_GONE_EXIT)
    w.round(1.0)
    assert (w.incidents[w.group(0).incident].kind, w.group(0).attempts) == (Kind.PEERS_GONE, 2)
    w.commit(1)
    w.hear(1, "beating")
    w.start_again(0)
    assert (seats(w, 0), {*w.memory.cordons} & {*now}) == (now, set())
    for left in reversed(range(w.spec.policy.budget.restart)):
        w.fail(0, PEERS_GONE_EXIT)
        w.round(1.0)
        climbs = Rung.RESTART if left else Rung.REPLACE
        assert w.incidents[w.group(0).incident].rung == climbs, "it may not reach a peer that trains"
        w.start_again(0)


@pytest.mark.parametrize(("size", "moved"), [(1, 15), (4, 7), (16, 2), (MAX_NODES_PER_GROUP, 1)])
def test_one_round_moves_no_more_groups_than_a_transaction_holds(size: int, moved: int) -> None:
    """Seeds of 200 groups of four. 0: 15 groups moved at once, with 120 records of allocations. 33: twelve, with 64 of
    allocations and 32 of suspected hosts."""
    w = wide(groups=20, spares=0, size=size).bring_up()
    r, before = Round(w.observed(), w.spec, w.memory), w.memory
    for group in before.groups.values():
        if r.full(group.group):
            break
        incident = r.incident_for(group, Failure(Kind.STALLED, ()), 0)
        for seat in group.seats:
            r.cordon(r.host_of(seat.node), seat.node, incident)
            r.release(seat.allocation, Reason.of(Code.RUN_STARTS))
            r.acquire(Reason.of(Code.RUN_STARTS))
    changed = [g for g in r.groups.values() if g != before.groups[g.group]]
    renewed = [a for a in r.allocations.values() if a != before.allocations.get(a.key)]
    assert (len(changed), len(renewed)) == (moved, 2 * size * moved)
    records = 1 + OF_THE_RUN + len(changed) + len(r.changed) + len(renewed) + len(r.suspicions)
    assert len(r.suspicions) == size * moved
    assert records <= MAX_OPERATIONS


@pytest.mark.parametrize(("groups", "size"), [(3, MAX_NODES_PER_GROUP), (7, 8)])
def test_groups_that_lose_all_other_nodes_before_they_are_fenced_fit_into_transactions(groups: int, size: int) -> None:
    """A row loses power: each group loses a node, and the others before the gate has shut out the old ranks."""
    w = wide(groups=groups, spares=groups, size=size).bring_up()
    hit = range(groups - 1)
    lose(w, *(int(w.group(g).first_node[1:]) for g in hit))
    w.round(LOCAL_WORD_S + 0.01)
    assert {w.group(g).phase for g in hit} == {"fencing"}, [w.group(g) for g in hit]
    for g in hit:
        for node in w.group(g).nodes:
            w.nodes[node] = replace(w.nodes[node], registered=False)
        w.admit(g)
    w.now += LOCAL_WORD_S + 10.0
    sizes = []
    for _ in range(3 * groups):
        before = w.memory
        w.round(0.1)
        sizes.append(size_of(w, before) + len(w.last.suspicions) + len(w.last.acquitted) + OF_THE_RUN)
    assert not any(w.group(g).nodes for g in hit), "they hold none of the lost nodes any more"
    assert max(sizes) > size, sizes
    assert max(sizes) <= MAX_OPERATIONS, sizes


def exited(w: World) -> None:
    w.report_on("n4", 1, 1, 3, state="exited", signal=11)


def lapsed(w: World) -> None:
    w.hear(1, "gone")
    w.lapse("n4")


def taken(w: World) -> None:
    w.grant(4, "gone", reason="preempted")


def given_again(w: World) -> None:
    w.node(4, allocation="run-a9")
    w.round()
    w.now += 10.0


def gpu_lost(w: World) -> None:
    w.node(4, gpus=(GpuFact(kind="gpu_lost", evidence="GPU 0 is lost", rank=0),))


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        (Kind.CRASH, exited),
        (Kind.NODE_LOST, lapsed),
        (Kind.ALLOCATION_LOST, taken),
        (Kind.ALLOCATION_LOST, given_again),
        (Kind.GPU, gpu_lost),
    ],
)
def test_a_failure_is_that_of_the_node_where_it_was_seen(kind: Kind, sign: Callable[[World], None]) -> None:
    w = wide().bring_up()
    sign(w)
    w.round()
    assert (w.incident.group, w.incident.kind, w.incident.node) == (1, kind, "n4")
    assert w.group(1).at_fault == ("n4",)
    assert set(w.memory.cordons) <= {"n4"}


def test_a_rank_that_hangs_on_another_node_is_seen() -> None:
    w = wide().bring_up()
    w.report(1, 2, commits=1, stuck=StuckView(activity="data", bound_s=30.0))
    assert [rank.rank for rank in hang_attribution.stuck_ranks(w.group(1), w.observed())] == [2]
    assert [rank.rank for rank in group_nodes.ranks_of(w.group(1), w.observed())] == [0, 1, 3, 2]


def test_no_node_is_held_by_two_groups() -> None:
    w = wide().bring_up()
    both = replace(w.memory, groups={**w.memory.groups, 0: replace(w.group(0), seats=(Seat("n3"), Seat("n1")))})
    assert [v.split(":")[0] for v in violations(Memory(), both, w.observed(), w.spec)] == ["I1"]


def at_switches(w: World, switches: dict[int, str]) -> World:
    """Nodes that are there before anything starts, each at a switch."""
    w.host()
    w.round()
    for number, switch in switches.items():
        w.bring(number)
        w.node(number, switch=switch)
    w.open_gate()
    w.round()
    return w


def placed_because(w: World, group: int) -> Reason:
    (found,) = [a.reason for a in w.last.actions if a.verb == "place" and a.group == group]
    return found


def test_a_group_takes_nodes_at_one_switch_and_says_so() -> None:
    w = at_switches(wide(spares=0), {1: "s.a", 2: "s.b", 3: "s.a", 4: "s.b"})
    assert (seats(w, 0), seats(w, 1)) == (("n1", "n3"), ("n2", "n4"))
    assert [placed_because(w, group) for group in (0, 1)] == [
        Reason.of(Code.AND, reason=Reason.of(Code.RUN_STARTS), note=Reason.of(Code.TOGETHER, switch=switch))
        for switch in ("s.a", "s.b")
    ]


def test_the_switch_with_the_fewest_nodes_that_suffice_serves_first() -> None:
    w = at_switches(wide(groups=1, spares=3), {1: "s.a", 2: "s.a", 3: "s.a", 4: "s.b", 5: "s.b"})
    assert seats(w, 0) == ("n4", "n5")


def test_where_one_switch_is_too_small_few_of_the_same_spine_serve() -> None:
    switches = {1: "s.a", 2: "t.b", 3: "t.c", 4: "s.d", 5: "t.c"}
    w = at_switches(wide(groups=1, spares=2, size=3), switches)
    assert seats(w, 0) == ("n3", "n5", "n2")
    assert placed_because(w, 0).about["note"] == Reason.of(Code.TOGETHER, switch="t")


def test_without_switches_names_decide() -> None:
    w = at_switches(wide(groups=1, spares=1), {1: "", 2: "", 3: ""})
    assert seats(w, 0) == ("n1", "n2")
    assert placed_because(w, 0) == Reason.of(Code.RUN_STARTS)


def test_the_node_in_place_of_a_lost_one_is_at_the_switch_of_the_others() -> None:
    w = wide().bring_up()
    for number, switch in {1: "s.a", 2: "s.a", 3: "s.b", 4: "s.b", 5: "s.a", 6: "s.b"}.items():
        w.node(number, switch=switch)
    lose(w, 4)
    w.start_again(1)
    assert seats(w, 1) == ("n3", "n6")


def test_groups_of_one_node_ask_for_no_switch() -> None:
    w = at_switches(World(groups=1, spares=2), {1: "s.a", 2: "s.b", 3: "s.b"})
    assert w.group().nodes == ("n1",)
    assert placed_because(w, 0) == Reason.of(Code.RUN_STARTS)


def slow(w: World, *seconds: tuple[float, float]) -> None:
    """Ranks 0, 1, ... of group 1 take (compute, data) seconds for a step, those of the others 0.4 s."""
    for group in w.memory.groups:
        w.commit(group, step=50, compute_s=0.4)
    for rank, (compute_s, data_s) in enumerate(seconds):
        w.report(1, rank, commits=1, step=50, compute_s=compute_s, data_s=data_s)
    w.round(1.0)


@pytest.mark.parametrize(
    ("seconds", "rank", "node"),
    [
        ([(0.4, 0), (0.4, 0), (0.4, 0), (0.9, 0)], 3, "n4"),
        ([(0.4, 0.5), (0.9, 0), (0.9, 0), (0.9, 0)], 0, "n3"),
        ([(0.9, 0), (0.9, 0), (0.4, 0), (0.9, 0.01)], None, "n3, n4"),
    ],
    ids=["computes", "waits for its data", "all wait for each other's shards"],
)
def test_the_node_of_the_rank_that_is_waited_for_is_named(
    seconds: list[tuple[float, float]], rank: int | None, node: str
) -> None:
    w = wide(groups=3).bring_up()
    slow(w, *seconds)
    (found,) = w.waiting(Code.GROUP_SLOW)
    assert (found["rank"], found["node"]) == (rank, node)


def test_one_spare_is_not_enough_for_a_drain_of_both_nodes() -> None:
    w = wide(spares=1).bring_up()
    w.cordons = {host: CordonView(drain="new firmware") for host in ("n3", "n4")}
    for _ in range(3):
        w.round(1.0)
    assert (w.group(1).phase, [v["node"] for v in w.waiting(Code.NO_OTHER_YET)]) == ("running", ["n3"])
    w.bring(6)
    for _ in range(3):
        w.round(1.0)
    assert (w.group(1).phase, seats(w, 1)) == ("fencing", ())


def test_a_move_names_the_node_that_leaves() -> None:
    w = wide().bring_up()
    w.cordons["n4"] = CordonView(drain="new firmware")
    moves = [a for _ in range(4) for a in w.round(1.0).actions if a.verb == "move"]
    assert [(a.node, a.reason.code) for a in moves] == [("n4", Code.MOVES_BEFORE)]


def test_the_breaker_counts_nodes_where_only_nodes_are_lost() -> None:
    w = wide(groups=10, spares=6).bring_up()
    lose(w, *(int(seats(w, group)[0][1:]) for group in range(3)))
    assert w.memory.breaker_since is None, "three of ten groups, but of twenty nodes"
    w = wide(groups=10, spares=6).bring_up()
    lose(w, *(int(node[1:]) for group in range(3) for node in seats(w, group)[: 2 - group // 2]))
    assert w.memory.breaker_since is not None
    assert [(v["lost"], v["of"]) for v in w.waiting(Code.NODES_OF_MANY)] == [(5, 20)]


def test_a_gpu_is_that_of_its_node_though_the_other_node_ended_first() -> None:
    w = wide().bring_up()
    w.node(4, gpus=(GpuFact(kind="gpu_reset_required", evidence="GPU 0 needs a reset"),))
    w.report(1, 0, state="exited", exit_code=1, error="RuntimeError: NCCL error")
    w.round()
    assert (w.incident.kind, w.incident.node, w.group(1).at_fault) == (Kind.GPU, "n4", ("n4",))


def test_the_same_kind_of_failure_of_another_rank_acquits_no_host() -> None:
    w = wide(groups=3, spares=3).bring_up()
    for rank, node in ((3, "n4"), (0, "n3")):
        w.report(1, rank, commits=1, step=60, stopped="it is stopped (SIGSTOP)", stopped_s=1e3)
        w.round()
        assert (w.incident.kind, w.incident.node, w.incident.followed) == (Kind.HANG, node, False)
        w.recover(1, step=100)


def test_two_stopped_ranks_of_a_node_name_that_node() -> None:
    w = wide().bring_up()
    for rank in (2, 3):
        w.report(1, rank, commits=1, stopped="it is stopped (SIGSTOP)", stopped_s=1e3)
    w.round()
    assert (w.incident.kind, w.incident.rank, w.group(1).at_fault) == (Kind.HANG, None, ("n4",))


def test_only_facts_of_the_node_at_fault_are_evidence() -> None:
    w = wide().bring_up()
    w.node(3, facts={"swap": "much is swapped"})
    w.node(4, facts={"disk_slow": "writes take long"})
    w.report(1, 3, state="exited", signal=11)
    w.round()
    assert [e.about["fact"] for e in w.incident.evidence if e.code == Code.ON_ITS_NODE] == ["n4: writes take long"]


def test_only_the_ranks_of_the_lost_node_are_dead_on_the_page() -> None:
    w = wide().bring_up()
    w.hear(1, "silent")
    w.nodes["n4"] = replace(w.nodes["n4"], registered=False)
    found = of_groups(w.memory.groups, w.observed(), w.spec)
    assert (found[0].ranks, found[1].ranks, found[1].worst) == ("hhhh", "wwdd", "d")


def test_all_ranks_are_slow_on_the_page_if_none_is_known_to_be() -> None:
    w = wide(groups=3).bring_up()
    slow(w, (0.9, 0), (0.9, 0), (0.9, 0), (0.9, 0))
    assert [v.ranks for v in of_groups(w.memory.groups, w.observed(), w.spec).values()] == ["hhhh", "ssss", "hhhh"]


def test_a_failure_of_no_known_node_is_held_against_none() -> None:
    w = wide(groups=3)
    w.host()
    w.round()
    for number in range(1, 9):
        w.bring(number)
    w.open_gate()
    w.round()
    w.round(w.spec.policy.start_timeout_s + 1.0)
    w.round()
    assert [incident.kind for incident in w.incidents.values()] == [Kind.START_TIMEOUT] * 3
    assert not any(incident.node or accuses(incident) for incident in w.incidents.values())


def test_a_group_that_a_person_has_started_again_is_given_all_the_nodes_that_it_lacks() -> None:
    w = wide(spares=0).bring_up()
    lose(w, 3, 4)
    for number in (5, 6):
        w.grant(number, "refused", reason="no nodes")
    w.admit(1)
    w.round(1.0)
    w.round(1.0)
    wanted = [key for key, allocation in w.memory.allocations.items() if allocation.state == "wanted"]
    w.control = ControlView(restarts={1: 1}, because="try")
    w.round(1.0)
    w.round(1.0)
    assert {key for key, allocation in w.memory.allocations.items() if allocation.state == "wanted"} - {*wanted} == {
        "run-a7",
        "run-a8",
    }
