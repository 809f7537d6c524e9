"""Many nodes lost at once are one cause that is not the nodes': a switch, a store, a power line, a driver. Nobody is evicted
for it, and no run is halted because its budgets are smaller than a rack."""

from __future__ import annotations

from supervisor.core import detect, gpu
from supervisor.core.model import Kind, Rung, Verdict
from supervisor.core.round import Round

HELD = frozenset({Kind.NODE_LOST, Kind.STALLED, Kind.GPU})
"""What a lost network looks like, or a driver that fails everywhere. What the engine says of an allocation, and how a process ended, are no guesses."""


def look(r: Round) -> None:
    """Hold, or let go, by how many nodes are lost now or were given up within the window. A person may end it."""
    policy = r.spec.policy.breaker
    if r.observed.control.evictions > r.before.evictions_done:
        r.rest["evictions_done"] = r.observed.control.evictions
        r.rest["evict_until"] = r.now + policy.window_s
        r.act("resume", f"evict:{r.observed.control.evictions}", f"a person says: {r.observed.control.because}")
    lost, nodes = _lost(r), max(1, len(r.groups))
    unpaid = lost > _given_up(r) + r.left(Rung.REPLACE, 0) + r.left(Rung.REALLOCATE, 0)
    holds = lost >= policy.at_least and (lost > policy.share * nodes or unpaid) and not evicting(r)
    since = r.before.breaker_since
    if holds and since is None:
        r.rest["breaker_since"] = r.now
        r.act("hold", f"hold:{r.before.decisions}", sentence(r))
    elif not holds and since is not None:
        r.rest["breaker_since"] = None
        r.act("let_go", f"let_go:{r.before.decisions}", f"{lost} of {nodes} nodes are lost now")
    if holds:
        r.wait(sentence(r), until=r.now + 1.0)


def holds(r: Round, kind: Kind) -> bool:
    """Whether a failure of this kind is held, not acted on."""
    since: float | None = r.rest.get("breaker_since", r.before.breaker_since)
    return since is not None and kind in HELD


def evicting(r: Round) -> bool:
    """Whether a person has said that the lost nodes are to be given up: at no budget."""
    until: float | None = r.rest.get("evict_until", r.before.evict_until)
    return until is not None and r.now < until


def sentence(r: Round) -> str:
    """Why it holds, and what a person can do."""
    policy = r.spec.policy.breaker
    return (
        f"breaker: {_lost(r)} of {len(r.groups)} nodes lost within {policy.window_s:g} s: one cause, not so many nodes; none is "
        f'given up until they come back or a person says so: supervisor resume {r.spec.name} --because "..."'
    )


def _lost(r: Round) -> int:
    """Nodes whose group is lost now, and those that were given up a short while ago."""
    now_lost = 0
    for group in r.groups.values():
        node = r.observed.nodes.get(group.node)
        if group.phase not in ("starting", "running") or not group.node:
            continue
        if node is not None and node.registered:
            now_lost += bool(node.gpus) and gpu.at_once(group, r.observed, r.spec) is not None
            continue
        grant = r.observed.grants.get(group.allocation)
        by_engine = grant is not None and grant.state == "gone"
        verdict, _ = detect.node_verdict(group.node, group, r.observed, r.spec)
        now_lost += verdict == Verdict.DEAD and not by_engine
    return now_lost + _given_up(r)


def _given_up(r: Round) -> int:
    since = r.now - r.spec.policy.breaker.window_s
    spent = (r.before.spent.get(rung.name.lower(), ()) for rung in (Rung.REPLACE, Rung.REALLOCATE))
    return sum(at > since for draws in spent for at in draws)
