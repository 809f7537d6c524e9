"""Nodes whose disk cannot be used are passed over while there is another, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.evidence import disk_faults
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import UNUSABLE
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.policy import budgets
from tests.helpers.reasons import spent
from tests.unit.core.world import World

FULL = "/home/nodes/n: No space left on device"
ON_ITS_NODE = Reason.of(Code.ON_ITS_NODE, fact=FULL)


def tell(w: World, node: str, kind: str = "disk_full") -> None:
    """Sets the fact that a node's agent reports; an empty kind: none any more."""
    w.nodes[node] = replace(w.nodes[node], facts={kind: FULL} if kind else {})


def lose(w: World, group: int) -> str:
    """Loses the group's node; returns it. The incident is `w.incident`."""
    node = w.group(group).first_node
    w.lapse(node)
    w.hear(group, "gone")
    w.round()
    return node


# --- spares ---


@pytest.mark.parametrize("kind", sorted(UNUSABLE))
def test_another_spare_is_taken_though_the_ill_one_is_warm(kind: str) -> None:
    w = World(spares=2).bring_up()
    w.node(3, warm=True)
    tell(w, "n3", kind)
    lose(w, 0)
    w.start_again(0)
    assert w.group(0).first_node == "n4"


@pytest.mark.parametrize("kind", ["memory_pressure", "clock_unsynchronised", "link_down"])
def test_other_facts_bar_no_spare(kind: str) -> None:
    w = World(spares=2).bring_up()
    tell(w, "n3", kind)
    lose(w, 0)
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_it_may_be_taken_again_once_that_is_over() -> None:
    w = World(spares=2).bring_up()
    tell(w, "n3")
    assert w.round(100.0).actions == (), "it is kept: it may pass"
    tell(w, "n3", "")
    lose(w, 0)
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_where_it_is_the_only_one_another_allocation_is_asked_for_and_why_is_said() -> None:
    w = World(spares=1).bring_up()
    tell(w, "n3")
    lose(w, 0)
    assert w.incident.rung == Rung.REALLOCATE
    assert Reason.of(Code.NO_SPARE) in w.incident.considered
    w.admit(0)
    w.round()
    w.round()
    assert w.waiting(Code.NODE_DISFAVOURED) == [{"node": "n3", "why": FULL}]
    assert w.group(0).first_node == ""
    w.bring(4)
    w.recover(0)
    assert w.group(0).first_node == "n4"


def test_while_one_is_waited_for_it_is_taken_as_soon_as_that_is_over() -> None:
    w = World(spares=1).bring_up()
    tell(w, "n3")
    lose(w, 0)
    tell(w, "n3", "")
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_it_is_the_last_resort_where_no_budget_is_left_to_ask_for_another() -> None:
    """It is better than a halt. The allocation requested in place of the lost one is waited for as long as any."""
    w = World(spares=1, budget={"reallocate": 0}).bring_up()
    tell(w, "n3")
    lose(w, 0)
    assert w.incident.rung == Rung.REPLACE
    w.admit(0)
    w.round(1.0)
    w.round(1.0)
    assert w.waiting(Code.PENDING) == [{"group": 0, "allocation": "run-a4", "word": "", "usual_s": 0.0}]
    w.round(w.spec.policy.allocation_timeout_s)
    w.round(1.0)
    assert w.group(0).first_node == "n3"


def test_it_is_the_last_resort_where_the_engine_refuses_another() -> None:
    w = World(spares=1).bring_up()
    tell(w, "n3")
    lose(w, 0)
    w.grant(4, "refused", reason="no such partition")
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_what_all_nodes_say_that_run_something_is_of_what_they_share() -> None:
    """A spare does not use the run's folder."""
    w = World(spares=1).bring_up()
    for group in range(2):
        tell(w, w.group(group).first_node, "file_system_stalled")
    w.crash(0)
    w.round()
    assert w.incident.rung == Rung.RESTART
    w.start_again(0)
    assert w.group(0).first_node == "n1", "as ever: no spare is spent on it"


