"""Relaunches a run: a person gives it another spec, and it starts again by that on the nodes that it has."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import RunSpec, SlurmSpec, only_scales
from supervisor.core.remediation import shutdown
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import Expect, Store
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, codes, pool_fit, status
from supervisor.shell.runfile import changes, parse
from supervisor.wire import keys
from supervisor.wire.records import Control, PolicySet, Registration, Relaunch, RunRecord, decode, encode


def base(mirror: Mirror, record: RunRecord) -> RunSpec:
    """Returns the spec that a change begins from: the newest that was asked for, or else the one in force."""
    asked = observe.asked_relaunch(mirror, record.spec.name)
    return asked.spec if asked is not None else record.spec


def kept(mirror: Mirror, record: RunRecord, given: RunSpec) -> tuple[RunSpec, list[str]]:
    """Returns the spec by which the run would go on, with what it keeps: a policy that a person has set since the launch,
    and on a pool the pool's [allocation.slurm]. Also returns notes: what of the given one has no effect, and what it means
    for the data. `refuse` judges that spec."""
    run, after, notes = record.spec.name, given, []
    was_set = mirror.record(keys.policy(run), PolicySet)
    if was_set is not None and after.policy != was_set.policy:
        notes.append(
            f"the policy that was set since the launch (version {was_set.version}) goes on, not that of the run file: "
            "supervisor policy set changes it"
        )
        after = replace(after, policy=was_set.policy)
    if after.allocation.pool and after.allocation.pool == record.spec.allocation.pool:
        if after.allocation.slurm not in (record.spec.allocation.slurm, SlurmSpec()):
            notes.append("the pool's [allocation.slurm] goes on, not that of the run file")
        after = replace(after, allocation=replace(after.allocation, slurm=record.spec.allocation.slurm))
    return after, [*notes, *filter(None, [data_note(record.spec, after)])]


def refuse(mirror: Mirror, record: RunRecord, after: RunSpec) -> None:
    """Raises Fatal with the reason why a run cannot go on by this spec: it says nothing new, its nodes do not fit, or
    the run is at a point where no relaunch begins. Raises RunFileError for contradictions with what the run keeps, or
    with what was measured in it."""
    run, before = record.spec.name, record.spec
    memory = observe.memory(mirror, run)
    control = mirror.record(keys.control(run), Control) or Control()
    if after == before and observe.asked_relaunch(mirror, run) is None and not new_code(mirror, run):
        raise Fatal(f"run {run} has this spec already: a relaunch would change nothing (supervisor restart GROUP)")
    if control.paused:
        raise Fatal(f"run {run} is paused: `supervisor resume {run}` first, or it would not start again")
    if memory.relaunching and memory.from_memory:
        raise Fatal(
            f"run {run} is relaunched from memory just now: repeat this once it trains (supervisor status {run})"
        )
    if memory.phase == "stopping" and not memory.relaunching:
        raise Fatal(f"run {run} is still stopping: repeat this when `supervisor status {run}` shows how it ended")
    if why := _other_nodes(before, after, ended=memory.phase in ENDED):
        raise Fatal(why)
    if after.allocation.pool and memory.phase in ENDED:
        pool_fit.on_its_pool(mirror, after)
    elif (pool := observe.runs(mirror).get(after.allocation.pool)) is not None:
        pool_fit.refuse_size(pool.spec, after)
    if why := _without_place(before, after):
        raise Fatal(why)
    reached = memory.checkpoint.step if memory.checkpoint is not None else 0
    if after.titan.steps <= reached:
        raise Fatal(f"titan.steps = {after.titan.steps}: run {run} has a checkpoint of step {reached}; raise that")
    for node, slots in _slots(mirror, run).items():
        if memory.phase not in ENDED and slots < after.groups.slots:
            ranks = [line for line in changes.differences(before, after) if line.startswith(RANKS_ON_A_NODE)]
            raise Fatal(
                f"{', '.join(ranks)}: node {node} was allocated for {slots} ranks, and groups of this spec need "
                f"{after.groups.slots} on each node: stop the run, and launch it under another name with --resume-from its "
                "newest checkpoint"
            )
    known = parse.contradictions(before, memory.measured)
    if wrong := [problem for problem in parse.contradictions(after, memory.measured) if problem not in known]:
        raise parse.RunFileError(wrong)


def _other_nodes(before: RunSpec, after: RunSpec, *, ended: bool) -> str:
    """Returns why the nodes that a run has are not those of this spec; empty: they may be."""
    was, now = before.allocation, after.allocation
    if now.engine != was.engine:
        return (
            f"allocation.engine: {was.engine} -> {now.engine}: a relaunch keeps the nodes of a run; launch it under another "
            "name, with --resume-from its newest checkpoint"
        )
    if now.pool != was.pool:
        return (
            f"allocation.pool: {was.pool} -> {now.pool}: a relaunch keeps the nodes of a run; launch it under another name "
            "(--on), with --resume-from its newest checkpoint"
        )
    if ended:
        return ""
    others = [line for line in changes.differences(before, after) if line.startswith(OF_A_NODE)]
    if others:
        return (
            f"{', '.join(others)}: a relaunch keeps the nodes of a run, which were given by that: stop the run first, and "
            "relaunch it then"
        )
    if after.policy.node_lease_s != before.policy.node_lease_s:
        return (
            f"policy.node_lease_s: {before.policy.node_lease_s} -> {after.policy.node_lease_s}: nodes read it only at their "
            "start; leave it as it is"
        )
    return ""


OF_A_NODE = tuple(
    f"allocation.slurm.{key}:" for key in ("partition", "constraint", "gres", "exclusive", "flags", "shape")
)
"""Beginnings of the differences by which Slurm would give other nodes."""

RANKS_ON_A_NODE = ("groups.ranks_per_", "groups.nodes_per_group")
"""Beginnings of the keys of GroupsSpec.slots."""


AHEAD = 20
"""Most steps until the common last one (shutdown._drain)."""
FITS_IN_MEMORY = (
    "titan.steps", "titan.checkpoint", "titan.digest", "titan.data.", "titan.global_batch", "titan.max_accumulation",
    "titan.shrunk_lr", "titan.overrides.optimizer.",
    "titan.overrides.lr_scheduler.", "titan.overrides.training.", "titan.overrides.dataloader.",
    "titan.overrides.validator.", "titan.overrides.metrics.", "titan.overrides.profiler.", "titan.overrides.comm.",
    "policy.", "torchft.", "hooks.", "allocation.",
)  # fmt: skip
"""Beginnings of the keys that may differ where states stay in memory: models and ranks are the same then, and so are the
warm processes, which have the states."""


def refuse_from_memory(mirror: Mirror, record: RunRecord, after: RunSpec) -> None:
    """Raises Fatal where the states of the run's ranks would be of no use in memory."""
    run, instead = record.spec.name, "leave out --from-memory: the groups save a checkpoint and start from that"
    if observe.memory(mirror, run).phase in ENDED:
        raise Fatal(f"run {run} has ended, so no rank has a state in memory: {instead}")
    if after.trainer.command:
        raise Fatal(f"a command of yours ([trainer]) keeps no state in memory: {instead}")
    if new_code(mirror, run):
        raise Fatal(f"the next start of run {run} has other code, and other warm processes: {instead}")
    reached = max((g.step for g in status.run_status(mirror, record).groups), default=0) + AHEAD
    if after.titan.steps <= reached:
        raise Fatal(
            f"titan.steps = {after.titan.steps}: the groups may end at step {reached}; raise that, or {instead}"
        )
    wrong = [key for key in changes.keys_that_differ(record.spec, after) if not key.startswith(FITS_IN_MEMORY)]
    if wrong:
        raise Fatal(f"{', '.join(wrong)}: a state in memory fits the same model and ranks alone: {instead}")


