"""The breaker holds when too many nodes are lost at once: none is given up until they are back or a person decides."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, world
from supervisor.core.model.kinds import Rung
from supervisor.core.model.spec import BreakerSpec
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord
from tests.real_trainers.test_lighthouse import commits, joint, quorum_spec, trains
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(720)]

GROUPS = 3
BREAKER = BreakerSpec(share=0.3, at_least=1)
"""One of three is too many: leases lapse one by one, and the first node would be given up before the second is lost."""
LOST = (0, 1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[World, RunRecord]]:
    """Three groups that step together, a spare, and a fifth node that the engine may give."""
    spec = quorum_spec(groups=GROUPS, mode="quorum")
    with world(tmp_path, nodes=5) as w:
        record = trains(w, replace(spec, policy=replace(spec.policy, breaker=BREAKER)))
        eventually(lambda: w.status(record).spares, 30, "the spare is there")
        yield w, record
        w.check(record)


def held(w: World, record: RunRecord) -> bool:
    """True if `status` reports that both nodes are lost and held."""
    said = f"breaker: {len(LOST)} of {GROUPS} nodes lost within 60 s"
    return any(sentence.startswith(said) for sentence in w.status(record).waiting)


def verbs(w: World, record: RunRecord) -> list[str]:
    return [action["verb"] for decision in w.history(record).decisions for action in decision.actions]


def nothing_is_given_up(w: World, record: RunRecord, before: dict[str, int]) -> None:
    eventually(lambda: held(w, record), 30 + 5 * LEASE_S, "both are lost, and held")
    assert "hold" in verbs(w, record)
    since = time.time()
    passes(3 * LEASE_S)
    assert held(w, record)
    state = w.status(record)
    assert [g.generation for g in state.groups] == [1] * GROUPS
    assert (state.cordons, state.budgets_left) == ({}, before)
    assert [i for i in w.incidents(record) if i.rung > Rung.RIDE_THROUGH and i.decided is not None] == []
    trained = {group for group, _ in commits(w, record, since)}
    assert trained == set(range(GROUPS)) - set(LOST), "the one that is left trains on"


def everything_of(w: World, record: RunRecord, group: int) -> list[int]:
    """Processes of a group's node; the parent of the others last."""
    node = w.status(record).groups[group].node
    registered = w.mirror().record(keys.registration(node), Registration)
    assert registered is not None
    return [w.trainer(record, group).pid, registered.agent_pid, w.shim_pid(node)]


def test_nodes_that_are_lost_at_once_are_held_and_go_on_when_they_come_back(run: tuple[World, RunRecord]) -> None:
    """The nodes are frozen: silent to etcd, the gate and each other, as behind a failed switch."""
    w, record = run
    before = w.status(record).budgets_left
    frozen = [pid for group in LOST for pid in everything_of(w, record, group)]
    pids = [w.trainer(record, group).pid for group in range(GROUPS)]
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGSTOP)
    try:
        nothing_is_given_up(w, record, before)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: not held(w, record), 30, "they are back")
    joint(w, record, time.time())
    eventually(lambda: not w.status(record).incidents_open, 30, "all is over")
    assert {i.state for i in w.incidents(record)} == {"recovered"}
    assert "let_go" in verbs(w, record)
    state = w.status(record)
    assert [g.generation for g in state.groups] == [1] * GROUPS
    assert [w.trainer(record, group).pid for group in range(GROUPS)] == pids
    assert (state.cordons, state.budgets_left) == ({}, before)


@pytest.mark.long
def test_nodes_that_are_lost_at_once_are_given_up_when_a_person_says_so(run: tuple[World, RunRecord]) -> None:
    w, record = run
    before = w.status(record).budgets_left
    lost = [w.status(record).groups[group].node for group in LOST]
    for node in lost:
        w.kill_node(node)
    nothing_is_given_up(w, record, before)
    said = cli("resume", record.spec.name, "--because", "the rack burnt", world=w)
    assert said.returncode == 0, said.stderr
    assert (
        "the nodes that are lost, or whose checks do not pass, or whose groups a restart did not repair, are given up, "
        "charged to no budget, because: the rack burnt" in said.stdout
    )
    eventually(w.running(record, *(2 if g in LOST else 1 for g in range(GROUPS))), 60, "the others take over")
    joint(w, record, time.time())
    state = w.status(record)
    assert not {g.node for g in state.groups} & set(lost)
    assert sorted(state.cordons) == sorted(lost)
    assert state.budgets_left == before
