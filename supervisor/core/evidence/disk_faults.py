"""Detects nodes whose disk or file system cannot be used now. No group is placed there while another node is available.
The node is kept, since the trouble may pass by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from supervisor.core.evidence import exit_status
from supervisor.core.evidence.group_nodes import answering
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import UNUSABLE, NodeView, Observed
from supervisor.core.model.reason import Code, Reason

STALLED = "file_system_stalled"
OF_A_RUN = frozenset({"file_system_error", STALLED})
"""Kinds among them that a run's folder may have."""
NAMED = 5
"""Most groups that are named: a file system that all share concerns every one."""


def ill(nodes: Iterable[NodeView]) -> dict[str, str]:
    """Node -> what is wrong there. A fact that all nodes report is of a shared file system, and tells none apart.
    Spares do not use the run's folder, so a fact of all nodes with ranks, running or ended, is of a shared one too."""
    there = [node for node in nodes if node.registered and node.role == "trainer"]
    told = (node for node in there if node.facts or node.ranks)
    found = {node.name: says for node in told if (says := _fact(node) or _last_word(node))}
    busy = {node.name: node for node in there if node.ranks}
    if len(busy) > 1 and all(map(_may_share, busy.values())):
        found = {name: says for name, says in found.items() if name not in busy}
    return found if len(found) < len(there) else {}


def away_for_all(nodes: Iterable[NodeView]) -> str:
    """Report that a file system which these nodes may share does not answer; empty: it does, or there is one node."""
    there = list(nodes)
    if len(there) < 2 or not all(STALLED in node.facts and _may_share(node) for node in there):
        return ""
    return there[0].facts[STALLED]


def _may_share(node: NodeView) -> bool:
    """Returns true if the node's facts may be of the run's folder: that is only read, and its ranks stay visible."""
    return bool(OF_A_RUN & node.facts.keys()) and not (UNUSABLE - OF_A_RUN) & node.facts.keys()


def untold(groups: Mapping[int, GroupMemory], observed: Observed) -> list[Reason]:
    """A reason for each group that runs on such a node, at most NAMED of them: news of the group may be old."""
    found: list[Reason] = []
    for group in groups.values():
        for node in answering(group, observed) if group.phase in ("starting", "running") else ():
            if says := _fact(node):
                why = Reason.of(Code.NODE_SAYS, node=node.name, fact=says)
                found.append(Reason.of(Code.ABOUT_GROUP, group=group.group, why=why))
    more = len(found) - NAMED
    return found if more <= 0 else [*found[:NAMED], Reason.of(Code.AND_MORE_GROUPS, more=more)]


def _fact(node: NodeView) -> str:
    return next((node.facts[kind] for kind in sorted(UNUSABLE & node.facts.keys())), "") if node.facts else ""


def _last_word(node: NodeView) -> str:
    """Disk report of a rank that ended there: it comes at once, while facts are looked for every few seconds."""
    said = [rank.disk for rank in node.ranks if rank.disk and rank.state == "exited" and not exit_status.clean(rank)]
    return said[0] if said else ""
