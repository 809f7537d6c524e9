"""Verdicts, failures, and the evidence that a process is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.evidence import exit_status, group_failure, group_nodes
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Death, GateView, NodeView, Observed, RankView, Verdict
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import PolicySpec, RunSpec
from supervisor.wire import records
from tests.helpers.reasons import SEGFAULT
from tests.unit.core.world import World

SPEC = RunSpec(name="run", policy=PolicySpec(node_lease_s=5))
GROUP = GroupMemory(group=0, generation=3, seats=(Seat("n1"),), phase="running", since=10.0)
RANK = RankView(group=0, generation=3, rank=0, state="running", commits=4, step=9)
NODE = NodeView(name="n1", registered=True, allocation="a1", ranks=(RANK,))
HOST = NodeView(name="h", registered=True, role="service")
GATE = GateView(node="h", generation=1, address="h:1", admitted={0: 3}, hearing={0: "beating"})
SEEN = Observed(revision=1, now=100.0, store_stable_s=60.0, nodes={"n1": NODE, "h": HOST}, gate=GATE)
LAPSED = replace(SEEN, nodes={"n1": replace(NODE, registered=False), "h": HOST})


def test_the_exit_codes_are_those_on_the_wire() -> None:
    assert exit_status.PEERS_GONE_EXIT == records.PEERS_GONE
    assert exit_status.TERMINATED_EXIT == records.TERMINATED
    assert exit_status.MISCONFIGURED_EXIT == records.MISCONFIGURED


@pytest.mark.parametrize(
    ("hearing", "admitted", "verdict"),
    [
        ("beating", 3, Verdict.UNKNOWN),
        ("beating", 2, Verdict.DEAD),
        ("silent", 3, Verdict.DEAD),
        ("gone", 3, Verdict.DEAD),
        ("holding", 3, Verdict.DEAD),
        ("absent", 3, Verdict.DEAD),
    ],
)
def test_the_verdict_of_a_lapsed_node_depends_on_what_the_gate_hears(
    hearing: str, admitted: int, verdict: Verdict
) -> None:
    observed = replace(LAPSED, gate=replace(GATE, hearing={0: hearing}, admitted={0: admitted}))
    assert group_failure.node_verdict("n1", GROUP, observed, SPEC)[0] == verdict


DEATH = Death(why="its port is closed", silent_s=0.8)
DEAD = replace(SEEN, nodes={"n1": replace(NODE, registered=False, death=DEATH), "h": HOST})


def test_a_node_that_is_proved_dead_is_dead_though_its_lease_could_live() -> None:
    shortly = replace(DEAD, store_stable_s=1.0, gate=replace(GATE, hearing={0: "silent"}))
    assert group_failure.node_verdict("n1", GROUP, shortly, SPEC) == (
        Verdict.DEAD,
        Reason.of(Code.PROVED_DEAD, node="n1", why="its port is closed", seconds=0.8),
    )


def test_a_proof_counts_for_nothing_while_the_gate_hears_the_group() -> None:
    assert group_failure.node_verdict("n1", GROUP, DEAD, SPEC)[0] == Verdict.UNKNOWN


def test_a_proof_gives_the_engine_the_time_that_the_node_was_silent_and_not_a_lease() -> None:
    memory = Memory(suspects={"lease:n1": 100.0})
    gate = replace(GATE, hearing={0: "silent"})
    after_a_lease, proved = replace(LAPSED, gate=gate), replace(DEAD, gate=gate)
    slow = {"engine_word_s": 3.0}
    assert group_failure.still_to_wait_s(GROUP, replace(after_a_lease, **slow), SPEC) == 0.0  # type: ignore[arg-type]
    assert group_failure.still_to_wait_s(GROUP, replace(proved, **slow), SPEC) == pytest.approx(2.2)  # type: ignore[arg-type]
    lost = group_failure.failure(GROUP, proved, SPEC, memory)
    assert lost is not None
    assert (lost.kind, lost.took_s) == (Kind.NODE_LOST, 0.8)
    lapsed = group_failure.failure(GROUP, after_a_lease, SPEC, memory)
    assert lapsed is not None
    assert lapsed.took_s == 5.0


def test_a_group_whose_node_has_departed_is_silent_for_as_long_as_that() -> None:
    gate = replace(GATE, hearing={0: "silent"}, departed=frozenset({"n1"}))
    found = group_failure.failure(GROUP, replace(SEEN, gate=gate), SPEC, Memory())
    assert found is not None
    assert (found.kind, found.took_s) == (Kind.SILENT, 0.5)
    assert found.evidence == (Reason.of(Code.DEPARTED, nodes=("n1",), seconds=0.5),)


def test_a_registered_node_is_healthy_whatever_else() -> None:
    assert (
        group_failure.node_verdict("n1", GROUP, replace(SEEN, gate=None, store_stable_s=0.0), SPEC)[0]
        == Verdict.HEALTHY
    )


def test_without_a_gate_or_a_stable_store_nobody_knows() -> None:
    assert group_failure.node_verdict("n1", GROUP, replace(LAPSED, gate=None), SPEC)[0] == Verdict.UNKNOWN
    assert group_failure.node_verdict("n1", GROUP, replace(LAPSED, store_stable_s=4.9), SPEC)[0] == Verdict.UNKNOWN


def test_a_node_that_nothing_runs_on_is_dead_by_its_lease() -> None:
    assert group_failure.node_verdict("n1", None, LAPSED, SPEC)[0] == Verdict.DEAD
    assert group_failure.node_verdict("n1", replace(GROUP, phase="placing"), LAPSED, SPEC)[0] == Verdict.DEAD


def test_only_ranks_of_the_current_generation_count() -> None:
    old = replace(RANK, generation=2)
    other = replace(RANK, group=1)
    observed = replace(SEEN, nodes={"n1": replace(NODE, ranks=(old, other, RANK))})
    assert group_nodes.ranks_of(GROUP, observed) == (RANK,)
    assert group_nodes.ranks_of(replace(GROUP, seats=(Seat("elsewhere"),)), observed) == ()


def exited(code: int | None, rank: int = 0, signal: int | None = None, error: str = "") -> RankView:
    phase = "finished" if code == 0 else "failed"
    return replace(RANK, state="exited", exit_code=code, signal=signal, rank=rank, error=error, phase=phase)


@pytest.mark.parametrize(
    ("ranks", "finished"),
    [
        ((exited(0), exited(0, 1)), True),
        ((exited(0),), False),
        ((exited(0), exited(1, 1)), False),
        ((exited(0), replace(RANK, rank=1)), False),
        ((exited(0), exited(None, 1, signal=9)), False),
        ((exited(0), replace(exited(0, 1), phase="step")), False),
    ],
)
def test_finished_needs_every_rank_and_code_zero(ranks: tuple[RankView, ...], finished: bool) -> None:
    observed = replace(SEEN, nodes={"n1": replace(NODE, ranks=ranks)})
    assert group_failure.finished(GROUP, observed, 2) is finished


@pytest.mark.parametrize("phase", ["unplaced", "fencing", "finished"])
def test_a_group_that_has_no_process_cannot_fail(phase: str) -> None:
    observed = replace(LAPSED, gate=replace(GATE, hearing={0: "gone"}))
    assert group_failure.failure(replace(GROUP, phase=phase), observed, SPEC, Memory()) is None  # type: ignore[arg-type]


def test_a_healthy_group_shows_no_failure() -> None:
    assert group_failure.failure(GROUP, SEEN, SPEC, Memory()) is None


def test_the_gravest_failure_wins() -> None:
    """The order is: node lost, crash, silence."""
    crashed = replace(NODE, ranks=(exited(None, signal=11),))
    silent = replace(GATE, hearing={0: "silent"})
    kinds = []
    memory = Memory(suspects={"lease:n1": 0.0})
    for node, gate in [
        (replace(crashed, registered=False), silent),
        (crashed, silent),
        (NODE, silent),
    ]:
        found = group_failure.failure(GROUP, replace(SEEN, nodes={"n1": node, "h": HOST}, gate=gate), SPEC, memory)
        assert found is not None
        kinds.append(found.kind)
    assert kinds == [Kind.NODE_LOST, Kind.CRASH, Kind.SILENT]


def test_what_holds_on_the_machine_is_evidence_of_what_fails_there() -> None:
    w = World().bring_up()
    node = w.group(1).first_node
    facts = {"disk_full": "/local: No space left on device", "clock_unsynchronised": "not kept"}
    w.nodes[node] = replace(w.nodes[node], facts=facts)
    w.crash(1)
    w.round()
    assert w.incident.evidence == (
        SEGFAULT,
        Reason.of(Code.ON_ITS_NODE, fact="/local: No space left on device"),
    )
    before = w.memory
    w.nodes[node] = replace(w.nodes[node], facts={})
    w.round()
    assert w.memory.incidents == before.incidents
