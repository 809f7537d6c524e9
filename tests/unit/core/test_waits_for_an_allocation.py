"""A group that waits for an allocation, perhaps for hours, is absent: no group waits for it, and that it does not fail
is no evidence about the others' ends."""

from __future__ import annotations

from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Grant
from supervisor.core.model.reason import Code
from tests.unit.core.evidence.test_hang_attribution import REDUCES, hangs
from tests.unit.core.world import World

AWAY = "ConnectionError: store:9000: connection refused"


def one_waits(trains: int) -> World:
    """A world in which `trains` groups train; the next one's node is lost, and its allocation has been pending for ten
    minutes and more."""
    w = World(groups=trains + 1, spares=0).bring_up()
    w.hear(trains, "absent")
    w.lapse(f"n{trains + 1}")
    w.round()
    w.open_gate(hear={trains: "absent"})
    w.round(1.0)
    w.grant(trains + 2, "pending")
    w.round(700.0)
    assert (w.group(trains).phase, w.group(trains).first_node) == ("placing", "")
    return w


def all_end_by(error: str, w: World, trains: int, for_s: float) -> None:
    """Ends each group by this error as soon as it has started, for these seconds."""
    until = w.now + for_s
    while w.now < until and w.memory.phase == "running":
        for g in range(trains):
            if w.group(g).phase in ("running", "starting"):
                w.admit(g)
                w.fail(g, error=error, step=50, commits=1 if w.group(g).phase == "running" else 0)
        w.round(1.0)
        for g in range(trains):
            w.admit(g)


def hanging(w: World) -> list[int]:
    w.round(60.0)
    return [i.group for i in w.memory.incidents.values() if i.kind == Kind.HANG]


def test_one_that_left_a_collective_out_is_found() -> None:
    w = one_waits(trains=3)
    hangs(w, 0, "collective", stack=REDUCES)
    hangs(w, 1, "quorum", stack="in wait_quorum (manager.py:600)")
    hangs(w, 2, "collective", stack=REDUCES)
    assert hanging(w) == [1]


def test_the_only_one_that_trains_waits_in_the_quorum_for_nobody() -> None:
    w = one_waits(trains=1)
    hangs(w, 0, "quorum")
    assert hanging(w) == [0]


def test_the_one_with_a_full_disk_is_found() -> None:
    w = one_waits(trains=2)
    hangs(w, 0, "quorum")
    hangs(w, 1, "quorum")
    w.node(1, facts={"disk_full": "no room"})
    assert hanging(w) == [0]


def test_that_all_others_wait_is_said() -> None:
    w = one_waits(trains=3)
    for g in range(3):
        hangs(w, g, "collective")
    assert hanging(w) == []
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (0, 1, 2), "activities": ("collective",)}]


def test_an_error_of_all_others_stops_the_run() -> None:
    w = one_waits(trains=3)
    for g in range(3):
        w.fail(g, error="ValueError: shapes", step=50, commits=1)
    w.round(1.0)
    assert w.memory.phase == "stopping"


def test_a_store_that_is_away_for_all_others_halts_nothing_and_costs_no_host() -> None:
    w = one_waits(trains=3)
    all_end_by(AWAY, w, trains=3, for_s=600.0)
    assert (w.memory.phase, sorted(w.memory.cordons)) == ("running", ["n4"]), "that of the lost node"


def test_who_waits_for_one_that_moves_to_a_spare_is_not_ended() -> None:
    w = World(groups=2, spares=2).bring_up()
    w.hear(1, "absent")
    hangs(w, 0, "collective")  # reported before the loss was mended, and not taken back yet
    w.lapse("n2")
    w.round()
    w.recover(1)
    assert w.group(0).generation == 1


def on_a_busy_pool(free: int, min_groups: int = 1) -> World:
    """A world of two groups that is launched on a pool with as many free nodes."""
    w = World(groups=2, spares=0, min_groups=min_groups)
    w.host()
    w.round()
    w.open_gate()
    for number in (1, 2):
        if number <= free:
            w.bring(number)
        else:
            key = f"run-a{number}"
            w.grants[key] = Grant(key=key, state="pending", engine_id="lab", reason="no free node", exhausted=True)
    w.round(1.0)
    return w


def test_a_run_on_a_busy_pool_waits_in_line_for_as_long_as_it_takes() -> None:
    w = on_a_busy_pool(free=0)
    w.round(100 * w.spec.policy.allocation_timeout_s)
    assert w.memory.phase == "running"
    assert w.waiting(Code.NODES_QUEUED)[0]["word"] == "no free node"
    w.bring(1)
    w.bring(2)
    w.round(1.0)
    assert [w.group(g).phase for g in (0, 1)] == ["starting", "starting"]


def test_a_run_on_a_pool_starts_on_the_nodes_that_are_free_if_they_are_enough() -> None:
    w = on_a_busy_pool(free=1)
    assert [w.group(g).phase for g in (0, 1)] == ["starting", "unplaced"]
    w = on_a_busy_pool(free=1, min_groups=2)
    assert [w.group(g).phase for g in (0, 1)] == ["unplaced", "unplaced"]
