"""Properties of a run in the model cluster that hold under any faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from supervisor.core.decide import decide
from supervisor.core.model.kinds import Kind
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation import shutdown
from supervisor.core.report.words import say
from supervisor.wire import keys
from tests.properties import cluster
from tests.properties.cluster import Cluster

FAULTS = [
    "kill",
    "raise",
    "freeze",
    "thaw",
    "unlink",
    "link",
    "power_off",
    "lose_gpu",
    "mend_gpus",
    "xid",
    "kill_agent",
    "revive_agents",
    "take_away",
    "limit",
    "limit_all",
    "preempt",
    "preempt_all",
    "drain",
    "undrain",
    "cordon",
    "drain_host",
    "uncordon",
    "fail_check",
    "pass_check",
    "stall_engine",
    "gate_down",
    "gate_frozen",
    "host_down",
    "hosts_up",
    "split",
    "unsplit",
    "store_down",
    "store_back",
    "pause",
    "resume",
    "restart",
    "kill_supervisor",
]

REFUSALS = ["refuse", "accept"]

PERSONS = ["cordon", "drain_host", "drain_host", "uncordon", "fail_check", "pass_check"]

LEAVES = ["limit", "limit", "limit_all", "preempt", "drain", "undrain"]

ALL_PREEMPTED = st.tuples(st.integers(0, 60), st.just("preempt_all"), st.just(0))
"""A preemption of everything, once: a grace is shorter than a warning, and not all successors that are preempted as
soon as they come go in time."""

Plan = list[tuple[int, str, int]]

PLANS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(FAULTS), st.integers(0, 63)), min_size=3, max_size=14)
"""Ticks to pass before, the fault, its target."""

SEEDS = st.integers(0, 2**16)


def live(seed: int, plan: Plan, spec: RunSpec, warm_up: bool = True, **about: object) -> Cluster:
    """A run that came up (or is coming up) and then met the plan."""
    c = Cluster(spec, seed, **about)  # type: ignore[arg-type]
    if warm_up:
        assert c.until(c.healthy, 300), c.state()
    for ticks, fault, target in plan:
        c.run(ticks)
        c.fault(fault, target)
    c.run(10)
    for fault in c.fired:
        event(fault)
    return c


def times(factor: float) -> settings:
    """Settings with `factor` times the profile's examples."""
    return settings(max_examples=max(1, int(settings().max_examples * factor)))


@times(4)
@given(SEEDS, PLANS, st.booleans(), st.booleans())
def test_whatever_happens(seed: int, plan: Plan, warm_up: bool, engine_notices: bool) -> None:
    """Two owners never; no stale action and none done twice; a reason for each and for every skipped rung. The
    invariants hold, and memory survives the store. Once the faults stop, with nodes and budgets enough, every group
    runs again and nothing stays open."""
    c = live(seed, plan, cluster.spec(), warm_up, engine_notices=engine_notices)
    c.heal()
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()


@given(
    SEEDS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(LEAVES), st.integers(0, 63)), min_size=1, max_size=5)
    | st.tuples(ALL_PREEMPTED).map(list),
)
def test_what_only_leaves_costs_no_committed_step_and_no_budget(
    seed: int, groups: int, others: int, plan: Plan
) -> None:
    """Any node may leave, with or without other machines. No step is committed twice, no host is suspected, and each
    gets one successor; afterwards every group runs. Machines are few enough that some must be handed over."""
    c = live(seed, plan, cluster.spec(groups=groups), pool=groups + 1 + others)
    c.run(2 * cluster.LIMIT_TICKS)
    c.heal()
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()
    assert c.lost == 0, f"{c.lost} steps were lost: {c.state()}"
    assert (c.memory.spent, c.memory.cordons) == ({}, {})
    assert len(c.memory.allocations) == groups + 1 + len(c.successors)
    assert {i.kind for _, _, d in c.decided for i in d.incidents} <= {
        Kind.LEAVING,
        Kind.ALLOCATION_LOST,
        Kind.NODE_LOST,
    }


