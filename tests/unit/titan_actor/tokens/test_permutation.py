"""The keyed permutation: every number of indices, each once, in an order that stays as it is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titan_actor.tokens.permutation import permute

KEYS = st.integers(0, 2**64 - 1)


@given(count=st.integers(1, 700), key=KEYS)
def test_each_index_has_a_place_of_its_own(count: int, key: int) -> None:
    assert sorted(permute(index, count, key) for index in range(count)) == list(range(count))


def test_every_small_count_and_those_around_powers_of_two() -> None:
    for count in [*range(1, 130), 4095, 4096, 4097]:
        assert len({permute(index, count, 7) for index in range(count)}) == count


@given(count=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_a_large_count_needs_no_memory(count: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=20))
    places = [permute(index, count, key) for index in indices]
    assert len(set(places)) == len(indices)
    assert all(0 <= place < count for place in places)


def test_the_order_is_that_of_runs_that_exist() -> None:
    assert [permute(index, 10, 1) for index in range(10)] == [7, 6, 2, 5, 3, 9, 0, 1, 8, 4]
    assert [permute(index, 10**12, 3) for index in range(3)] == [444835950985, 107339478048, 71950030339]


def test_an_index_goes_anywhere() -> None:
    """Chi-squared of first places over keys, and of the distance between neighbours: 63 degrees of freedom each."""
    places = Counter(permute(0, 64, key) for key in range(6400))
    steps = Counter(
        (permute(index + 1, 10**6, 5) - permute(index, 10**6, 5)) % 10**6 * 64 // 10**6 for index in range(6400)
    )
    for found in (places, steps):
        assert sum((found[cell] - 100) ** 2 / 100 for cell in range(64)) < 63 + 5 * (2 * 63) ** 0.5


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside(index: int) -> None:
    with pytest.raises(ValueError, match="is not among 5"):
        permute(index, 5, 0)