@pytest.mark.parametrize("kind", ["disk_full", "ranks_unseen"])
def test_what_is_of_a_nodes_own_folder_bars_it_though_all_that_run_something_say_so(kind: str) -> None:
    w = World(spares=1).bring_up()
    for group in range(2):
        tell(w, w.group(group).first_node, kind)
    w.crash(0)
    w.round()
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_what_all_nodes_say_is_of_what_they_share_and_bars_none() -> None:
    w = World(spares=1).bring_up()
    for node in ("n1", "n2", "n3"):
        tell(w, node, "file_system_stalled")
    assert w.round(100.0).actions == ()
    lose(w, 0)
    assert w.incident.rung == Rung.REPLACE
    w.start_again(0)
    assert w.group(0).first_node == "n3"


def test_a_run_starts_beside_a_node_whose_disk_is_full() -> None:
    w = World(groups=2, spares=1)
    w.host()
    w.round()
    for number in (1, 2, 3):
        w.bring(number)
    tell(w, "n1")
    w.open_gate()
    w.round()
    assert {g: m.first_node for g, m in w.memory.groups.items()} == {0: "n2", 1: "n3"}


def test_a_run_is_not_halted_because_too_few_disks_can_be_used() -> None:
    w = World(groups=2, spares=0, min_groups=2, budget={"reallocate": 0})
    w.host()
    w.round()
    for number in (1, 2):
        w.bring(number)
    tell(w, "n1")
    w.open_gate()
    w.round()
    assert w.memory.phase == "running"
    assert {g: m.first_node for g, m in w.memory.groups.items()} == {0: "n2", 1: "n1"}


# --- a group that fails there ---


def test_one_that_fails_there_is_started_on_the_spare_at_the_budget_of_a_restart() -> None:
    w = World(spares=1).bring_up()
    node = w.group(1).first_node
    tell(w, node)
    assert w.round(100.0).actions == (), "nothing is done for a fact alone"
    w.fail(1)
    assert "move" in w.verbs()
    assert (w.incident.kind, w.incident.rung) == (Kind.ERROR, Rung.RESTART)
    assert w.incident.evidence == (Reason.of(Code.EXITED, rank=0, exit_code=1, error=""), ON_ITS_NODE)
    why = Reason.of(Code.DISK_UNUSABLE, node=node, why=FULL)
    assert Reason.of(Code.MOVED, why=why) in w.incident.considered
    w.recover(1)
    assert w.group(1).first_node == "n3"
    assert w.memory.cordons == {}, "its disk is full: nobody's suspicion"
    assert {scope: len(at) for scope, at in w.memory.spent.items()} == {"restart:1": 1}
    tell(w, node, "")
    lose(w, 0)
    w.start_again(0)
    assert w.group(0).first_node == node, "a spare again, once its disk has room"


def test_without_a_spare_it_is_started_where_it_was() -> None:
    w = World(spares=0).bring_up()
    node = w.group(1).first_node
    tell(w, node)
    w.fail(1)
    w.round()
    w.start_again(1)
    assert w.group(1).first_node == node


def test_two_that_fail_do_not_both_leave_for_one_spare() -> None:
    w = World(groups=3, spares=1).bring_up()
    for group in (1, 2):
        tell(w, w.group(group).first_node)
        w.fail(group)
    w.round()
    w.start_again(1)
    w.start_again(2)
    assert {w.group(1).first_node, w.group(2).first_node} == {"n4", "n3"}


def test_the_word_of_the_end_itself_comes_before_the_fact() -> None:
    w = World(spares=1).bring_up()
    w.fail(1, disk=FULL)
    assert "move" in w.verbs()
    assert w.incident.evidence == (Reason.of(Code.EXITED, rank=0, exit_code=1, error=""), ON_ITS_NODE)


