"""Properties of a run in the simulator's world, under faults that its seeds lack.

What any of its own faults may lead to is asked of seeds (`tests/system/sim`), and that the same input gives the same output of
the corpus (`tests/corpus`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from fault_injection.sim.faults import KINDS
from fault_injection.sim.run import state
from supervisor.core.model.kinds import Kind
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import shutdown
from supervisor.wire import keys
from supervisor.wire.records import Control
from tests.helpers.reasons import texts
from tests.properties.cluster import OWN, WARN_S, Cluster, spec

LEAVES = ["limit", "limit", "limit_all", "preempt", "drain", "undrain"]
PERSONS = ["cordon", "drain_host", "drain_host", "uncordon", "fail_check", "pass_check"]
APART = [*LEAVES, *PERSONS, "lose_gpu", "xid", "mend_gpus", "pause", "resume", "restart"]
"""Faults that no seed of the simulator has."""

Plan = list[tuple[float, str, int]]
"""Seconds to pass before, the fault, its target."""

SEEDS = st.integers(0, 2**16)
TARGETS = st.integers(0, 63)
PLANS = st.lists(
    st.tuples(st.integers(0, 10), st.sampled_from([*APART, *APART, *KINDS]), TARGETS), min_size=3, max_size=10
)


def live(seed: int, plan: Plan, spec: RunSpec, warm_up: bool = True, hosts: int | None = None) -> Cluster:
    """A run that came up (or is coming up) and then met the plan."""
    c = Cluster(spec, seed, hosts)
    if warm_up:
        c.gets_well(150.0)
    for seconds, fault, target in plan:
        c.run(seconds)
        c.fault(fault, target)
    c.run(5.0)
    for fault in c.fired:
        event(fault)
    return c


def times(factor: float) -> settings:
    """Settings with `factor` times the profile's examples."""
    return settings(max_examples=max(1, int(settings().max_examples * factor)))


@times(2)
@example(  # a group leaves its node before that is taken; then all end before their first checkpoint
    532,
    [
        (8, "preempt", 44),
        (10, "heal_source_killed", 37),
        (2, "frozen_for_good", 22),
        (4, "heal_source_killed", 56),
        (3, "resume", 45),
    ],
    False,
)
@given(SEEDS, PLANS, st.booleans())
def test_whatever_happens(seed: int, plan: Plan, warm_up: bool) -> None:
    """The simulator's checks and the invariants hold, each action is done once, and each skipped rung has a reason.
    Once the faults stop, with nodes and budgets enough, every group runs again and nothing stays open."""
    c = live(seed, plan, spec(), warm_up)
    c.heal()
    c.gets_well()


@times(0.5)
@given(SEEDS, st.lists(st.tuples(st.integers(0, 10), st.sampled_from(KINDS), TARGETS), min_size=1, max_size=6))
def test_whatever_happens_to_groups_on_two_nodes(seed: int, plan: Plan) -> None:
    """As above, by the simulator's own faults: no group starts on a part of its nodes, nor before its old ranks are
    gone or shut out everywhere."""
    c = live(seed, plan, spec(2, size=2))
    c.heal()
    c.gets_well()


@given(
    SEEDS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(LEAVES), TARGETS), min_size=1, max_size=5)
    # once: a grace is shorter than a warning, and not all successors that are preempted as soon as they come go in time
    | st.tuples(st.tuples(st.integers(0, 30), st.just("preempt_all"), st.just(0))).map(list),
)
def test_what_only_leaves_costs_no_committed_step_and_no_budget(
    seed: int, groups: int, others: int, plan: Plan
) -> None:
    """Any node may leave, with or without other machines. No step is committed twice, no host is suspected, and each
    gets one successor; afterwards every group runs. Machines are few enough that some must be handed over."""
    c = live(seed, plan, spec(groups), hosts=groups + 1 + others)
    c.run(WARN_S)
    c.heal()
    c.gets_well()
    assert c.training.lost == 0, state(c)
    assert (c.memory.spent, c.memory.cordons) == ({}, {})
    assert len(c.memory.allocations) == groups + 1 + len(c.checks.successors)
    assert c.kinds <= {Kind.LEAVING, Kind.ALLOCATION_LOST, Kind.NODE_LOST}


@given(
    SEEDS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(PERSONS), TARGETS), min_size=1, max_size=6),
)
def test_what_a_person_cordons_and_drains_costs_no_committed_step_and_no_budget(
    seed: int, groups: int, others: int, plan: Plan
) -> None:
    """Any hosts are cordoned, drained and freed, even more than there are machines. Nothing fails, no budget is
    charged, and only a host's own checks are held against it. Once all are free every group runs."""
    c = live(seed, plan, spec(groups), hosts=groups + 1 + others)
    c.run(50.0)
    if others == 4 and len(plan) < 3 and groups > 1:
        assert not {node for g in c.memory.groups.values() for node in g.nodes} & c.drained_by_a_person(), (
            f"not left: {state(c)}"
        )
    c.heal()
    c.gets_well()
    assert c.training.lost == 0, state(c)
    failed = any(fault == "fail_check" for _, fault, _ in plan)
    assert set(c.memory.spent) <= ({"reallocate"} if failed else set()), (
        "what stands in for a host that fails its checks is paid"
    )
    assert c.memory.cordons == {}
    assert c.kinds <= {Kind.LEAVING}


