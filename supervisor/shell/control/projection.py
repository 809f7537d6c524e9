"""Derives the records that etcd must hold from the memory. All that agents and gates obey is derived here, so a lost
write is repeated in the next round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor.core.evidence import checkpoint_lag
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.decision import Decision
from supervisor.core.model.incident import Incident, Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Checkpoint, Observed
from supervisor.core.model.spec import HooksSpec, RunSpec
from supervisor.core.remediation.restore import ENDED
from supervisor.core.round.view import RoundView
from supervisor.wire import keys
from supervisor.wire.records import (
    Admission,
    CheckpointMark,
    Digest,
    LighthouseDesired,
    NodeDesired,
    TrainerDesired,
    encode,
)

DIGESTS = 64
"""Newest digests kept for a run: at most 2 KiB each (tested), 128 KiB in all."""

DIGEST_ITEMS = 16
"""Most actions, and incidents, that a digest names."""

A_DAY_S = 86_400.0
"""Longest time for which a person has a rank in the debugger while its peers wait for it: a choice."""


@dataclass
class Made:
    """Last derived records of a run, for reuse: a round looks at thousands of nodes and changes a few."""

    of_all: tuple[Any, ...] = ()
    """Inputs that all trainers' records share."""
    trainers: dict[int, tuple[GroupMemory, tuple[Any, ...], tuple[NodeDesired, ...]]] = field(default_factory=dict)
    admitted: dict[int, Admission] = field(default_factory=dict)
    records: dict[str, tuple[NodeDesired, str, bytes]] = field(default_factory=dict)
    """By node, with its key."""


def memory_records(
    spec: RunSpec, memory: Memory, changed: tuple[Incident, ...], before: Memory | None = None
) -> dict[str, bytes]:
    """Returns the memory in several records, and the changed incidents. Skips parts that are identical in `before`,
    which etcd holds."""
    run, known = spec.name, before or Memory()
    base = replace(memory, groups={}, allocations={}, incidents={})
    records = {keys.memory(run, "run"): encode(base)}
    records |= {
        keys.memory(run, f"group-{g}"): encode(group)
        for g, group in memory.groups.items()
        if known.groups.get(g) is not group
    }
    records |= {
        keys.allocation(run, key): encode(allocation)
        for key, allocation in memory.allocations.items()
        if known.allocations.get(key) is not allocation
    }
    records |= {keys.incident(run, i.id): encode(i) for i in changed}
    return records


def suspicion_records(found: Iterable[Suspicion]) -> dict[str, bytes]:
    """Returns records of new suspicions. They are written only once, with the memory: a person may delete them."""
    return {keys.suspicion(s.host, s.run, s.incident): encode(s) for s in found}


@dataclass(frozen=True, slots=True)
class Decider:
    """The leader and program behind a decision."""

    epoch: int
    host: str
    program: str
    policy: int


def digest_record(run: str, decision: Decision, by: Decider, given: str) -> dict[str, bytes]:
    """Returns a decision's digest. It is written with the resulting memory, so a digest that exists took effect."""
    number = decision.memory.decisions
    digest = Digest(
        decision=number,
        epoch=by.epoch,
        host=by.host,
        program=by.program,
        policy=by.policy,
        input=given,
        clock=decision.memory.clock,
        actions=tuple(a.key[:64] for a in decision.actions[:DIGEST_ITEMS]),
        more=max(0, len(decision.actions) - DIGEST_ITEMS),
        incidents=tuple(i.id for i in decision.incidents[:DIGEST_ITEMS]),
    )
    return {keys.decision(run, number % DIGESTS): encode(digest)}


def acquitted(run: str, found: Iterable[tuple[str, str]]) -> list[str]:
    """Returns keys of withdrawn suspicions. They are deleted in the transaction of the memory that withdraws them."""
    return [keys.suspicion(host, run, incident) for host, incident in found]


def dropped(run: str, before: Memory, now: Memory) -> list[str]:
    """Returns keys of groups that the run has no more."""
    return [keys.memory(run, f"group-{g}") for g in before.groups if g not in now.groups]


