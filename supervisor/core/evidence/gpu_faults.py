"""Reads what agents report of GPUs, and judges when a group's failure is its GPU's fault.

A condition holds now, for any group that runs there: a GPU that is lost, one that needs a reset. An event (an Xid) is
past: it concerns the generations that ran on the node when it came, and no later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.core.evidence import xid_catalog
from supervisor.core.evidence.group_nodes import answering
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import XID, GpuFact, NodeView, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a condition. `replaces`: a group that fails there moves, and none is placed there. `at_once`: the group
    has failed. `passes`: it may be over by itself, so the node is kept."""

    meaning: str
    replaces: bool = False
    at_once: bool = False
    passes: bool = False


CONDITIONS: Mapping[str, Effect] = {
    "gpu_lost": Effect(
        "the driver does not reach it, or it was there and is not any more", replaces=True, at_once=True
    ),
    "gpu_reset_required": Effect("the driver says that it needs a reset, or its machine a restart", replaces=True),
    "gpu_rows_failed": Effect("a row of its memory could not be remapped, ever", replaces=True),
    "gpu_nvlink_down": Effect("an NVLink that was up is down", replaces=True),
    "nvml_stalled": Effect("NVML has not answered for 30 s", replaces=True, passes=True),
    "nvml_failed": Effect("NVML worked and does not any more"),
    "gpu_rows_pending": Effect("rows of its memory are to be remapped at its next reset"),
    "gpu_ecc": Effect("memory errors that ECC cannot correct, since the driver was loaded"),
    "gpu_ecc_lifetime": Effect("such errors, but all from before the driver was loaded"),
    "gpu_nvlink_errors": Effect("new errors were counted on an NVLink"),
    "gpu_throttled": Effect("it runs slower for its temperature, a power brake or a slowdown by its hardware"),
}
"""By NVIDIA's "GPU Memory Error Management": gpu_rows_failed has a GPU replaced; gpu_rows_pending allows new work."""

KINDS = frozenset({XID, *CONDITIONS})

EXPLAINS_NOTHING = frozenset({"gpu_ecc_lifetime"})
"""Facts of a GPU that are no evidence in an incident."""

MAY_BE_ITS_FAULT = that_are(Is.MAY_BE_A_GPU)
"""Kinds as which a failing GPU may appear in its process."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A fact about a GPU of a group, with its machine and its rank within the group, if it is one's."""

    host: str
    seat: int
    rank: int | None
    fact: GpuFact


def _signs(group: GroupMemory, observed: Observed, spec: RunSpec) -> list[_Sign]:
    """Facts about this generation's GPUs, from while it ran. None from a node that does not answer."""
    now, found = (group.group, group.generation), []
    for index, seat in enumerate(group.seats):
        node = observed.nodes.get(seat.node)
        if node is None or not node.registered:
            continue
        for fact in node.gpus:
            if _used(fact, spec) and (fact.during is None or now in fact.during):
                rank = None if fact.rank is None else index * spec.groups.slots + fact.rank
                found.append(_Sign(node.machine, index, rank, fact))
    return found


def _replacing(group: GroupMemory, observed: Observed, spec: RunSpec) -> list[_Sign]:
    return [sign for sign in _signs(group, observed, spec) if _replaces(sign.fact)]


def replaces(group: GroupMemory, observed: Observed, spec: RunSpec) -> bool:
    """Returns true if the group must leave its node for a GPU, if it fails."""
    return bool(_replacing(group, observed, spec))


def at_once(group: GroupMemory, observed: Observed, spec: RunSpec) -> Failure | None:
    """Returns the failure of a group that its GPU keeps from going on, whatever its processes still do; else None."""
    if not any(node.gpus for node in answering(group, observed)):
        return None
    found = [sign for sign in _replacing(group, observed, spec) if _at_once(sign.fact)]
    return Failure(Kind.GPU, _reasons(found), rank=found[0].rank) if found else None


def judged(failure: Failure, group: GroupMemory, observed: Observed, spec: RunSpec) -> Failure:
    """Turns the failure into its GPU's fault, if the kind allows it and the GPU reports one. The evidence from the
    process stays. The confidence is likely: nothing reports that the one led to the other."""
    found = _replacing(group, observed, spec) if failure.kind in MAY_BE_ITS_FAULT else []
    if not found:
        return failure
    and_so = Reason.of(Code.AND_SO, kind=failure.kind.value, evidence=failure.evidence[0])
    there = failure.rank is not None and any(sign.seat == failure.rank // spec.groups.slots for sign in found)
    rank = next((sign.rank for sign in found if sign.rank is not None), failure.rank if there else None)
    return replace(
        failure,
        kind=Kind.GPU,
        evidence=(*_reasons(found), and_so, *failure.evidence[1:]),
        same="",
        rank=rank,
        confidence=Confidence.LIKELY,
    )


def further(failure: Failure, group: GroupMemory, observed: Observed, spec: RunSpec) -> tuple[Reason, ...]:
    """Further facts about the group's GPUs, as evidence."""
    found = [sign for sign in _signs(group, observed, spec) if sign.fact.kind not in EXPLAINS_NOTHING]
    return tuple(why for why in _reasons(found) if why not in failure.evidence)


def unfit(node: NodeView, spec: RunSpec, for_good: bool = False) -> str:
    """Explains why no group is placed on a node: a condition holds (`for_good`: and will not pass); else empty."""
    if not node.gpus:
        return ""
    holds = (fact for fact in node.gpus if fact.kind in CONDITIONS and _used(fact, spec) and _replaces(fact))
    found = (f.evidence for f in holds if not (for_good and CONDITIONS[f.kind].passes))
    return next(found, "")


def _used(fact: GpuFact, spec: RunSpec) -> bool:
    return fact.rank is None or fact.rank < spec.groups.slots


def _replaces(fact: GpuFact) -> bool:
    if fact.kind == XID:
        known = xid_catalog.XIDS.get(fact.xid)
        return known is not None and known.rung == Rung.REPLACE
    return CONDITIONS[fact.kind].replaces


def _at_once(fact: GpuFact) -> bool:
    return fact.xid in xid_catalog.AT_ONCE if fact.kind == XID else CONDITIONS[fact.kind].at_once


def _reasons(found: list[_Sign]) -> tuple[Reason, ...]:
    return tuple(Reason.of(Code.ON_ITS_GPU, host=sign.host, rank=sign.rank, fact=sign.fact.evidence) for sign in found)
