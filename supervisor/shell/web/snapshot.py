"""One look at a run, as the JSON that the page draws. A pure function of a mirror and of the observations in `Live`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.core.evidence import checkpoint_lag
from supervisor.core.goodput import causes
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import TRAINS_ON, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import budgets
from supervisor.core.report import explain
from supervisor.core.report.durations import incident_s, lasted_s, wall_clock
from supervisor.core.report.words import said, say
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, status, training
from supervisor.shell.inspect.status import LighthouseStatus, NodeStatus, RunStatus
from supervisor.shell.web import attention
from supervisor.shell.web.history import Point
from supervisor.shell.web.verdicts import LETTERS, GroupVerdict, of_groups
from supervisor.wire import keys
from supervisor.wire.records import Account, RunRecord

INCIDENTS = 50
"""Newest closed incidents shown, besides all open ones: a run of weeks may have thousands."""

NODES = 64
"""Most nodes shown, those with problems first: for the others their number is enough."""

STILL = 20.0
"""Lengths of the last step (STILL_S seconds at least) without a new one, after which the page reports a standstill."""

STILL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Live:
    """The supervisor's own observations, by its own clock, which a mirror lacks."""

    now: float
    """Wall clock, for people only."""
    clock_at: Mapping[str, float] = field(default_factory=dict)
    """Offset from each run's clock to the wall clock, used where no leader recorded it; missing if unknown."""
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Each run's clock now, extrapolated from the last value heard; missing if none was."""
    still_s: float = 0.0
    leaderless_s: float = math.inf
    unlit_s: float = math.inf
    """These three as in attention.Lasts."""
    alarms: Sequence[str] = ()
    """etcd's alarms, as sentences."""
    since: float = 0.0
    """When this supervisor began to watch: the history has nothing before."""
    store_since: float = 0.0
    """When etcd stopped answering; 0 if it answers."""
    every_s: float = 1.0
    """Seconds between looks."""

    @property
    def lasts(self) -> attention.Lasts:
        away_s = self.now - self.store_since if self.store_since else 0.0
        return attention.Lasts(
            still_s=self.still_s, away_s=away_s, leaderless_s=self.leaderless_s, unlit_s=self.unlit_s
        )


def snapshot(mirror: Mirror, record: RunRecord | None, live: Live) -> dict[str, Any]:
    """Returns everything that the page shows of a run. Holds no null: unknown values are left out."""
    runs = {name: _phase(mirror, name) for name, of in observe.runs(mirror).items() if not of.spec.is_pool}
    head = {
        "now": round(live.now, 1),
        "since": round(live.since, 1),
        "store_since": round(live.store_since, 1),
        "every_s": live.every_s,
        "runs": runs,
    }
    if record is None:
        return {**head, "run": "", "letters": dict(LETTERS)}
    try:
        return {**head, **_of_run(mirror, record, live)}
    except observe.Unreadable as error:
        bad = {"level": "bad", "text": "The state of this run cannot be read, so nothing is decided."}
        return {
            **head, "run": record.spec.name, "letters": dict(LETTERS), "headline": bad,
            "get_up": _get_up(attention.GetUp(level="now", why=(f"{error}; `supervisor doctor` says what to do",))),
        }  # fmt: skip


def _phase(mirror: Mirror, run: str) -> str:
    memory = mirror.record(keys.memory(run, "run"), Memory)
    return memory.phase if memory is not None else "new"


def _of_run(mirror: Mirror, record: RunRecord, live: Live) -> dict[str, Any]:
    spec, run = record.spec, record.spec.name
    memory, observed = status.seen_of(mirror, record)
    clock = status.clock_now(mirror, run, memory, live.clocks.get(run, 0.0))
    found = status.status_of(mirror, record, memory, observed, clock)
    verdicts = of_groups(memory.groups, observed, spec)
    nodes = status.node_status(mirror)
    newest = training.newest(found)
    still = live.still_s if live.still_s > max(STILL_S, STILL * newest.step_s if newest else 0.0) else None
    account = status.account(mirror, run)
    terms = account.clocks or tuple((-math.inf, live.clock_at[name]) for name in (run,) if name in live.clock_at)
    told = client.incidents(mirror, run)
    behind = say(checkpoint_lag.with_reason(memory.groups, memory.checkpoint, observed, spec))
    headline = attention.headline(found, verdicts, still, behind)
    asked = attention.get_up(
        attention.Seen(
            status=found, memory=memory, observed=observed, now=clock, spec=spec, verdicts=verdicts, headline=headline,
            unsaved=behind, incidents=told, allowed={scope: _allowed(spec, scope) for scope in found.budgets_left},
            alarms=live.alarms, lasts=live.lasts,
        )
    )  # fmt: skip
    return {
        "run": run,
        "letters": dict(LETTERS),
        "set": attention.settings(found, memory, spec),
        "headline": status.as_json(headline),
        "get_up": _get_up(asked),
        "numbers": _numbers(found, newest, memory),
        "time": _time(account),
        "groups": {str(g.group): _group(g, verdicts[g.group]) for g in found.groups},
        "incidents": {i.id: _incident(i, terms, account.stood, clock) for i in chosen(told)},
        "incidents_all": len(told),
        "lost_s": round(sum(_lost_s(i, clock, account.stood) for i in told), 1),
        "nodes": {n.node or f"host {n.host}": _node(n, found) for n in _notable(nodes, found)},
        "nodes_by_state": _by_state(nodes, found),
        "spares": list(found.spares),
        "nodeless": [g.group for g in memory.groups.values() if g.phase in ("fencing", "placing") and not g.placed],
        "budgets": _budgets(spec, found),
        "notes": _notes(found),
    }