@dataclass(frozen=True, slots=True)
class Spread:
    """The code that must lie on nodes before the next start there."""

    code: CodeVersion
    source: str
    """URL of the leader's listener."""
    nodes: frozenset[str]


def spares(spec: RunSpec, memory: Memory, observed: Observed) -> frozenset[str]:
    """Returns the nodes that build the start of any group ahead: those to which one would be moved. While no group trains yet
    there are none: on one machine they would slow the others' first start."""
    trains = any(group.phase == "running" for group in memory.groups.values()) or memory.incidents
    builds = not spec.trainer.command and spec.hooks == HooksSpec()
    if not (trains and builds and spec.policy.standby == "built" and memory.phase == "running"):
        return frozenset()
    ends = {seat.node for group in memory.groups.values() for seat in group.left}
    return frozenset(RoundView(observed, spec, memory).spares()) - ends


def intent_records(
    spec: RunSpec,
    run_dir: str,
    memory: Memory,
    made: Made | None = None,
    spread: Spread | None = None,
    spares: frozenset[str] = frozenset(),
) -> dict[str, bytes]:
    """Returns what must run and lie on each node, and the newest checkpoint. `made`: the last derived records. `spares`: as
    the function of this name returns them."""
    made = made or Made()
    run = spec.name
    records: dict[str, bytes] = {}
    if memory.checkpoint is not None:
        mark = _mark(memory.checkpoint)
        assert mark is not None
        records[keys.checkpoint(run)] = encode(mark)
    found = desired(spec, run_dir, memory, made)
    if spares:
        found = found | _ahead(spec, run_dir, spares, found)
    for node, wanted in _with_code(found, memory, spread).items():
        known = made.records.get(node)
        if known is None or (known[0] is not wanted and known[0] != wanted):
            known = made.records[node] = (wanted, keys.desired(node, run), encode(wanted))
        records[known[1]] = known[2]
    return records


def _ahead(
    spec: RunSpec, run_dir: str, spares: frozenset[str], found: dict[str, NodeDesired]
) -> dict[str, NodeDesired]:
    # nothing in it changes while the run goes on; a node that replaces another is a group's last (placement)
    last = spec.groups.ranks_per_group - spec.groups.slots
    group = GroupMemory(group=0, size=spec.groups.nodes_per_group)
    start = replace(_trainer(spec, run_dir, Memory(), group, False), first_rank=last)
    return {node: replace(found.get(node, NodeDesired(node=node)), standby=start) for node in spares}


def _with_code(found: dict[str, NodeDesired], memory: Memory, spread: Spread | None) -> dict[str, NodeDesired]:
    if spread is None or memory.phase in ENDED:
        return found
    return found | {
        node: replace(found.get(node, NodeDesired(node=node)), code=spread.code, code_from=spread.source)
        for node in spread.nodes
    }


def desired(spec: RunSpec, run_dir: str, memory: Memory, made: Made | None = None) -> dict[str, NodeDesired]:
    """Returns what must run on each node that the run holds; nothing of it must run on other nodes. `made`: the last
    derived records."""
    made = made or Made()
    found: dict[str, NodeDesired] = {}
    if memory.phase in ENDED or spec.is_pool:  # an older leader gives a pool a lighthouse, as if it were a run
        return found
    seat = memory.lighthouse
    if seat.node:
        lighthouse = LighthouseDesired(
            run=spec.name,
            generation=seat.generation,
            groups=spec.groups.count,
            min_groups=spec.groups.min_groups,
            torchft=spec.torchft,
            admitted={g: _admission(group, made) for g, group in memory.groups.items() if group.generation},
            quorum_ids_above=seat.quorum_ids_above,
            close=seat.closing,
        )
        found[seat.node] = NodeDesired(node=seat.node, lighthouses=(lighthouse,))
    last = _last_step(memory), memory.stop_at_step, memory.from_memory
    of_all = (spec, run_dir, seat.address, seat.node, last, memory.silent, memory.debugged)
    if made.of_all != of_all:
        made.of_all, made.trainers = of_all, {}
    writer = checkpoint_lag.writer(memory.groups)
    for group in memory.groups.values():
        if group.phase in ("starting", "running") or (group.size > 1 and group.seats and group.phase != "finished"):
            own = (memory.checkpoint,) if writer == group.group else ()
            known = made.trainers.get(group.group)
            if known is None or known[0] is not group or known[1] != own:
                same = known is not None and known[0] == group and known[1] == own
                wanted = known[2] if known is not None and same else _alone(spec, run_dir, memory, group, bool(own))
                known = made.trainers[group.group] = (group, own, wanted)
            for alone in known[2]:
                there = found.get(alone.node)
                found[alone.node] = (
                    alone if there is None else replace(there, trainers=(*there.trainers, *alone.trainers))
                )
    return found


