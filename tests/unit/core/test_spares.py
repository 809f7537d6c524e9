"""Spares that are of no use any more are asked for again, and not in a loop."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.core.world import World


def _spare(w: World) -> str:
    """Key of the allocation that holds no group."""
    used = {w.nodes[g.node].allocation for g in w.memory.groups.values()}
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
    assert "preempted" in decision.actions[1].reason
    assert w.memory.spent == {}, "it costs no budget"
    assert w.verbs() == [], "once"


def test_a_spare_on_a_host_that_was_cordoned_meanwhile_is_given_up() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    (node,) = w.grants[key].nodes
    w.memory = replace(w.memory, cordons={node: "incident i1: node_lost"})
    decision = w.round()
    assert [a.verb for a in decision.actions] == ["release", "acquire"]
    newest = w.memory.allocations[decision.actions[1].key.removeprefix("acquire:")]
    assert newest.exclude == (node,)
    assert w.verbs() == [], "once"


def test_nothing_is_renewed_while_the_run_is_paused() -> None:
    w = World(groups=2, spares=1).bring_up()
    key = _spare(w)
    (node,) = w.grants[key].nodes
    w.memory = replace(w.memory, cordons={node: "incident i1: node_lost"})
    w.control = replace(w.control, paused=True)
    assert w.verbs() == []
