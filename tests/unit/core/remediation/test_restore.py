"""A restored memory uses no number twice, and resumes what had not ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import Lighthouse, Memory
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import GroupsSpec
from supervisor.core.remediation.restore import DECISIONS, GENERATIONS, closed, restored
from tests.unit.core.world import World
from tests.unit.shell.records import INCIDENT

AT = Checkpoint(7, "/runs/run/checkpoints/step-7.g0.gen4", 0, 4)


def _running(**changes: Any) -> tuple[World, Memory]:
    w = World().bring_up()
    return w, replace(w.memory, **changes)


WHY = Reason.of(Code.TEXT, text="a budget is spent")


def test_every_number_is_above_what_may_have_been_used_since() -> None:
    w, memory = _running(incidents_seen=3)
    after = restored(memory, w.spec.groups, AT, {0: 4, 1: 0})
    assert after.decisions == memory.decisions + DECISIONS
    assert after.incidents_seen == memory.incidents_seen + GENERATIONS
    assert after.lighthouse.generation == memory.lighthouse.generation + GENERATIONS
    assert after.groups[0].generation == 4 + GENERATIONS
    assert after.groups[1].generation == memory.groups[1].generation + GENERATIONS


def test_an_unfinished_run_starts_again_from_the_checkpoint_with_nothing_held() -> None:
    w, memory = _running()
    after = restored(memory, w.spec.groups, AT, {})
    assert (after.phase, after.checkpoint) == ("new", AT)
    assert {(g.phase, g.first_node, g.last_node, g.incident) for g in after.groups.values()} == {
        ("unplaced", "", "", "")
    }
    assert {a.state for a in after.allocations.values()} == {"released"}
    assert after.lighthouse == Lighthouse(generation=after.lighthouse.generation)
    assert after.incidents == {}


def test_it_is_placed_again_at_the_generations_that_the_restore_gave() -> None:
    w, memory = _running()
    w.memory = after = restored(memory, w.spec.groups, AT, {})
    held = len(memory.allocations)
    decision = w.round()
    wanted = [a for a in decision.memory.allocations.values() if a.state == "wanted"]
    assert len(wanted) == w.spec.allocation.nodes + w.spec.allocation.spares
    assert len(decision.memory.allocations) == held + len(wanted)
    assert decision.memory.groups == after.groups
    assert decision.memory.phase == "running"


def test_a_group_that_the_backup_does_not_know_yet_may_have_been_started_since() -> None:
    after = restored(Memory(), GroupsSpec(count=3), None, {2: 5})
    assert {g: m.generation for g, m in after.groups.items()} == {0: GENERATIONS, 1: GENERATIONS, 2: GENERATIONS + 5}


@pytest.mark.parametrize("phase", ["finished", "stopped", "halted"])
def test_a_run_that_had_ended_stays_ended_and_its_numbers_grow(phase: Any) -> None:
    w, memory = _running(phase=phase, halt_reason=WHY)
    after = restored(memory, w.spec.groups, AT, {})
    assert (after.phase, after.halt_reason) == (phase, WHY)
    assert after.allocations == memory.allocations
    assert all(after.groups[g].generation == m.generation + GENERATIONS for g, m in memory.groups.items())
    assert after.decisions > memory.decisions


@pytest.mark.parametrize(("reason", "end"), [(None, "stopped"), (WHY, "halted")])
def test_a_run_that_was_being_ended_is_ended(reason: Reason | None, end: str) -> None:
    w, memory = _running(phase="stopping", halt_reason=reason, stop_at_step=9)
    w.memory = restored(memory, w.spec.groups, AT, {})
    assert (w.memory.phase, w.memory.halt_reason) == ("stopping", reason)
    for _ in range(5):
        w.round()
    assert w.memory.phase == end


def test_an_open_incident_is_closed_and_says_why() -> None:
    after: Incident = closed(INCIDENT)
    assert after.state == "halted"
    assert after.considered[-1].code == Code.RESTORED
    assert after.considered[:-1] == INCIDENT.considered


def test_allocations_go_on_above_those_that_may_have_been_asked_for_since() -> None:
    """An engine may still know a job by a number that the backup does not."""
    w, memory = _running()
    w.memory = restored(memory, w.spec.groups, AT, {})
    before = set(w.memory.allocations)
    w.round()
    numbers = [int(key.removeprefix("run-a")) for key in w.memory.allocations.keys() - before]
    assert min(numbers) == len(memory.allocations) + GENERATIONS + 1
    assert len(numbers) == w.spec.allocation.nodes + w.spec.allocation.spares
    again = restored(w.memory, w.spec.groups, AT, {})
    assert again.allocations_above == 2 * GENERATIONS
