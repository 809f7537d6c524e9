"""Builds the demo's report from the files of the run: what each fault cost."""

from __future__ import annotations

import itertools
from typing import Any

from fault_injection.checkers.consistency import Verdict
from fault_injection.faults.acts import Injected
from supervisor.core.reason import of_json
from supervisor.core.words import say
from supervisor.shell.history.files import History
from supervisor.shell.history.goodput import Span, does_not_add_up, in_short, ledger
from supervisor.shell.history.incident_cost import of_incidents
from supervisor.shell.history.incidents import lasted, recovered_at


def build(history: History, faults: list[Injected], span: Span, groups: int, verdicts: list[Verdict]) -> dict[str, Any]:
    """Returns the report as it is written to report.json."""
    ledgers = {g: ledger(history, g, span) for g in range(groups)}
    counted = in_short(history, ledgers, span)
    losses = _losses(history)
    return {
        "run": history.run,
        "seconds": counted.seconds,
        "begin_unix_s": counted.begin_unix_s,
        "end_unix_s": counted.end_unix_s,
        "steps_committed": max((line["step"] for s in history.steps for line in s.committed()), default=0),
        "samples": sum(int(line.get("samples", 0)) for s in history.steps if s.rank == 0 for line in s.committed()),
        "ettr": counted.ettr,
        "badput": counted.badput,
        "badput_wrong": [*does_not_add_up(history, ledgers, span), *counted.apart],
        **_digests(history, groups),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "incidents": [incident(history, fault, groups) for fault in faults],
        "lost_s": {
            name: {cause.value: round(seconds, 3) for cause, seconds in sorted(lost.items())}
            for name, lost in of_incidents(history, ledgers).items()
        },
        "checkers": {v.checker: {"answer": v.answer, "sentences": list(v.sentences)} for v in verdicts},
    }


def incident(history: History, fault: Injected, groups: int, known: str | None = None) -> dict[str, Any]:
    """Reports what came of a fault: of the incident `known` by its id, else of the first one of its group."""
    record = _record_of(history, fault, known)
    if record is None:
        return {"fault": fault.name, "group": fault.group, "node": fault.node, "id": None}
    after = record["generation_after"]
    times = _times(history, record, fault)
    recovered = times["recovered"]
    until = fault.unix_s + recovered if recovered is not None else float("inf")
    beside = [others(history, g, fault.unix_s, until) for g in range(groups) if g != fault.group]
    return {
        "fault": fault.name,
        "evidence": fault.evidence,
        "id": record["id"],
        "kind": record["kind"],
        "group": record["group"],
        "node": record["node"],
        "rung": record["rung"],
        "generation_before": record["generation_before"],
        "generation_after": after,
        **{f"{name}_s": None if value is None else round(value, 3) for name, value in times.items()},
        "recovered_unix_s": recovered_at(history, record),
        "lasted_s": lasted(history, record),
        "steps_lost": max((o["failed"] for o in beside), default=0),
        "others_steps": min((o["steps"] for o in beside), default=0),
        "others_longest_stall_s": round(max((o["stall"] for o in beside), default=0.0), 3),
        "reason": say(of_json(record.get("reason", ""))),
    }


def _record_of(history: History, fault: Injected, known: str | None) -> dict[str, Any] | None:
    """Returns the newest record of the incident that is known, or of the group's first one opened after the fault."""
    found: dict[str, Any] | None = None
    before = {i["id"] for d in history.committed() if d.t < fault.unix_s for i in d.incidents}
    for decision in history.committed():
        for incident in decision.incidents:
            ours = incident["id"] not in before and incident["group"] == fault.group
            ours = ours if known is None else incident["id"] == known
            if ours and (found is None or incident["id"] == found["id"]):
                found = incident
    return found


