"""Combined situations: a rank that has finished beside one that has not, a dead group that is left so, many failures at
once.

A test's docstring describes the failure that it prevents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

import benchmarks.decide as bench
from supervisor.core.decide import decide
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.observed import CordonView, GpuFact, RankView, StuckView
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import SlurmSpec
from supervisor.core.model.stacks import of_text
from supervisor.core.round.view import MAX_CHANGES
from supervisor.shell.inspect.pending_reasons import held
from tests.helpers.reasons import values
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s

WAITS = StuckView(activity="quorum", activity_s=31.0, bound_s=30.0, usual_s=1.0)
SAVES = replace(WAITS, activity="checkpoint")
STOPPED = replace(WAITS, process="stopped")
NAN = "NotFinite: loss is nan at step 50"


# --- observe_mode.has_ended takes a rank that has finished for a group that is dead ---


def rank_0_has_finished(w: World) -> None:
    w.save(0, 100)
    w.fail(0, code=0, rank=0, step=100, commits=1)


def the_others_finish(w: World) -> None:
    for rank in range(2):
        w.fail(1, code=0, rank=rank, step=100, commits=1)
    for _ in range(3):
        w.round(1.0)


@pytest.mark.parametrize("sign", ["hang", "silent"])
def test_a_rank_that_still_saves_is_not_ended_with_the_run(sign: str) -> None:
    """Otherwise observe mode kills the last checkpoint's writer: the run `finished`, and its nodes were given back."""
    w = World(groups=2, ranks=2, mode="observe").bring_up()
    rank_0_has_finished(w)
    w.report(0, 1, commits=1, step=100, stuck=SAVES if sign == "hang" else None)
    if sign == "silent":
        w.hear(0, "silent")
        w.round()
        w.round(w.spec.policy.silent_timeout_s + 1.0)
    w.round(1.0)
    the_others_finish(w)
    assert w.memory.phase == "running"


def test_its_hang_is_one_incident() -> None:
    """Otherwise each second round has an incident, `recovered by itself`: `incidents --shadow` counts hundreds."""
    w = World(groups=2, ranks=2, mode="observe").bring_up()
    rank_0_has_finished(w)
    w.report(0, 1, commits=1, step=100, stuck=SAVES)
    for rank in range(2):
        w.report(1, rank, commits=1, step=100, stuck=WAITS)
    for _ in range(10):
        w.round(1.0)
    assert len(w.incidents) == 1


# --- blame without the dead group: a group that rightly waits for it is blamed ---


@pytest.mark.parametrize("how", ["fact", "stacks"])
def test_who_waits_because_too_few_are_left_is_not_ended(how: str) -> None:
    """Otherwise healthy processes are killed, up to a halt, for waiting for a group that policy leaves dead."""
    w = World(groups=3, ranks=2, min_groups=3, observe=("crash",)).bring_up()
    w.crash(0)
    w.round(1.0)
    if how == "fact":
        w.node(2, facts={"disk_full": "/var: No space left on device"})
    for g in (1, 2):
        for rank in range(2):
            at = "in a (x.py:1)" if g == 2 or rank == 0 else "in b (x.py:1)"
            w.report(g, rank, commits=1, step=50, stuck=replace(WAITS, where=of_text(at if how == "stacks" else "")))
    for _ in range(3):
        w.round(60.0)
    assert [w.group(g).generation for g in range(3)] == [1, 1, 1]


# --- a lost node whose trainer is heard again trains, and is taken for dead ---


def test_a_run_is_not_halted_while_the_gate_hears_another_group_train() -> None:
    """Otherwise the run is halted as `the program's fault` though the program trains beside it (only its agent is
    away)."""
    w = World(groups=2, observe=("node_lost",)).bring_up()
    w.save(1, step=50)
    w.commit(0, step=50)
    w.hear(0, "gone")
    w.lapse(w.group(0).first_node)
    w.round(1.0)
    assert w.incident.shadow
    w.hear(0, "beating")
    for n in range(2):
        w.fail(1, error="ValueError: x", step=52, commits=2)
        w.round(1.0)
        if n == 0:
            w.start_again(1)
            assert w.group(1).resume == "peers"
    assert w.memory.phase == "running"


# --- drain._move with the last resort ---


