"""A second seat, rehearsed: the rules see all nodes of a group (ADR 18), and what else a group on two nodes takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.evidence import group_failure, group_nodes, hang_attribution
from supervisor.core.invariants import violations
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import GpuFact, StuckView
from supervisor.core.model.seats import Seat
from supervisor.core.round.draft import Round
from supervisor.shell.control import projection
from tests.unit.core.world import World

ROOT = Path(__file__).parents[3]

TOUCHED = {
    "agents/agent/launch.py",  # which rank serves the group's store, and where
    "agents/gate/state.py",  # several homes of a generation
    "supervisor/core/evidence/group_failure.py",  # names the node at fault
    "supervisor/core/model/spec.py",  # nodes of a group, in the run file
    "supervisor/core/remediation/apply.py",  # gives up the node at fault alone
    "supervisor/core/remediation/placement.py",  # finds all nodes of a group, or waits
    "supervisor/core/round/view.py",  # ranks that a node must hold; the host that a failure counts for
    "supervisor/shell/control/projection.py",  # which ranks run on which node
    "supervisor/shell/inspect/status.py",  # shows all nodes
    "supervisor/wire/records.py",  # ranks of a node, local ranks, admitted nodes
}
"""Files of the product that a group on two nodes would still change."""

TELL_OF_ONE = {
    "supervisor/core/attribution/flapping_hosts.py",
    "supervisor/core/attribution/stragglers.py",
    "supervisor/core/remediation/drain.py",
    "supervisor/core/remediation/group_phases.py",
    "supervisor/core/remediation/handover.py",
    "supervisor/core/remediation/shutdown.py",
    "supervisor/core/remediation/suspended_groups.py",
    "supervisor/core/report/notifications.py",
    "supervisor/core/round/draft.py",
    "supervisor/shell/control/journal.py",
}
"""Files that name a group's first node in an action, a text or a record, and decide nothing by it."""

OF_ONE = re.compile(r"\.(first_node|last_node)\b|\bseats\[0\]")


def over_two() -> World:
    """Group 0 trains on n1. Group 1 trains on n2 and n3, a rank on each. n4 and n5 are spares."""
    w = World(groups=2, spares=3, ranks=2).bring_up()
    assert w.group(1).nodes == ("n2",)
    first, second = w.nodes["n2"].ranks
    w.nodes |= {"n2": replace(w.nodes["n2"], ranks=(first,)), "n3": replace(w.nodes["n3"], ranks=(second,))}
    seats = (*w.group(1).seats, Seat("n3", "n3", "run-a3"))
    w.memory = replace(w.memory, groups={**w.memory.groups, 1: replace(w.group(1), seats=seats)})
    assert w.round(1.0).actions == ()
    return w


def leave_out_the_second(w: World) -> None:
    w.memory = replace(w.memory, groups={**w.memory.groups, 1: replace(w.group(1), seats=w.group(1).seats[:1])})


def test_no_other_group_is_placed_on_either_node() -> None:
    w = over_two()
    assert Round(w.observed(), w.spec, w.memory).taken() == {"n1", "n2", "n3"}
    assert Round(w.observed(), w.spec, w.memory).spares() == ["n4", "n5"]
    for node in ("n2", "n3"):
        both = replace(w.memory, groups={**w.memory.groups, 0: replace(w.group(0), seats=(Seat(node),))})
        assert [v.split(":")[0] for v in violations(Memory(), both, w.observed(), w.spec)] == ["I1"]


def test_all_ranks_are_seen_and_both_nodes_are_told_what_to_run() -> None:
    w = over_two()
    assert [rank.rank for rank in group_nodes.ranks_of(w.group(1), w.observed())] == [0, 1]
    desired = projection.desired(w.spec, "/run", w.memory)
    there = {node: [t.allocation for t in body.trainers if t.group == 1] for node, body in desired.items()}
    assert (there["n2"], there["n3"]) == (["run-a2"], ["run-a3"])


def exited(w: World) -> None:
    w.report_on("n3", 1, 1, 1, state="exited", signal=11)


def lapsed(w: World) -> None:
    w.hear(1, "gone")
    w.lapse("n3")


def taken(w: World) -> None:
    w.grant(3, "gone", reason="preempted")


def given_again(w: World) -> None:
    w.node(3, allocation="run-a9")
    w.round()
    w.now += 10.0


def gpu_lost(w: World) -> None:
    w.node(3, gpus=(GpuFact(kind="gpu_lost", evidence="GPU 0 is lost"),))


SIGNS = {
    Kind.CRASH: exited,
    Kind.NODE_LOST: lapsed,
    Kind.ALLOCATION_LOST: taken,
    Kind.GPU: gpu_lost,
}


@pytest.mark.parametrize(("kind", "sign"), [*SIGNS.items(), (Kind.ALLOCATION_LOST, given_again)])
def test_a_failure_on_the_second_node_is_the_groups(kind: Kind, sign: Callable[[World], None]) -> None:
    w = over_two()
    sign(w)
    w.round()
    assert (w.incident.group, w.incident.kind) == (1, kind)
    alone = over_two()
    leave_out_the_second(alone)
    sign(alone)
    alone.round()
    assert not alone.incidents, "without that seat the node is none of the group's"


def test_a_rank_that_hangs_on_the_second_node_is_seen() -> None:
    w = over_two()
    w.report_on("n3", 1, 1, 1, commits=1, stuck=StuckView(activity="data", bound_s=30.0))
    assert [rank.rank for rank in hang_attribution.stuck_ranks(w.group(1), w.observed())] == [1]


def test_a_restart_in_place_keeps_both() -> None:
    w = over_two()
    exited(w)
    w.round()
    assert (w.group(1).phase, w.group(1).nodes, w.group(1).left) == ("starting", ("n2", "n3"), ())
    assert w.group(1).generation == 2


@pytest.mark.parametrize("lost", ["n2", "n3"])
def test_the_loss_of_either_node_fences_both(lost: str) -> None:
    w = over_two()
    w.hear(1, "gone")
    w.lapse(lost)
    w.round()
    group, other = w.group(1), {"n2": "n3", "n3": "n2"}[lost]
    assert (group.phase, group.seats, [seat.node for seat in group.left]) == ("fencing", (), ["n2", "n3"])
    assert set(w.memory.cordons) >= {lost}
    rank = int(other == "n3")
    w.report_on(other, 1, 1, rank, state="exited", signal=15)
    w.round()
    assert w.group(1).phase == "fencing", "the lost node has proved nothing"
    w.node(int(lost[1:]))
    w.report_on(lost, 1, 1, 1 - rank, state="exited", signal=15)
    assert group_failure.gone(1, 2, group.left, w.observed())
    w.round()
    assert w.group(1).phase != "fencing"


@pytest.mark.parametrize("leaves", [2, 3])
def test_a_group_leaves_if_either_node_must_be_left(leaves: int) -> None:
    w = over_two()
    w.node(leaves, leaving="its time limit is near")
    for _ in range(3):
        w.round(2.0)
    assert (w.incident.group, w.incident.kind) == (1, Kind.LEAVING)


def test_a_second_seat_touches_ten_files() -> None:
    assert len(TOUCHED) <= 10
    assert all((ROOT / path).exists() for path in TOUCHED)
    product = [path for room in ("supervisor", "agents", "titan_actor") for path in (ROOT / room).rglob("*.py")]
    names_one = {str(path.relative_to(ROOT)) for path in product if OF_ONE.search(path.read_text())}
    assert names_one - {"supervisor/core/model/memory.py"} <= TOUCHED | TELL_OF_ONE
    assert names_one >= TELL_OF_ONE