@given(SEEDS, st.integers(5, 8), st.lists(st.integers(0, 6), max_size=3), st.integers(0, 60), st.booleans())
def test_a_cause_that_fails_the_checks_of_all_machines_is_over_by_itself(
    seed: int, groups: int, crashes: list[int], longer: int, warm_up: bool
) -> None:
    """The cause comes before the run starts or while its ranks crash. The run is not halted, and once the cause is
    mended every group runs, though no person has freed a host."""
    c = Cluster(spec(groups, replace=4, reallocate=6), seed, hosts=groups + 4)
    if warm_up:
        c.gets_well(150.0)
    c.cause = True
    for seconds in crashes:
        c.run(seconds)
        c.fault("crash", seconds)
    c.run(longer)
    assert c.memory.phase in ("new", "running"), state(c)
    c.cause, c.helpful = False, True
    c.gets_well()


BUGS = ["ValueError: no batch", "ValueError: unknown option 'timeout_s'", "RuntimeError: size 500 must match 512"]


@given(SEEDS, st.integers(1, 3), st.integers(1, 12), st.sampled_from(BUGS))
def test_a_bug_of_the_program_halts_the_run_and_costs_no_node(seed: int, groups: int, ahead: int, bug: str) -> None:
    """It raises at a step in every group, and again wherever that step is reached from a checkpoint."""
    c = live(seed, [], spec(groups))
    c.training.bug_at, c.training.bug = c.training.newest + ahead, bug
    assert c.until(lambda: c.memory.phase == "halted", 300.0), state(c)
    assert bug in texts(c.memory.halt_reason)
    assert any(i.state == "halted" and i.kind == Kind.SAME_ERROR for i in c.checks.incidents.values()), state(c)
    assert c.memory.cordons == {}
    assert set(c.memory.spent) <= {f"restart:{g}" for g in range(groups)}
    # it comes twice at a step, and may come a step later from the checkpoint that the first time had left
    assert all(len(instants) <= 3 for instants in c.memory.spent.values()), c.memory.spent


@given(SEEDS, st.integers(2, 3), st.integers(1, 12), st.integers(0, 200))
def test_a_store_that_is_away_for_a_while_halts_nothing_and_costs_no_node(
    seed: int, groups: int, ahead: int, seconds: int
) -> None:
    """It ends every group, again and again, with any budgets; when the store is back all groups train."""
    c = live(seed, [], spec(groups, restart=2, replace=1, reallocate=1))
    c.training.bug_at, c.training.bug = c.training.newest + ahead, "ConnectionError: Couldn't reach the store"
    c.run(ahead + seconds)
    assert c.memory.phase == "running", state(c)
    c.training.bug_at = None
    c.gets_well()
    assert c.memory.cordons == {}
    assert set(c.memory.spent) <= {f"restart:{g}" for g in range(groups)}, c.memory.spent


@given(SEEDS, st.integers(0, 2))
def test_what_crashes_one_group_on_every_host_bars_none_of_them(seed: int, group: int) -> None:
    """From the second host on no incident is held against any: neither by this run nor, in etcd, for others."""
    c = live(seed, [], spec(restart=1))
    c.training.segfaults = group
    assert c.until(lambda: any(s.followed for s in c.memory.groups[group].failures), 300.0), state(c)
    c.run(1.0)
    assert not c.until(lambda: bool(c.memory.cordons or [key for key in c.held() if "/incident/" in key]), 50.0)


@given(SEEDS, st.integers(0, 2))
def test_a_group_that_cannot_start_anywhere_is_left_out_and_the_others_go_on(seed: int, group: int) -> None:
    """With any budgets it takes no more than one other node, and starts again when a person asks for it."""
    c = live(seed, [], spec())
    c.training.stillborn = group
    c.trainer(group).end(signal=15)
    assert c.until(lambda: bool(c.memory.groups[group].left_out), 300.0), state(c)
    spent, before = c.memory.spent, c.training.newest
    c.run(100.0)
    assert c.training.newest > before + 50, "the others step"
    assert (c.memory.phase, c.memory.spent, c.memory.cordons) == ("running", spent, {})
    assert {scope: len(instants) for scope, instants in spent.items()} == {f"restart:{group}": 2, "replace": 1}
    c.training.stillborn, c.helpful = None, True
    c.gets_well()


