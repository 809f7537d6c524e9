"""Conditions under which a group's failure is its GPU's fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.evidence import gpu_faults
from supervisor.core.model.incident import Confidence
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.observed import GpuFact, NodeView, StuckView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import GroupsSpec
from tests.helpers.reasons import SEGFAULT, text, texts, values
from tests.unit.core.world import World

NAME = "GPU 0 (0000:10:00.0, GPU-0000)"


def xid(w: World, code: int, group: int = 1, generation: int | None = None, **about: Any) -> GpuFact:
    """An Xid that came while a generation of the group ran, its current one if none is given."""
    ran = (group, w.group(group).generation if generation is None else generation)
    return GpuFact(kind="gpu_xid", evidence=f"{NAME}: Xid {code}", xid=code, during=frozenset({ran}), **about)


def holds(kind: str, **about: Any) -> GpuFact:
    return GpuFact(kind=kind, evidence=f"{NAME} {kind}", **about)


def tell(w: World, *facts: GpuFact, node: str = "") -> None:
    """Sets the GPU facts that the agent of group 1's node, or of another, reports."""
    name = node or w.group(1).first_node
    w.nodes[name] = replace(w.nodes[name], gpus=facts)


def moved(w: World) -> bool:
    return w.group(1).first_node == "" and w.group(1).phase == "fencing"


# --- a group that fails ---


@pytest.mark.parametrize("code", [48, 64, 74, 109, 119, 120, 140])
def test_a_crash_after_an_xid_that_needs_a_reset_is_the_gpus(code: int) -> None:
    w = World().bring_up()
    node = w.group(1).first_node
    tell(w, xid(w, code, rank=0))
    assert w.round().actions == (), "what still runs is left alone"
    w.crash(1)
    w.round()
    assert (w.incident.kind, w.incident.rung, w.incident.node) == (Kind.GPU, Rung.REPLACE, node)
    assert w.incident.evidence == (
        Reason.of(Code.ON_ITS_GPU, host=node, rank=0, fact=f"{NAME}: Xid {code}"),
        Reason.of(Code.AND_SO, kind="crash", evidence=SEGFAULT),
    )
    assert (w.incident.rank, w.incident.confidence) == (0, Confidence.LIKELY)
    assert moved(w)
    assert node in w.memory.cordons


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 68, 92, 94, 9999])
def test_a_crash_after_one_of_the_programs_own_is_a_crash(code: int) -> None:
    w = World().bring_up()
    node = w.group(1).first_node
    tell(w, xid(w, code))
    w.crash(1)
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert w.incident.evidence == (
        SEGFAULT,
        Reason.of(Code.ON_ITS_GPU, host=node, rank=None, fact=f"{NAME}: Xid {code}"),
    )


def test_an_exception_keeps_its_text() -> None:
    w = World().bring_up()
    tell(w, xid(w, 48))
    w.fail(1, error="AcceleratorError: CUDA error: uncorrectable ECC error encountered", trace="the traceback")
    w.round()
    assert (w.incident.kind, w.incident.trace) == (Kind.GPU, "the traceback")
    assert "uncorrectable ECC error" in w.incident.error


def test_the_text_is_that_of_the_newest_end() -> None:
    w = World().bring_up()
    w.fail(1, error="OldError: one", trace="old")
    w.round()
    w.start_again(1)
    tell(w, holds("gpu_rows_failed"))
    w.fail(1, error="NewError: two", trace="new")
    w.round()
    assert len(w.incidents) == 1
    assert (w.incident.kind, w.incident.error, w.incident.trace) == (Kind.GPU, "NewError: two", "new")


def test_it_says_nothing_of_the_program() -> None:
    """As after a lost node, the program's earlier ends are not forgotten."""
    w = World().bring_up()
    w.fail(1, error="ValueError: mine")
    w.round()
    w.start_again(1)
    seen = w.group(1).seen
    assert seen is not None
    tell(w, xid(w, 79))
    w.round()
    assert (w.incident.kind, w.group(1).seen) == (Kind.GPU, seen)