def test_both_words_are_said_once() -> None:
    w = World(spares=1).bring_up()
    tell(w, w.group(1).first_node)
    w.fail(1, disk=FULL)
    w.round()
    assert w.incident.evidence.count(ON_ITS_NODE) == 1


# --- a group that runs there ---


def test_that_a_group_runs_where_nothing_can_be_written_is_said() -> None:
    w = World(spares=1).bring_up()
    node = w.group(1).first_node
    tell(w, node, "disk_read_only")
    assert w.round(1.0).actions == ()
    assert w.waiting(Code.NODE_SAYS) == [{"group": 1, "node": node, "fact": FULL}]
    tell(w, node, "")
    w.round(1.0)
    assert w.waiting(Code.NODE_SAYS) == []


def test_what_many_say_is_not_said_for_each() -> None:
    w = World(groups=12).bring_up()
    for group in range(12):
        tell(w, w.group(group).first_node, "file_system_stalled")
    w.round()
    assert [says["group"] for says in w.waiting(Code.NODE_SAYS)] == list(range(disk_faults.NAMED))
    assert w.waiting(Code.AND_MORE_GROUPS) == [{"more": 12 - disk_faults.NAMED}]


# --- groups that could stay ---


def test_a_straggler_is_not_moved_there() -> None:
    w = World(
        groups=3,
        spares=1,
        first_rung=FirstRungSpec(straggler="replace"),
        budget={"reallocate": 0},
        straggler_for_s=300.0,
    ).bring_up()
    tell(w, "n4")
    for step, after in ((50, 1.0), (200, 301.0)):
        for g, s in enumerate((0.4, 0.9, 0.4)):
            w.commit(g, step=step, compute_s=s)
        w.round(after)
    assert w.waiting(Code.NOT_TOUCHED) == [{"group": 1, "why": (Reason.of(Code.NO_SPARE), spent("reallocate", 0))}]
    assert (w.group(1).first_node, w.group(1).phase) == ("n2", "running")


def test_one_that_is_killed_for_memory_again_is_not_moved_there() -> None:
    w = World(groups=2, spares=1, budget={"reallocate": 0}).bring_up()
    tell(w, "n3")
    for n in range(2):
        w.report(0, state="exited", signal=9, oom=True, step=60, commits=1)
        w.round(1.0)
        if n == 0:
            w.recover(0, step=55)
    assert w.incident.rung == Rung.RESTART


def test_one_that_ends_again_and_again_stays_until_the_ladder_is_past_it() -> None:
    w = World(groups=2, spares=1, budget={"reallocate": 0}).bring_up()
    tell(w, "n3")
    rungs = []
    while w.memory.phase == "running" and len(rungs) < 9:
        w.fail(1, error="ImportError: x", step=0, commits=0)
        w.round(61.0)
        rungs.append(w.incident.rung)
        if w.incident.rung == Rung.REPLACE:
            w.grant(4, "refused", "no node")
        w.start_again(1)
        if w.group(1).first_node == "n3":
            break
    restarts = budgets.allowed(w.spec.policy.budget, Rung.RESTART)
    assert rungs[: restarts + 1] == [Rung.RESTART] * restarts + [Rung.REPLACE]
    assert w.group(1).first_node == "n3"


def test_a_node_that_is_taken_away_is_left_for_one_when_the_engine_has_refused_another() -> None:
    w = World(groups=2, spares=1).bring_up()
    tell(w, "n3")
    w.node(1, leaving="time limit in 120 s")
    for _ in range(4):
        w.round(1.0)
    assert w.group(0).phase == "running"
    for key in [a.key for a in w.memory.allocations.values() if a.key not in w.grants]:
        w.grant(int(key.removeprefix("run-a")), "refused", "no node")
    w.round(1.0)
    w.start_again(0)
    assert w.group(0).first_node == "n3"
