"""Placement of groups on nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code
from supervisor.core.model.seats import Seat
from tests.unit.core.world import World


def ready(groups: int = 2, spares: int = 2) -> World:
    """A world whose nodes and gate are there, but nothing was started."""
    w = World(groups=groups, spares=spares)
    w.host()
    w.round()
    for number in range(1, groups + spares + 1):
        w.bring(number)
    w.open_gate()
    return w


def homes(w: World) -> dict[int, str]:
    return {g: m.first_node for g, m in w.memory.groups.items()}


def test_groups_and_nodes_go_together_by_their_order() -> None:
    w = ready()
    w.round()
    assert homes(w) == {0: "n1", 1: "n2"}


def test_what_is_warm_comes_first_and_then_the_name() -> None:
    w = ready(groups=2, spares=2)
    for number in (2, 4):
        w.node(number, warm=True)
    w.round()
    assert homes(w) == {0: "n2", 1: "n4"}


def test_a_lost_group_goes_to_the_spare_that_is_warm_and_stays_there() -> None:
    w = World(groups=2, spares=3).bring_up()
    assert homes(w) == {0: "n1", 1: "n2"}
    w.node(5, warm=True)
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.recover(0)
    assert homes(w) == {0: "n5", 1: "n2"}
    # it is warm no more, for it has given its process to the group, and others are by now
    w.node(5, warm=False)
    w.node(3, warm=True)
    w.node(4, warm=True)
    assert w.round(1.0).actions == ()
    assert homes(w) == {0: "n5", 1: "n2"}


@pytest.mark.parametrize("change", [{"registered": False}, {"slots": 0}, {"leaving": "its time limit is near"}])
def test_a_warm_node_that_is_of_no_use_is_passed_over(change: dict[str, object]) -> None:
    w = ready()
    w.nodes["n4"] = replace(w.nodes["n4"], warm=True, **change)  # type: ignore[arg-type]
    w.round()
    assert homes(w) == {0: "n1", 1: "n2"}


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("its lease lapsed", {"registered": False}),
        ("it is a service host", {"role": "service"}),
        ("it is too small", {"slots": 0}),
        ("it is of an allocation that is not ours", {"allocation": "other-a1"}),
    ],
)
def test_a_node_is_passed_over_when(why: str, change: dict[str, object]) -> None:
    w = ready()
    w.nodes["n1"] = replace(w.nodes["n1"], **change)  # type: ignore[arg-type]
    w.round()
    assert homes(w) == {0: "n2", 1: "n3"}, why


def test_a_cordoned_node_is_passed_over() -> None:
    w = ready()
    w.cordon("n2")
    w.round()
    assert homes(w) == {0: "n1", 1: "n3"}


@pytest.mark.parametrize("state", ["pending", "gone", "refused"])
def test_a_node_whose_allocation_is_not_granted_is_passed_over(state: str) -> None:
    w = ready()
    w.grant(1, state)
    w.round()
    assert homes(w) == {0: "n2", 1: "n3"}


def test_a_held_node_is_no_spare() -> None:
    w = ready(groups=2, spares=1).bring_up()
    w.lapse("n1")
    w.hear(0, "gone")
    w.round()
    w.admit(0)
    w.round()
    assert homes(w) == {0: "n3", 1: "n2"}


def test_two_groups_never_get_the_same_spare() -> None:
    w = World(groups=2, spares=1).bring_up()
    for group in (0, 1):
        w.lapse(f"n{group + 1}")
        w.hear(group, "gone")
    w.round()
    w.admit(0)
    w.admit(1)
    assert w.verbs() == ["fence", "fence", "place"]
    assert homes(w) == {0: "n3", 1: ""}
    assert w.waiting(Code.PENDING) == [{"group": 1, "allocation": "run-a4", "word": "", "usual_s": 0.0}]


def test_a_start_in_place_waits_for_its_node() -> None:
    w = World(budget={"restart": 9}, backoff_first_s=10.0).bring_up()
    w.memory = replace(
        w.memory,
        groups={
            **w.memory.groups,
            0: GroupMemory(group=0, generation=2, seats=(Seat("n1"),), left=(Seat("n1"),), phase="placing", attempts=1),
        },
    )
    w.lapse("n1")
    w.stable = 1.0
    assert w.verbs() == []
    assert w.waiting(Code.STORE_AWAY) == [{"group": 0, "seconds": 1.0, "lease_s": 5}]
    w.node(1)
    assert w.verbs() == ["start"]


def test_the_first_to_start_reads_from_disk_and_the_later_heal_from_peers() -> None:
    w = ready()
    w.round()
    assert {g.resume for g in w.memory.groups.values()} == {"disk"}
    w.commit(0)
    w.round()
    w.crash(1)
    w.round()
    assert w.group(1).resume == "peers"


def test_a_run_waits_in_the_engines_queue_for_as_long_as_it_takes() -> None:
    w = World(groups=2, spares=0)
    w.host()
    w.round()
    w.open_gate()
    for number in (1, 2):
        w.grant(number, "pending", "Resources")
    for _ in range(20):
        w.round(w.spec.policy.allocation_timeout_s)
    assert w.memory.phase == "running"
    assert [a.state for a in w.memory.allocations.values()] == ["wanted", "wanted"]
    there = {"free": 0, "of": 2, "least": 1, "queued": 2, "word": "Resources"}
    assert w.waiting(Code.NODES_QUEUED) == [there]
    w.bring(1)
    w.round(1.0)
    assert w.group(0).phase == "starting", "one is enough: it had its time"


def test_what_no_engine_has_taken_on_is_waited_for_only_so_long() -> None:
    w = World(groups=2, spares=0)
    w.host()
    w.round()
    w.open_gate()
    for number in (1, 2):
        w.grants[f"run-a{number}"] = Grant(key=f"run-a{number}", state="pending")
    w.round(1.0)
    assert w.memory.phase == "running"
    w.round(w.spec.policy.allocation_timeout_s)
    assert w.memory.phase in ("stopping", "halted")


def short_of_a_node(min_groups: int = 1, wait_for_all: bool = False) -> World:
    """A world of four groups, and an engine that has three nodes and no queue."""
    w = World(groups=4, spares=0, min_groups=min_groups)
    w.spec = replace(w.spec, allocation=replace(w.spec.allocation, wait_for_all=wait_for_all))
    w.host()
    w.round()
    w.open_gate()
    w.grants["run-a4"] = Grant(key="run-a4", state="pending", engine_id="local:0", reason="all held", exhausted=True)
    for number in (1, 2, 3):
        w.grant(number)
    w.round()
    assert {g.phase for g in w.memory.groups.values()} == {"unplaced"}, "those that are coming are waited for"
    for number in (1, 2, 3):
        w.node(number)
    w.round(1.0)
    return w


def test_an_engine_that_has_no_more_nodes_is_not_waited_for_and_the_last_group_joins_when_it_has() -> None:
    w = short_of_a_node()
    assert [g.phase for g in w.memory.groups.values()] == ["starting"] * 3 + ["unplaced"]
    w.round(1.0)
    assert w.waiting(Code.PENDING) == [{"group": 3, "allocation": "run-a4", "word": "all held", "usual_s": 1.0}]
    w.bring(4)
    w.round(1.0)
    assert w.group(3).phase == "starting"


def test_all_are_waited_for_where_the_run_wants_that() -> None:
    w = short_of_a_node(wait_for_all=True)
    assert {g.phase for g in w.memory.groups.values()} == {"unplaced"}
    w.round(w.spec.policy.allocation_timeout_s)
    assert [g.phase for g in w.memory.groups.values()] == ["starting"] * 3 + ["unplaced"], "and no longer than that"


def test_fewer_groups_than_the_run_needs_do_not_start() -> None:
    w = short_of_a_node(min_groups=4)
    w.round(2 * w.spec.policy.allocation_timeout_s)
    assert {g.phase for g in w.memory.groups.values()} == {"unplaced"}
    there = {"free": 3, "of": 4, "least": 4, "queued": 1, "word": "all held"}
    assert w.waiting(Code.NODES_QUEUED) == [there]
    w.bring(4)
    w.round(1.0)
    assert {g.phase for g in w.memory.groups.values()} == {"starting"}
