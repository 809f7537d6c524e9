"""What was seen of a generation ends with it: a sign that stays in a record, or that comes late, never fails the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.detect import ENGINE_WORD_S
from supervisor.core.ending import PEERS_GONE_EXIT
from supervisor.core.model import Kind, StuckView
from tests.unit.core.world import World

HANGS = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.5, stack="in read (data.py:1)")

SIGNS: dict[str, tuple[Kind, dict[str, Any]]] = {
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

HALF_AN_HOUR_S = 1800.0


def ailing(sign: str) -> tuple[World, Kind]:
    """Three groups, of which group 1 shows the sign and is judged by it."""
    kind, about = SIGNS[sign]
    w = World(groups=3, spares=3).bring_up()
    w.report(1, **{"commits": 1, "step": 50, **about})
    if "stuck" in about:
        w.others_wait(1)
    if "numerics" in about:  # it is in the mean, so the others end with it
        for other in (0, 2):
            w.report(other, **{"commits": 1, "step": 50, **about, "numerics": "peers"})
    w.round(0.1)
    w.round(ENGINE_WORD_S)
    return w, kind


@pytest.mark.parametrize("sign", SIGNS)
def test_it_fails_its_own_generation(sign: str) -> None:
    w, kind = ailing(sign)
    (incident,) = (i for i in w.incidents.values() if i.group == 1)
    assert (incident.kind, w.group(1).generation) == (kind, 2)


@pytest.mark.parametrize("sign", SIGNS)
def test_it_never_fails_the_next_one(sign: str) -> None:
    """The record of the old generation stays where it was, on the old node or on the same, and comes once more."""
    w, _ = ailing(sign)
    old = w.nodes["n2"].ranks
    w.go_on()
    for group in [g for g, memory in w.memory.groups.items() if memory.phase != "running"]:
        w.recover(group, step=60)
    seen = len(w.incidents)
    for _ in range(8):
        view = w.nodes["n2"]
        kept = tuple(rank for rank in view.ranks if rank.generation > 1)
        w.nodes["n2"] = replace(view, ranks=(*old, *kept))
        w.round(HALF_AN_HOUR_S)
    assert len(w.incidents) == seen
    assert w.group(1).generation == 2
    assert w.memory.incidents == {}
    assert w.memory.suspects == {}
