"""Reads the evidence: the verdict on a node, the failure of a group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.evidence import exit_status, gpu_faults, hang_attribution, nonfinite, stopped_ranks
from supervisor.core.evidence.group_nodes import all_answer, answering, ranks_of, views
from supervisor.core.model import engines
from supervisor.core.model.incident import Confidence, Failure, Incident
from supervisor.core.model.kinds import PLANNED, Is, Kind, that_are
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import DEPARTED_S, GateView, Grant, NodeView, Observed, Verdict
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.signs import Sign, SignKind
from supervisor.core.model.spec import RunSpec

ENGINE_AWAY_S = 10.0
"""Seconds to wait for an engine that has not been asked since a sign was seen, because it is away or serves others
first. Then what failed is mended; at worst a healthy host is cordoned."""

LAPSE_S = 1.5
"""Seconds beyond its term by which etcd has reported that a lease lapsed: it looks twice a second, on a busy disk later."""


def node_verdict(name: str, group: GroupMemory | None, observed: Observed, spec: RunSpec) -> tuple[Verdict, Reason]:
    """Returns the verdict on a node, and why. `group` is the one that runs there, if any."""
    node = observed.nodes.get(name)
    if node is not None and node.registered:
        return Verdict.HEALTHY, Reason.of(Code.LEASE_RENEWED, node=name)
    lease = spec.policy.node_lease_s
    if node is not None and node.death is not None and not (group is not None and _beats(group, observed)):
        return Verdict.DEAD, Reason.of(Code.PROVED_DEAD, node=name, why=node.death.why, seconds=node.death.silent_s)
    if observed.store_stable_s < lease:
        return Verdict.UNKNOWN, Reason.of(Code.STORE_AWAY, seconds=observed.store_stable_s, lease_s=lease)
    if group is None or group.phase not in ("starting", "running"):
        return Verdict.DEAD, Reason.of(Code.LEASE_LAPSED, node=name, lease_s=lease)
    gate = listening(observed)
    if gate is None:
        return Verdict.UNKNOWN, Reason.of(Code.LAPSED_NO_GATE, node=name, group=group.group)
    hearing = gate.hearing.get(group.group, "absent")
    if _beats(group, observed):
        return Verdict.UNKNOWN, Reason.of(Code.LAPSED_BUT_HEARD, node=name, group=group.group)
    return Verdict.DEAD, Reason.of(Code.LAPSED_UNHEARD, node=name, lease_s=lease, group=group.group, hearing=hearing)


def _beats(group: GroupMemory, observed: Observed) -> bool:
    """Returns true if the gate admits the group's generation and hears it."""
    gate = listening(observed)
    heard = gate is not None and gate.hearing.get(group.group) == "beating"
    return heard and gate is not None and gate.admitted.get(group.group) == group.generation


def verdict_on(group: GroupMemory, observed: Observed, spec: RunSpec) -> tuple[Verdict, Reason]:
    """Returns the worst verdict on a node of a placed group, and why."""
    found = [node_verdict(node, group, observed, spec) for node in group.nodes]
    return min(found, key=lambda each: _WORST_FIRST.index(each[0]))


_WORST_FIRST = (Verdict.DEAD, Verdict.UNKNOWN, Verdict.HEALTHY)


def listening(observed: Observed) -> GateView | None:
    """Returns the gate if its lease lives: the record of what it heard outlives it."""
    gate = observed.gate
    return gate if gate is not None and gate.present else None


def gone(group: int, below: int, seats: Sequence[Seat], observed: Observed) -> bool:
    """Returns true if the live agent of each node reports that the generation before `below` ended there, and none
    older is left. False if there is no seat.

    A generation that an agent does not mention may be about to start: that proves no end.
    """
    return bool(seats) and all(_gone_from(seat.node, group, below, observed) for seat in seats)


def _gone_from(node: str, group: int, below: int, observed: Observed) -> bool:
    view = observed.nodes.get(node)
    if view is None or not view.registered:
        return False
    older = [r for r in view.ranks if r.group == group and r.generation < below]
    return any(r.generation == below - 1 for r in older) and all(r.state == "exited" for r in older)


def finished(group: GroupMemory, observed: Observed, world_size: int) -> bool:
    """Returns true if all ranks of the current generation reported that they finished, and ended with exit code 0."""
    ranks = ranks_of(group, observed)
    return len(ranks) == world_size and all(map(exit_status.clean, ranks))


