"""Converts records to the values that `decide` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from supervisor.core.evidence import gpu_faults
from supervisor.core.evidence.error_text import printable
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory
from supervisor.core.model.observed import (
    Checkpoint,
    ControlView,
    GateView,
    GpuFact,
    Grant,
    NextSpec,
    NodeView,
    Observed,
    RankView,
)
from supervisor.core.model.spec import RunSpec, only_scales
from supervisor.shell.control import cordons, pools
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import checkpoints, keys
from supervisor.wire.records import (
    CheckpointMark,
    Control,
    EpochsBefore,
    ExitObserved,
    Fact,
    GateObserved,
    GatePresence,
    Health,
    NodeCheck,
    NodeObserved,
    PolicySet,
    Registration,
    Relaunch,
    RunRecord,
    SyncedCode,
    TrainerObserved,
)


class Unreadable(ValueError):
    """A record without which nothing may be decided is unreadable."""


def runs(mirror: Mirror) -> dict[str, RunRecord]:
    """Returns all launched runs by name, each with its current policy. Callers must not change the dict."""
    return mirror.derived(_runs, "spec", "policy")


def _runs(mirror: Mirror) -> dict[str, RunRecord]:
    found = {}
    for key in mirror.of_sort("spec"):
        record = mirror.record(key, RunRecord)
        if record is not None:
            found[record.spec.name] = _with_policy(mirror, record)
    return found


def _with_policy(mirror: Mirror, record: RunRecord) -> RunRecord:
    was_set = mirror.record(keys.policy(record.spec.name), PolicySet)
    return record if was_set is None else replace(record, spec=replace(record.spec, policy=was_set.policy))


def memory(mirror: Mirror, run: str) -> Memory:
    """Assembles the memory of a run from its parts. Raises Unreadable if a part is corrupt or newer."""
    prefix = keys.memory(run, "")
    base = mirror.record(prefix + "run", Memory)
    groups = {g.group: g for g in mirror.table(prefix + "group-", GroupMemory).values()}
    allocations = {a.key: a for a in mirror.table(keys.allocation(run, ""), AllocationMemory).values()}
    incidents = mirror.table(keys.incident(run, ""), Incident).values()
    # Only incidents of groups that are in the middle of one are needed.
    needed = tuple(keys.incident(run, g.incident) for g in groups.values() if g.incident)
    own = (prefix, keys.allocation(run, ""), keys.policy(run), *needed)
    bad = [f"{key}: {why}" for key, why in mirror.unreadable.items() if key.startswith(own)]
    if bad:
        raise Unreadable(f"run {run} is left alone, its memory cannot be read: {'; '.join(bad)}")
    open_ = {i.id: i for i in incidents if i.state in ("open", "acting")}
    return replace(base or Memory(), groups=groups, allocations=allocations, incidents=open_)


def readable(mirror: Mirror) -> Iterator[tuple[str, Memory]]:
    """Yields each launched run whose memory can be read, with that memory."""
    for run in runs(mirror):
        with suppress(Unreadable):
            yield run, memory(mirror, run)


def observed(mirror: Mirror, run: str, known: Memory, now: float, store_stable_s: float) -> Observed:
    """Returns all observations of one run: the nodes of its allocations, the service hosts, its gate, its grants."""
    nodes = _nodes(mirror, run, known)
    # An existing but unreadable request of a person is unknown, so nothing is done until it can be read.
    unread = Control(paused=keys.control(run) in mirror.items)
    control = mirror.record(keys.control(run), Control) or unread
    grants = {g.key: g for g in mirror.table(keys.grant(run, ""), Grant).values()}
    record = runs(mirror).get(run)
    of_pool = record is not None and record.spec.is_pool
    lent = pools.lent(mirror, run, runs(mirror)) if of_pool else {}
    return Observed(
        revision=mirror.revision,
        now=now,
        store_stable_s=store_stable_s,
        nodes=nodes,
        gate=_gate(mirror, run, known),
        grants=grants,
        control=ControlView(
            paused=control.paused,
            stop=control.stop,
            restarts=control.restarts,
            resumes=control.resumes,
            because=control.because,
            down=control.down,
            evictions=control.evictions,
        ),
        cordons=cordons.seen_by(mirror, run),
        lent=lent,
        users=pools.users(mirror, run, runs(mirror), lent) if of_pool else (),
        relaunch=_relaunch(mirror, run),
        code=code(mirror, run),
    )


def synced(mirror: Mirror, run: str) -> SyncedCode | None:
    """Returns the code of a run or pool, or else that of the run's pool; None: nothing was synced."""
    record = runs(mirror).get(run)
    pool = record.spec.allocation.pool if record is not None else ""
    own = mirror.record(keys.code(run), SyncedCode)
    return mirror.record(keys.code(pool), SyncedCode) if own is None and pool else own


def code(mirror: Mirror, run: str) -> CodeVersion | None:
    """Returns the code that the next start of a run takes; None: what its nodes have."""
    found = synced(mirror, run)
    return CodeVersion(version=found.newest.version, folder=found.newest.folder) if found is not None else None