def _get_up(asked: attention.GetUp) -> dict[str, Any]:
    return {"level": asked.level, "word": asked.word, "why": list(asked.why)}


def newest_point(found: Mapping[str, Any], at: float) -> Point | None:
    """Returns the history's point for a snapshot; None if no current group has made a step."""
    numbers = found.get("numbers")
    if not numbers or not numbers["step"] or not any(group["step"] for group in found["groups"].values()):
        return None
    loss = numbers.get("loss")
    return Point(at, numbers["step"], None if isinstance(loss, str) else loss, numbers["step_s"], numbers["quorum"])


def _numbers(found: RunStatus, newest: status.GroupStatus | None, memory: Memory) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "step": found.step,
        "step_s": round(newest.step_s, 4) if newest is not None else 0.0,
        "tokens_per_s": round(training.tokens_per_s(found)),
        "quorum": newest.participants if newest is not None else 0,
        "quorum_id": newest.quorum_id if newest is not None else -1,
        "groups": len(found.groups),
        "leader": _process(found.leader),
        "epoch": found.epoch,
        "lighthouse": _lighthouse(found.lighthouse),
        "lit": found.lighthouse.state == "open",
        "over": _is_over(found),
    }
    if newest is not None and newest.loss is not None:
        # JSON has no loss that is not finite
        numbers["loss"] = round(newest.loss, 4) if math.isfinite(newest.loss) else str(newest.loss)
    if memory.checkpoint is not None:
        numbers["checkpoint"] = memory.checkpoint.step
    return numbers


def _is_over(found: RunStatus) -> bool:
    """Returns true if the run will do no more. Not so a halted run: people ask from where it would resume."""
    if found.phase in ("halted", "resuming"):
        return False
    ended = bool(found.groups) and all(g.phase == "finished" for g in found.groups)
    return ended or found.phase in ("finished", "stopped")


def _process(leader: str) -> str:
    """Returns `host:pid` in words, since it looks like a port."""
    host, _, pid = leader.rpartition(":")
    return f"pid {pid} on {host}" if leader else ""


def _lighthouse(seat: LighthouseStatus) -> str:
    if not seat.node or seat.state == "none":
        return "none"
    return f"{seat.state}, on node {seat.node}{f' ({seat.address})' if seat.address else ''}"


def _time(account: Account) -> dict[str, Any]:
    """Returns ETTR, all other shares (largest first), and when and how long the run lasted; empty if nothing was
    counted yet."""
    share = causes.ettr(account.seconds)
    if share is None:
        return {}
    lost = sorted(((part, cause) for cause, part in causes.badput(account.seconds).items()), reverse=True)
    found = {
        "ettr": round(share, causes.DIGITS),
        "group_s": round(sum(account.seconds.values()), 1),
        "lost": [[cause, round(part, 4)] for part, cause in lost],
        "ran_s": round(account.ran_s, 1),
    }
    known = {"began": account.began_unix_s, "ended": account.ended_unix_s}
    return found | {name: round(at, 1) for name, at in known.items() if at}


def _group(g: status.GroupStatus, verdict: GroupVerdict) -> dict[str, Any]:
    return {
        "ranks": verdict.ranks,
        "worst": verdict.worst,
        "why": verdict.why,
        "node": g.where,
        "generation": g.generation,
        "step": g.step,
        "incident": g.incident,
    }


def chosen(incidents: Iterable[Incident]) -> list[Incident]:
    """Returns the open incidents, and the newest of the others."""
    incidents = list(incidents)
    closed = [i for i in incidents if not explain.is_open(i)]
    newest = {i.id for i in closed[-INCIDENTS:]}
    return [i for i in incidents if explain.is_open(i) or i.id in newest]