def test_a_hang_is_the_gpus_also_when_all_wait() -> None:
    """A collective with a GPU that does not answer never ends, so no group hangs by itself."""
    w = World().bring_up()
    for group in (0, 1):
        w.report(group, commits=1, step=5, stuck=StuckView(activity="collective", activity_s=60.0, bound_s=30.0))
    assert w.verbs() == []
    assert w.waiting(Code.ALL_WAIT) == [{"groups": (0, 1), "activities": ("collective",)}]
    tell(w, xid(w, 119))
    w.round()
    assert (w.incident.kind, w.incident.group) == (Kind.GPU, 1)
    (led_to,) = values(w.incident.evidence, Code.AND_SO)
    assert led_to["kind"] == "hang"
    assert moved(w)


def test_one_that_never_commits() -> None:
    w = World().start_up()
    tell(w, holds("nvml_stalled"))
    w.round(w.spec.policy.start_timeout_s + 1.0)
    assert {i.group: i.kind for i in w.incidents.values()} == {0: Kind.START_TIMEOUT, 1: Kind.GPU}


@pytest.mark.parametrize("kind", sorted(k for k, effect in gpu_faults.CONDITIONS.items() if not effect.replaces))
def test_what_only_warns_never_acts(kind: str) -> None:
    w = World().bring_up()
    tell(w, holds(kind))
    assert w.round(100.0).actions == ()
    w.crash(1)
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert (kind in texts(*w.incident.evidence)) == (kind not in gpu_faults.EXPLAINS_NOTHING)


def test_a_persons_restart_and_a_kill_for_memory_stay_what_they_are() -> None:
    w = World().bring_up()
    tell(w, holds("gpu_rows_failed"))
    w.crash(1, signal=9, oom=True)
    w.round()
    assert w.incident.kind == Kind.OOM


# --- at once ---


@pytest.mark.parametrize("code", [79, 95])
def test_a_gpu_that_is_gone_is_a_failure_before_the_process_notices(code: int) -> None:
    w = World().bring_up()
    tell(w, xid(w, code, rank=0))
    w.round()
    assert (w.incident.kind, w.incident.rung, w.incident.rank) == (Kind.GPU, Rung.REPLACE, 0)
    assert w.incident.confidence == Confidence.CERTAIN
    assert moved(w)
    w.recover(1)
    assert w.incidents["i1"].state == "recovered"
    assert w.group(0).generation == 1, "the other group trains on"


def test_a_lost_gpu_that_no_rank_uses_is_nobodys_failure() -> None:
    w = World().bring_up()
    tell(w, holds("gpu_lost", rank=1), xid(w, 79, rank=1))
    assert w.round(100.0).actions == ()
    w.spec = replace(w.spec, groups=GroupsSpec(count=2, ranks_per_group=2))
    w.round()
    assert w.incident.kind == Kind.GPU


def test_a_policy_that_only_observes_moves_nobody() -> None:
    w = World(observe=("gpu",)).bring_up()
    tell(w, xid(w, 79))
    assert w.verbs() == ["observe"]
    assert (w.incident.shadow, w.group(1).phase) == (True, "running")


# --- no stale evidence ---


