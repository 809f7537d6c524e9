"""The stream's arithmetic: through losses, failures and returns each sample is trained once and in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from titan_actor.tokens.stream import Batch, Order, Shape, positions, share

BATCHES: st.SearchStrategy[Batch] = st.sampled_from(["shrinks", "constant"])
SHAPES = st.builds(
    Shape,
    ranks=st.integers(1, 3),
    local=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    batch=BATCHES,
    most=st.sampled_from([0, 3, 5]),
)


def drawn(committed: int, shape: Shape, planned: int, participants: int) -> list[int]:
    """All that a step draws, by participant and rank."""
    rounds = shape.rounds(planned, participants)
    return [
        position
        for place in range(participants)
        for rank in range(shape.ranks)
        for position in positions(committed, shape, share(rounds, place, participants), rank)
    ]


@given(shape=SHAPES, planned=st.integers(1, 9), participants=st.integers(1, 9), committed=st.integers(0, 10**15))
def test_a_step_is_the_next_samples_each_once(shape: Shape, planned: int, participants: int, committed: int) -> None:
    found = drawn(committed, shape, planned, participants)
    assert sorted(found) == list(range(committed, committed + shape.samples(planned, participants)))
    assert len(found) >= participants * shape.round, "each has a round"


@given(shape=SHAPES, planned=st.integers(1, 9), participants=st.integers(1, 9))
def test_a_constant_step_has_the_same_samples_whoever_is_there(shape: Shape, planned: int, participants: int) -> None:
    constant = replace(shape, batch="constant", most=0)
    here = min(planned, participants)
    assert sorted(drawn(5, constant, planned, here)) == list(range(5, 5 + planned * shape.round))


def test_the_size_of_a_step() -> None:
    shape = Shape(ranks=1, local=2, accumulation=2, batch="constant")
    assert [shape.rounds(8, groups) for groups in (1, 2, 3, 4)] == [8, 8, 8, 8]
    limited = replace(shape, most=3)
    assert [limited.rounds(8, groups) for groups in (1, 2, 3, 4)] == [3, 6, 8, 8]
    shrinks = replace(shape, batch="shrinks")
    assert [shrinks.rounds(8, groups) for groups in (1, 2, 3, 4)] == [2, 4, 6, 8]
    more = Shape(ranks=1, local=2, batch="constant")
    assert [more.rounds(2, groups) for groups in (1, 2, 3)] == [2, 2, 3]
    assert more.whole(more.whole(2, 3), 2) == 3, "a step keeps the size that it had with more groups"


@given(rounds=st.integers(0, 100), participants=st.integers(1, 20))
def test_shares_differ_by_one_round_and_the_first_take_more(rounds: int, participants: int) -> None:
    shares = [share(rounds, place, participants) for place in range(participants)]
    assert [number for each in shares for number in each] == list(range(rounds))
    sizes = [len(each) for each in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@dataclass
class Group:
    """A group's own copy of the stream's state."""

    committed: int = 0
    planned: int = 0


EVENTS = st.one_of(
    st.tuples(st.just("step"), st.sets(st.integers(0, 5), min_size=1), st.booleans()),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("scale"), st.integers(1, 6)),
    st.tuples(st.just("local"), st.integers(1, 4)),
)


@given(shape=SHAPES, count=st.integers(1, 6), events=st.lists(EVENTS, max_size=40))
def test_exactly_once_and_in_order_through_everything(shape: Shape, count: int, events: list[tuple]) -> None:  # type: ignore[type-arg]
    """Members come and go, commits fail, groups heal, all is lost and resumed from a checkpoint, sizes change."""
    groups: dict[int, Group] = {}
    trained: list[int] = []
    saved = 0
    for event in events:
        if event[0] == "step":
            start = Group(saved, count * shape.accumulation)
            newest = max(groups.values(), key=lambda group: group.committed, default=start)
            members = sorted(event[1])
            for number in members:
                groups[number] = replace(newest)  # heals before it takes part
            found = drawn(newest.committed, shape, newest.planned, len(members))
            if event[2]:
                trained += sorted(found)
                for number in members:
                    groups[number].committed += shape.samples(newest.planned, len(members))
                    groups[number].planned = shape.whole(newest.planned, len(members))
            # who was not there is out, and heals from one that was
            groups = {number: groups[number] for number in members}
        elif event[0] == "lose":
            groups.pop(event[1], None)
            if not groups:
                del trained[saved:]
        elif event[0] == "resume":
            saved = max((group.committed for group in groups.values()), default=saved) if event[1] else saved
            del trained[saved:]
            groups = {}
        elif event[0] == "scale":
            count = event[1]
        else:
            shape = replace(shape, local=event[1])
        assert trained == list(range(len(trained)))


@given(windows=st.integers(1, 200), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_each_epoch_has_all_windows_once(windows: int, seed: int, epoch: int) -> None:
    order = Order(seed, windows)
    found = [order.window(epoch * windows + index) for index in range(windows)]
    assert sorted(found) == list(range(windows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order, other = Order(1234, 500), Order(1235, 500)
    first, second = ([order.window(epoch * 500 + index) for index in range(500)] for epoch in (0, 1))
    assert first != second
    assert first != [other.window(index) for index in range(500)]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
