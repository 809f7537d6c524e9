"""200 seeds of 50 nodes, and the bugs that these would have found."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fault_injection.sim import checks as live
from fault_injection.sim import run as play
from fault_injection.sim.__main__ import failure
from fault_injection.sim.run import run
from fault_injection.sim.shrink import family
from tests.sim.planted import PLANTED

SEEDS, NODES, AT_ONCE = 200, 50, 10
FAMILY = re.compile(r'f?"([a-z]+): ')
"""As a sentence begins that tells of a violation."""


@cache
def without(seed: int, nodes: int) -> tuple[str, ...]:
    """What is broken where nothing is planted."""
    return run(seed, nodes).broken


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_goes_wrong_and_everybody_trains_again(first: int) -> None:
    bad = [result for seed in range(first, first + AT_ONCE) if (result := run(seed, NODES)).broken]
    assert not bad, "\n".join(failure(result) for result in bad)


@pytest.mark.timeout(1200)  # it is all computing, and a machine may be ten times slower
@pytest.mark.parametrize(("plant", "checks", "nodes"), PLANTED)
def test_a_planted_bug_is_found_within_200_seeds_by_its_own_checks(
    plant: Callable[[pytest.MonkeyPatch], None], checks: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((result for seed in range(SEEDS) if (result := run(seed, nodes)).broken), None)
    assert found is not None
    assert family(found) == checks, found.broken
    monkeypatch.undo()
    assert not any(without(seed, nodes) for seed in range(found.seed + 1)), "found without the bug too"


def test_each_family_of_checks_has_a_planted_bug() -> None:
    """Those of the model; the history checkers, which look last, have their own planted violations."""
    told = {name for module in (live, play) for name in FAMILY.findall(Path(module.__file__).read_text())}
    assert len(told) > 9
    assert told <= {name for _, name, _ in PLANTED}