@pytest.mark.parametrize("code", [48, 79, 95])
def test_an_xid_of_an_earlier_generation_never_acts_on_a_later_one(code: int) -> None:
    """A stale event must not kill a job again and again: it is reported for an hour, and the job runs on."""
    w = World().bring_up()
    w.crash(1)
    w.round()
    w.recover(1)
    assert w.group(1).generation == 2
    tell(w, xid(w, code, generation=1))
    for _ in range(4):
        assert w.round(1800.0).actions == ()
    w.crash(1)
    w.round()
    assert (w.incident.kind, w.incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert w.incident.evidence == (SEGFAULT,)


def test_an_xid_of_another_group_of_the_node_or_of_none_does_not_act() -> None:
    w = World().bring_up()
    nobodys = replace(xid(w, 79), during=frozenset())
    tell(w, xid(w, 79, group=0), nobodys)
    assert w.round(100.0).actions == ()


def test_a_condition_holds_until_it_is_over() -> None:
    w = World(spares=2).bring_up()
    w.crash(1)
    w.round()
    w.recover(1)
    tell(w, holds("gpu_reset_required"))
    assert w.round(100.0).actions == ()
    tell(w)
    w.crash(1)
    w.round()
    assert w.incident.kind == Kind.CRASH


def test_a_node_that_does_not_answer_says_nothing_of_its_gpus() -> None:
    w = World().bring_up()
    tell(w, holds("gpu_lost"))
    w.nodes[w.group(1).first_node] = replace(w.nodes[w.group(1).first_node], registered=False)
    assert w.round().actions == (), "its lease only lapsed: the engine has its say first"


# --- where groups are placed ---


@pytest.mark.parametrize("kind", sorted(k for k, effect in gpu_faults.CONDITIONS.items() if effect.replaces))
def test_no_group_is_placed_where_a_gpu_cannot_be_used(kind: str) -> None:
    w = World(spares=2).bring_up()
    tell(w, holds(kind), node="n3")
    tell(w, xid(w, 79))
    w.round()
    w.start_again(1)
    assert w.group(1).first_node == "n4"


def test_an_xid_alone_bars_no_spare() -> None:
    """The Xid is past, and may no longer matter: only a condition lasts."""
    w = World().bring_up()
    tell(w, replace(xid(w, 48), during=frozenset()), replace(xid(w, 79), during=None), node="n3")
    w.crash(0)
    tell(w, xid(w, 79))
    w.round()
    w.start_again(1)
    assert w.group(1).first_node == "n3"


def test_why_a_node_is_given_no_group_is_said() -> None:
    w = World(spares=1).bring_up()
    tell(w, holds("nvml_stalled"), node="n3")
    tell(w, xid(w, 79))
    w.round()
    assert w.incident.rung == Rung.REALLOCATE
    assert Reason.of(Code.NO_SPARE) in w.incident.considered
    w.admit(1)
    w.round()
    w.round()
    assert w.waiting(Code.NODE_UNFIT) == [{"node": "n3", "why": f"{NAME} nvml_stalled"}]
    tell(w, node="n3")
    w.start_again(1)
    assert w.group(1).first_node == "n3"


def test_a_spare_whose_gpu_is_lost_is_given_back_and_its_host_not_asked_for_again() -> None:
    w = World(spares=1).bring_up()
    tell(w, holds("gpu_lost"), node="n3")
    w.round()
    released, acquired = w.last.actions
    assert (released.verb, released.key) == ("release", "release:run-a3")
    assert released.reason == text(f"{NAME} gpu_lost")
    assert acquired.verb == "acquire"
    assert w.memory.allocations["run-a4"].exclude == ("n3",)
    del w.nodes["n3"]
    w.grant(3, "gone")
    w.bring(4)
    assert w.round(1.0).actions == ()


def test_a_spare_on_which_nvml_is_stalled_is_kept() -> None:
    w = World(spares=1).bring_up()
    tell(w, holds("nvml_stalled"), node="n3")
    assert w.round(1000.0).actions == ()


def test_a_gpu_of_a_node_that_no_rank_would_use_bars_nothing() -> None:
    w = World().bring_up()
    view = NodeView(name="n", registered=True, gpus=(holds("gpu_lost", rank=1),))
    assert gpu_faults.unfit(view, w.spec) == ""
    assert gpu_faults.unfit(replace(view, gpus=(holds("gpu_lost"),)), w.spec) == f"{NAME} gpu_lost"
