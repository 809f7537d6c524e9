"""A pool keeps as many nodes as it was asked for, warns while it is idle, and ends without taking a node from a run."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.decide import decide
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, HoldSpec, RunSpec
from tests.unit.core.world import World

HOUR = 3600.0


def pool(nodes: int = 3, for_s: float = 0.0, warn_idle_s: float = HOUR) -> World:
    """A pool whose nodes are there."""
    w = World()
    w.spec = RunSpec(
        name="run",
        groups=GroupsSpec(count=0),
        allocation=AllocationSpec(nodes=nodes, spares=0),
        hold=HoldSpec(for_s=for_s, warn_idle_s=warn_idle_s),
    )
    assert w.verbs() == ["acquire"] * nodes
    for number in range(1, nodes + 1):
        w.bring(number)
    assert w.verbs() == []
    return w


def wanted(w: World) -> list[str]:
    return [key for key, a in w.memory.allocations.items() if a.state == "wanted"]


def test_a_pool_has_nodes_and_neither_groups_nor_a_lighthouse() -> None:
    w = pool()
    assert (w.memory.phase, w.memory.groups, w.memory.lighthouse.node) == ("running", {}, "")
    assert wanted(w) == ["run-a1", "run-a2", "run-a3"]


def test_an_idle_pool_warns_again_and_again_and_not_while_a_run_uses_it() -> None:
    w = pool()
    assert w.waiting(Code.POOL_IDLE) == []
    assert w.last.look_again_at == w.memory.idle_since + HOUR  # type: ignore[operator]
    w.round(HOUR + 1)
    assert w.waiting(Code.POOL_IDLE) == [{"run": "run", "seconds": HOUR}]
    w.round(HOUR)
    assert w.waiting(Code.POOL_IDLE) == [{"run": "run", "seconds": 2 * HOUR}]
    w.users = ("toy",)
    w.round(HOUR)
    assert (w.waiting(Code.POOL_IDLE), w.memory.idle_since) == ([], None)
    w.users = ()
    w.round(5.0)
    assert (w.waiting(Code.POOL_IDLE), w.memory.idle_since) == ([], w.now)


def test_zero_never_warns() -> None:
    w = pool(warn_idle_s=0.0)
    w.round(100 * HOUR)
    assert w.waiting(Code.POOL_IDLE) == []


def test_a_pool_gives_its_nodes_back_when_its_time_is_over() -> None:
    w = pool(for_s=8 * HOUR, warn_idle_s=0.0)
    assert w.last.look_again_at == w.memory.held_since + 8 * HOUR  # type: ignore[operator]
    w.round(8 * HOUR + 1)
    assert [a.verb for a in w.last.actions] == ["stop", "release", "release", "release"]
    assert w.last.actions[0].reason == Reason.of(Code.POOL_OVER, for_s=8 * HOUR)
    w.round()
    assert (w.memory.phase, wanted(w)) == ("stopped", [])


def test_its_end_waits_for_the_runs_that_use_it() -> None:
    w = pool(for_s=HOUR)
    w.users = ("toy",)
    assert w.verbs(2 * HOUR) == []
    assert w.waiting(Code.POOL_STILL_USED) == [{"runs": ("toy",)}]
    w.users = ()
    w.round()
    w.round()
    assert w.memory.phase == "stopped"


def test_a_release_waits_for_a_run_that_was_launched_at_the_same_moment() -> None:
    w = pool()
    w.control, w.users = replace(w.control, stop=True), ("toy",)
    assert w.verbs() == []
    assert w.waiting(Code.POOL_STILL_USED) == [{"runs": ("toy",)}]
    w.users = ()
    w.round()
    w.round()
    assert (w.memory.phase, wanted(w)) == ("stopped", [])


def test_a_node_that_a_run_has_is_not_replaced_though_its_host_is_cordoned() -> None:
    w = pool()
    (host,) = w.grants["run-a2"].nodes
    w.lent = {"run-a2": "toy"}
    w.users = ("toy",)
    w.cordon(host)
    assert w.verbs() == []
    w.lent = {}
    assert w.verbs() == ["release", "acquire"], "once the run has left it"
    assert w.memory.allocations["run-a4"].exclude == (host,)


def test_a_node_that_the_engine_takes_is_asked_for_again() -> None:
    w = pool()
    w.grants["run-a1"] = replace(w.grants["run-a1"], state="gone", reason="preempted")
    assert w.verbs(w.spec.policy.allocation_timeout_s + 1) == ["release", "acquire"]


def test_a_node_that_leaves_gets_a_successor_though_a_run_has_it() -> None:
    w = pool()
    w.lent, w.users = {"run-a1": "toy"}, ("toy",)
    w.grants["run-a1"] = replace(w.grants["run-a1"], leaving="its time limit")
    assert w.verbs() == ["acquire"]
    assert wanted(w) == ["run-a1", "run-a2", "run-a3", "run-a4"], "the run leaves it by itself"
    w.lent = {}
    assert w.verbs() == ["release"]


def test_a_large_pool_asks_in_several_rounds() -> None:
    w = World()
    w.spec = RunSpec(name="run", groups=GroupsSpec(count=0), allocation=AllocationSpec(nodes=90, spares=0))
    assert [len(w.verbs()) for _ in range(4)] == [40, 40, 10, 0]
    assert w.memory.phase == "running"


def test_a_run_decides_as_if_there_were_no_pools() -> None:
    w = World().bring_up()
    with_hold = replace(w.spec, hold=HoldSpec(for_s=1.0, warn_idle_s=1.0))
    assert decide(w.observed(), with_hold, w.memory) == decide(w.observed(), w.spec, w.memory)
