"""An engine that takes every allocation: at no budget when the run made progress, else it ends in a halt."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import codes, spent, values
from tests.unit.core.world import HOST, World


def _take_all(w: World) -> None:
    """Takes every allocation that a group is on, at once."""
    for group in w.memory.groups.values():
        if group.first_node:
            key = w.nodes[group.first_node].allocation
            w.grants[key] = replace(w.grants[key], state="gone", reason="OUT_OF_MEMORY")
            w.nodes[group.first_node] = replace(w.nodes[group.first_node], registered=False)
    w.round()


def _start_again(w: World) -> None:
    """Grants the requested allocations, and starts every group on them."""
    for key, allocation in w.memory.allocations.items():
        if allocation.state == "wanted" and key not in w.grants:
            w.bring(int(key.removeprefix("run-a")))
    for g in w.memory.groups:
        w.admit(g)
    for _ in range(6):
        if all(g.phase == "starting" for g in w.memory.groups.values()):
            return
        w.round(max([1.0, *(g.not_before - w.now for g in w.memory.groups.values())]))
    raise AssertionError(w.last.waits)


def test_a_run_that_dies_at_once_again_and_again_ends_in_a_halt() -> None:
    w = World(groups=1, spares=0, budget={"reallocate": 3}).bring_up()
    for _ in range(3):
        _take_all(w)
        assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
        assert Code.GONE_AGAIN in codes(w.incident.reason)
        _start_again(w)
    assert len(w.memory.allocations) == 4
    _take_all(w)
    assert w.memory.phase == "halted"
    assert Code.GONE_AGAIN in codes(w.memory.halt_reason)
    assert values([w.memory.halt_reason], Code.BUDGET_SPENT) == [spent("reallocate", 3).about]
    assert len(w.memory.allocations) == 4


def test_one_loss_of_everything_draws_once_however_many_groups_it_takes() -> None:
    w = World(groups=40, spares=0, budget={"reallocate": 3}).bring_up()
    _take_all(w)
    for _ in range(5):
        w.round(0.1)
    assert len(w.memory.allocations) == 80
    assert len(w.memory.spent["reallocate"]) == 1
    _start_again(w)
    _take_all(w)
    assert len(w.memory.spent["reallocate"]) == 2


def test_a_run_that_was_healthy_starts_again_at_no_budget() -> None:
    w = World(groups=2, spares=0).bring_up()
    for _ in range(5):
        w.round(w.spec.policy.healthy_after_s)
        _take_all(w)
        assert w.memory.spent == {}
        _start_again(w)
        for g in w.memory.groups:
            w.commit(g)
        w.round()
        w.open_gate()
    assert w.memory.phase == "running"


def test_a_run_that_saved_a_step_starts_again_at_no_budget() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.save(0, step=50)
    w.round()
    _take_all(w)
    assert w.memory.spent == {}
    _start_again(w)
    _take_all(w)
    assert len(w.memory.spent["reallocate"]) == 1, "from that same checkpoint it got no further"


# --- the control plane goes with it ---


def _all_gone(ended: bool) -> World:
    w = World(groups=2, spares=0).bring_up()
    w.now += w.spec.policy.healthy_after_s
    w.mute()
    w.nodes[HOST] = replace(w.nodes[HOST], registered=False)
    for n in (1, 2):
        w.grant(n, "gone", reason="CANCELLED" if ended else "NODE_FAIL")
        w.grants[f"run-a{n}"] = replace(w.grants[f"run-a{n}"], ended=ended)
        w.nodes[f"n{n}"] = replace(w.nodes[f"n{n}"], registered=False)
    w.round(10.0)
    w.round()
    w.node(9, name="service-9", role="service", allocation="")
    w.nodes["service-9"] = w.nodes.pop("n9")
    for n in (3, 4):
        w.bring(n)
    return w


def test_the_engines_word_that_its_processes_have_ended_frees_the_seat() -> None:
    w = _all_gone(ended=True)
    for _ in range(10):
        w.round(2.0)
    assert (w.memory.lighthouse.node, w.memory.lighthouse.generation) == ("service-9", 2)


def test_a_failed_host_is_no_proof_but_a_persons_word_is() -> None:
    w = _all_gone(ended=False)
    for _ in range(100):
        w.round(60.0)
    assert w.memory.lighthouse.generation == 1
    assert w.waiting(Code.SEAT_MUTE) == [{}]
    w.control = replace(w.control, down=1)
    for _ in range(10):
        w.round(2.0)
    assert (w.memory.lighthouse.node, w.memory.lighthouse.generation) == ("service-9", 2)
    assert w.memory.downs_done == 1, "it is said of that lighthouse alone"


def test_a_persons_word_does_not_outweigh_a_node_that_lives_and_has_not_cut() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.mute()
    w.nodes[HOST] = replace(w.nodes[HOST], registered=False)
    w.report(0, reaches_gate=True, gate="host:1")
    w.control = replace(w.control, down=1)
    for _ in range(10):
        w.round(2.0)
    assert w.memory.lighthouse.generation == 1


def test_a_persons_word_of_a_lighthouse_that_serves_says_nothing_of_a_later_loss() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.control = replace(w.control, down=1)
    w.round()
    assert w.memory.downs_done == 1


# --- a node under another allocation ---


def test_a_node_that_another_job_has_by_now_is_left_and_not_started_on() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.grant(1, "gone", reason="CANCELLED")
    w.node(1, allocation="other-a7", ranks=())
    w.hear(0, "silent")
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    assert w.memory.allocations["run-a1"].state == "released"
    assert w.memory.cordons == {}
    w.admit(0)
    w.round()
    w.bring(3)
    w.recover(0)
    assert w.group(0).first_node == "n3"


def test_a_restart_in_place_waits_for_the_engines_word_when_another_job_has_the_node() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.crash(0)
    w.memory = replace(w.memory, groups={**w.memory.groups, 0: replace(w.group(0), phase="placing", generation=2)})
    w.node(1, allocation="run-a9", ranks=())
    assert w.verbs() == []
    under = Reason.of(Code.UNDER_ANOTHER, node="n1", allocation="run-a9", placed="run-a1")
    assert w.waiting(Code.NOT_STARTED_THERE) == [{"group": 0, "why": under}]
    w.round(5.0)
    assert w.incident.kind == Kind.ALLOCATION_LOST, "it cannot be ours any more"
    assert (w.group(0).first_node, w.memory.cordons) == ("", {})
    assert w.memory.allocations["run-a1"].state == "released"