@given(
    SEEDS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(PERSONS), st.integers(0, 63)), min_size=1, max_size=6),
)
def test_what_a_person_cordons_and_drains_costs_no_committed_step_and_no_budget(
    seed: int, groups: int, others: int, plan: Plan
) -> None:
    """Any hosts are cordoned, drained and freed, even more than there are machines. Nothing fails, no budget is
    charged, and only a host's own checks are held against it. Once all are free every group runs. What is left in time
    is given back."""
    c = live(seed, plan, cluster.spec(groups=groups), pool=groups + 1 + others)
    c.run(100)
    for group in c.memory.groups.values():
        drained = (
            keys.cordon(f"h{group.first_node}") in c.held
            and b'"drain":true' in c.held[keys.cordon(f"h{group.first_node}")]
        )
        assert not (drained and others == 4 and len(plan) < 3 and groups > 1), f"it was not left: {c.state()}"
    c.heal()
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()
    assert c.lost == 0, f"{c.lost} steps were lost: {c.state()}"
    failed = any(fault == "fail_check" for _, fault, _ in plan)
    assert set(c.memory.spent) <= ({"reallocate"} if failed else set()), (
        "what stands in for a host that fails its checks is paid"
    )
    assert c.memory.cordons == {}
    assert {i.kind for _, _, d in c.decided for i in d.incidents} <= {Kind.LEAVING}


@given(SEEDS, st.integers(5, 8), st.lists(st.integers(0, 12), max_size=3), st.integers(0, 120), st.booleans())
def test_a_cause_that_fails_the_checks_of_all_machines_is_over_by_itself(
    seed: int, groups: int, crashes: list[int], longer: int, warm_up: bool
) -> None:
    """The cause comes before the run starts or while its ranks crash. The run is not halted, and once the cause is
    mended every group runs, though no person has freed a host."""
    c = Cluster(cluster.spec(groups=groups, replace=4, reallocate=6), seed, pool=groups + 12)
    if warm_up:
        assert c.until(c.healthy, 300), c.state()
    c.cause = True
    for ticks in crashes:
        c.run(ticks)
        c.fault("kill", ticks)
    c.run(longer)
    assert c.memory.phase in ("new", "running"), c.state()
    c.cause, c.helpful = False, True
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()


BUGS = ["ValueError: no batch", "ValueError: unknown option 'timeout_s'", "RuntimeError: size 500 must match 512"]


@given(SEEDS, st.integers(1, 3), st.integers(1, 12), st.sampled_from(BUGS))
def test_a_bug_of_the_program_halts_the_run_and_costs_no_node(seed: int, groups: int, ahead: int, bug: str) -> None:
    """It raises at a step in every group, and again wherever that step is reached from a checkpoint."""
    c = live(seed, [], cluster.spec(groups=groups))
    c.bug_at, c.bug = c.newest + ahead, bug
    assert c.until(lambda: c.memory.phase == "halted", 400), c.state()
    assert not c.broken, c.broken[:3]
    assert bug in say(c.memory.halt_reason)
    halting = [i for _, _, d in c.decided for i in d.incidents if i.state == "halted" and i.kind == Kind.SAME_ERROR]
    assert halting, c.state()
    assert c.memory.cordons == {}
    assert set(c.memory.spent) <= {f"restart:{g}" for g in range(groups)}
    # it comes twice at a step, and may come a step later from the checkpoint that the first time had left
    assert all(len(instants) <= 3 for instants in c.memory.spent.values()), c.memory.spent