def engine_of(mirror: Mirror, spec: RunSpec) -> str:
    """Returns the engine of a run's nodes: that of its pool, if it is on one."""
    pool = runs(mirror).get(spec.allocation.pool)
    return (pool.spec if pool is not None else spec).allocation.engine


def asked_relaunch(mirror: Mirror, run: str) -> Relaunch | None:
    """Returns the relaunch that was asked for and is not in force yet, if there is one."""
    asked, record = mirror.record(keys.next_spec(run), Relaunch), mirror.record(keys.spec(run), RunRecord)
    return asked if asked is not None and record is not None and asked.number > record.number else None


def _relaunch(mirror: Mirror, run: str) -> NextSpec | None:
    asked = asked_relaunch(mirror, run)
    if asked is None:
        return None
    scales = only_scales(runs(mirror)[run].spec, asked.spec) and not asked.restarts
    return NextSpec(
        number=asked.number, spec=asked.spec, scales=scales, because=asked.because, from_memory=asked.from_memory
    )


def epochs_before(mirror: Mirror) -> int:
    """Returns the number that is added to a leader's create revision to make its epoch."""
    before = mirror.record(keys.EPOCHS_BEFORE, EpochsBefore)
    return before.count if before is not None else 0


def runs_on(mirror: Mirror, run: str) -> list[str]:
    """Returns the nodes that report a process of the run."""
    seen = mirror.table(keys.NODES, NodeObserved, sort="observed")
    return [key[len(keys.NODES) :].split("/", 1)[0] for key, node in seen.items() if run in node.runs]


def _nodes(mirror: Mirror, run: str, known: Memory) -> dict[str, NodeView]:
    grants = mirror.table(keys.grant(run, ""), Grant).values()
    wanted = {key for key, allocation in known.allocations.items() if allocation.state == "wanted"}
    given = {
        node: grant.key
        # A host may be given again under the same name: the allocation that is gone is then overridden.
        for gone in (True, False)
        for grant in grants
        if (grant.state == "gone") is gone and grant.key in wanted
        for node in grant.nodes
    }
    through = {grant.key: grant.through for grant in grants}
    hosts = {seat.node: seat.host for g in known.groups.values() for seat in g.seats}
    held_by = {seat.node: seat.allocation for g in known.groups.values() for seat in (*g.left, *g.seats)}
    held = {seat.node for g in known.groups.values() for seat in (*g.seats, *g.left)}
    held.add(known.lighthouse.node)
    of_runs = granted(mirror)
    ours = []
    for name in mirror.nodes():
        if name not in given and name not in held:
            registration = mirror.record(keys.registration(name), Registration)
            if registration is None or registration.role != "service" or name in of_runs:
                continue  # a node that an engine gave to any run is no service host, whatever it calls itself
        key = given.get(name) or held_by.get(name, "")
        ours.append((name, key, hosts.get(name, ""), through.get(key, "")))
    return mirror.of_each(run, ours, partial(_view, mirror, run))


def granted(mirror: Mirror) -> frozenset[str]:
    """Returns the nodes that an engine has given to any run."""
    return mirror.derived(_granted, *(f"runs/{run}/grants" for run in runs(mirror)))


def _granted(mirror: Mirror) -> frozenset[str]:
    tables = (mirror.table(keys.grant(run, ""), Grant).values() for run in runs(mirror))
    return frozenset(node for table in tables for grant in table if grant.state == "granted" for node in grant.nodes)


def _view(mirror: Mirror, run: str, name: str, allocation: str, host: str, through: str) -> NodeView:
    """Returns one node's view. `host` and `allocation`, which the engine gave, apply once its registration is gone. A node
    that names another allocation of this run, or calls itself a service host, counts as not registered: it may write
    its own records with any content. `through`: as in Grant; such a node is shown under the run's allocation."""
    registration = mirror.record(keys.registration(name), Registration)
    if registration is not None and allocation and _contradicts(registration, run, through or allocation):
        registration = None
    if registration is not None and not (through and registration.allocation == through):
        allocation = registration.allocation
    seen = mirror.record(keys.observed(name), NodeObserved)
    health = mirror.record(keys.health(name), Health)
    facts = health.facts if health is not None else ()
    check = mirror.record(keys.check(name), NodeCheck) if registration is not None else None
    record = runs(mirror).get(run)
    run_dir = record.run_dir if record is not None else ""
    stands, said = (check.stands, cordons.failure(check)) if check is not None else ("", "")
    return NodeView(
        name=name,
        registered=registration is not None,
        host=(registration.host if registration is not None else host) or name,
        store=seen.store if seen is not None and registration is not None else "",
        leaving=seen.leaving if seen is not None and registration is not None else "",
        allocation=allocation,
        switch=registration.switch if registration is not None else "",
        role=registration.role if registration is not None else "trainer",
        slots=registration.slots if registration is not None else 0,
        checking=check is not None and check.state == "pending" and stands != "failed",
        failed=said if stands == "failed" else "",
        unsure=said if stands == "unknown" else "",
        # The last reports outlive the lease.
        facts={f.kind: f.evidence for f in facts if f.kind not in gpu_faults.KINDS},
        gpus=tuple([_gpu(f, run) for f in facts if f.kind in gpu_faults.KINDS]),
        store_ms=health.store_ms if health is not None else 0.0,
        warm=health is not None and health.warm == "ready" and registration is not None,
        ranks=tuple([_rank(t, run_dir) for t in seen.trainers if t.run == run]) if seen is not None else (),
        codes=seen.codes if seen is not None else None,
        code_error=printable(seen.code_error) if seen is not None else "",
        lighthouses_ended=tuple([x.generation for x in seen.lighthouses if x.run == run and x.state == "exited"])
        if seen is not None and seen.lighthouses
        else (),
    )