def _incident(
    i: Incident, terms: Sequence[tuple[float, float]], stood: Sequence[tuple[float, float]], now: float
) -> dict[str, Any]:
    """Describes an incident. `now`: the run clock, until which an open incident has lasted."""
    body: dict[str, Any] = {
        "open": explain.is_open(i),
        "state": i.state,
        "kind": i.kind.value,
        "confidence": i.confidence.value,
        "group": i.group,
        "node": i.node,
        "shadow": i.shadow,
        "did": " ".join(sentence.strip() for sentence in explain.done(i)),
        "why": say(i.reason),
        "seen": list(said(i.evidence)),
        "considered": list(said(i.considered)),
        "costs": list(said(i.costs)),
        "generations": [i.generation_before, i.generation_after],
        "step": i.step_before,
        "trace": i.trace,
        "took_s": round(i.took_s, 2),
        "order": i.opened,
    }
    if i.rank is not None:
        body["rank"] = i.rank
    for name, at in (("opened", i.opened), ("decided", i.decided), ("acted", i.acted), ("recovered", i.recovered)):
        if at is not None:
            body[f"{name}_s"] = round(lasted_s(i.opened, at, stood), 2)
            if (wall := wall_clock(at, terms)) is not None:
                body[name] = round(wall, 1)
    lasted = incident_s(i, stood, now if explain.is_open(i) else None)
    if lasted is not None:
        body["lasted_s"] = round(lasted, 2)
    return body


def _lost_s(i: Incident, now: float, stood: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds so far for which its group did not train. `now`: run clock; `stood` as in Account."""
    if i.shadow:
        return 0.0
    if i.kind not in TRAINS_ON:
        return incident_s(i, stood, now if explain.is_open(i) else None) or 0.0
    ended = i.recovered if i.recovered is not None else now if explain.is_open(i) else None
    # it trained until it was acted on
    return max(0.0, lasted_s(i.acted, ended, stood)) if i.acted is not None and ended is not None else 0.0


def _notable(nodes: Iterable[NodeStatus], found: RunStatus) -> list[NodeStatus]:
    """Returns at most NODES nodes: those with problems, then spares, then by name."""
    return sorted(nodes, key=lambda n: (not _wrong(n), n.node not in found.spares, n.node))[:NODES]


def _wrong(n: NodeStatus) -> list[str]:
    said = (
        [] if n.alive else ["silent: its agent's lease has expired" if n.node else "no node of this host is registered"]
    )
    said += [f"cordoned: {attention.plain(n.cordon)}"] if n.cordon else []
    said += [f"leaving: {n.leaving}"] if n.leaving and n.leaving != n.cordon else []
    if n.check is not None and n.alive and n.check.stands in ("failed", "unknown") and not n.cordon:
        said.append(f"its checks {'failed' if n.check.stands == 'failed' else 'could not run'} ({n.check.why})")
    return [*said, *n.problems, *n.facts]


def _node(n: NodeStatus, found: RunStatus) -> dict[str, Any]:
    does = [f"group {g.group}" for g in found.groups if n.node in g.nodes]
    does += ["lighthouse"] if n.node and found.lighthouse.node == n.node else []
    does += ["spare"] if n.node in found.spares else []
    return {
        "alive": n.alive,
        "host": n.host,
        "does": ", ".join(does),
        "wrong": _wrong(n),
        "checking": n.check is not None and n.alive and n.check.state == "pending",
    }


def _by_state(nodes: Iterable[NodeStatus], found: RunStatus) -> dict[str, int]:
    nodes = list(nodes)
    return {
        "alive": sum(n.alive for n in nodes),
        "silent": sum(not n.alive and bool(n.node) for n in nodes),
        "cordoned": len(found.cordons),
        "leaving": len(found.leaving),
        "spare": len(found.spares),
    }


def _budgets(spec: RunSpec, found: RunStatus) -> list[dict[str, Any]]:
    """Returns the run's own budgets, and those of groups that were drawn on."""
    rows = []
    for scope, left in found.budgets_left.items():
        name, _, group = scope.partition(":")
        of = _allowed(spec, scope)
        if not group or left < of:
            rows.append({"what": attention.plain(name), "group": group, "left": left, "of": of})
    return rows[:NODES]


def _allowed(spec: RunSpec, scope: str) -> int:
    """Returns the size of a budget, by its name in RunStatus.budgets_left."""
    name, _, group = scope.partition(":")
    if group and name != "restart":
        return spec.policy.kind_budget[name]
    return budgets.allowed(spec.policy.budget, Rung[name.upper()])


def _notes(found: RunStatus) -> list[str]:
    """Returns what waits, and what is about to happen."""
    leaving = [f"groups will leave {node}: {why}" for node, why in found.leaving.items()]
    step = found.handover_at_step
    hands_over = [f"all groups end after step {step}, and continue on other nodes"] if step is not None else []
    return [*found.waiting, *leaving, *hands_over]


def drawn(points: Mapping[int, Point]) -> dict[str, list[float | int | str]]:
    """Returns the charts' points: wall clock, step, loss (empty if unknown, since null is not allowed), seconds of the
    step, groups in the quorum."""
    return {
        str(number): [round(p.at, 1), p.step, p.loss if p.loss is not None else "", round(p.step_s, 3), p.quorum]
        for number, p in points.items()
    }
