"""Groups that compute longer than the others are named, and left alone."""

from __future__ import annotations

from tests.unit.core.world import World


def world(*computes: float, ranks: int = 1) -> World:
    w = World(groups=len(computes), ranks=ranks).bring_up()
    for group, seconds in enumerate(computes):
        w.commit(group, step=50, compute_s=seconds)
    w.round(1.0)
    return w


def test_the_slow_one_is_named_with_its_rank_and_node() -> None:
    w = world(0.4, 0.9, 0.4, 0.42)
    assert w.waits() == "group 1 is slow: rank 0 on node n2 computes about 2 times as long as the others"
    w.commit(1, step=51, compute_s=0.87)
    before = w.waits()
    w.round(1.0)
    assert w.waits() == before, "said in the same words: it is journaled when the words change"
    assert w.memory.incidents == {}
    assert {g.generation for g in w.memory.groups.values()} == {1}


def test_of_two_the_slower_one() -> None:
    assert "group 0 is slow" in world(0.8, 0.4).waits()


def test_a_little_is_noise_and_so_are_milliseconds() -> None:
    assert world(0.4, 0.55).waits() == ""
    assert world(0.004, 0.02).waits() == ""


def test_all_that_are_slow_alike_are_not() -> None:
    assert world(0.9, 0.9, 0.9).waits() == ""


def test_one_that_has_not_learned_yet_is_not_compared() -> None:
    assert world(0.0, 0.9).waits() == ""


def test_the_slowest_rank_counts_and_five_are_named_at_most() -> None:
    w = world(0.4, 0.4, ranks=2)
    w.report(1, 1, commits=1, step=50, compute_s=0.8)
    w.round(1.0)
    assert "group 1 is slow: rank 1 " in w.waits()
    many = world(*[0.4] * 10, *[0.9] * 7)
    assert many.waits().count("is slow") == 5
