"""The status of runs and nodes as data, for every command that reads."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from supervisor.core.evidence.error_text import printable
from supervisor.core.model.kinds import Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import of_json
from supervisor.core.policy import budgets
from supervisor.core.policy.cordons import barred
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import said, say
from supervisor.core.round.view import RoundView
from supervisor.ports.errors import PortError
from supervisor.shell.control import cordons, observe, pools
from supervisor.shell.control.audit import audit
from supervisor.shell.control.leader import leader
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd.status import Asked
from supervisor.shell.inspect import codes, debugging
from supervisor.shell.inspect import pending_reasons as waiting
from supervisor.shell.metrics import clock_skew, live_goodput
from supervisor.wire import keys
from supervisor.wire.records import (
    Account,
    GateObserved,
    Health,
    NodeCheck,
    NodeObserved,
    Registration,
    RunRecord,
    SecondAgent,
    TrainerObserved,
)

ALONE = " (only for this run)"
"""Marks a cordon that no other run heeds."""


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """Status of one replica group. `hearing` is the gate's state of it."""

    group: int
    phase: str
    generation: int
    node: str
    """Node of its first rank."""
    nodes: tuple[str, ...]
    """All of its nodes, in the order of its ranks."""
    step: int
    loss: float | None
    step_s: float
    tokens_per_s: float
    quorum_id: int
    participants: int
    hearing: str
    incident: str
    healing: str = ""
    """Where its first rank gets its state from and how much has come, in a heal that takes a second and more."""

    @property
    def where(self) -> str:
        return ", ".join(self.nodes)


@dataclass(frozen=True, kw_only=True)
class LighthouseStatus:
    """Place of the run's lighthouse and gate. mute: its lease is gone, but it may still serve."""

    node: str
    generation: int
    address: str
    state: Literal["none", "starting", "open", "mute", "closing"]

    def __str__(self) -> str:
        return f"{self.node} {self.address} ({self.state})" if self.node else "none"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Status of one run."""

    run: str
    phase: str
    paused: bool
    halt_reason: str
    leader: str
    epoch: int
    step: int
    groups: tuple[GroupStatus, ...]
    lighthouse: LighthouseStatus
    checkpoint_step: int | None
    spares: tuple[str, ...]
    cordons: dict[str, str]
    """Hosts that get no group any more, why, and by whom."""
    budgets_left: dict[str, int]
    incidents_open: tuple[str, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Allowed but dangerous settings, and a leader's wrong clock."""
    waiting: tuple[str, ...] = ()
    """Groups without a node, allocations that are refused or late, in the engine's own words, and problems that are
    left as they are. Those are slow groups, failing heals, hangs without a culprit, what the breaker holds, failing
    checkpoints and unusable disks."""
    leaving: dict[str, str] = field(default_factory=dict)
    """Nodes that their groups must leave, because the engine will take them away or a person drains them; and why."""
    handover_at_step: int | None = None
    """Step after which all groups end, to start again on other nodes."""
    page: str = ""
    """URL of the leader's page."""
    resumed: str = ""
    """Checkpoint that the newest start from disk took, and those that it passed over; empty if there was none."""
    stepped_unix_s: float = 0.0
    """When the newest step was committed, by its node's clock; 0 if unknown."""
    reports_steps: bool = True
    """False for a command of the user's own that does not: `stepped_unix_s` is then the time of its newest output."""
    next_spec: int = 0
    """Number of the spec by which it is relaunched, while that is not in force yet; 0: no relaunch is under way."""
    code: str = ""
    """A sentence on the code that the next start takes, and on groups with other code; empty: none was synced."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """Status of one node."""

    node: str
    alive: bool
    role: str
    address: str
    allocation: str
    host: str
    leaving: str
    """Why its scheduler will end it, or a person drains its host; empty if neither."""
    runs: tuple[str, ...]
    warm: str
    disk_free_bytes: int | None
    memory_available_bytes: int | None
    problems: tuple[str, ...]
    facts: tuple[str, ...] = ()
    """Facts about its machine from which training may suffer."""
    check: NodeCheck | None = None
    """Last result of its machine's checks; None if it was never checked."""
    cordon: str = ""
    """Why its host gets no group any more, and by whom; empty if it does."""
    standbys: int = 0
    """Ranks whose next start is built already."""
    lent_to: str = ""
    """Run that has it from a pool; empty: it is of no pool, or free."""