def _admission(group: GroupMemory, made: Made) -> Admission:
    known = made.admitted.get(group.group)
    # what a group keeps while it waits for another node has no say at the gate
    node, *others = group.nodes if group.placed else ("",)
    admission = Admission(generation=group.generation, node=node, others=tuple(others))
    if known != admission:
        known = made.admitted[group.group] = admission
    return known


def _alone(spec: RunSpec, run_dir: str, memory: Memory, group: GroupMemory, writer: bool) -> tuple[NodeDesired, ...]:
    """Returns what must run on a group's nodes, if nothing else does."""
    trainer, slots = _trainer(spec, run_dir, memory, group, writer), spec.groups.slots
    return tuple(
        # an agent compares the key under which its node registers
        NodeDesired(
            node=seat.node,
            trainers=(replace(trainer, allocation=seat.through or seat.allocation, first_rank=index * slots),),
        )
        for index, seat in enumerate(group.seats)
    )


def _trainer(spec: RunSpec, run_dir: str, memory: Memory, group: GroupMemory, writer: bool) -> TrainerDesired:
    """Returns what runs on each of a group's nodes, but for the allocation that gave the node."""
    return TrainerDesired(
        run=spec.name,
        group=group.group,
        generation=group.generation,
        world_size=spec.groups.ranks_per_group,
        groups=spec.groups.count,
        min_groups=spec.groups.min_groups,
        gate=memory.lighthouse.address,
        gate_node=memory.lighthouse.node if memory.lighthouse.address else "",
        cut_off_stop_s=spec.policy.cut_off_stop_s,
        run_dir=run_dir,
        titan=spec.titan,
        trainer=spec.trainer,
        network=spec.network,
        torchft=spec.torchft,
        term_grace_s=spec.policy.term_grace_s,
        hang=spec.policy.hang,
        collective_timeout_s=_collective_timeout_s(spec),
        standby=spec.policy.standby,
        # The others keep their starting values, so that a checkpoint does not rewrite every node's record.
        checkpoint=_mark(memory.checkpoint if writer else group.checkpoint),
        resume=group.resume,
        writer=writer,
        lost=tuple(g for g in memory.silent if g != group.group),
        wait=any(g != group.group for g in memory.debugged),
        stop_at_step=_last_step(memory) if group.group < spec.groups.count else memory.stop_at_step,
        from_memory=memory.from_memory,
        env=spec.env,
        hooks=spec.hooks,
        nodes=group.size,
        store=group.store,
        code=group.code,
        hold=group.phase not in ("starting", "running"),
    )


def _collective_timeout_s(spec: RunSpec) -> float:
    """Returns the seconds that ranks of a group wait for one of them that a person has in the debugger: a collective's
    time cannot be prolonged once it has begun. Agents end the peers of a dead rank, and the supervisor ends what hangs.
    0 where it does not: then nothing but the config's own timeout would."""
    ends_hangs = spec.policy.mode == "act" and Kind.HANG not in spec.policy.observe
    return A_DAY_S if ends_hangs else 0.0


def _last_step(memory: Memory) -> int | None:
    """Returns the step after which all groups end: for good, or to start again elsewhere."""
    if memory.phase == "stopping":
        return memory.stop_at_step
    return memory.handover_at_step if memory.phase == "running" else None


def _mark(checkpoint: Checkpoint | None) -> CheckpointMark | None:
    if checkpoint is None:
        return None
    return CheckpointMark(
        step=checkpoint.step, path=checkpoint.path, group=checkpoint.group, generation=checkpoint.generation
    )