def test_a_group_is_not_taken_off_while_another_node_is_coming() -> None:
    """Otherwise it is ended with nowhere to go: placing waits for the pending allocation, up to its time limit."""
    w = World(groups=3, spares=1).bring_up()
    w.node(4, facts={"disk_full": "/run: No space left on device"})
    for number in (1, 2):
        w.node(number, leaving="time limit in 120 s")
    for _ in range(4):
        w.round(1.0)
    one, two = (int(key.removeprefix("run-a")) for key in w.memory.allocations if key not in w.grants)
    w.grant(one, "refused", "no node")
    w.grant(two, "pending")
    for _ in range(10):
        w.round(1.0)
        w.admit(0)
    assert w.group(0).phase == "running"


def test_a_drain_has_no_deadline_so_no_group_is_moved_to_a_full_disk() -> None:
    """Otherwise a healthy group is killed to start it where it cannot save; it must wait for a good node."""
    w = World(groups=2, spares=1).bring_up()
    w.node(3, facts={"disk_full": "/run: No space left on device"})
    w.cordons["n1"] = CordonView(why="maintenance", drain="maintenance")
    for _ in range(4):
        w.round(1.0)
    for key in [a.key for a in w.memory.allocations.values() if a.key not in w.grants]:
        w.grant(int(key.removeprefix("run-a")), "refused", "no node")
    w.round(1.0)
    assert w.group(0).phase == "running"


# --- rounds that take minutes ---


def ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000.0


def nan(g: int, rank: RankView) -> RankView:
    return replace(rank, state="exited", exit_code=1, error=NAN, numerics="own" if g == 7 else "peers")


def wait(g: int, rank: RankView) -> RankView:
    return replace(rank, stuck=replace(WAITS, where=of_text("in wait (gloo.py:91)")))