def suspect(group: GroupMemory, observed: Observed) -> Sign | None:
    """Returns the sign of a lost node or process that a lost allocation gives as well; None if there is none."""
    ended = False
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is None or not node.registered:
            return Sign(SignKind.LEASE, seat.node)
        ended = ended or "exited" in [r.state for r in node.ranks]
    if ended:
        # before an engine's SIGTERM: a node ends its other ranks once one of them has lost a peer
        if group.size > 1 and exit_status.echoes(ranks_of(group, observed)):
            return Sign(SignKind.PEER, str(group.group), str(group.generation))
        if exit_status.taken(ranks_of(group, observed)):
            return Sign(SignKind.TERM, str(group.group), str(group.generation))
        if nonfinite.said(group, observed):
            # the others end at the same step: a moment later all have reported whose number it was
            return Sign(SignKind.NAN, str(group.group), str(group.generation))
    if other := _under_another(group, observed):
        return Sign(SignKind.OTHER, other[0].node, other[1].allocation)
    return None


def back_since(group: GroupMemory, observed: Observed, memory: Memory) -> float | None:
    """Time since when all nodes of the group are back. None: one is not, or none was away since its incident was
    opened."""
    if not all_answer(group, observed):
        return None
    if any(Sign(SignKind.LEASE, node).key in memory.suspects for node in group.nodes):
        return observed.now
    back = (memory.suspects.get(Sign(SignKind.BACK, node).key) for node in group.nodes)
    return max((at for at in back if at is not None), default=None)


def silent_since(group: GroupMemory, incident: Incident, observed: Observed, memory: Memory) -> float:
    """Time since when a group is silent on a node that lives: nothing can be heard from a node that is away."""
    back = back_since(group, observed, memory)
    return incident.opened if back is None else max(incident.opened, back)


def under_another(group: GroupMemory, observed: Observed) -> Reason | None:
    """Reason: a node of the group is registered under another allocation than the one that placed it. None: none is."""
    found = _under_another(group, observed)
    if found is None:
        return None
    seat, node = found
    return Reason.of(Code.UNDER_ANOTHER, node=seat.node, allocation=node.allocation, placed=seat.allocation)


def _under_another(group: GroupMemory, observed: Observed) -> tuple[Seat, NodeView] | None:
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        if node is not None and node.registered and _is_of_another(seat, node):
            return seat, node
    return None


def _is_of_another(seat: Seat, node: NodeView) -> bool:
    return bool(seat.allocation and node.allocation) and node.allocation != seat.allocation