def _times(history: History, record: dict[str, Any], fault: Injected) -> dict[str, float | None]:
    """Returns seconds since the fault.

    Detected: when the first decision with the incident was made. Decided: when the one to act was committed. Acted:
    when the new generation's process was spawned. Recovered: when it was seen to have committed its first step with the
    others."""
    seen = [d for d in history.committed() if any(i["id"] == record["id"] for i in d.incidents) and d.t >= fault.unix_s]
    acting = [
        d
        for d in seen
        if any(
            i["id"] == record["id"]
            and i["generation_after"] == record["generation_after"]
            and i.get("state") == "acting"
            for i in d.incidents
        )
    ]
    spawned = [
        p.spawned
        for p in history.processes
        if (p.group, p.generation, p.rank) == (record["group"], record["generation_after"], 0)
        and p.spawned >= fault.unix_s
    ]

    def since(at: float | None) -> float | None:
        return None if at is None else at - fault.unix_s

    return {
        "detected": since(seen[0].t if seen else None),
        "decided": since((acting[0].committed_at or acting[0].t) if acting else None),
        "acted": since(min(spawned, default=None)),
        "recovered": since(recovered_at(history, record)),
    }


def others(history: History, group: int, begin: float, until: float) -> dict[str, Any]:
    lines = sorted(
        (line for s in history.of_group(group) for line in s.lines if line.get("event") == "step"), key=lambda x: x["t"]
    )
    commits = [line["t"] for line in lines if line.get("committed")]
    within = [t for t in commits if begin <= t <= until]
    before = max((t for t in commits if t < begin), default=begin)
    # Without a commit after the recovery, the group stood still at least until then.
    after = [t for t in commits if t > until][:1] or [t for t in [until] if t != float("inf")]
    moments = [before, *within, *after]
    stall = max((b - a for a, b in itertools.pairwise(moments)), default=0.0)
    failed = sum(1 for line in lines if not line.get("committed") and begin <= line["t"] <= until)
    return {"steps": len(within), "stall": stall, "failed": failed}


def _digests(history: History, groups: int) -> dict[str, Any]:
    """Compares hashes by step and rank, where every group has one for the same committed step."""
    by: dict[tuple[int, int], dict[int, set[str]]] = {}
    for steps in history.steps:
        for line in steps.lines:
            if line.get("event") == "digest":
                by.setdefault((line["step"], steps.rank), {}).setdefault(steps.group, set()).add(line["value"])
    shared = {key: values for key, values in by.items() if len(values) == groups}
    equal = bool(shared) and all(len(set().union(*values.values())) == 1 for values in shared.values())
    return {
        "digests_equal": equal,
        "digests_compared_at": sorted({step for step, _ in shared}),
        "digests_different_at": sorted({k[0] for k, v in shared.items() if len(set().union(*v.values())) > 1}),
    }


def _losses(history: History) -> list[float]:
    """Returns the first loss, and the mean of the last five, since batches differ."""
    by_step: dict[int, float] = {}
    for steps in history.steps:
        for line in steps.committed():
            if steps.rank == 0 and line.get("loss") is not None:
                by_step[line["step"]] = line["loss"]
    ordered = [by_step[s] for s in sorted(by_step)]
    if not ordered:
        return []
    tail = ordered[-5:]
    return [round(ordered[0], 4), round(sum(tail) / len(tail), 4)]


def verdict(report: dict[str, Any], heartbeat_timeout_s: float) -> list[str]:
    """Returns sentences on what did not hold; empty when the demo succeeded."""
    wrong = []
    for incident in report["incidents"]:
        name = incident["fault"]
        if incident.get("recovered_s") is None:
            wrong.append(f"{name}: group {incident['group']} did not recover")
            continue
        if incident["others_steps"] <= 0 and incident["others_longest_stall_s"] > 2 * heartbeat_timeout_s:
            wrong.append(f"{name}: the other groups stood still for {incident['others_longest_stall_s']} s")
    if not report["digests_equal"]:
        wrong.append(f"the groups' parameters differ at steps {report['digests_different_at'] or 'none compared'}")
    if report["loss_first"] is None or not report["loss_last"] < report["loss_first"]:
        wrong.append(f"the loss did not fall: {report['loss_first']} to {report['loss_last']}")
    wrong += [f"the badput ledger: {sentence}" for sentence in report["badput_wrong"]]
    wrong += [
        f"checker {n}: {c['answer']}: {'; '.join(c['sentences'])}"
        for n, c in report["checkers"].items()
        if c["answer"] != "pass"
    ]
    return wrong