def run_status(mirror: Mirror, record: RunRecord) -> RunStatus:
    """Returns a run's status. Raises views.Unreadable if the run's memory cannot be read."""
    memory, observed = seen_of(mirror, record)
    return status_of(mirror, record, memory, observed, clock_now(mirror, record.spec.name, memory))


def status_now(store: Asked, mirror: Mirror, record: RunRecord) -> RunStatus:
    """Returns what `run_status` does, with etcd's alarms among the warnings."""
    found = run_status(mirror, record)
    return replace(found, warnings=(*alarms(store), *found.warnings))


def seen_of(mirror: Mirror, record: RunRecord) -> tuple[Memory, Observed]:
    """Returns a run's memory, and its observations as a leader sees them. Raises views.Unreadable."""
    memory = observe.memory(mirror, record.spec.name)
    return memory, observe.observed(mirror, record.spec.name, memory, memory.clock, float("inf"))


def clock_now(mirror: Mirror, run: str, memory: Memory, heard: float = 0.0) -> float:
    """Returns the run clock now, in seconds, for people only. It is the last value that a leader wrote (at most half a
    minute ago), or the reader's count since. It uses no wall clock, since the leader's may be hours off. `heard`:
    the reader's count, by its own monotonic clock; 0 if it has just begun."""
    told = max(memory.clock, account(mirror, run).clock)
    return max(told, heard) if keys.LEADER in mirror.items else told


def status_of(mirror: Mirror, record: RunRecord, memory: Memory, observed: Observed, now: float) -> RunStatus:
    """Returns what `run_status` does, from inputs that the caller needs as well. `now`: as from `clock_now`."""
    spec = record.spec
    gate = mirror.record(keys.gate(memory.lighthouse.node, spec.name), GateObserved)
    hearing = {g.group: g.hearing for g in gate.groups} if gate is not None else {}
    groups = tuple(_group(mirror, spec.name, memory, g, hearing.get(g, "-")) for g in range(spec.groups.count))
    term, leader_record = mirror.items.get(keys.LEADER), leader(mirror)
    held = {node for g in memory.groups.values() for node in g.nodes}
    leaving = waiting.leaving(observed)
    useless = RoundView(observed, spec, memory).passed_over()
    away = barred(observed, {host: f"{say(why)}{ALONE}" for host, why in memory.cordons.items()})
    spares = sorted(
        n.name
        for n in observed.nodes.values()
        if n.registered
        and n.role == "trainer"
        and n.name not in held | set(leaving) | set(useless)
        and n.machine not in away
    )
    left = {
        rung.name.lower(): budgets.left(memory.spent, spec.policy.budget, rung, 0, now)
        for rung in (Rung.REPLACE, Rung.REALLOCATE)
    }
    for g in range(spec.groups.count):
        left[f"restart:{g}"] = budgets.left(memory.spent, spec.policy.budget, Rung.RESTART, g, now)
        left |= budgets.kinds_left(memory.spent_by_kind, spec.policy, g, now)
    return RunStatus(
        run=spec.name,
        phase=memory.phase,
        paused=observed.control.paused,
        halt_reason=say(memory.halt_reason),
        leader=f"{leader_record.host}:{leader_record.pid}" if leader_record is not None else "",
        epoch=observe.epochs_before(mirror) + term.create_revision if term is not None else 0,
        step=max((g.step for g in groups), default=0) or account(mirror, spec.name).step,
        groups=groups,
        lighthouse=_lighthouse(memory),
        checkpoint_step=memory.checkpoint.step if memory.checkpoint is not None else None,
        spares=tuple(spares),
        cordons=dict(sorted(away.items())),
        budgets_left=left,
        incidents_open=tuple(memory.incidents),
        problems=tuple(f"{key}: {why}" for key, why in sorted(audit(mirror, mirror.fresh()).items())),
        warnings=(
            *insecure(mirror),
            *filter(
                None, (clock_skew.leader_off(account(mirror, spec.name).off_s if leader_record is not None else 0.0),)
            ),
        ),
        waiting=(
            *waiting.sentences(memory, observed),
            *said(waiting.held(memory, observed, spec)),
            *debugging.sentences(mirror, spec.name, spec.policy.at_breakpoint == "wait"),
        ),
        leaving=leaving,
        handover_at_step=memory.handover_at_step,
        resumed=say(memory.resumed.said) if memory.resumed is not None else "",
        page=leader_record.page if leader_record is not None else "",
        reports_steps=not spec.trainer.plain,
        next_spec=observed.relaunch.number if observed.relaunch is not None else 0,
        code=codes.line(mirror, spec.name),
        stepped_unix_s=max(account(mirror, spec.name).stepped_unix_s, live_goodput.stepped_unix_s(mirror, spec.name)),
    )


