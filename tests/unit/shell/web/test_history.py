"""The history of loss and step time is bounded, keeps the newest and reaches back to the first."""

from __future__ import annotations

import itertools

from supervisor.shell.web.history import OLDER, RECENT, History, Point


def filled(count: int) -> History:
    history = History()
    for step in range(1, count + 1):
        history.add(Point(float(step), step, 2.0, 1.0, 3))
    return history


def test_it_is_bounded_and_reaches_back() -> None:
    for count in (10, RECENT, RECENT + OLDER, 5000, 12345):
        points = [p.step for p in filled(count).points().values()]
        assert len(points) <= RECENT + OLDER
        assert points == sorted(points)
        assert points[0] == 1
        assert points[-min(count, RECENT) :] == list(range(count - min(count, RECENT) + 1, count + 1))
    gaps = [after - before for before, after in itertools.pairwise(points[: OLDER // 2])]
    assert len(set(gaps)) == 1, "evenly thinned"


def test_a_point_keeps_its_number() -> None:
    history = filled(1000)
    before = history.points()
    history.add(Point(1001.0, 1001, 2.0, 1.0, 3))
    after = history.points()
    assert all(before[n] == after[n] for n in before.keys() & after.keys())
    assert len(before.keys() - after.keys()) <= 1


def test_a_step_that_does_not_move_is_no_point_and_stands_still() -> None:
    history = filled(3)
    history.add(Point(50.0, 3, 2.0, 1.0, 3))
    assert len(history.points()) == 3
    assert history.still_s(53.0) == 50.0
    history.add(Point(54.0, 3, 2.0, 1.0, 2))
    assert len(history.points()) == 4, "the quorum has shrunk"
    assert history.still_s(55.0) == 52.0, "which is no step"
    history.add(Point(60.0, 1, 2.0, 1.0, 2))
    assert history.still_s(61.0) == 1.0, "back to a checkpoint is a move"
