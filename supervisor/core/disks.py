"""Nodes whose disk or file system cannot be used now: no group is placed there while another node is to be had. It may pass by
itself, so such a node is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from supervisor.core import ending
from supervisor.core.model import GroupMemory, NodeView, Observed

UNUSABLE = frozenset({"disk_full", "disk_read_only", "file_system_error", "file_system_stalled", "ranks_unseen"})
"""Kinds of facts, of an agent's folder or of a run's."""
STALLED = "file_system_stalled"
OF_A_RUN = frozenset({"file_system_error", STALLED})
"""Those of them that a run's folder may have."""
NAMED = 5
"""A file system that all share is everybody's."""


def ill(nodes: Iterable[NodeView]) -> dict[str, str]:
    """Node -> what is wrong there. What all of them say is of a file system that all share, and tells none apart. A spare does not use
    the run's folder, and says nothing of it: what all say that run something, or have until just now, is the same."""
    there = [node for node in nodes if node.registered and node.role == "trainer"]
    told = (node for node in there if node.facts or node.ranks)
    found = {node.name: says for node in told if (says := _fact(node) or _last_word(node))}
    busy = {node.name: node for node in there if node.ranks}
    if len(busy) > 1 and all(map(_may_share, busy.values())):
        found = {name: says for name, says in found.items() if name not in busy}
    return found if len(found) < len(there) else {}


def away_for_all(nodes: Iterable[NodeView | None]) -> str:
    """That a file system which all these nodes may share does not answer, as one of them says it; empty: it does, or there is only one."""
    there = [node for node in nodes if node is not None]
    if len(there) < 2 or not all(STALLED in node.facts and _may_share(node) for node in there):
        return ""
    return there[0].facts[STALLED]


def _may_share(node: NodeView) -> bool:
    """Whether what it says may be of the run's folder: that is only read, and its ranks are seen all the while."""
    return bool(OF_A_RUN & node.facts.keys()) and not (UNUSABLE - OF_A_RUN) & node.facts.keys()


def untold(groups: Mapping[int, GroupMemory], observed: Observed) -> list[str]:
    """A sentence for each group that runs on such a node, NAMED of them at most: what is known of it may be old."""
    found: list[str] = []
    for group in groups.values():
        node = observed.nodes.get(group.node)
        says = _fact(node) if node is not None and node.facts and node.registered else ""
        if says and group.phase in ("starting", "running"):
            about = f"group {group.group}: its node {group.node} says: {says}"
            found.append(f"{about}: the group may go on, but its steps, checkpoints and logs may not be told")
    return found if len(found) <= NAMED else [*found[:NAMED], f"and so {len(found) - NAMED} more groups"]


def _fact(node: NodeView) -> str:
    return next((node.facts[kind] for kind in sorted(UNUSABLE & node.facts.keys())), "") if node.facts else ""


def _last_word(node: NodeView) -> str:
    """Of a rank that has ended there: said at once, where facts are looked for every few seconds."""
    said = [rank.disk for rank in node.ranks if rank.disk and rank.state == "exited" and not ending.clean(rank)]
    return said[0] if said else ""
