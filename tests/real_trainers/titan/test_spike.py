"""A loss far above the last ones is reported for a while, with this rank's own loss."""

from __future__ import annotations

import random

from titan_actor.spike import KEPT, LEARNED_AT_LEAST, Spikes


def trained(steps: int, seed: int = 1) -> Spikes:
    """Spikes after a loss that falls, with noise; a rank's own loss has more noise than the mean."""
    noise, spikes = random.Random(seed), Spikes()
    for step in range(1, steps + 1):
        falling = 2.0 + 6.0 * 0.97**step
        spikes.note(step, falling + noise.gauss(0.0, 0.02), falling + noise.gauss(0.0, 0.06))
    return spikes


def test_noise_is_none() -> None:
    for seed in range(20):
        found = trained(500, seed).newest
        assert found is None or max(found.spreads, found.own_spreads) < 10.0


def test_one_that_everybody_had() -> None:
    spikes = trained(300)
    spikes.note(301, 3.5, 3.6)
    found = spikes.newest
    assert found is not None
    assert (found.step, found.loss, found.own) == (301, 3.5, 3.6)
    assert found.spreads > 50.0
    assert found.own_spreads > 20.0
    assert abs(found.usual - 2.0) < 0.05
    assert abs(found.own_usual - 2.0) < 0.05


def test_it_is_told_for_as_long_as_it_is_compared_with() -> None:
    spikes = trained(300)
    spikes.note(301, 3.5, 3.6)
    spikes.note(302, 3.0, 3.0)
    for step in range(303, 301 + KEPT + 1):
        spikes.note(step, 2.0, 2.0)
        assert spikes.newest is not None
        assert spikes.newest.step == 301, "the largest"
    spikes.note(301 + KEPT + 1, 2.0, 2.0)
    assert spikes.newest is None


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    spikes = trained(300)
    for step in range(301, 500):
        spikes.note(step, 3.5, 3.5)
    assert spikes.newest is None


def test_one_of_this_rank_alone_is_told_too_and_a_common_one_goes_before_it() -> None:
    spikes = trained(300)
    spikes.note(301, 2.0, 9.0)
    assert spikes.newest is not None
    assert spikes.newest.step == 301
    assert spikes.newest.spreads < 5.0
    assert spikes.newest.own_spreads > 50.0
    spikes.note(302, 2.6, 2.1)
    assert spikes.newest.step == 302


def test_what_is_no_number_is_no_spike() -> None:
    spikes = trained(300)
    spikes.note(301, 2.0, float("nan"))
    spikes.note(302, 2.0, 2.0)
    assert spikes.newest is None
    spikes.note(303, 3.5, 3.5)
    assert spikes.newest is not None
    assert spikes.newest.step == 303


def test_too_little_is_known_at_first_and_equal_losses_have_some_spread() -> None:
    spikes = Spikes()
    for step in range(LEARNED_AT_LEAST):
        spikes.note(step, 2.0, 2.0)
    assert spikes.newest is None
    spikes.note(LEARNED_AT_LEAST, 2.01, 2.01)
    assert spikes.newest is None, "a half percent"
    spikes.note(LEARNED_AT_LEAST + 1, 3.0, 3.0)
    assert spikes.newest is not None
    early = Spikes()
    for step in range(LEARNED_AT_LEAST - 1):
        early.note(step, 2.0, 2.0)
    early.note(LEARNED_AT_LEAST, 9.0, 9.0)
    assert early.newest is None