def sized(now: RunSpec, groups: int | None, spares: int | None) -> RunSpec:
    """Returns the spec with another number of groups, and of nodes for them, or of spares. None: as now. Raises Fatal if
    that changes nothing or needs a relaunch, RunFileError if it contradicts something."""
    count = now.groups.count if groups is None else groups
    nodes = now.allocation.nodes + (count - now.groups.count) * now.groups.nodes_per_group
    if other_shares(now, count):
        raise Fatal(
            f"groups.count: {now.groups.count} -> {count}: each group's share of training.global_batch_size changes, so all "
            f"groups must start again: supervisor relaunch {now.name} --set groups.count={count} --set "
            f"allocation.nodes={nodes}"
        )
    given = [f"groups.count={count}", f"allocation.nodes={nodes}"]
    after = changes.changed(now, given + ([f"allocation.spares={spares}"] if spares is not None else []))
    if after == now:
        raise Fatal(f"run {now.name} has this spec already: nothing would change")
    return after


def other_shares(before: RunSpec, count: int) -> bool:
    """Returns true if another number of groups changes the samples that each takes of a token store in a step: groups of
    both numbers cannot train together then."""
    titan = before.titan
    batch = changes.flat(titan.overrides).get("training.global_batch_size", 0)
    shrinks = titan.data.source == "tokens" and titan.global_batch == "shrinks"
    return shrinks and isinstance(batch, int) and batch > 0 and count != before.groups.count


def keeps_nodes(mirror: Mirror, run: str) -> bool:
    """Returns true if the run has nodes now, which it keeps; one that has ended asks for others."""
    return observe.memory(mirror, run).phase not in ENDED


def _slots(mirror: Mirror, run: str) -> dict[str, int]:
    grants = mirror.table(keys.grant(run, ""), Grant).values()
    nodes = sorted(node for grant in grants if grant.state == "granted" for node in grant.nodes)
    found = {node: mirror.record(keys.registration(node), Registration) for node in nodes}
    return {node: registration.slots for node, registration in found.items() if registration is not None}