@given(SEEDS, st.integers(2, 3), st.integers(1, 12), st.integers(0, 600))
def test_a_store_that_is_away_for_a_while_halts_nothing_and_costs_no_node(
    seed: int, groups: int, ahead: int, ticks: int
) -> None:
    """It ends every group, again and again, with any budgets; when the store is back all groups train."""
    c = live(seed, [], cluster.spec(groups=groups, restart=2, replace=1, reallocate=1))
    c.bug_at, c.bug = c.newest + ahead, "ConnectionError: Couldn't reach the store"
    c.run(ahead + ticks)
    assert c.memory.phase == "running", c.state()
    c.bug_at = None
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()
    assert c.memory.cordons == {}
    assert set(c.memory.spent) <= {f"restart:{g}" for g in range(groups)}, c.memory.spent


@given(SEEDS, st.integers(0, 2))
def test_what_crashes_one_group_on_every_host_bars_none_of_them(seed: int, group: int) -> None:
    """From the second host on no incident is held against any: neither by this run nor, in etcd, for others."""
    c = live(seed, [], cluster.spec(restart=1))
    c.segfaults = group
    assert c.until(lambda: any(s.followed for s in c.memory.groups[group].shown), 400), c.state()
    for _ in range(100):
        assert (c.memory.cordons, [key for key in c.held if "/incident/" in key]) == ({}, []), c.state()
        c.tick()
    assert not c.broken, c.broken[:3]


@given(SEEDS, st.integers(0, 2))
def test_a_group_that_cannot_start_anywhere_is_left_out_and_the_others_go_on(seed: int, group: int) -> None:
    """With any budgets it takes no more than one other node, and starts again when a person asks for it."""
    c = live(seed, [], cluster.spec())
    c.stillborn = group
    next(p for p in c.everywhere() if p[1].group == group)[1].end(signal=15)
    assert c.until(lambda: bool(c.memory.groups[group].left_out), 400), c.state()
    spent, before = c.memory.spent, c.steps
    c.run(200)
    assert c.steps > before + 100, "the others step"
    assert (c.memory.phase, c.memory.spent, c.memory.cordons) == ("running", spent, {})
    assert {scope: len(instants) for scope, instants in spent.items()} == {f"restart:{group}": 2, "replace": 1}
    c.stillborn, c.helpful = None, True
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()


@given(SEEDS, st.integers(0, 2), st.integers(0, 12))
def test_a_name_that_is_given_again_starts_nothing_of_the_last_one(seed: int, group: int, longer: int) -> None:
    """A host goes to another user between the decision to start a group there and the start. Its new node reads the
    last one's desired record, but begins nothing of it; the group runs again elsewhere."""
    c = live(seed, [], cluster.spec())
    next(p for p in c.everywhere() if p[1].group == group)[1].end(signal=11)
    assert c.until(lambda: (group, 2) in c.placed, 100), c.state()
    old = c.machines[c.memory.groups[group].first_node]
    old.power = False
    c.machines[old.name] = cluster.Machine(old.name, "another-a1")
    c.leaderless = 100
    assert c.until(lambda: c.not_ours > 0, 50), "it reads what was wanted"
    c.run(longer)
    c.heal()
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()
    assert not c.machines[old.name].begun


@given(SEEDS, st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["power_off", "take_away", "kill", "limit"]),
                                 st.integers(0, 63)), min_size=2, max_size=8))  # fmt: skip
def test_an_engine_that_refuses_is_not_asked_again_and_again(seed: int, plan: Plan) -> None:
    """Each loss makes one submission; a person's word makes one more, and then every group runs again."""
    c = live(seed, [(0, "refuse", 0), *plan], cluster.spec())
    c.run(100)
    asked = len(c.memory.allocations)
    c.run(100)
    assert len(c.memory.allocations) == asked, "nothing happened any more, and still it is asked"
    if c.memory.phase == "halted":
        assert "no quota" in say(c.memory.halt_reason)
    c.heal()
    c.helpful = True
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()


CUTS = [
    "split",
    "split",
    "unsplit",
    "unlink",
    "link",
    "gate_frozen",
    "gate_down",
    "host_down",
    "hosts_up",
    "kill",
    "take_away",
]


