"""Evidence about a generation ends with it: a sign that stays recorded, or comes late, never fails the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.evidence.exit_status import PEERS_GONE_EXIT
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import GpuFact, StuckView
from supervisor.core.model.spec import FirstRungSpec
from supervisor.core.model.stacks import of_text
from tests.unit.core.world import World

LOCAL_WORD_S = TRAITS["local"].word_s

READS = of_text("in read (data.py:1)")
HANGS = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.5, where=READS)

SLOW_FOR_S = 300.0

RANKS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "crash": (Kind.CRASH, {"state": "exited", "signal": 11}),
    "killed for memory": (Kind.OOM, {"state": "exited", "signal": 9, "oom": True}),
    "error": (Kind.ERROR, {"state": "exited", "exit_code": 1, "phase": "failed", "error": "ValueError: a"}),
    "no peer to heal from": (Kind.PEERS_GONE, {"state": "exited", "exit_code": PEERS_GONE_EXIT, "phase": "failed"}),
    "not finite": (
        Kind.NUMERICS,
        {"state": "exited", "exit_code": 1, "phase": "failed", "error": "NotFinite: loss is nan", "numerics": "own"},
    ),
    "hang": (Kind.HANG, {"stuck": HANGS}),
}
"""Signs in a rank's own record: the expected kind, and the record."""

HALF_AN_HOUR_S = 1800.0


def trains(**policy: Any) -> World:
    """A world of three groups that train."""
    return World(groups=3, spares=3, **policy).bring_up()


def shown_by_a_rank(sign: str) -> World:
    _, about = RANKS[sign]
    w = trains()
    w.report(1, **{"commits": 1, "step": 50, **about})
    if "stuck" in about:
        w.others_wait(1)
    if "numerics" in about:  # it is in the mean, so the others end with it
        for other in (0, 2):
            w.report(other, **{"commits": 1, "step": 50, **about, "numerics": "peers"})
    return w


def never_commits() -> World:
    w = World(groups=3, spares=3).start_up()
    w.report(1, phase="built")
    for other in (0, 2):
        w.commit(other)
    w.round(w.spec.policy.start_timeout_s + 1.0)
    return w


def stays_silent() -> World:
    w = trains(silent_timeout_s=5.0)
    w.hear(1, "silent")
    w.round()
    w.round(6.0)
    return w


def stays_slow() -> World:
    w = trains(first_rung=FirstRungSpec(straggler="restart"), straggler_for_s=SLOW_FOR_S)
    for step in (50, 114):
        for group, seconds in enumerate((0.4, 0.9, 0.4)):
            w.commit(group, step=step, compute_s=seconds)
        w.round(SLOW_FOR_S + 1.0)
    return w


def loses_its_gpu() -> World:
    w = trains()
    lost = GpuFact(kind="gpu_xid", evidence="GPU 0: Xid 79", xid=79, during=frozenset({(1, 1)}))
    w.nodes["n2"] = replace(w.nodes["n2"], gpus=(lost,))
    return w


MADE: dict[str, tuple[Kind, Callable[[], World]]] = {
    "never commits": (Kind.START_TIMEOUT, never_commits),
    "silent": (Kind.STALLED, stays_silent),
    "slow": (Kind.STRAGGLER, stays_slow),
    "Xid": (Kind.GPU, loses_its_gpu),
}
"""Signs that others see, or that a comparison shows: the expected kind, and the maker of a world with it."""

SIGNS = [*RANKS, *MADE]


def ailing(sign: str) -> tuple[World, Kind]:
    """A world of three groups, of which group 1 shows the sign and is judged by it; and the sign's kind."""
    kind, w = (MADE[sign][0], MADE[sign][1]()) if sign in MADE else (RANKS[sign][0], shown_by_a_rank(sign))
    w.round(0.1)
    w.round(LOCAL_WORD_S)
    return w, kind


@pytest.mark.parametrize("sign", SIGNS)
def test_it_fails_its_own_generation(sign: str) -> None:
    w, kind = ailing(sign)
    (incident,) = (i for i in w.incidents.values() if i.group == 1)
    assert (incident.kind, w.group(1).generation) == (kind, 2)


@pytest.mark.parametrize("sign", SIGNS)
def test_it_never_fails_the_next_one(sign: str) -> None:
    """All records of the old generation stay where they were, or come once more: of its ranks, the gate's, and of its
    node's GPUs. The next one runs beside these too, as if on the same node."""
    w, _ = ailing(sign)
    old, gate = w.nodes["n2"], w.gate
    w.go_on()
    for group in [g for g, memory in w.memory.groups.items() if memory.phase != "running"]:
        w.recover(group, step=60)
    seen = len(w.incidents)
    now = w.gate
    for look in range(8):
        for group in w.memory.groups:
            w.commit(group, step=100 * (look + 1), compute_s=0.4)
        view = w.nodes["n2"]
        kept = tuple(rank for rank in view.ranks if rank.generation > 1)
        w.nodes["n2"] = replace(view, ranks=(*old.ranks, *kept))
        for name in ("n2", w.group(1).first_node):
            w.nodes[name] = replace(w.nodes[name], gpus=old.gpus)
        w.gate = gate if look % 2 else now
        w.round(HALF_AN_HOUR_S)
        assert w.last.waits == (), "nor is it named by what was seen of the old one"
    assert len(w.incidents) == seen
    assert w.group(1).generation == 2
    assert w.memory.incidents == {}
    assert w.memory.suspects == {}