def engine_word_s(observed: Observed, spec: RunSpec) -> float:
    """Seconds that the engine takes to report that it took an allocation away."""
    return max(engines.word_s(spec.allocation), observed.engine_word_s)


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Evidence of all groups that ended because of a number that is not finite, put together once a round."""

    newest: float
    """Time of the newest sign of it, on the run clock; now, while a rank of these groups still runs. It may report that
    the number was its own, and nothing starts before it has ended."""
    told: nonfinite.Told


def not_finite(observed: Observed, memory: Memory) -> NotFinite:
    newest = 0.0
    for group in nonfinite.speaking(memory, observed):
        sign = suspect(group, observed)
        if sign is not None and sign.kind == SignKind.NAN:
            runs = any(rank.state != "exited" for rank in ranks_of(group, observed))
            newest = max(newest, observed.now if runs else memory.suspects.get(sign.key, observed.now))
    return NotFinite(newest, nonfinite.told(memory, observed))


def settled(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory, numbers: NotFinite) -> bool:
    """Returns true if the engine has had time to report that it took the allocation away."""
    sign = suspect(group, observed)
    if sign is None:
        return True
    since = memory.suspects.get(sign.key, observed.now)
    waited_s = observed.now - since
    if waited_s < still_to_wait_s(group, observed, spec):
        return False
    if sign.kind == SignKind.PEER and waited_s < spec.policy.node_lease_s + LAPSE_S:
        return False  # if the node of the peer is lost, its lease will show that
    # judged together: a group that is already being started again no longer reports whose number it was
    together = sign.kind == SignKind.NAN and waited_s < ENGINE_AWAY_S
    if together and observed.now - numbers.newest < engine_word_s(observed, spec):
        return False
    asked = observed.engine_listed_at
    return asked is None or asked >= since - _silent_s(group, observed, spec) or waited_s >= ENGINE_AWAY_S


def still_to_wait_s(group: GroupMemory, observed: Observed, spec: RunSpec) -> float:
    """Seconds that the engine still has to report, from the first sign on: it had those for which a node was silent."""
    return max(0.0, engine_word_s(observed, spec) - _silent_s(group, observed, spec))


def _silent_s(group: GroupMemory, observed: Observed, spec: RunSpec) -> float:
    """Seconds for which a node of the group was silent before it counted as lost: a whole lease, where nothing proved it
    dead before. 0: no node vanished before its own ranks ended. An agent gives its lease back once nothing runs."""
    own = (group.group, group.generation)
    vanished = [
        node
        for node in views(group, observed)
        if not node.registered and any((r.group, r.generation) == own and r.state != "exited" for r in node.ranks)
    ]
    return max((n.death.silent_s if n.death is not None else spec.policy.node_lease_s for n in vanished), default=0.0)


MAY_COME_BACK = that_are(Is.MAY_COME_BACK)

ON_THE_NODE = that_are(Is.ON_THE_NODE)
"""Kinds that the state of the machine may explain."""


def with_facts(failure: Failure, group: GroupMemory, observed: Observed, spec: RunSpec) -> Failure:
    """Adds what the agents of its nodes report of their machines, as further evidence."""
    nodes = views(group, observed)
    if not nodes or failure.kind not in ON_THE_NODE:
        return failure
    if group.size > 1:
        nodes = [node for node in nodes if node.name in (failure.nodes or group.nodes)]
    where = {node.name: f"{node.name}: " if group.size > 1 else "" for node in nodes}
    told = ((kind, where[node.name] + fact) for node in nodes for kind, fact in sorted(node.facts.items()))
    facts = [
        Reason.of(Code.ON_ITS_NODE, fact=fact) for kind, fact in told if kind not in hang_attribution.EXPLAINS_NOTHING
    ]
    of_gpus = gpu_faults.further(failure, group, observed, spec)
    more = (*of_gpus, *(fact for fact in facts if fact not in failure.evidence))
    return replace(failure, evidence=(*failure.evidence, *more))


@dataclass(frozen=True, slots=True)
class Compared:
    """Findings from comparing all groups, put together once a round."""

    hanging: Collection[int] = ()
    """Groups to blame for a hang."""
    slow: Mapping[int, Failure] = field(default_factory=dict)
    """The slow group to act on, with its failure, if any."""
    numbers: NotFinite | None = None
    """Evidence of numbers that are not finite; None: gathered for each group by itself."""
    excused: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a group's start that were not its own (core/remediation/start_deadline.py)."""


ALONE = Compared()


def failure(
    group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory, compared: Compared = ALONE
) -> Failure | None:
    """Returns the gravest failure that a group shows now, or None."""
    found = _gravest(group, observed, spec, memory, compared)
    if found is not None and group.size > 1:
        found = replace(found, nodes=nodes_at_fault(found, group, observed, spec))
    if found is None or found.kind in PLANNED:
        return found
    return replace(found, took_s=round(max(found.took_s, _since_a_sign_s(group, observed, spec, memory)), 3))