def relaunch(
    store: Store, mirror: Mirror, record: RunRecord, after: RunSpec, because: str, from_memory: bool = False
) -> str:
    """Asks for the relaunch, after `refuse` has let it pass. Returns what will happen, as a sentence. A run that has
    ended is resumed by it. `from_memory`: ranks keep their states, and no checkpoint is written; after
    `refuse_from_memory`. Raises Fatal if the run was changed at the same moment."""
    run = record.spec.name
    memory = observe.memory(mirror, run)
    item = mirror.items.get(keys.next_spec(run))
    asked = decode(item.value, Relaunch).number if item is not None else 0
    number = max(record.number, asked) + 1
    # while another spec is asked for, the one in force takes that wish back
    restarts = after == record.spec and observe.asked_relaunch(mirror, run) is None and new_code(mirror, run)
    restarts = restarts or other_shares(record.spec, after.groups.count)
    wish = Relaunch(
        number=number, spec=after, because=because, asked_unix_s=time.time(), restarts=restarts, from_memory=from_memory
    )
    puts = {keys.next_spec(run): encode(wish)}
    expect = [Expect(keys.next_spec(run), mod_revision=item.mod_revision if item is not None else 0)]
    if memory.phase in ENDED:
        known = mirror.items.get(keys.control(run))
        control = mirror.record(keys.control(run), Control) or Control()
        puts[keys.control(run)] = encode(client.resumed(control, because or f"it is relaunched with spec {number}"))
        expect.append(Expect(keys.control(run), mod_revision=known.mod_revision if known is not None else 0))
    try:
        store.commit(puts, expect=expect)
    except Fenced:
        raise Fatal(f"run {run} was changed at the same moment, and is not relaunched: repeat this") from None
    return _then(mirror, record, memory, wish)


def new_code(mirror: Mirror, run: str) -> bool:
    """Returns true if groups run with other code than that of the next start: a relaunch starts all with it."""
    found = observe.code(mirror, run)
    return found is not None and bool(codes.others(mirror, run, found.version))


def _then(mirror: Mirror, record: RunRecord, memory: Memory, wish: Relaunch) -> str:
    leads = "" if keys.LEADER in mirror.items else "; no supervisor leads, so it begins when one does"
    after, number = wish.spec, wish.number
    if memory.phase in ENDED:
        return f"spec {number}: the run was {memory.phase}; it asks for nodes, and starts from its newest checkpoint{leads}"
    if only_scales(record.spec, after) and not wish.restarts:
        return f"spec {number}: {after.groups.count} groups; those that stay train on{leads}"
    drain_s = shutdown.drain_s(record.spec, memory.measured)
    how = (
        "keep their states in memory, and end after one common step,"
        if wish.from_memory
        else "end after one common step with a checkpoint,"
    )
    return (
        f"spec {number}: groups that train {how} the others at once; what has not ended in "
        f"{drain_s:.0f} s is terminated. Then all start again on the nodes that the run has{leads}"
    )


def _without_place(before: RunSpec, after: RunSpec) -> str:
    """Returns why groups would find no place in their data; empty: they do, or the spec says how to go on without."""
    if after.trainer.command or after.titan.data.lost_place != "error":
        return ""
    was, wanted = (_stream(spec) for spec in (before, after))
    changed = [f"{name}: {was.get(name)} -> {wanted[name]}" for name in wanted if was.get(name) != wanted[name]]
    if not changed:
        return ""
    return (
        f"{', '.join(changed)}: the groups have no place in that data; --set titan.data.lost_place=start begins it at its "
        "first document or sample"
    )


def _stream(spec: RunSpec) -> dict[str, Any]:
    """Returns what gives a place in the data its meaning, by key. A store may have moved: each rank compares its hash."""
    titan = spec.titan
    if titan.data.source != "tokens":
        return {"titan.data.source": titan.data.source, "titan.data.path": titan.data.path}
    length = "training.seq_len"
    return {
        "titan.data.source": "tokens",
        "titan.seed": titan.seed,
        f"titan.overrides.{length}": changes.flat(titan.overrides).get(length),
    }


def data_note(before: RunSpec, after: RunSpec) -> str:
    """Returns what other numbers of groups or ranks mean for the data; else empty."""
    readers = [(spec.groups.count, spec.groups.ranks_per_group) for spec in (before, after)]
    if readers[0] == readers[1] or before.trainer.command or after.titan.data.source == "tokens":
        return ""
    if not only_scales(before, after):
        return "each group's share of the data is another one, and begins at its first document (docs/DATA.md)"
    return (
        f"groups that train on read the shares of {before.groups.count} groups until they start again, and new ones those of "
        f"{after.groups.count}: some samples are read twice, or not (docs/RELAUNCH.md)"
    )
