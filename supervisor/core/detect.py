"""What the evidence says: the verdict of a node, the failure of a group."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.model import GateView, GroupMemory, Kind, Memory, Observed, RankView, Verdict
from supervisor.core.spec import RunSpec

PEERS_GONE_EXIT = 75
"""As `supervisor.wire.records.PEERS_GONE`; a test holds the two equal (the core imports nothing)."""


SIGTERM = 15

TERMINATED_EXIT = 143
"""As `supervisor.wire.records.TERMINATED`."""

ENGINE_WORD_S = 0.6
"""The leader asks the local engine every 0.25 s: within two such periods it has said that an allocation is gone."""

SLURM_WORD_S = 2.2
"""As above: Slurm is asked every second. Without its word a job that was cancelled looks like a lost node, whose host is
cordoned."""


GATE_ETCD_SILENCE_S = 5.0
"""A gate that has not heard etcd for this long goes on only while it hears every admitted group. Its watch asks for a sign
of life every second and changes streams after 3 s, so this is no hiccup."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One sign that a group failed."""

    kind: Kind
    evidence: tuple[str, ...]
    error: str = ""


def node_verdict(name: str, group: GroupMemory | None, observed: Observed, spec: RunSpec) -> tuple[Verdict, str]:
    """Whether a node lives, with the sentence that says why. `group` is the one that lives there, if any."""
    node = observed.nodes.get(name)
    if node is not None and node.registered:
        return Verdict.HEALTHY, f"node {name} renews its lease"
    lease = spec.policy.node_lease_s
    if observed.store_stable_s < lease:
        return (
            Verdict.UNKNOWN,
            f"the store was away {observed.store_stable_s:.1f} s ago: hold for one lease ({lease} s)",
        )
    if group is None or group.phase not in ("starting", "running"):
        return Verdict.DEAD, f"the lease of node {name} ({lease} s) lapsed"
    gate = listening(observed)
    if gate is None:
        return (
            Verdict.UNKNOWN,
            f"the lease of node {name} lapsed, and no gate says whether group {group.group} still steps",
        )
    hearing = gate.hearing.get(group.group, "absent")
    if hearing == "beating" and gate.admitted.get(group.group) == group.generation:
        return Verdict.UNKNOWN, f"the lease of node {name} lapsed, but the gate still hears group {group.group}: hold"
    return (
        Verdict.DEAD,
        f"the lease of node {name} ({lease} s) lapsed and the gate hears group {group.group} as {hearing}",
    )


def listening(observed: Observed) -> GateView | None:
    """The gate, if its lease lives: the record of what it heard outlives it."""
    gate = observed.gate
    return gate if gate is not None and gate.present else None


def ranks_of(group: GroupMemory, observed: Observed) -> tuple[RankView, ...]:
    """Ranks of the group's current generation on its node."""
    node = observed.nodes.get(group.node)
    if node is None:
        return ()
    return tuple(r for r in node.ranks if r.group == group.group and r.generation == group.generation)


def gone(group: int, below: int, node: str, observed: Observed) -> bool:
    """True when the node's own live agent says that the generation before `below` ended there, and none older is left.

    One that it does not speak of may be about to start: that is no word of its end.
    """
    view = observed.nodes.get(node)
    if view is None or not view.registered:
        return False
    older = [r for r in view.ranks if r.group == group and r.generation < below]
    return any(r.generation == below - 1 for r in older) and all(r.state == "exited" for r in older)


def finished(group: GroupMemory, observed: Observed, world_size: int) -> bool:
    """All ranks of the current generation said that they are finished, and ended with exit code 0."""
    ranks = ranks_of(group, observed)
    return len(ranks) == world_size and all(_clean(r) for r in ranks)


def _clean(rank: RankView) -> bool:
    return rank.state == "exited" and rank.exit_code == 0 and rank.phase == "finished"


def _terminated(rank: RankView) -> bool:
    return rank.signal == SIGTERM or rank.exit_code == TERMINATED_EXIT


def suspect(group: GroupMemory, observed: Observed) -> str:
    """A sign that a lost node or process gives, and a lost allocation too; empty when there is none."""
    node = observed.nodes.get(group.node)
    if node is None or not node.registered:
        return f"lease:{group.node}"
    if any(r.state == "exited" and _terminated(r) for r in ranks_of(group, observed)):
        return f"term:{group.group}:{group.generation}"
    if under_another(group, observed):
        return f"other:{group.node}:{node.allocation}"
    return ""


def under_another(group: GroupMemory, observed: Observed) -> str:
    """That the group's node is registered under another allocation than the one by which it was placed; else empty."""
    node = observed.nodes.get(group.node)
    if node is None or not node.registered or not (group.allocation and node.allocation):
        return ""
    if node.allocation == group.allocation:
        return ""
    return f"node {group.node} is registered under allocation {node.allocation}, not under {group.allocation}"


