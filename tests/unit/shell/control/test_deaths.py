"""Nodes that are proved dead before their leases lapse."""

from __future__ import annotations

import math
import socket
from concurrent.futures import Future
from dataclasses import replace

import pytest

from supervisor.core.model.observed import Death, GateView, NodeView, Observed, RankView
from supervisor.ports.store import Changes, Item
from supervisor.shell.control import deaths
from supervisor.shell.control.deaths import RefusedPorts
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.address import free_port
from supervisor.wire.records import NodeObserved, encode
from tests.unit.shell.records import mirror_of, registration

GATE = GateView(node="h", generation=1, address="h:1", hearing={0: "silent"}, departed=frozenset({"n1"}))
SEEN = Observed(
    revision=1, now=9.0, store_stable_s=60.0, nodes={n: NodeView(name=n, registered=True) for n in ("n1", "n2")}, gate=GATE
)  # fmt: skip


AWAY = replace(SEEN, gate=replace(GATE, departed=frozenset()))
"""The gate names no node any more."""


class Threads:
    """Keeps what is asked, for the test to answer. Each node is reached while it lives."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: list[Future[bool]] = []
        self.reaches = True

    def submit(self, what: object, address: str, port: int) -> Future[bool]:
        answer: Future[bool] = Future()
        if what is deaths.answers:
            answer.set_result(self.reaches)
        else:
            self.asked.append((address, port))
            self.answers.append(answer)
        return answer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def proofs(threads: Threads, clock: Clock) -> RefusedPorts:
    return RefusedPorts(monotonic=clock, _threads=threads)  # type: ignore[arg-type]


def mirror(*nodes: str) -> Mirror:
    values: dict[str, bytes] = {}
    for node in nodes or ("n1", "n2"):
        values |= registration(node, metrics_port=81) | {
            keys.observed(node): encode(NodeObserved(node=node, sequence=1))
        }
    return mirror_of(values)


def proved(proofs: RefusedPorts, threads: Threads, seen: Mirror) -> Death:
    """Proves n1 dead."""
    proofs.look(seen, SEEN)
    threads.answers[-1].set_result(True)
    return proofs.look(seen, SEEN)["n1"]


def test_a_node_that_departed_and_refuses_is_dead_and_counts_as_not_registered(
    threads: Threads, proofs: RefusedPorts
) -> None:
    seen = mirror()
    assert proofs.look(seen, SEEN) == {}
    assert threads.asked == [("127.0.0.1", 81)]
    assert proofs.look_after_s == deaths.LOOK_S
    threads.answers[0].set_result(True)
    found = proofs.look(seen, SEEN)
    assert found["n1"].silent_s == 0.5
    assert "127.0.0.1:81 refuses" in found["n1"].why
    assert proofs.look_after_s == math.inf
    applied = deaths.apply(SEEN, found)
    assert [(n.name, n.registered, n.death) for n in applied.nodes.values()] == [
        ("n1", False, found["n1"]),
        ("n2", True, None),
    ]
    # also once its group is elsewhere, and the gate names it no more
    assert proofs.look(seen, AWAY) == found
    assert len(threads.asked) == 1


def test_a_proof_outlives_the_lease_until_the_failure_is_judged(
    threads: Threads, proofs: RefusedPorts, clock: Clock
) -> None:
    seen = mirror()
    death = proved(proofs, threads, seen)
    seen.apply(Changes(8, (), (keys.registration("n1"),)))
    lapsed = replace(SEEN, nodes={"n1": NodeView(name="n1", registered=False)})
    clock.now += 10.0
    assert proofs.look(seen, lapsed) == {"n1": death}
    clock.now += deaths.KEPT_S
    assert proofs.look(seen, lapsed) == {}


def test_a_port_that_never_answered_this_leader_proves_nothing(threads: Threads, proofs: RefusedPorts) -> None:
    threads.reaches = False
    assert proofs.look(mirror(), SEEN) == {}
    assert threads.asked == []


def test_a_node_with_a_rank_in_the_debugger_is_not_asked(threads: Threads, proofs: RefusedPorts) -> None:
    stopped = RankView(group=0, generation=1, rank=0, state="running", debugging=True)
    assert proofs.look(mirror(), replace(SEEN, nodes={"n1": replace(SEEN.nodes["n1"], ranks=(stopped,))})) == {}
    assert threads.asked == []


def test_a_node_whose_group_the_gate_hears_again_lives(threads: Threads, proofs: RefusedPorts) -> None:
    seen = mirror()
    proved(proofs, threads, seen)
    rank = RankView(group=0, generation=1, rank=0, state="running")
    heard = replace(
        SEEN,
        nodes={"n1": replace(SEEN.nodes["n1"], ranks=(rank,))},
        gate=replace(GATE, departed=frozenset(), admitted={0: 1}, hearing={0: "beating"}),
    )
    assert proofs.look(seen, heard) == {}


def test_one_that_answers_is_asked_again_later_while_it_stays_away(
    threads: Threads, proofs: RefusedPorts, clock: Clock
) -> None:
    seen = mirror()
    proofs.look(seen, SEEN)
    threads.answers[0].set_result(False)
    assert proofs.look(seen, SEEN) == {}
    assert proofs.look(seen, SEEN) == {}
    assert len(threads.asked) == 1
    clock.now += deaths.ANSWERED_S
    assert proofs.look(seen, SEEN) == {}
    assert len(threads.asked) == 2
    threads.answers[1].set_result(False)
    clock.now += deaths.ANSWERED_S
    assert proofs.look(seen, replace(SEEN, gate=None)) == {}
    assert len(threads.asked) == 2


def test_a_question_that_no_run_reads_keeps_no_one_awake(threads: Threads, proofs: RefusedPorts, clock: Clock) -> None:
    seen = mirror()
    proofs.look(seen, SEEN)
    threads.answers[0].set_result(True)
    assert proofs.look(seen, replace(SEEN, nodes={})) == {}
    clock.now += deaths.ANSWERED_S
    assert proofs.look_after_s == math.inf


def test_a_report_after_the_proof_takes_it_back(threads: Threads, proofs: RefusedPorts) -> None:
    seen = mirror()
    proved(proofs, threads, seen)
    seen.apply(Changes(7, (Item(keys.observed("n1"), encode(NodeObserved(node="n1", sequence=2)), 1, 7),)))
    assert proofs.look(seen, AWAY) == {}


def test_a_node_that_registers_again_is_another(threads: Threads, proofs: RefusedPorts) -> None:
    seen = mirror()
    proved(proofs, threads, seen)
    value = registration("n1", metrics_port=82)[keys.registration("n1")]
    seen.apply(Changes(9, (Item(keys.registration("n1"), value, 1, 9),)))
    assert proofs.look(seen, AWAY) == {}
    assert proofs.look(seen, SEEN) == {}
    assert threads.asked == [("127.0.0.1", 81), ("127.0.0.1", 82)]


@pytest.mark.parametrize(
    "observed",
    [
        replace(SEEN, gate=None),
        replace(SEEN, gate=replace(GATE, present=False)),
        replace(SEEN, nodes={"n1": NodeView(name="n1", registered=False)}),
        replace(SEEN, nodes={}),
    ],
)
def test_no_other_node_is_asked(observed: Observed, threads: Threads, proofs: RefusedPorts) -> None:
    assert proofs.look(mirror(), observed) == {}
    assert threads.asked == []


def test_a_port_refuses_only_where_nothing_listens_and_the_kernel_says_so() -> None:
    assert deaths.refuses("127.0.0.1", free_port())
    with socket.create_server(("127.0.0.1", 0)) as there:
        at = there.getsockname()[1]
        assert (deaths.refuses("127.0.0.1", at), deaths.answers("127.0.0.1", at)) == (False, True)
    # a compromised node writes what it likes: the second and third are no name at all
    for address in ("no-such-host.invalid", "x..y", 64 * "x"):
        assert (deaths.refuses(address, 81), deaths.answers(address, 81)) == (False, False)
