"""A run leaves a halt by a person's word: everything starts again, above all earlier generations."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import Lighthouse
from supervisor.core.model.observed import ControlView, GateView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.remediation.resume import fresh_start
from tests.unit.core.world import World


def halted(groups: int = 2) -> World:
    """A world that was halted (rung 4) by the same error at the same step in every group."""
    w = World(groups=groups, budget={"restart": 9}).bring_up()
    w.save(0, step=50)
    w.round()
    for g in range(groups):
        w.fail(g, error="ValueError: same")
    for _ in range(6):
        w.round(1.0)
    for g in range(groups):
        if w.group(g).phase != "finished":
            w.fail(g, code=0)
    for _ in range(4):
        w.round(1.0)
    assert w.memory.phase == "halted", (w.memory.phase, w.last.waits)
    return w


def test_a_halted_run_stays_halted_until_a_person_says_why_it_may_go_on() -> None:
    w = halted()
    assert w.incident.kind == Kind.SAME_ERROR
    assert w.verbs(after=1e6) == []
    w.control = ControlView(resumes=1, because="the data set is mended")
    decision = w.round()
    resumes = Reason.of(Code.PERSON_RESUMES, because="the data set is mended")
    assert [(a.verb, a.reason) for a in decision.actions] == [("resume", resumes)]


def test_it_starts_again_from_its_checkpoint_above_all_generations_with_full_budgets() -> None:
    w = halted()
    before = {g: group.generation for g, group in w.memory.groups.items()}
    allocations = set(w.memory.allocations)
    w.cordon("n1")
    w.control = ControlView(resumes=1, because="mended")
    w.round()
    assert (w.memory.phase, w.memory.halt_reason, w.memory.spent) == ("new", None, {})
    assert w.memory.cordons == {}, "else a run on a fixed set of nodes could not go on"
    assert "lighthouse" in [a.verb for a in w.round().actions]
    assert w.memory.lighthouse.generation == 2
    fresh = [key for key, a in w.memory.allocations.items() if a.state == "wanted"]
    assert len(fresh) == 3
    assert not set(fresh) & allocations
    for key in fresh:
        number = int(key.removeprefix("run-a"))
        w.bring(number)
    assert w.gate is not None
    w.gate = replace(w.gate, generation=2, address="host:2")
    w.round()
    w.round()
    assert {g: group.generation for g, group in w.memory.groups.items()} == {g: n + 1 for g, n in before.items()}
    assert [group.phase for group in w.memory.groups.values()] == ["starting", "starting"]
    assert w.memory.groups[0].checkpoint is not None
    assert w.memory.groups[0].checkpoint.step == 50
    assert w.verbs() == [], "one word resumes it once"


def test_a_run_of_many_groups_is_resumed_in_several_rounds() -> None:
    w = halted(groups=2)
    many = {g: replace(w.memory.groups[0], group=g) for g in range(100)}
    w.memory = replace(w.memory, groups=many)
    w.control = ControlView(resumes=1, because="mended")
    phases = []
    for _ in range(3):
        before = dict(w.memory.groups)
        w.round()
        phases.append(w.memory.phase)
        changed = [g for g in before if w.memory.groups[g] != before[g]]
        assert len(changed) <= 40
    assert phases == ["resuming", "resuming", "new"]


def test_a_restored_memory_starts_everything_anew() -> None:
    w = World().bring_up()
    fresh = fresh_start(w.memory, w.now, raise_by=1000)
    assert {g.generation for g in fresh.groups.values()} == {1001}
    assert {g.phase for g in fresh.groups.values()} == {"unplaced"}
    assert {a.state for a in fresh.allocations.values()} == {"released"}
    assert fresh.lighthouse == Lighthouse(generation=1)
    assert fresh.phase == "new"


def test_a_run_that_is_resumed_long_after_it_began_waits_for_its_nodes() -> None:
    """Its first allocations are older than an allocation may take to come, but it does not wait for them now."""
    w = World(groups=2, spares=0).bring_up()
    w.now += 10 * w.spec.policy.allocation_timeout_s
    for group in (0, 1):
        w.fail(group, code=1, error="the data set is broken")
    while w.memory.phase != "halted":
        w.round(1.0)
    w.round(1200.0)
    w.control = replace(w.control, resumes=1, because="mended")
    w.gate = None
    while not w.waiting(Code.NODES_THERE):
        w.round(1.0)
        generation = w.memory.lighthouse.generation
        w.gate = GateView(node="host", generation=generation, address="host:2", admitted={}, hearing={})
    w.round(8.0)
    assert w.memory.phase == "running"
    for key, allocation in w.memory.allocations.items():
        if allocation.state == "wanted":
            w.bring(int(key[5:]))
    w.round(1.0)
    assert [g.phase for g in w.memory.groups.values()] == ["starting", "starting"]


def test_a_stopped_run_starts_again_from_its_checkpoint_once_a_person_lets_it() -> None:
    w = World().bring_up()
    w.save(0, step=50)
    w.round()
    w.control = ControlView(stop=True)
    w.round(1.0)
    for g in (0, 1):
        w.fail(g, code=0)
    for _ in range(4):
        w.round(1.0)
    assert w.memory.phase == "stopped"
    assert w.verbs(after=1e6) == [], "it stays stopped by itself"
    w.control = ControlView(resumes=1, because="`supervisor up` runs again")
    assert w.verbs() == ["resume"]
    assert w.memory.phase == "new"
    w.round(1.0)
    assert w.memory.phase == "running"
    assert w.memory.checkpoint is not None
    assert w.memory.checkpoint.step == 50