def engine_word_s(spec: RunSpec) -> float:
    """How long the engine takes to say that it took an allocation away."""
    return SLURM_WORD_S if spec.allocation.engine == "slurm" else ENGINE_WORD_S


def settled(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory) -> bool:
    """Whether the engine had time to say that it took the allocation away."""
    sign = suspect(group, observed)
    return not sign or observed.now - memory.suspects.get(sign, observed.now) >= still_to_wait_s(group, observed, spec)


def still_to_wait_s(group: GroupMemory, observed: Observed, spec: RunSpec) -> float:
    """How long the engine still has for its word, from the first sign on. An agent gives its lease back only when nothing
    runs any more: one that vanished before its ranks had ended was silent for a whole lease, and so long the engine had."""
    node = observed.nodes.get(group.node)
    lapsed = node is not None and not node.registered and any(r.state != "exited" for r in ranks_of(group, observed))
    return max(0.0, engine_word_s(spec) - (spec.policy.node_lease_s if lapsed else 0.0))


def failure(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory) -> Failure | None:
    """The gravest failure that a group shows now, or None."""
    if group.phase not in ("starting", "running") and not (group.phase == "placing" and group.node):
        return None
    node = observed.nodes.get(group.node)
    grant = observed.grants.get(group.allocation or (node.allocation if node else ""))
    if grant is not None and grant.state == "gone":
        why = f"the engine says that allocation {grant.key} ({grant.engine_id}) is gone"
        return Failure(Kind.ALLOCATION_LOST, (f"{why}: {grant.reason}" if grant.reason else why,))
    if not settled(group, observed, spec, memory):
        return None
    other = under_another(group, observed)
    if other:
        return Failure(Kind.ALLOCATION_LOST, (other,))
    verdict, sentence = node_verdict(group.node, group, observed, spec)
    if verdict == Verdict.DEAD:
        return Failure(Kind.NODE_LOST, (sentence,))
    if group.phase == "placing":
        return None
    exited = _exit_failure(ranks_of(group, observed))
    if exited is not None:
        return exited
    if observed.control.restarts.get(group.group, 0) > memory.restarts_done.get(group.group, 0):
        return Failure(Kind.REQUESTED, ("a person asked for a restart of the group",))
    silence = _silence(group, observed, spec, memory)
    if silence is not None:
        return silence
    # After an outage of the store its first commit may not be reported yet, and without a gate it waits at no fault of its own.
    told = observed.store_stable_s >= spec.policy.node_lease_s and listening(observed) is not None
    since = max(group.since, memory.lighthouse.opened)
    if group.phase == "starting" and told and observed.now - since > spec.policy.start_timeout_s:
        return Failure(Kind.START_TIMEOUT, (f"no commit {spec.policy.start_timeout_s:g} s after its start",))
    return None


def _exit_failure(ranks: tuple[RankView, ...]) -> Failure | None:
    # The first cause, not its echo: a rank with a code or signal of its own before those that were told to end.
    bad = [r for r in ranks if r.state == "exited" and not _clean(r)]
    if not bad:
        return None
    first = min(bad, key=lambda r: (_terminated(r), r.error == "", r.rank))
    if _terminated(first):
        return Failure(Kind.CRASH, (f"rank {first.rank} was ended by a SIGTERM that is not ours",), first.error)
    if first.signal is not None:
        return Failure(Kind.CRASH, (f"rank {first.rank} ended by signal {first.signal}",), first.error)
    if first.exit_code == PEERS_GONE_EXIT:
        return Failure(Kind.PEERS_GONE, (f"rank {first.rank} was to heal from its peers and found none",))
    said = f": {first.error}" if first.error else " before it was finished" if first.exit_code == 0 else ""
    return Failure(Kind.ERROR, (f"rank {first.rank} exited with code {first.exit_code}{said}",), first.error)


def _silence(group: GroupMemory, observed: Observed, spec: RunSpec, memory: Memory) -> Failure | None:
    gate = listening(observed)
    if group.phase != "running" or gate is None or gate.admitted.get(group.group) != group.generation:
        return None
    if gate.hearing.get(group.group) != "silent":
        return None
    heard = f"the gate has not heard it for {spec.torchft.heartbeat_timeout_ms} ms"
    incident = memory.incidents.get(group.incident)
    if incident is None and observed.store_stable_s < spec.policy.node_lease_s:
        # A gate that closed while etcd was away had cut everybody: that it did not hear them says nothing of them.
        return None
    if (
        incident is not None
        and incident.kind in (Kind.SILENT, Kind.STALLED, Kind.NODE_LOST)
        and observed.nodes[group.node].registered
        and observed.store_stable_s >= spec.policy.node_lease_s
        and observed.now - incident.opened > spec.policy.silent_timeout_s
    ):
        return Failure(Kind.STALLED, (heard, f"silent for {spec.policy.silent_timeout_s:g} s on a node that lives"))
    return Failure(Kind.SILENT, (heard,))
