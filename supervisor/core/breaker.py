"""Many nodes lost at once, or whose checks do not pass, are one cause that is not the nodes': a switch, a store, a power line,
a driver. Nobody is evicted for it, and no run is halted because its budgets are smaller than a rack."""

from __future__ import annotations

from collections.abc import Iterable

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
    too_many = lost >= policy.at_least and (lost > policy.share * nodes or unpaid)
    holds = (too_many or bool(_unchecked_too_many(r))) and not evicting(r)
    since = r.before.breaker_since
    if holds and since is None:
        r.rest["breaker_since"] = r.now
        r.act("hold", f"hold:{r.before.decisions}", sentence(r))
    elif not holds and since is not None:
        r.rest["breaker_since"] = None
        checks = f", the checks of {len(_unchecked(r))} have not passed"
        r.act("let_go", f"let_go:{r.before.decisions}", f"{lost} of {nodes} nodes are lost now{checks}")
    if holds:
        r.wait(sentence(r), until=r.now + 1.0)


def holds(r: Round, kind: Kind) -> bool:
    """Whether a failure of this kind is held, not acted on."""
    return tripped(r) and kind in HELD


def tripped(r: Round) -> bool:
    """Whether it holds now."""
    since: float | None = r.rest.get("breaker_since", r.before.breaker_since)
    return since is not None


def unchecked(r: Round, nodes: Iterable[str]) -> list[str]:
    """Of some nodes those of this run that are there and whose checks do not pass, unless a group runs there."""
    found = []
    for name in nodes:
        view = r.observed.nodes.get(name)
        if view is not None and view.registered and (view.failed or view.unsure):
            allocation = r.allocations.get(view.allocation)
            found += [name] if allocation is not None and allocation.state == "wanted" else []
    runs = {g.node for g in r.groups.values() if g.phase in ("starting", "running")} if found else set()
    return sorted(set(found) - runs)


def evicting(r: Round) -> bool:
    """Whether a person has said that the lost nodes are to be given up: at no budget."""
    until: float | None = r.rest.get("evict_until", r.before.evict_until)
    return until is not None and r.now < until


def sentence(r: Round) -> str:
    """Why it holds, and what a person can do."""
    policy = r.spec.policy.breaker
    person = f'a person says so: supervisor resume {r.spec.name} --because "..."'
    if found := _unchecked_too_many(r):
        view = r.observed.nodes[found[0]]
        given_up = f", and {_given_up(r)} were given up within {policy.window_s:g} s" if _given_up(r) else ""
        return (
            f"breaker: the checks of {len(found)} of {_asked_for(r)} nodes did not pass{given_up}: one cause, not so many nodes; "
            f"none is given up until they do or {person} ({view.failed or view.unsure})"
        )
    return (
        f"breaker: {_lost(r)} of {len(r.groups)} nodes lost within {policy.window_s:g} s: one cause, not so many nodes; none is "
        f"given up until they come back or {person}"
    )


def _unchecked_too_many(r: Round) -> list[str]:
    """Nodes whose checks do not pass, where they are, with those that were given up a short while ago, too many to be so
    many nodes' own fault; else none."""
    policy, found = r.spec.policy.breaker, _unchecked(r)
    count = len(found) + _given_up(r)
    return found if count >= policy.at_least and count > policy.share * _asked_for(r) else []


def _unchecked(r: Round) -> list[str]:
    return unchecked(r, [node.name for node in r.observed.nodes.values() if node.failed or node.unsure])


def _asked_for(r: Round) -> int:
    return r.spec.allocation.nodes + r.spec.allocation.spares


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
