"""Each invariant catches the violation that is planted for it, and nothing in a good step."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.invariants import violations
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import GateView, Observed
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import BudgetSpec, PolicySpec, RunSpec
from tests.unit.core.world import World

SPEC = RunSpec(name="run", policy=PolicySpec(budget=BudgetSpec(restart=1, replace=1, reallocate=1, window_s=100.0)))
OBSERVED = Observed(revision=1, now=50.0, store_stable_s=1e6)

RUNNING = GroupMemory(group=0, generation=3, seats=(Seat("n1"),), phase="running")
OTHER = GroupMemory(group=1, generation=1, seats=(Seat("n2"),), phase="running")


def memory(*groups: GroupMemory, **about: object) -> Memory:
    return replace(Memory(groups={g.group: g for g in groups}), **about)  # type: ignore[arg-type]


def broken(before: Memory, after: Memory, observed: Observed = OBSERVED) -> list[str]:
    return [v.split(":")[0] for v in violations(before, after, observed, SPEC)]


def test_nothing_is_found_in_good_steps() -> None:
    before = memory(RUNNING, OTHER)
    restarted = replace(RUNNING, generation=4, phase="placing", left=(Seat("n1"),))
    assert broken(Memory(), before) == []
    assert broken(before, before) == []
    assert broken(before, memory(restarted, OTHER)) == []
    assert broken(memory(restarted, OTHER), memory(replace(restarted, phase="starting"), OTHER)) == []


def test_i1_two_groups_on_one_node() -> None:
    assert broken(memory(RUNNING, OTHER), memory(RUNNING, replace(OTHER, seats=(Seat("n1"),)))) == ["I1"]


def test_i1_a_finished_group_holds_nothing() -> None:
    assert broken(Memory(), memory(replace(RUNNING, phase="finished"), replace(OTHER, seats=(Seat("n1"),)))) == []


def test_i2_a_budget_overdrawn() -> None:
    after = memory(RUNNING, spent={"restart:0": (10.0, 20.0)})
    assert broken(memory(RUNNING), after) == ["I2"]
    assert broken(memory(RUNNING), replace(after, spent={"replace": (10.0, 20.0)})) == ["I2"]
    assert broken(memory(RUNNING), replace(after, spent={"reallocate": (10.0, 20.0)})) == ["I2"]
    long_ago = replace(after, spent={"restart:0": (-60.0, 20.0)})
    assert broken(memory(RUNNING), long_ago) == []


def test_i2_a_budget_that_a_person_has_lowered_holds_up_nothing() -> None:
    """Draws before the change stay valid, and one more is refused."""
    before = memory(RUNNING, spent={"restart:0": (10.0, 20.0)})
    assert broken(before, before) == []
    assert broken(before, replace(before, spent={"restart:0": (10.0, 20.0, 30.0)})) == ["I2"]


def test_i3_a_generation_goes_back() -> None:
    assert broken(memory(RUNNING), memory(replace(RUNNING, generation=2))) == ["I3"]


def test_i4_a_generation_is_started_twice() -> None:
    assert broken(memory(RUNNING), memory(replace(RUNNING, phase="starting", since=9.0))) == ["I4"]


def test_i4_the_same_starting_group_carried_over_is_no_second_start() -> None:
    starting = replace(RUNNING, phase="starting")
    assert broken(memory(starting), memory(starting)) == []
    assert broken(memory(starting), memory(replace(starting, seats=(Seat("n9"),)))) == ["I4"]


FENCING = GroupMemory(group=0, generation=4, seats=(), left=(Seat("n1"),), phase="fencing")
STARTED_ELSEWHERE = replace(FENCING, phase="starting", seats=(Seat("n2"),))


def test_i5_a_start_elsewhere_without_proof() -> None:
    assert broken(memory(FENCING), memory(STARTED_ELSEWHERE)) == ["I5"]


def test_i5_straight_from_running() -> None:
    after = replace(RUNNING, generation=4, phase="starting", seats=(Seat("n2"),), left=(Seat("n1"),))
    assert broken(memory(RUNNING), memory(after)) == ["I5"]


def test_i5_the_gate_is_a_proof() -> None:
    gate = GateView(node="h", generation=1, address="h:1", admitted={0: 4})
    assert broken(memory(FENCING), memory(STARTED_ELSEWHERE), replace(OBSERVED, gate=gate)) == []
    stale = replace(gate, admitted={0: 3})
    assert broken(memory(FENCING), memory(STARTED_ELSEWHERE), replace(OBSERVED, gate=stale)) == ["I5"]


def test_i5_the_nodes_word_is_a_proof_but_not_its_silence() -> None:
    w = World(budget={"restart": 0}).bring_up()
    w.crash(0)
    w.gate = None
    w.round()
    before = w.memory
    if before.groups[0].phase != "fencing":
        assert before.groups[0].first_node == "n3", "its end was proved at once"
        return
    w.round()
    after = w.memory
    assert (after.groups[0].phase, after.groups[0].first_node) == ("starting", "n3")
    observed = w.observed()
    assert violations(before, after, observed, w.spec) == []
    rank = observed.nodes["n1"].ranks[0]
    for node in (
        replace(observed.nodes["n1"], ranks=(replace(rank, state="running", signal=None),)),
        replace(observed.nodes["n1"], registered=False),
        replace(observed.nodes["n1"], ranks=()),
        replace(observed.nodes["n1"], ranks=(replace(rank, generation=0),)),
    ):
        seen = replace(observed, nodes={**observed.nodes, "n1": node})
        assert [v.split(":")[0] for v in violations(before, after, seen, w.spec)] == ["I5"], node


def test_i5_a_restart_in_place_has_nothing_to_do_with_an_earlier_home() -> None:
    moved_once = replace(RUNNING, left=(Seat("n9"),))
    again = replace(moved_once, generation=4, phase="starting", left=(Seat("n1"),))
    assert broken(memory(moved_once), memory(again)) == []


WIDE = replace(RUNNING, size=2, seats=(Seat("n1"), Seat("n2")), store="n1:1")
OF_TWO = replace(SPEC, groups=replace(SPEC.groups, nodes_per_group=2, ranks_per_group=2))


def broken_of_two(before: GroupMemory, after: GroupMemory, observed: Observed = OBSERVED) -> list[str]:
    return [v.split(":")[0] for v in violations(memory(before), memory(after), observed, OF_TWO)]


def test_i5_a_group_of_two_nodes_starts_in_place_while_the_old_ranks_may_run() -> None:
    """A node does not see whether the other's have ended."""
    again = replace(WIDE, phase="starting", generation=4, store="n1:2")
    assert broken_of_two(WIDE, again) == ["I5"]
    gate = GateView(node="h", generation=1, address="h:1", admitted={0: 4})
    assert broken_of_two(WIDE, again, replace(OBSERVED, gate=gate)) == []


def test_i21_a_group_starts_on_a_part_of_its_nodes() -> None:
    placing = replace(WIDE, phase="placing", generation=4, seats=(Seat("n1"),), store="")
    assert broken_of_two(placing, replace(placing, phase="starting", store="n1:2")) == ["I21"]


def test_i22_a_generation_has_the_store_of_the_last_one() -> None:
    placing = replace(WIDE, phase="placing", generation=4)
    assert broken_of_two(placing, replace(placing, phase="starting")) == ["I22"]
    assert broken_of_two(placing, replace(placing, phase="starting", store="n2:1")) == []