@times(4)
@given(
    SEEDS, st.lists(st.tuples(st.integers(1, 40), st.sampled_from(CUTS), st.integers(0, 63)), min_size=2, max_size=6)
)
def test_two_lighthouses_never_serve_at_once(seed: int, plan: Plan) -> None:
    """The network is cut around them in any way, and anything may die with it; afterwards all groups train together."""
    c = live(seed, plan, cluster.spec())
    c.run(40)
    c.heal()
    again = c.until(c.healthy, 400)
    assert not c.broken, c.broken[:3]
    assert again, c.state()


@pytest.mark.parametrize("target", range(32))
def test_one_side_of_a_split_network_trains_and_never_both(target: int) -> None:
    """Every way to cut a service host and some of the four machines off from the store and the rest."""
    c = Cluster(cluster.spec(), target)
    assert c.until(c.healthy, 300), c.state()
    c.run(5)
    c.fault("split", target)
    before = c.steps
    c.run(200)
    assert not c.broken, c.broken[:3]
    assert c.steps > before + 20, f"nobody trains: {c.state()}"
    c.heal()
    assert c.until(c.healthy, 400), c.state()
    assert not c.broken, c.broken[:3]


@times(2)
@given(SEEDS, PLANS)
def test_with_tight_budgets(seed: int, plan: Plan) -> None:
    """Budgets are never exceeded; the run climbs, and where it halts it gives the reason."""
    c = live(seed, plan, cluster.spec(restart=2, replace=1, reallocate=1))
    c.heal()
    c.run(60)
    assert not c.broken, c.broken[:3]
    assert c.memory.phase in ("running", "stopping", "halted")
    assert (c.memory.phase == "running") == (not c.memory.halt_reason)


@given(SEEDS, PLANS)
def test_a_paused_run_does_nothing(seed: int, plan: Plan) -> None:
    c = live(seed, [(0, "pause", 0), *[step for step in plan if step[1] != "resume"]], cluster.spec())
    assert c.control.paused
    assert not c.broken, c.broken[:3]


@given(SEEDS, PLANS)
def test_where_it_is_only_observed_no_failure_is_acted_on(seed: int, plan: Plan) -> None:
    """The exceptions are a person's requests, and moves before an announced end. Silence is ridden through, as ever."""
    c = live(seed, plan, cluster.spec(mode="observe"))
    c.run(100)
    assert not c.broken, c.broken[:3]
    acted = {i.kind for _, _, d in c.decided for i in d.incidents if i.decided is not None and not i.shadow}
    assert acted <= {Kind.REQUESTED, Kind.LEAVING, Kind.SILENT}
    assert set(c.memory.spent) <= {"reallocate"}, "which is what spares are asked for again by"
    assert c.memory.cordons == {}
    assert c.memory.phase == "running"


@given(SEEDS, PLANS)
def test_a_run_that_is_told_to_stop_ends_and_gives_everything_back(seed: int, plan: Plan) -> None:
    c = live(seed, plan, cluster.spec())
    c.heal()
    c.control = replace(c.control, stop=True)
    assert c.until(lambda: c.memory.phase == "stopped", 300), c.state()
    assert not c.broken, c.broken[:3]
    assert {a.state for a in c.memory.allocations.values()} == {"released"}
    c.run(20)
    assert not [p for m in c.machines.values() for p in m.live()], "nothing of it runs on a machine that can be reached"


LATE_S = 10.0
"""Seconds by which this supervisor, which sleeps and dies at random, may miss a deadline."""


