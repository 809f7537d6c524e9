"""Seeds of 50 nodes, and the bugs that they would have found: 5 seeds and the quick bugs in `make test`, all at night."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fault_injection.sim import checks as live
from fault_injection.sim import judge
from fault_injection.sim import run as play
from fault_injection.sim.__main__ import failure
from fault_injection.sim.bounds import RECOVERY_BOUND_S
from fault_injection.sim.faults import TRAINED_S, Fault, inject
from fault_injection.sim.run import run
from fault_injection.sim.shrink import family
from fault_injection.sim.world import World, spec
from tests.system.sim.planted import FEW, NOT_TOLD_BY_FILES, PLANS, PLANTED, SEVERAL, TOLD_BY_FILES

SEEDS, BY_DAY, NODES, AT_ONCE = 200, 5, 50, 5
FAMILY = re.compile(r'f?"([a-z]+): ')
"""The start of a sentence about a violation."""


QUICK = {
    "a_mistake_is_raised",
    "a_part_of_the_seats_is_enough",
    "a_spares_host_is_cordoned",
    "agents_end_who_has_no_gate",
    "agents_offer_the_same_store",
    "decisions_not_counted",
    "fence_names_the_generation_that_it_shuts_out",
    "next_lighthouse_is_held_back",
    "no_checkpoint_is_noted",
    "no_proof_of_emptiness",
    "no_reason_kept",
    "no_spare_is_counted_on",
    "nobody_writes_checkpoints",
    "spares_stay_spares",
}
"""Bugs that the first seeds show, in a second of computing at most. The others are for the nightly lane."""


def in_its_lane(planted: tuple[tuple[Callable[..., None], str, int], ...]) -> list[Any]:
    """Returns the parameters, those of slow ones marked."""
    return [pytest.param(*one, marks=[] if one[0].__name__ in QUICK else [pytest.mark.long]) for one in planted]


def firsts() -> list[Any]:
    """Returns the first seed of each test, those for the night marked."""
    return [
        pytest.param(first, marks=[] if first < BY_DAY else [pytest.mark.long]) for first in range(0, SEEDS, AT_ONCE)
    ]


@cache
def without(seed: int, nodes: int) -> tuple[str, ...]:
    """Violations of a run in which nothing is planted."""
    return run(seed, nodes).broken


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", firsts())
def test_nothing_goes_wrong_and_everybody_trains_again(first: int) -> None:
    bad = [result for seed in range(first, first + AT_ONCE) if (result := run(seed, NODES)).broken]
    assert not bad, "\n".join(failure(result) for result in bad)


def test_a_kill_that_waits_until_its_victim_trains_again_counts_from_then_on() -> None:
    """Three kills of one group, of which two wait for it: found by seed 489."""
    assert run(489, NODES).broken == ()


@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_loss_all_start_again_together_and_nothing_is_held_against_a_host(seed: int) -> None:
    world = World(spec(12), seed)
    since = world.clock.now + TRAINED_S

    def saved_and_known() -> bool:
        known = world.checks.memory.checkpoint
        return world.clock.now > since and known is not None and known.step == world.training.saved

    world.clock.run_until(since + TRAINED_S, saved_and_known)
    saved = world.training.saved
    assert saved > 0
    assert inject(world, Fault(0.0, "power_loss", 0, 5.0))
    lost_at, before = world.clock.now, world.checks.memory
    world.clock.run_until(lost_at + 5.0, lambda: False)
    world.clock.run_until(lost_at + RECOVERY_BOUND_S, world.healthy)
    assert world.healthy()
    assert world.checks.broken == []
    after = world.checks.memory
    assert {g: m.generation for g, m in after.groups.items()} == {g: m.generation + 1 for g, m in before.groups.items()}
    assert {m.checkpoint.step if m.checkpoint else 0 for m in after.groups.values()} == {saved}
    assert (after.cordons, after.spent) == ({}, {})


@pytest.mark.long
def test_the_checkers_have_something_to_say() -> None:
    """If a plan's faults come one by one, the possible effects of each are known, also in a large run."""
    asked = [run(seed, NODES).asked for seed in range(2, 62, 3)]
    assert min(sum(a.bound for a in asked), sum(a.one for a in asked)) > sum(a.faults for a in asked) / 2
    assert sum(a.none for a in asked) > 0
    assert [run(seed, 500).asked for seed in (2, 8)] == [asked[0], asked[2]], "and it is asked of 500 nodes as of 50"


@pytest.mark.timeout(1200)  # it is all computing, and a machine may be ten times slower
@pytest.mark.parametrize(("plant", "checks", "nodes"), in_its_lane(PLANTED))
def test_a_planted_bug_is_found_within_200_seeds_by_its_own_checks(
    plant: Callable[[pytest.MonkeyPatch], None], checks: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((result for seed in range(SEEDS) if (result := run(seed, nodes)).broken), None)
    assert found is not None
    assert family(found) == checks, found.broken
    monkeypatch.undo()
    assert not any(without(seed, nodes) for seed in range(found.seed + 1)), "found without the bug too"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("plant", "checks"),
    [pytest.param(*one, marks=[] if one[0].__name__ in QUICK else [pytest.mark.long]) for one in SEVERAL],
)
def test_a_planted_bug_of_groups_on_several_nodes_is_found_within_200_seeds(
    plant: Callable[[pytest.MonkeyPatch], None], checks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    played = (run(seed, FEW, nodes_per_group=2) for seed in range(SEEDS))
    found = next((result for result in played if result.broken), None)
    assert found is not None
    assert family(found) == checks, found.broken
    monkeypatch.undo()
    assert not run(found.seed, FEW, nodes_per_group=2).broken, "found without the bug too"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("nodes", "size"), [(44, 2), (220, 4)])
@pytest.mark.parametrize("first", range(0, 40, AT_ONCE))
def test_nothing_goes_wrong_with_groups_on_several_nodes(first: int, nodes: int, size: int) -> None:
    seeds = range(first, first + AT_ONCE)
    bad = [result for seed in seeds if (result := run(seed, nodes, nodes_per_group=size)).broken]
    assert not bad, "\n".join(failure(result) for result in bad)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("plant", "checker", "nodes"), in_its_lane(TOLD_BY_FILES))
def test_the_checker_of_files_tells_of_a_planted_bug_alone(
    plant: Callable[[pytest.MonkeyPatch], None], checker: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = live.Checks.broke

    def only_the_checker(self: live.Checks, sentence: str) -> None:
        if sentence.startswith(f"{checker}: fail: "):
            right(self, sentence)

    monkeypatch.setattr(live.Checks, "broke", only_the_checker)
    plant(monkeypatch)
    plan = PLANS.get(plant, lambda seed: None)
    assert any(run(seed, nodes, plan(seed)).broken for seed in range(SEEDS))


def test_each_checker_of_files_has_a_planted_bug() -> None:
    asked = {**judge.ALWAYS, **judge.WHEN_WELL, **judge.WHERE_CLEAR}
    assert {checker for _, checker, _ in TOLD_BY_FILES} == asked.keys() - set(NOT_TOLD_BY_FILES)


def test_each_family_of_checks_has_a_planted_bug() -> None:
    """The model's families alone; the history checkers, which look last, have their own planted violations."""
    told = {name for module in (live, play) for name in FAMILY.findall(Path(module.__file__).read_text())}
    assert len(told) > 9
    assert told <= {name for _, name, _ in PLANTED} | {name for _, name in SEVERAL}