@given(SEEDS, st.integers(0, 2), st.integers(0, 6))
def test_a_name_that_is_given_again_starts_nothing_of_the_last_one(seed: int, group: int, longer: int) -> None:
    """A host goes to another user between the decision to start a group there and the start. Its new node reads the
    last one's desired record, but begins nothing of it; the group runs again elsewhere."""
    c = live(seed, [], spec())
    c.trainer(group).end(signal=11)
    assert c.until(lambda: (g := c.memory.groups[group]).generation == 2 and g.phase == "starting", 50.0), state(c)
    name = c.memory.groups[group].first_node
    c.nodes[name].power_off()
    c.add_node(name, "another-a1")
    new = c.nodes[name]
    for supervisor in tuple(c.supervisors):
        supervisor.kill()
    assert c.until(lambda: new.registered, 50.0), "it reads what was wanted"
    c.run(longer)
    c.heal()
    c.gets_well()
    assert not new.trainers


@given(
    SEEDS,
    st.lists(
        st.tuples(st.integers(0, 15), st.sampled_from(["node_lost", "allocation_taken", "crash", "limit"]), TARGETS),
        min_size=2,
        max_size=8,
    ),
)
def test_an_engine_that_refuses_is_not_asked_again_and_again(seed: int, plan: Plan) -> None:
    """Each loss makes one submission; a person's word makes one more, and then every group runs again."""
    c = live(seed, [(0, "refuse", 0), *plan], spec())
    c.run(100.0)
    asked = len(c.memory.allocations)
    c.run(50.0)
    assert len(c.memory.allocations) == asked, "nothing happened any more, and still it is asked"
    if c.memory.phase == "halted":
        assert "no quota" in texts(c.memory.halt_reason)
    c.heal()
    c.helpful = True
    c.gets_well()


@given(SEEDS, st.integers(0, 31))
def test_one_side_of_a_split_network_trains_and_never_both(seed: int, target: int) -> None:
    """Any way to cut a service host and some of the four machines off from the store and the rest."""
    c = live(seed, [], spec())
    cut_off = [name for number, name in enumerate(sorted(c.nodes), 1) if (target >> number) % 2]
    c.island = frozenset([sorted(c.hosts)[target % 2], *cut_off])
    c.connect()
    before = c.training.newest
    c.run(100.0)
    assert c.training.newest > before + 20, f"nobody trains: {state(c)}"
    c.heal()
    c.gets_well()


@given(SEEDS, PLANS)
def test_a_paused_run_does_nothing(seed: int, plan: Plan) -> None:
    c = live(seed, [(0, "pause", 0), *[step for step in plan if step[1] != "resume"]], spec())
    paused = c.mirror().record(keys.control("run"), Control)
    assert paused is not None
    assert paused.paused


@given(SEEDS, PLANS)
def test_where_it_is_only_observed_no_failure_is_acted_on(seed: int, plan: Plan) -> None:
    """The exceptions are a person's requests, and moves before an announced end. Silence is ridden through, as ever."""
    c = live(seed, plan, spec(mode="observe"))
    c.run(50.0)
    acted = {i.kind for i in c.checks.incidents.values() if i.decided is not None and not i.shadow}
    assert acted <= {Kind.REQUESTED, Kind.LEAVING, Kind.SILENT}
    assert set(c.memory.spent) <= {"reallocate"}, "which is what spares are asked for again by"
    assert c.memory.cordons == {}
    assert c.memory.phase == "running"


@given(SEEDS, PLANS)
def test_a_run_that_is_told_to_stop_ends_and_gives_everything_back(seed: int, plan: Plan) -> None:
    c = live(seed, plan, spec())
    c.heal()
    c.control(lambda control: replace(control, stop=True))
    assert c.until(lambda: c.memory.phase == "stopped", 200.0), state(c)
    assert {a.state for a in c.memory.allocations.values()} == {"released"}
    c.run(20.0)
    assert not [t for m in c.machines() for t in m.living()], "nothing of it runs on a machine that can be reached"


LATE_S = 10.0
"""Seconds by which a supervisor that dies now and then may miss a deadline."""


@times(3)
@given(
    SEEDS,
    st.lists(st.tuples(st.integers(0, 10), st.sampled_from([*APART, *KINDS, *["spin"] * 20]), TARGETS), max_size=8),
    st.booleans(),
)
def test_a_stop_ends_a_run_in_time_whatever_state_it_is_in(seed: int, plan: Plan, warm_up: bool) -> None:
    """Nothing is mended first: groups that start, spin or are silent, a pause, an engine that grants nothing, machines
    that no one reaches. Only the store answers, and a supervisor leads: without them no one decides anything."""
    c = live(seed, plan, spec(), warm_up)
    c.lead()
    c.control(lambda control: replace(control, stop=True))
    within_s = shutdown.longest_s(c.spec, c.memory.measured) + LATE_S
    assert c.until(lambda: c.memory.phase in ("stopped", "halted"), within_s), state(c)
    assert {a.state for a in c.memory.allocations.values()} <= {"released"}


@pytest.mark.parametrize("fault", OWN)
def test_every_fault_of_its_own_can_happen(fault: str) -> None:
    """A fault that hits nothing would leave the properties untested."""
    c = live(0, [], spec())
    undo = {"undrain": "drain", "mend_gpus": "lose_gpu", "uncordon": "cordon", "pass_check": "fail_check"}
    if fault in undo:
        c.fault(undo[fault], 1)
    c.fault(fault, 1)
    assert fault in c.fired