def nodes_at_fault(failure: Failure, group: GroupMemory, observed: Observed, spec: RunSpec) -> tuple[str, ...]:
    """Returns the nodes of a group at which its failure was seen; empty if it is that of all, or unknown."""
    if failure.kind in (Kind.NODE_LOST, Kind.ALLOCATION_LOST):
        return tuple(seat.node for seat in group.seats if _is_lost(seat, observed))
    if failure.kind == Kind.GPU and failure.rank is None:
        found = [s.node for s in group.seats if gpu_faults.replaces(replace(group, seats=(s,)), observed, spec)]
    elif failure.rank is not None:
        found = [seat.node for seat in group.seats[failure.rank // spec.groups.slots :][:1]]
    elif failure.kind == Kind.NUMERICS:
        found = []  # all end with it, whichever node has reported that already
    else:
        found = [node.name for node in answering(group, observed) if _is_behind(node, group, spec)]
    return tuple(found) if len(found) < group.size else ()


def _is_lost(seat: Seat, observed: Observed) -> bool:
    node, grant = observed.nodes.get(seat.node), observed.grants.get(seat.allocation)
    if node is None or not node.registered or (grant is not None and grant.state == "gone"):
        return True
    return _is_of_another(seat, node)


def _is_behind(node: NodeView, group: GroupMemory, spec: RunSpec) -> bool:
    """Returns true if not all ranks of the group run there, the kernel lets one do nothing, or none reaches the gate."""
    own = [r for r in node.ranks if (r.group, r.generation) == (group.group, group.generation) and r.state == "running"]
    if len(own) < spec.groups.slots or any(r.stopped for r in own):
        return True
    return all(r.reaches_gate is False for r in own)


def _since_a_sign_s(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory) -> float:
    """Seconds since the first sign of the group's failure: an end, or the last sign of life of a node whose lease has
    lapsed. 0 if the failure is its own first sign."""
    sign = suspect(group, observed)
    if sign is None:
        return 0.0
    return _silent_s(group, observed, spec) + observed.now - memory.suspects.get(sign.key, observed.now)


def _gravest(
    group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory, compared: Compared
) -> Failure | None:
    if group.phase not in ("starting", "running") and not (group.phase == "placing" and group.placed):
        return None
    if grant := _taken(group, observed):
        taken = Reason.of(Code.ALLOCATION_GONE, allocation=grant.key, engine_id=grant.engine_id, why=grant.reason)
        return Failure(Kind.ALLOCATION_LOST, (taken,))
    numbers = compared.numbers or not_finite(observed, memory)
    if not settled(group, observed, spec, memory, numbers):
        return None
    if other := under_another(group, observed):
        return Failure(Kind.ALLOCATION_LOST, (other,))
    if not all_answer(group, observed):
        verdicts = [node_verdict(node, group, observed, spec) for node in group.nodes]
        if dead := tuple(why for verdict, why in verdicts if verdict == Verdict.DEAD):
            return Failure(Kind.NODE_LOST, dead, confidence=Confidence.LIKELY)
    if group.phase == "placing":
        return None
    exited = exit_status.ended(ranks_of(group, observed), spec.trainer.plain)
    if exited is not None:
        return gpu_faults.judged(nonfinite.judged(exited, group, numbers.told, observed), group, observed, spec)
    if (broken := gpu_faults.at_once(group, observed, spec)) is not None:
        return broken
    if observed.control.restarts.get(group.group, 0) > memory.restarts_done.get(group.group, 0):
        return Failure(Kind.REQUESTED, (Reason.of(Code.REQUESTED),))
    if group.group in compared.hanging:
        stopped = stopped_ranks.failure(group, observed, spec.policy.hang.stopped_s)
        return gpu_faults.judged(stopped or hang_attribution.failure(group, observed), group, observed, spec)
    if stopped_ranks.debugged(group, observed):
        return None
    return _stands_still(group, observed, spec, memory, compared)


def _stands_still(
    group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory, compared: Compared
) -> Failure | None:
    """Returns the failure of a group whose processes live, and of which no step or sign of life comes in time."""
    silence = _silence(group, observed, spec, memory)
    if silence is not None:
        return gpu_faults.judged(silence, group, observed, spec)
    # After an outage of the store the first commit may not be reported yet; without a gate the group waits through no
    # fault of its own.
    gate = listening(observed)
    if group.phase == "starting" and observed.store_stable_s >= spec.policy.node_lease_s and gate is not None:
        waited_s = spec.policy.start_timeout_s
        lasted_s = observed.now - max(group.since, memory.lighthouse.opened)
        if (
            lasted_s - compared.excused.get(group.group, 0.0) > waited_s
            and not hang_attribution.steps_unseen(group, memory.groups, observed)
            and not _has_no_way(group, observed, gate)
        ):
            late = Reason.of(Code.START_LATE, limit_s=waited_s)
            said = (late, *heals_failed(group, observed), *_not_reached(group, observed, gate))
            return gpu_faults.judged(Failure(Kind.START_TIMEOUT, said, took_s=lasted_s), group, observed, spec)
    return compared.slow.get(group.group)


def _taken(group: GroupMemory, observed: Observed) -> Grant | None:
    """Returns the grant of a seat that the engine took away; None if all seats are ours."""
    for seat in group.seats:
        node = observed.nodes.get(seat.node)
        grant = observed.grants.get(seat.allocation or (node.allocation if node is not None else ""))
        if grant is not None and grant.state == "gone":
            return grant
    return None


def _silence(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory) -> Failure | None:
    gate = listening(observed)
    if group.phase != "running" or gate is None or gate.admitted.get(group.group) != group.generation:
        return None
    if _was_never_heard(group, observed, spec, memory, gate):
        heard = Reason.of(Code.NEVER_HEARD, seconds=spec.policy.silent_timeout_s)
        evidence = (heard, *_not_reached(group, observed, gate))
        lasted_s = observed.now - max(group.since, memory.lighthouse.opened)
        return Failure(Kind.STALLED, evidence, confidence=Confidence.LIKELY, took_s=lasted_s)
    if gate.hearing.get(group.group) != "silent" or any(map(exit_status.clean, ranks_of(group, observed))):
        return None  # the rank that beats for the others may be the first to finish
    departed = tuple(node for node in group.nodes if node in gate.departed)
    beat_s = DEPARTED_S if departed else spec.torchft.heartbeat_timeout_ms / 1000
    heard = Reason.of(Code.UNHEARD, timeout_ms=spec.torchft.heartbeat_timeout_ms)
    if departed:
        heard = Reason.of(Code.DEPARTED, nodes=departed, seconds=DEPARTED_S)
    incident = memory.incidents.get(group.incident)
    if incident is None and observed.store_stable_s < spec.policy.node_lease_s:
        # A gate that closed while etcd was away had cut every group: its hearing says nothing about them.
        return None
    if (
        incident is not None
        and incident.kind in MAY_COME_BACK
        and all_answer(group, observed)
        and observed.store_stable_s >= spec.policy.node_lease_s
        and observed.now - silent_since(group, incident, observed, memory) > spec.policy.silent_timeout_s
        and not _has_no_way(group, observed, gate)
    ):
        silent = Reason.of(Code.SILENT_FOR, seconds=spec.policy.silent_timeout_s)
        evidence = (heard, silent, *_not_reached(group, observed, gate))
        lasted_s = observed.now - silent_since(group, incident, observed, memory)
        return Failure(Kind.STALLED, evidence, confidence=Confidence.LIKELY, took_s=lasted_s)
    return Failure(Kind.SILENT, (heard,), confidence=Confidence.LIKELY, took_s=beat_s)


def _was_never_heard(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory, gate: GateView) -> bool:
    """Returns true if the gate has moved to where this group's node does not reach it, while others do."""
    return (
        gate.hearing.get(group.group, "absent") == "absent"
        and cut_off(group, observed)
        and "beating" in gate.hearing.values()
        and all_answer(group, observed)
        and observed.store_stable_s >= spec.policy.node_lease_s
        and observed.now - max(group.since, memory.lighthouse.opened) > spec.policy.silent_timeout_s
    )


def _has_no_way(group: GroupMemory, observed: Observed, gate: GateView) -> bool:
    """True if the group waits for a gate that no group reaches: no fault of its own, and no other process would."""
    return cut_off(group, observed) and "beating" not in gate.hearing.values()


def cut_off(group: GroupMemory, observed: Observed) -> bool:
    """True if the agent reports that its forwarder does not reach the gate, which does not hear the group either."""
    gate = listening(observed)
    if gate is not None and gate.hearing.get(group.group) == "beating":
        return False
    ways = [rank.reaches_gate for rank in ranks_of(group, observed) if rank.state != "exited"]
    return bool(ways) and all(way is False for way in ways)


def _not_reached(group: GroupMemory, observed: Observed, gate: GateView) -> tuple[Reason, ...]:
    if not cut_off(group, observed):
        return ()
    return (Reason.of(Code.NO_WAY, host=_host_of(gate, observed)),)


def heals_failed(group: GroupMemory, observed: Observed) -> tuple[Reason, ...]:
    """One reason for each rank that cannot take its peers' state."""
    ranks = (rank for rank in ranks_of(group, observed) if rank.state != "exited")
    return tuple(
        Reason.of(Code.HEAL_FAILED, rank=rank.rank, why=rank.heal_failed) for rank in ranks if rank.heal_failed
    )


def without_a_way(groups: Mapping[int, GroupMemory], observed: Observed, spec: RunSpec, opened: float) -> Reason | None:
    """Reason about groups that wait for a gate that no group reaches, and are not ended for it; None: none do.
    `opened`: since when the lighthouse is where it is. A group that has just started, or must find it again, may not
    reach it yet."""
    gate = listening(observed)
    if gate is None or "beating" in gate.hearing.values() or observed.store_stable_s < spec.policy.node_lease_s:
        return None
    before = observed.now - spec.policy.silent_timeout_s
    there = [g for g in groups.values() if g.phase in ("starting", "running") and max(g.since, opened) < before]
    found = tuple(sorted(g.group for g in there if cut_off(g, observed)))
    return Reason.of(Code.GATE_UNREACHABLE, groups=found, host=_host_of(gate, observed)) if found else None


def _host_of(gate: GateView, observed: Observed) -> str:
    node = observed.nodes.get(gate.node)
    return node.machine if node is not None else gate.node
