"""Looks up what is observed on a group's nodes. A round asks this for every group many times: plain loops are fast."""

from __future__ import annotations

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import NodeView, Observed, RankView


def views(group: GroupMemory, observed: Observed) -> list[NodeView]:
    """Its nodes, as far as anything is known of them."""
    found = []
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is not None:
            found.append(node)
    return found


def answering(group: GroupMemory, observed: Observed) -> list[NodeView]:
    """Those of its nodes that are registered: the reports of others are old."""
    found = []
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is not None and node.registered:
            found.append(node)
    return found


def all_answer(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if each of its nodes is registered; false for a group without one."""
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is None or not node.registered:
            return False
    return bool(group.seats)


def ranks_of(group: GroupMemory, observed: Observed) -> tuple[RankView, ...]:
    """Ranks of the group's current generation on its nodes."""
    found: tuple[RankView, ...] = ()
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is not None:
            found += _own(group, node)
    return found


def ranks_answering(group: GroupMemory, observed: Observed) -> tuple[RankView, ...]:
    """Ranks of the group's current generation on those of its nodes that are registered."""
    found: tuple[RankView, ...] = ()
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is not None and node.registered:
            found += _own(group, node)
    return found


def _own(group: GroupMemory, node: NodeView) -> tuple[RankView, ...]:
    for r in node.ranks:
        if r.group != group.group or r.generation != group.generation:
            return tuple([r for r in node.ranks if r.group == group.group and r.generation == group.generation])
    return node.ranks
