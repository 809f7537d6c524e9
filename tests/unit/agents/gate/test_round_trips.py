"""The gate's answer times, counted in classes."""

from __future__ import annotations

import pytest

from agents.gate.round_trips import KEPT, Trip


@pytest.mark.parametrize(("seconds", "ms"), [(0.0009, 1.0), (0.0011, 2.0), (0.004, 4.0), (0.05, 64.0), (0.0, 2.0**-9)])
def test_it_is_rounded_up_to_a_power_of_two(seconds: float, ms: float) -> None:
    trip = Trip()
    assert trip.ms == 0.0
    assert trip.note(seconds)
    assert trip.ms == ms


def test_jitter_is_no_news_and_a_link_that_has_become_slow_is() -> None:
    trip = Trip()
    assert [trip.note(seconds) for seconds in (0.0011, 0.0019, 0.0015, 0.9, 0.0012)] == [
        True,
        False,
        False,
        False,
        False,
    ]
    changes = [trip.note(0.05) for _ in range(KEPT)]
    assert sum(changes) == 1
    assert trip.ms == 64.0
