"""A number that is not finite: the model's fault where every group computed it, the hardware's suspect where one did.

The mean over the groups is not finite for all of them at once, so all end, at the same step and with the same error. Whose own
loss it was, before it was averaged, tells them apart.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.model import Confidence, Failure, GroupMemory, Kind, Memory, Observed


def judged(failure: Failure, group: GroupMemory, memory: Memory, observed: Observed) -> Failure:
    """The failure of an ended group, as far as a number that is not finite was its cause and others say whose it was."""
    mine = said(group, observed)
    if failure.kind != Kind.ERROR or not mine:
        return failure
    others = {g.group: told for g in memory.groups.values() if g.group != group.group and (told := said(g, observed))}
    if "own" in mine and any("own" not in told and "peers" in told for told in others.values()):
        finite = ", ".join(str(g) for g, told in sorted(others.items()) if "own" not in told)
        sentence = f"its own loss was not finite, that of group {finite} was: its hardware is suspect"
        same = f"{failure.same} (its own)" if failure.same else ""
        return replace(
            failure, kind=Kind.NUMERICS, evidence=(*failure.evidence, sentence), same=same, confidence=Confidence.LIKELY
        )
    spoilt = sorted(g for g, told in others.items() if "own" in told)
    if mine == {"peers"} and spoilt:
        sentence = f"its own loss was finite, that of group {', '.join(map(str, spoilt))} was not"
        return replace(failure, evidence=(*failure.evidence, sentence), same="")
    return failure


def said(group: GroupMemory, observed: Observed) -> set[str]:
    """What its ended ranks say: own, peers, parameters; empty when it is not this that ended them."""
    node = observed.nodes.get(group.node)
    ranks = node.ranks if node is not None else ()
    return {
        rank.numerics
        for rank in ranks
        if (rank.group, rank.generation, rank.state) == (group.group, group.generation, "exited") and rank.numerics
    }
