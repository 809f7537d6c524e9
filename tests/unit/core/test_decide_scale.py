"""`decide` on many groups at once: one decision always fits into one transaction of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.core.model.memory import Memory
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.control.projection import memory_records
from tests.unit.core.world import World

GROUPS = 120
"""More groups than one transaction has operations."""


def size(w: World, before: Memory) -> int:
    """The number of memory records that the last decision writes, as the loop counts them."""
    old = memory_records(w.spec, before, tuple(before.incidents.values()))
    new = memory_records(w.spec, w.memory, w.last.incidents)
    return sum(old.get(key) != value for key, value in new.items())


def all_finish(w: World) -> None:
    for group in range(GROUPS):
        w.fail(group, code=0)


def all_crash(w: World) -> None:
    for group in range(GROUPS):
        w.crash(group, signal=7)


def all_crash_while_paused(w: World) -> None:
    all_crash(w)
    w.control = replace(w.control, paused=True)


def all_silent(w: World) -> None:
    for group in range(GROUPS):
        w.hear(group, "silent")


def all_lost(w: World) -> None:
    for group in range(GROUPS):
        w.lapse(f"n{group + 1}")
        w.hear(group, "gone")


def all_allocations_lost(w: World) -> None:
    for group in range(GROUPS):
        w.grant(group + 1, "gone")


def same_error(w: World) -> None:
    for group in range(GROUPS):
        w.fail(group, 1, "ValueError: bad data", step=4)


def crash_while_draining(w: World) -> None:
    w.control = replace(w.control, stop=True)
    w.round()
    all_crash(w)


def all_recovered_long_ago(w: World) -> None:
    w.memory = replace(w.memory, groups={g: replace(m, attempts=1) for g, m in w.memory.groups.items()})
    w.now += 1000.0


def all_leaving(w: World) -> None:
    for group in range(GROUPS):
        w.node(group + 1, leaving="its time limit is near")


def all_handed_over(w: World) -> None:
    all_leaving(w)
    for _ in range(12):
        w.round()
    w.now += w.spec.allocation.slurm.warn_s
    w.round()
    assert w.memory.handover_at_step is not None
    for group in range(GROUPS):
        w.fail(group, code=0)


HAPPENS: list[Callable[[World], None]] = [
    all_finish,
    all_crash,
    all_crash_while_paused,
    all_silent,
    all_lost,
    all_allocations_lost,
    same_error,
    crash_while_draining,
    all_recovered_long_ago,
    all_leaving,
    all_handed_over,
]


BY_NIGHT = (all_crash, all_crash_while_paused, all_leaving, all_handed_over)


@pytest.mark.parametrize(
    "happens",
    [pytest.param(each, marks=[pytest.mark.long] if each in BY_NIGHT else []) for each in HAPPENS],
    ids=lambda happens: happens.__name__,
)
def test_a_decision_fits_into_a_transaction(happens: Callable[[World], None]) -> None:
    w = World(groups=GROUPS, spares=0, budget={"restart": 9, "replace": 999, "reallocate": 999}).bring_up()
    happens(w)
    for _ in range(12):
        before = w.memory
        w.round()
        assert size(w, before) <= MAX_OPERATIONS


def test_a_start_fits_into_transactions() -> None:
    w = World(groups=GROUPS, spares=0)
    w.host()
    sizes = []

    def step() -> None:
        before = w.memory
        w.round()
        sizes.append(size(w, before))

    while len(w.memory.allocations) < GROUPS:
        step()
    for number in range(1, GROUPS + 1):
        w.bring(number)
    w.open_gate()
    while any(g.phase == "unplaced" for g in w.memory.groups.values()):
        step()
    for group in range(GROUPS):
        w.commit(group)
    for _ in range(12):
        step()
    assert {g.phase for g in w.memory.groups.values()} == {"running"}
    assert max(sizes) <= MAX_OPERATIONS