def once(what: Callable[[int, RankView], RankView], groups: int, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(bench, "NODES", groups + 1)
    spec, quiet, memory = bench.inputs(groups)
    nodes = dict(quiet.nodes)
    for g in range(groups):
        node = nodes[f"node-{g:05}"]
        nodes[node.name] = replace(node, ranks=tuple(what(g, rank) for rank in node.ranks))
    seen = replace(quiet, nodes=nodes)
    if what is nan:
        memory = decide(replace(seen, now=seen.now + 0.1), spec, memory).memory
        seen = replace(seen, now=seen.now + 5.0)
    return min(ms(lambda: decide(seen, spec, memory)) for _ in range(3))


@pytest.mark.parametrize("what", [nan, wait])
def test_a_round_is_not_quadratic_in_the_groups(
    what: Callable[[int, RankView], RankView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN ends all groups, and a round follows for every 15 of them: it must not take longer the more they are. Nor
    may one where all wait. Four times as many may take four times as long; by the square it would be sixteen."""
    assert once(what, 1600, monkeypatch) < 8.0 * once(what, 400, monkeypatch)


# --- a real hang that is never found, and a run that never ends ---


@pytest.mark.parametrize("stop", [False, True])
def test_one_that_waits_when_all_others_have_finished_is_found(stop: bool) -> None:
    """It was away for the last steps (stopped, cut off). Undetected, it would wait for ever, and its nodes would cost
    until a person looks. `supervisor stop` would not end either."""
    w = World(groups=3).bring_up()
    for g in range(3):
        w.commit(g, step=50)
    if stop:
        w.control = replace(w.control, stop=True)
        w.round()
    for g in (0, 2):
        w.fail(g, code=0, step=w.memory.stop_at_step or 10000, commits=1)
    w.round(1.0)
    w.report(1, commits=1, step=50, stuck=WAITS)
    for _ in range(10):
        w.round(3600.0)
    assert w.memory.phase == "stopped" if stop else w.incidents


def test_a_single_group_that_waits_in_the_quorum_waits_for_nobody() -> None:
    """Undetected, a run of one group that hangs in TorchFT's manager hangs for ever: `not known for whom`."""
    w = World(groups=1).bring_up()
    w.report(0, commits=1, step=50, stuck=WAITS)
    for _ in range(3):
        w.round(3600.0)
    assert w.incidents


# --- a handover and a group that has ended and is left so (O, but `trains for nobody` is not done there) ---


def with_a_dead_one(*leaving: int) -> World:
    w = World(groups=3, spares=0, observe=("crash",))
    w.spec = replace(w.spec, allocation=replace(w.spec.allocation, slurm=SlurmSpec(warn_s=120)))
    w.bring_up()
    for g in range(3):
        w.commit(g, step=50, step_s=1.0)
    w.round(1.0)
    w.crash(0, step=50, commits=1)
    w.round(1.0)
    for number in leaving:
        w.node(number, leaving="its time limit is near")
    for _ in range(12):
        w.round(10.0)
    return w


def test_nobody_can_heal_from_it_so_the_others_save_before_they_are_taken() -> None:
    """Otherwise its time limit ends all that trains without a last checkpoint: the steps since the last one are
    lost."""
    assert with_a_dead_one(2, 3).memory.handover_at_step is not None


def test_a_handover_does_not_wait_for_it() -> None:
    """Otherwise the run stands still for policy.start_timeout_s (300 s) more, waiting for a dead group to end."""
    w = with_a_dead_one(1, 2, 3)
    for g in (1, 2):
        w.fail(g, code=0, step=w.memory.handover_at_step, commits=9)
    w.round(1.0)
    for g in range(3):
        w.admit(g)
    for _ in range(5):
        w.round(1.0)
    assert w.memory.handover_at_step is None


# --- one NaN, many groups ---


def not_finite(w: World, *own: int) -> None:
    for g in w.memory.groups:
        w.fail(g, code=1, error=NAN, numerics="own" if g in own else "peers", step=50, commits=1)
    w.round(0.1)
    w.round(LOCAL_WORD_S)


def test_nobody_else_pays_where_the_gpu_is_known_to_be_the_cause() -> None:
    """With an Xid the incident is `gpu`: the groups that are judged in later rounds do not pay for it either."""
    w = World(groups=60, spares=1).bring_up()
    w.node(1, gpus=(GpuFact(kind="gpu_xid", xid=48, evidence="Xid 48", during=frozenset({(0, 1)})),))
    not_finite(w, 0)
    for _ in range(60 // MAX_CHANGES + 4):
        w.admit(0)
        w.round(0.1)
    assert w.memory.spent.keys() == {"replace"}


def test_what_most_groups_computed_is_no_hosts_fault() -> None:
    """A model diverges while one group's batch is still finite. Otherwise three healthy hosts of four are cordoned, for
    3 replaces. The ADR's rule is `one group's alone`; spikes in the same file are judged by `fewer than half`."""
    w = World(groups=4, spares=4).bring_up()
    not_finite(w, 0, 1, 2)
    assert w.memory.cordons == {}


# --- `behind` ---


def test_what_others_did_while_it_was_stopped_says_nothing_of_its_wait() -> None:
    """A person pauses the run, stops a trainer to debug it and lets it go on. It waits in the quorum while the others
    evaluate. It must not be killed at `unpause` for the steps they made while it was stopped."""
    w = World(groups=3).bring_up()
    w.control = replace(w.control, paused=True)
    for step in (52, 60):
        for g in (0, 2):
            w.commit(g, step=step)
        w.report(1, commits=1, step=50, stuck=STOPPED)
        w.round(5.0)
    w.report(1, commits=1, step=50, stuck=WAITS)
    for _ in range(5):
        w.round(5.0)
    w.control = replace(w.control, paused=False)
    w.round(5.0)
    assert w.group(1).generation == 1


def test_steps_that_are_told_late_were_made_before() -> None:
    """Others' reports are up to 5 s old (agents/shim/settings.py, report_s): first the one before the wait, then the one of
    the steps between."""
    w = World(groups=3).bring_up()
    for g in (0, 2):
        w.commit(g, step=104)
    w.report(1, commits=1, step=50, stuck=replace(WAITS, activity_s=2.0))
    w.round(0.5)
    for g in (0, 2):
        w.commit(g, step=108)  # then they evaluate
    w.round(4.0)
    assert not w.incidents


# --- status must agree with the incidents ---


def test_status_says_what_decide_says() -> None:
    """Beside the incident that names group 1, status does not report that it is unknown who hangs."""
    w = World(groups=3, mode="observe").bring_up()
    w.report(1, commits=1, step=50, stuck=WAITS)
    for step in range(52, 64, 2):
        for g in (0, 2):
            w.commit(g, step=step)
        w.round(5.0)
    assert [i.group for i in w.memory.incidents.values()] == [1]
    assert values(held(w.memory, w.observed(), w.spec), Code.ALL_WAIT) == []


# --- in act mode too the first rank that finishes makes its group `silent` ---


def test_a_rank_that_still_saves_is_not_restarted_because_the_other_has_finished() -> None:
    """Rank 0's manager heartbeats for the group. If rank 1 saves for 30 s longer and is killed meanwhile, the end of
    the run is repeated from an older checkpoint."""
    w = World(groups=2, ranks=2).bring_up()
    rank_0_has_finished(w)
    w.report(0, 1, commits=1, step=100, phase="checkpoint")
    w.hear(0, "silent")
    w.round()
    w.round(w.spec.policy.silent_timeout_s + 1.0)
    assert w.group(0).generation == 1
