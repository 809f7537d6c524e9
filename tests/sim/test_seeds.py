"""200 seeds of 50 nodes, and the bugs that these would have found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fault_injection.sim.__main__ import failure
from fault_injection.sim.run import run
from tests.sim.planted import PLANTED

SEEDS, NODES, AT_ONCE = 200, 50, 10


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_goes_wrong_and_everybody_trains_again(first: int) -> None:
    bad = [result for seed in range(first, first + AT_ONCE) if (result := run(seed, NODES)).broken]
    assert not bad, "\n".join(failure(result) for result in bad)


@pytest.mark.timeout(1200)  # it is all computing, and a machine may be ten times slower
@pytest.mark.parametrize(("plant", "begins"), PLANTED)
def test_a_planted_bug_is_found_within_200_seeds(
    plant: Callable[[pytest.MonkeyPatch], None], begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((result for seed in range(SEEDS) if (result := run(seed, 8)).broken), None)
    assert found is not None
    assert any(begins in sentence for sentence in found.broken), found.broken