def account(mirror: Mirror, run: str) -> Account:
    """Returns the run's account; an empty one if no leader has written it."""
    return mirror.record(keys.account(run), Account) or Account()


def alarms(store: Asked) -> tuple[str, ...]:
    """Returns etcd's alarms with their remedies: a full database still answers reads, so nothing else would show it."""
    try:
        return store.status().alarms
    except PortError:
        return ()  # a user without this permission gets the rest all the same


def insecure(mirror: Mirror) -> tuple[str, ...]:
    """Returns a warning while the leader or nodes run with `insecure = true`, and for each way around etcd's roles."""
    leads = leader(mirror)
    holes = tuple(f"insecure = true: {hole}: docs/SECURITY.md" for hole in leads.holes) if leads is not None else ()
    who = ["the leader"] if leads is not None and leads.insecure else []
    for name in mirror.nodes():
        registration = mirror.record(keys.registration(name), Registration)
        if registration is not None and registration.insecure:
            who.append(f"node {name}")
    if not who:
        return holes
    return (
        *holes,
        f"insecure = true ({', '.join(who)}): nothing is encrypted, and anyone who reaches etcd or the gate may do anything: "
        "docs/TLS.md says how to make certificates",
    )


def _lighthouse(memory: Memory) -> LighthouseStatus:
    seat = memory.lighthouse
    state: Literal["none", "starting", "open", "mute", "closing"] = "open" if seat.address else "starting"
    if not seat.node or memory.phase in ENDED:
        state = "none"
    elif seat.closing:
        state = "closing"
    elif seat.mute_since is not None:
        state = "mute"
    return LighthouseStatus(node=seat.node, generation=seat.generation, address=seat.address, state=state)


def node_status(mirror: Mirror) -> list[NodeStatus]:
    """Returns all nodes with a key in etcd, and cordoned hosts without a node (with an empty node name)."""
    found = []
    away = cordons.sentences(mirror)
    lent = pools.every_lent(mirror, observe.runs(mirror))
    drained = {host: held.why for host, held in cordons.by_host(mirror).items() if held.person and held.person.drain}
    for name in mirror.nodes():
        registration = mirror.record(keys.registration(name), Registration)
        health = mirror.record(keys.health(name), Health)
        seen = mirror.record(keys.observed(name), NodeObserved)
        trainers = seen.trainers if seen is not None else ()
        host = (registration.host if registration is not None else "") or name
        leaves = seen.leaving if seen is not None and registration is not None else ""
        found.append(
            NodeStatus(
                node=name,
                alive=registration is not None,
                role=registration.role if registration is not None else "",
                address=registration.address if registration is not None else "",
                allocation=registration.allocation if registration is not None else "",
                host=host,
                leaving=leaves or (drained.get(host, "") if registration is not None else ""),
                runs=tuple(
                    f"{t.run} group {t.group} rank {t.rank} generation {t.generation} ({t.state})" for t in trainers
                )
                + tuple(f"{x.run} lighthouse ({x.state})" for x in (seen.lighthouses if seen is not None else ())),
                warm=health.warm if health is not None else "",
                standbys=health.standbys if health is not None else 0,
                disk_free_bytes=health.disk_free_bytes if health is not None else None,
                memory_available_bytes=health.memory_available_bytes if health is not None else None,
                problems=(*_second(mirror, name), *(health.problems if health is not None else ())),
                facts=_facts(health, registration is not None) if health is not None else (),
                check=mirror.record(keys.check(name), NodeCheck),
                cordon=away.get(host, ""),
                lent_to=lent.get(registration.allocation, "") if registration is not None else "",
            )
        )
    return found + [_no_node_there(host, away[host]) for host in sorted(away.keys() - {n.host for n in found})]