def _contradicts(registration: Registration, run: str, allocation: str) -> bool:
    said = registration.allocation
    of_this_run = re.fullmatch(rf"{re.escape(run)}-a\d+", said) is not None
    return registration.role == "service" or (said != allocation and of_this_run)


def _gpu(fact: Fact, run: str) -> GpuFact:
    during = None
    if fact.during is not None:
        found = (re.fullmatch(r"(.*)\.(\d+)\.(\d+)", way) for way in fact.during)
        during = frozenset((int(way[2]), int(way[3])) for way in found if way is not None and way[1] == run)
    return GpuFact(kind=fact.kind, evidence=fact.evidence, xid=fact.xid, rank=fact.rank, during=during)


_NO_END = ExitObserved()


def _rank(trainer: TrainerObserved, run_dir: str) -> RankView:
    progress = trainer.progress
    mark = progress.checkpoint if progress is not None else None
    end = trainer.exit or _NO_END
    return RankView(
        group=trainer.group,
        generation=trainer.generation,
        rank=trainer.rank,
        state=trainer.state,
        exit_code=end.exit_code,
        signal=end.signal,
        error=end.error_file or end.raised,
        trace=end.trace,
        last_words=end.last_words,
        told=end.told,
        oom=end.oom,
        kernel=end.kernel,
        ended_s=end.ended_s,
        disk=end.disk,
        phase=progress.phase if progress is not None else "starting",
        step=progress.step if progress is not None else 0,
        commits=progress.commits if progress is not None else 0,
        step_s=progress.step_s if progress is not None else 0.0,
        checkpoint=_checkpoint(mark, run_dir) if mark is not None else None,
        save_failed=_save_failed(trainer),
        heal_failed=_heal_failed(trainer),
        quorum_id=progress.quorum_id if progress is not None else -1,
        participants=progress.participants if progress is not None else 0,
        healed=progress.healed if progress is not None else None,
        gate=trainer.gate,
        reaches_gate=trainer.reaches_gate,
        stuck=trainer.stuck if trainer.state != "exited" else None,
        stopped=printable(trainer.stopped) if trainer.state != "exited" else "",
        stopped_s=trainer.stopped_s,
        debugging=progress is not None and progress.debugging is not None,
        compute_s=trainer.compute_s,
        data_s=trainer.data_s,
        compute_past_s=trainer.compute_past_s,
        data_past_s=trainer.data_past_s,
        numerics=progress.numerics if progress is not None else "",
        spike=progress.spike if progress is not None else None,
        measured=trainer.measured,
    )


def _checkpoint(mark: CheckpointMark, run_dir: str) -> Checkpoint:
    # others load what is there: a rank's word for the place is not taken
    path = str(checkpoints.folder_of(run_dir) / checkpoints.name_of(mark))
    return Checkpoint(mark.step, path, mark.group, mark.generation)


def _save_failed(trainer: TrainerObserved) -> str:
    """Returns the error that a training rank reports; empty for one that ends, whose error is another."""
    progress = trainer.progress
    if progress is None or progress.phase == "failed" or trainer.state == "exited":
        return ""
    return printable(progress.error)


def _heal_failed(trainer: TrainerObserved) -> str:
    """Returns a sentence about failed heals; empty after a single failure, since the peer may have ended meanwhile."""
    failed = trainer.progress.heal_failed if trainer.progress is not None else None
    if failed is None or failed.times < 2:
        return ""
    error = printable(failed.error)
    return f"its heal from {failed.source} has failed {failed.times} times in {failed.for_s:.0f} s: {error}"


def _gate(mirror: Mirror, run: str, known: Memory) -> GateView | None:
    seat = known.lighthouse
    if not seat.node:
        return None
    gate = mirror.record(keys.gate(seat.node, run), GateObserved)
    if gate is None or gate.generation != seat.generation:
        return None
    presence = mirror.record(keys.gate_presence(seat.node, run), GatePresence)
    return GateView(
        node=gate.node,
        generation=gate.generation,
        address=gate.address,
        present=presence is not None and presence.generation == seat.generation,
        admitted={g.group: g.generation for g in gate.groups},
        hearing={g.group: g.hearing for g in gate.groups},
        departed=frozenset(node for g in gate.groups for node in g.departed),
        quorum_id=gate.quorum_id,
    )
