"""Spares that have become useless are replaced by a new request, and not in a loop."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import held_against
from tests.unit.core.world import World

PREEMPTED = Reason.of(Code.ENGINE_TOOK_IT, word="preempted")


def _spare(w: World) -> str:
    """The key of the allocation that holds no group."""
    used = {w.nodes[g.first_node].allocation for g in w.memory.groups.values()}
    (key,) = {a.key for a in w.memory.allocations.values() if a.state == "wanted"} - used
    return key


def test_a_spare_that_the_engine_took_is_asked_for_again_once_it_had_time_to_come() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    w.grants[key] = replace(w.grants[key], state="gone", reason="preempted")
    due = w.memory.allocations[key].since + w.spec.policy.allocation_timeout_s
    assert w.verbs() == []
    assert w.round().look_again_at is not None
    w.now = due + 0.01
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["release", "acquire"]
    assert decision.actions[1].reason == Reason.of(Code.IN_PLACE_OF, allocation="run-a3", why=PREEMPTED)
    assert len(w.memory.spent["reallocate"]) == 1
    assert w.verbs() == [], "once"


def test_a_spare_on_a_host_that_was_cordoned_meanwhile_is_given_up() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    (node,) = w.grants[key].nodes
    w.cordon(node)
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["release", "acquire"]
    newest = w.memory.allocations[decision.actions[1].key.removeprefix("acquire:")]
    assert newest.exclude == (node,)
    assert w.verbs() == [], "once"


def test_nothing_is_renewed_while_the_run_is_paused() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    (node,) = w.grants[key].nodes
    w.cordon(node)
    w.control = replace(w.control, paused=True)
    assert w.verbs() == []


def test_a_spare_that_is_taken_again_and_again_leaves_the_last_of_the_budget_to_the_groups() -> None:
    w = World(groups=2, spares=1, budget={"reallocate": 3}).bring_up()
    for _ in range(4):
        key = _spare(w)
        w.grants[key] = Grant(key=key, state="gone", reason="preempted")
        w.round(w.spec.policy.allocation_timeout_s + 0.01)
        w.round()
    assert len(w.memory.allocations) == 3 + 2
    assert len(w.memory.spent["reallocate"]) == 2
    assert w.waiting(Code.SPARE_UNPAID) == [{"allocation": "run-a5", "why": PREEMPTED}]
    assert w.last.look_again_at is not None
    w.now = w.last.look_again_at
    assert w.verbs() == ["release", "acquire"], "the oldest draw is forgotten by then"


def test_what_is_gone_is_released_and_not_renewed_beside_what_came_in_its_place() -> None:
    """The group asked for another at once. When the spare's time is over, the run has as many nodes as it should."""
    w = World(groups=2, spares=0).bring_up()
    w.grant(1, "gone", reason="preempted")
    w.node(1, registered=False)
    w.round()
    w.admit(0)
    w.grant(3, "gone", reason="CANCELLED while pending")
    w.round()
    assert [(a.key, a.state) for a in w.memory.allocations.values()][2:] == [
        ("run-a3", "released"), ("run-a4", "wanted"),
    ]  # fmt: skip
    w.bring(4)
    w.recover(0)
    w.round(w.spec.policy.allocation_timeout_s + 1.0)
    assert len(w.memory.allocations) == 4


def test_a_cordoned_host_that_the_engine_gives_although_it_was_told_not_to_is_paid_for() -> None:
    """Else an engine that gives nothing but that host would be asked for it for ever."""
    w = World(groups=2, spares=1, budget={"reallocate": 3}).bring_up()
    w.cordon("n3")
    for _ in range(6):
        key = _spare(w)
        w.grants[key] = replace(w.grants["run-a3"], key=key, state="granted")
        w.nodes["n3"] = replace(w.nodes["n3"], allocation=key)
        w.round()
    assert len(w.memory.allocations) == 3 + 1 + 2, "one free, two paid"
    cordoned = Reason.of(Code.HOST_CORDONED, host="n3", why=held_against("i1", Kind.NODE_LOST))
    assert w.waiting(Code.SPARE_UNPAID) == [{"allocation": "run-a6", "why": cordoned}]


# --- granted, and its node does not come ---


def test_a_node_that_does_not_register_in_time_is_given_back_and_its_host_not_asked_for() -> None:
    w = World(groups=2, spares=0).bring_up()
    w.grant(1, "gone", reason="preempted")
    w.node(1, registered=False)
    w.round()
    w.admit(0)
    w.round()
    w.grant(3)
    w.round(500.0)
    assert w.waiting(Code.UNHEARD_OF) == [{"group": 0, "allocation": "run-a3", "word": ""}]
    assert w.verbs(w.spec.policy.allocation_timeout_s - 1.0) == [], "its time counts from the grant"
    decision = w.round(1.1)
    assert [(a.verb, a.key) for a in decision.actions] == [
        ("release", "release:run-a3"), ("acquire", "acquire:run-a4"),
    ]  # fmt: skip
    assert decision.actions[0].reason == Reason.of(Code.UNREGISTERED, timeout_s=600.0)
    assert w.memory.allocations["run-a4"].exclude == ("n3",)
    assert w.memory.cordons == {}
    assert len(w.memory.spent["reallocate"]) == 2
    w.bring(4)
    w.recover(0)


def test_a_node_that_registers_late_but_in_time_is_kept() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    (node,) = w.grants[key].nodes
    w.lapse(node)
    w.round(500.0)
    w.nodes[node] = replace(w.nodes[node], registered=True)
    w.round()
    assert w.memory.allocations[key].unheard_since is None
    w.nodes[node] = replace(w.nodes[node], registered=False)
    assert w.verbs(200.0) == [], "its time begins anew"


def test_nodes_that_never_register_end_in_a_halt_when_nobody_trains() -> None:
    w = World(groups=1, spares=0, budget={"reallocate": 3}).bring_up()
    w.grant(1, "gone", reason="preempted")
    w.node(1, registered=False)
    w.round()
    w.admit(0)
    for _ in range(50):
        for key, allocation in w.memory.allocations.items():
            if allocation.state == "wanted" and key not in w.grants:
                w.grant(int(key.removeprefix("run-a")))
        w.round(100.0)
    assert w.memory.phase == "halted"
    assert w.memory.halt_reason == Reason.of(Code.NO_NODE, group=0, why=Reason.of(Code.ALLOCATIONS_SPENT))
    assert len(w.memory.allocations) == 1 + 3


def test_one_too_many_is_given_back_and_none_asked_for_in_its_place() -> None:
    w = World(groups=2, spares=1).bring_up()
    w.spec = replace(w.spec, allocation=replace(w.spec.allocation, spares=0))
    key = _spare(w)
    w.grants[key] = replace(w.grants[key], state="gone", reason="preempted")
    assert w.verbs(w.spec.policy.allocation_timeout_s + 1.0) == ["release"]