@times(2)
@given(
    SEEDS,
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([*FAULTS, "spin", "spin"]), st.integers(0, 63)), max_size=10
    ),
    st.booleans(),
)
def test_a_stop_ends_a_run_in_time_whatever_state_it_is_in(seed: int, plan: Plan, warm_up: bool) -> None:
    """Nothing is mended first: groups that start, spin or are silent, a pause, an engine that grants nothing, machines
    that no one reaches. Only the store answers: without it no one decides anything."""
    c = live(seed, plan, cluster.spec(), warm_up)
    if not c.store_up:
        c.fault("store_back", 0)
    c.control, c.leaderless, before = replace(c.control, stop=True), 0, len(c.broken)
    within_s = shutdown.longest_s(c.spec, c.memory.measured) + LATE_S
    assert c.until(lambda: c.memory.phase in ("stopped", "halted"), int(within_s / cluster.TICK_S)), c.state()
    assert not c.broken[before:], c.broken[before:][:3]
    assert {a.state for a in c.memory.allocations.values()} <= {"released"}


@given(SEEDS, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 63)), min_size=1, max_size=4))
def test_an_outage_of_the_store_alone_leads_to_nothing(seed: int, outages: list[tuple[int, int]]) -> None:
    """The outage may have any length, and any number of leases may lapse with it."""
    c = live(seed, [], cluster.spec())
    c.calm = True
    assert c.until(c.healthy, 100), c.state()
    c.run(2)
    generations = {g: m.generation for g, m in c.memory.groups.items()}
    seen = c.memory.incidents_seen
    for ticks, lapsed in outages:
        c.fault("store_down", 0)
        c.run(ticks)
        c.fault("store_back", lapsed)
        c.run(30)
    assert {g: m.generation for g, m in c.memory.groups.items()} == generations
    assert c.memory.incidents_seen == seen
    assert c.healthy()


DIGEST = """
import hashlib, pickle, sys
from supervisor.core.decide import decide
with open(sys.argv[1], "rb") as file:
    inputs = pickle.load(file)
spec, rounds = inputs
digest = hashlib.sha256()
for observed, memory in rounds:
    digest.update(repr(decide(observed, spec, memory)).encode())
print(len(rounds), digest.hexdigest())
"""


@given(SEEDS, PLANS)
def test_the_same_input_gives_the_same_output(seed: int, plan: Plan) -> None:
    c = live(seed, plan, cluster.spec(restart=2))
    for observed, memory, decision in c.decided:
        assert decide(observed, c.spec, memory) == decision


def test_string_hashes_do_not_reach_the_output(tmp_path: Path) -> None:
    """The same inputs in two processes with different hash seeds give the same output."""
    spec = cluster.spec(groups=6, spares=2, restart=1, replace=2)
    rounds = []
    for seed in range(6):
        c = Cluster(spec, seed)
        c.until(c.healthy, 300)
        for number in range(12):
            c.fault(FAULTS[(seed * 5 + number * 7) % len(FAULTS)], number * 3 + seed)
            c.run(6)
        rounds += [(observed, memory) for observed, memory, _ in c.decided]
    assert sum(bool(d[2].actions) for d in c.decided) > 5
    file = tmp_path / "inputs.pickle"
    file.write_bytes(pickle.dumps((spec, rounds)))
    said = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "4242")
    ]  # fmt: skip
    assert said[0].startswith(f"{len(rounds)} ")
    assert said[0] == said[1]


@pytest.mark.parametrize("fault", [*FAULTS, *REFUSALS])
def test_every_fault_of_the_model_can_happen(fault: str) -> None:
    """A fault that hits nothing would leave the properties untested."""
    c = live(0, [], cluster.spec())
    undo = {"thaw": "freeze", "link": "unlink", "revive_agents": "kill_agent", "unsplit": "split",
            "hosts_up": "host_down", "store_back": "store_down", "resume": "pause", "undrain": "drain",
            "accept": "refuse", "mend_gpus": "lose_gpu", "uncordon": "cordon",
            "pass_check": "fail_check"}  # fmt: skip
    if fault in undo:
        c.fault(undo[fault], 1)
    c.fault(fault, 1)
    assert fault in c.fired