def _second(mirror: Mirror, node: str) -> tuple[str, ...]:
    found = mirror.record(keys.second(node), SecondAgent)
    if found is None:
        return ()
    where = f"pid {found.pid} on {found.machine} ({found.address}, {found.folder})"
    return (f"a second agent with this name is idle: {where}; end it, or start it with another --node",)


def _facts(health: Health, alive: bool) -> tuple[str, ...]:
    told = [f"{f.kind}: {f.evidence}" for f in health.facts]
    off = clock_skew.off(health, time.time()) if alive else ""
    return (*told, f"clock_off: {off}") if off else tuple(told)


def _no_node_there(host: str, cordon: str) -> NodeStatus:
    return NodeStatus(
        node="", alive=False, role="", address="", allocation="", host=host, leaving="", runs=(), warm="",
        disk_free_bytes=None, memory_available_bytes=None, problems=(), cordon=cordon,
    )  # fmt: skip


def _group(mirror: Mirror, run: str, memory: Memory, g: int, hearing: str) -> GroupStatus:
    group = memory.groups.get(g)
    trainer = _trainer(mirror, run, g, group.generation, group.first_node) if group is not None else None
    progress = trainer.progress if trainer is not None else None
    return GroupStatus(
        group=g,
        phase=group.phase if group is not None else "unplaced",
        generation=group.generation if group is not None else 0,
        node=group.first_node if group is not None else "",
        nodes=group.nodes if group is not None else (),
        step=progress.step if progress is not None else 0,
        loss=progress.loss if progress is not None else None,
        step_s=progress.step_s if progress is not None else 0.0,
        tokens_per_s=progress.tokens_per_s if progress is not None else 0.0,
        quorum_id=progress.quorum_id if progress is not None else -1,
        participants=progress.participants if progress is not None else 0,
        hearing=hearing,
        incident=group.incident if group is not None else "",
        healing=_healing(trainer),
    )


def _healing(trainer: TrainerObserved | None) -> str:
    progress = trainer.progress if trainer is not None and trainer.state != "exited" else None
    if progress is None or progress.healing is None:
        return ""
    heal = progress.healing
    return f"heals from {printable(heal.source)}: {heal.bytes / 1e9:.2f} GB in {heal.for_s:g} s ({heal.bytes / 1e9 / max(heal.for_s, 0.1):.2f} GB/s)"


def _trainer(mirror: Mirror, run: str, group: int, generation: int, node: str) -> TrainerObserved | None:
    seen = mirror.record(keys.observed(node), NodeObserved)
    mine = [
        t
        for t in (seen.trainers if seen is not None else ())
        if (t.run, t.group, t.generation, t.rank) == (run, group, generation, 0)
    ]
    return mine[0] if mine else None


def as_json(value: Any) -> Any:
    """Returns plain JSON data of any of these, with reasons as sentences."""
    return _worded(to_jsonable_python(value))


def _worded(body: Any) -> Any:
    if isinstance(body, list):
        return [_worded(each) for each in body]
    if isinstance(body, dict):
        return say(of_json(body)) if body.keys() == {"code", "about"} else {k: _worded(v) for k, v in body.items()}
    return body
