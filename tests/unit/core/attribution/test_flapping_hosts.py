"""A host on which a group fails again and again, each time later than a window's budget remembers."""

from __future__ import annotations

from supervisor.core.attribution.cross_host_recurrence import KEPT
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code, Reason
from tests.helpers.reasons import held_against
from tests.unit.core.evidence.test_hang_attribution import hangs
from tests.unit.core.world import World

SELDOM_S = 22 * 60.0
DAY_S = 86_400.0


def crashes(w: World, group: int = 1, after: float = SELDOM_S) -> Rung:
    """Crashes the group once, and lets it recover; returns the rung."""
    w.now += after
    w.round()
    w.crash(group)
    w.round()
    rung = w.incident.rung
    w.recover(group)
    return rung


def test_the_seventh_within_a_day_leaves_the_host_and_is_held_against_it() -> None:
    w = World(groups=2, spares=1).bring_up()
    node = w.group(1).first_node
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    w.now += SELDOM_S
    w.crash(1)
    decision = w.round()
    assert w.incident.rung == Rung.REPLACE
    assert (
        Reason.of(Code.PASSED, rung="restart", why=Reason.of(Code.OFTEN_HERE, times=6, host=node))
        in w.incident.considered
    )
    assert [s.host for s in decision.suspicions] == [node]
    assert node in w.memory.cordons


def test_on_its_new_host_it_begins_anew() -> None:
    w = World(groups=2, spares=2).bring_up()
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    assert crashes(w) == Rung.REPLACE
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6


def test_those_of_yesterday_do_not_count() -> None:
    w = World(groups=2, spares=1).bring_up()
    assert [crashes(w, after=DAY_S / 6 + 1) for _ in range(20)] == [Rung.RESTART] * 20


def test_the_history_of_a_group_is_bounded() -> None:
    w = World(groups=2, spares=1, budget={"restart": 99}).bring_up()
    hangs(w, 1, "data")
    w.others_wait(1)
    w.round()
    w.recover(1)
    for _ in range(KEPT + 5):
        assert crashes(w, after=60.0) == Rung.RESTART
    assert [f.kind for f in w.group(1).failures] == [Kind.HANG, *[Kind.CRASH] * (KEPT + 1)], "the newest of each kind"
    assert crashes(w, after=DAY_S) == Rung.RESTART
    kinds = [f.kind for f in w.group(1).failures]
    assert kinds == [Kind.HANG, Kind.CRASH], "restarts of yesterday count no more, and are not kept"


def test_what_befalls_other_hosts_too_is_no_hosts_doing() -> None:
    w = World(groups=3, spares=1).bring_up()
    crashes(w, 2)
    crashes(w, 2)
    assert [crashes(w) for _ in range(12)] == [Rung.RESTART] * 12


def test_without_a_spare_it_stays_and_its_host_is_held_to_it_once() -> None:
    w = World(groups=2, spares=0).bring_up()
    node = w.group(1).first_node
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    assert (w.suspicions, w.memory.cordons) == ([], {})
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    assert [(s.host, s.kind) for s in w.suspicions] == [(node, Kind.CRASH)]
    assert w.memory.cordons == {node: held_against("i7", Kind.CRASH)}
    assert w.group(1).first_node == node


def test_what_a_program_says_of_itself_is_held_against_no_host() -> None:
    w = World(groups=2, spares=1).bring_up()
    for number in range(12):
        w.now += SELDOM_S
        w.round()
        w.fail(1, 1, f"ValueError: another each time {'abcdefghijkl'[number]}", step=20 + number)
        w.round()
        assert w.incident.rung == Rung.RESTART
        w.recover(1, step=30 + number)


def test_what_follows_a_group_is_held_against_no_host() -> None:
    w = World(groups=2, spares=1).bring_up()
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    assert crashes(w) == Rung.REPLACE
    assert [crashes(w) for _ in range(9)] == [Rung.RESTART] * 9
    assert w.memory.cordons == {}
    assert w.suspicions == []


def test_a_host_that_was_freed_begins_anew() -> None:
    w = World(groups=2, spares=0).bring_up()
    node = w.group(1).first_node
    assert [crashes(w) for _ in range(7)] == [Rung.RESTART] * 7
    assert w.memory.cordons.keys() == {node}
    w.cordons.clear()
    w.suspicions.clear()
    w.round(1.0)
    assert w.memory.cordons == {}
    assert [crashes(w) for _ in range(6)] == [Rung.RESTART] * 6
    assert w.memory.cordons == {}
    crashes(w)
    assert w.memory.cordons.keys() == {node}
