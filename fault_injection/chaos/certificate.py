"""Makes the certificate, as JSON and as a page: what was broken, its cost, where the time went, the verdicts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fault_injection.chaos import cost, curves
from fault_injection.chaos.curves import COLUMNS
from fault_injection.checkers.consistency import Verdict, check
from fault_injection.checkers.recovery import ALL, echoes_of, of_fault
from fault_injection.demo import report as costs
from fault_injection.faults.acts import Injected
from fault_injection.parity import twin
from fault_injection.parity.replay import of_history, tries_of
from supervisor.core.goodput.causes import Cause, Interval, ratios
from supervisor.core.model.kinds import Kind
from supervisor.shell.history.files import FaultDone, History, Setting
from supervisor.shell.history.goodput import Span, ledger
from supervisor.shell.history.incidents import ridden_through
from supervisor.shell.history.samples import audit

MARK_WIDTH, MARK_HEIGHT = 12.0, 10
"""Size of a fault's number in that picture: two digits with some room."""

COLOURS: Mapping[Cause, str] = {
    Cause.PRODUCTIVE: "#2e7d4f",
    Cause.ALLOCATE: "#b9c4cf",
    Cause.START: "#8fb3d9",
    Cause.ADMISSION: "#6f8fc4",
    Cause.DATA: "#c9a227",
    Cause.QUORUM: "#e0b34d",
    Cause.HEAL: "#7bbf9a",
    Cause.FAILED_STEP: "#d9775b",
    Cause.CHECKPOINT: "#a98bc2",
    Cause.EVALUATE: "#7a5aa6",
    Cause.COMPILE: "#5b8c8a",
    Cause.DIGEST: "#cbb7dd",
    Cause.RECOMPUTE: "#e7a48f",
    Cause.HUNG: "#5e1224",
    Cause.STRAGGLING: "#c78f3a",
    Cause.LOST_STEP: "#c0392b",
    Cause.DETECT: "#8e1b1b",
    Cause.DECIDE: "#b5533c",
    Cause.STORE_AWAY: "#4a4f6a",
    Cause.PLACE: "#9c7a5b",
    Cause.ACT: "#7d8ea3",
    Cause.END: "#e3e6e8",
    Cause.OTHER: "#777777",
}


NOBODY_NOTED: Mapping[str, Any] = {"once": None, "twice": None, "never": None, "twice_at": [], "never_at": []}
"""The report's sample counts where ranks do not note samples."""

NO_COST: Mapping[str, Any] = {
    **dict.fromkeys(("others_steps", "others_longest_stall_s", "steps_lost", "incident", "kind", "rung")),
    **dict.fromkeys(("detected_s", "decided_s", "acted_s", "rejoined_s", "heal_s", "halted_s", "resumed_s")),
    "control_plane": [],
    "echoes": [],
}
"""The cost of a fault for which none can be computed."""


def build(
    history: History, verdicts: Sequence[Verdict] | None = None, parity: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Builds report.json. Raises ValueError for the history of a run that was not broken on purpose.

    `green` needs three things. Every checker passes. The loss is that of the twin (`parity`, as `twin.parity` returns
    it), or no twin is possible, for one of the few excused reasons (`NoTwin`). Nothing is `unknown`: what cannot be
    computed of this history, and why."""
    setting = history.setting
    if setting is None:
        raise ValueError("the history does not say what was to be broken")
    verdicts = check(history, ALL) if verdicts is None else verdicts
    parity = twin.unknown("no fault-free twin was trained") if parity is None else parity
    span = Span(setting.began, max(setting.ended, setting.began))
    unknown: dict[str, str] = {}
    groups = range(setting.groups)
    ettr, badput = _told(
        unknown, "ettr and badput", lambda: _shares([ledger(history, g, span) for g in groups]), (None, {})
    )
    body: dict[str, Any] = {
        "run": history.run,
        "green": False,  # until all is computed
        "seed": setting.seed,
        "versions": setting.versions,
        "seconds": round(setting.ended - setting.began, 3),
        "groups": setting.groups,
        "ranks_per_group": setting.ranks,
        "nodes_per_group": setting.nodes,
        "plan": list(setting.plan),
        "faults": [fault_row(history, setting, fault, unknown) for fault in history.faults],
        "ridden_through": _told(unknown, "ridden_through", lambda: [_short(i) for i in ridden_through(history)], []),
        "not_available": setting.not_available,
        "steps_committed": _told(unknown, "steps_committed", lambda: _newest(history), None),
        "participation": _told(unknown, "participation", lambda: participation(history), {}),
        "samples": _told(unknown, "samples", lambda: samples(history), dict(NOBODY_NOTED)),
        "ettr": ettr,
        "badput": badput,
        "loss_parity": dict(parity),
        "checkers": {v.checker: {"answer": v.answer, "sentences": list(v.sentences)} for v in verdicts},
        "unknown": unknown,
    }
    body["green"] = not unknown and all(v.answer == "pass" for v in verdicts) and _same_model(parity)
    return body


def _told(unknown: dict[str, str], part: str, made: Callable[[], Any], otherwise: Any) -> Any:
    """Returns a part of the certificate; `otherwise`, noted in `unknown`, where it cannot be computed."""
    try:
        return made()
    # as in `checkers.check`: the content of a file decides what fails here, and the certificate must be written all the
    # same
    except Exception as error:  # noqa: BLE001
        unknown[part] = f"it cannot be computed of this history: {error!r}"
        return otherwise


def _shares(ledgers: Sequence[Sequence[Interval]]) -> tuple[float, dict[str, float]]:
    ettr, badput = ratios(ledgers)
    return round(ettr, 6), {cause: round(share, 6) for cause, share in badput.items()}


def _newest(history: History) -> int:
    return max((int(line["step"]) for s in history.steps for line in s.committed()), default=0)


def _same_model(parity: Mapping[str, Any]) -> bool:
    return parity["answer"] == "pass" or (parity["answer"] == "unknown" and bool(parity["no_twin"]))


def fault_row(history: History, setting: Setting, fault: FaultDone, unknown: dict[str, str]) -> dict[str, Any]:
    """Reports one fault: what was made, what was done about it and when, and what the other groups did. Times are
    seconds since it began.

    `rejoined_s`: when its incident recovered or, where nothing was done about it, its group's first step since.
    `echoes`: incidents of other groups that belong to this fault too. `heal_s`: how long the state took that came from
    a peer. `undone_s`: until the runner healed it. `over_s`: until all was well again. `unknown` receives what cannot
    be computed."""
    made: dict[str, Any] = {
        "number": fault.number,
        "name": fault.name,
        "group": fault.group,
        "rank": fault.rank,
        "node": fault.node,
        "step": fault.step,
        "evidence": fault.evidence,
        "right": " or ".join(fault.kinds) or "none",
        "undone_s": _since(fault, fault.healed),
        "over_s": _since(fault, fault.over),
        "within_s": fault.within_s,
        "problem": fault.before or fault.after,
    }
    made |= _told(unknown, f"fault {fault.number}", lambda: _cost(history, setting, fault), dict(NO_COST))
    return made


def _cost(history: History, setting: Setting, fault: FaultDone) -> dict[str, Any]:
    own = of_fault(history, fault)
    until = fault.over if fault.over is not None else setting.ended
    others = [costs.others(history, g, fault.began, until) for g in range(setting.groups) if g != fault.group]
    row: dict[str, Any] = {
        "others_steps": min((o["steps"] for o in others), default=0),
        "others_longest_stall_s": round(max((o["stall"] for o in others), default=0.0), 3),
        "steps_lost": cost.steps_lost(history, fault.group, fault.began, until),
    }
    timed: dict[str, Any] = {"incident": None, "kind": None, "rung": None}
    timed |= dict.fromkeys(("detected_s", "decided_s", "acted_s", "rejoined_s"))
    if own:
        injected = Injected(
            name=fault.name, group=fault.group, node=fault.node, unix_s=fault.began, evidence=fault.evidence
        )
        told = costs.incident(history, injected, setting.groups, own[0].id)
        timed = {"incident": own[0].id, "kind": own[0].kind, "rung": own[0].rung}
        timed |= {name: told.get(name) for name in ("detected_s", "decided_s", "acted_s")}
        if own[0].kind == Kind.REQUESTED:
            timed["detected_s"] = None  # a person requested it: nothing was detected before
        timed["rejoined_s"] = told.get("recovered_s")
    else:
        timed["rejoined_s"] = cost.trains_again(history, fault.group, fault.began, until)
    timed["heal_s"] = cost.heal_s(history, fault.began, until)
    timed["echoes"] = [_short(asdict(echo)) for echo in echoes_of(history, fault)]
    timed["control_plane"] = cost.control_plane(history, fault.began, until)
    halted = cost.halt(history, fault.group, fault.began, until)
    if halted["halted_s"] is None:
        del halted["rejoined_s"]  # its incident gives it
    return row | timed | halted


def _short(incident: Mapping[str, Any]) -> dict[str, Any]:
    return {"incident": incident["id"], "kind": incident["kind"], "group": incident["group"]}


def _since(fault: FaultDone, at: float | None) -> float | None:
    return None if at is None else round(at - fault.began, 3)


def participation(history: History) -> dict[str, int]:
    """Counts the steps of the model by the number of groups that took part, as the twin trains them. Where step records
    are missing, it counts the groups that committed the step and did not only heal in it."""
    replay = of_history(history)
    if replay.steps and not replay.why:
        kept = replay.kept()
        counts = Counter(len(one.parts) for one in replay.steps if (one.quorum, one.step) in kept)
    else:
        took_part: dict[int, set[int]] = {}
        for steps in history.steps:
            for line in steps.committed():
                if steps.rank == 0 and line.get("participating_rank", 0) is not None:
                    took_part.setdefault(line["step"], set()).add(steps.group)
        counts = Counter(len(groups) for groups in took_part.values())
    return {str(groups): counts[groups] for groups in sorted(counts)}


def samples(history: History) -> dict[str, Any]:
    """Counts the samples on which the model was trained once, more than once, or never.

    More than once: read again after a restart, or equal. Never: read in a step that no group committed, that a resume
    from disk threw away, or in which the group only healed.

    `twice_at`: the steps that used a sample again. `never_at`: the steps that read one in vain, by the number that each
    would have had. All None where ranks do not note samples. With a token store the stream is followed: never is what
    it skipped, and `unknown_steps` counts the steps whose records lack samples."""
    if (stream := audit(history)) is not None:
        found = {name: getattr(stream, name) for name in NOBODY_NOTED}
        return found | {"unknown_steps": sum(each.steps for each in stream.unnoted)}
    read = {name: tried.key[1] for tried in tries_of(history) for batch in tried.batches for name in batch}
    used: dict[str, list[int]] = {}
    for step, batches in _trained(history):
        for name in (name for batch in batches for name in batch):
            used.setdefault(name, []).append(step)
    if not read:
        return dict(NOBODY_NOTED)
    times = Counter(min(len(used.get(sample, ())), 2) for sample in read)
    again = {step for steps in used.values() for step in sorted(steps)[1:]}
    return {
        "once": times[1],
        "twice": times[2],
        "never": times[0],
        "twice_at": sorted(again),
        "never_at": sorted({step for sample, step in read.items() if sample not in used}),
    }


def _trained(history: History) -> Iterator[tuple[int, list[list[str]]]]:
    """Yields (step, batches of a rank) for all that the model was trained on. A group that was killed after its part
    had been added counts. Where step records are missing, for what each rank committed itself."""
    replay = of_history(history)
    if replay.why:
        tries = (t for t in tries_of(history) if t.committed and t.takes_part)
        yield from ((tried.key[1], tried.batches) for tried in tries)
        return
    kept = replay.kept()
    for one in replay.steps:
        if (one.quorum, one.step) in kept:
            yield from ((one.step, batches) for of_ranks in one.parts.values() for batches in of_ranks.values())


# --- the page ---


def write(history: History, folder: Path, parity: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Writes report.json and report.html into a folder; returns the report."""
    body = build(history, parity=parity)
    (folder / "report.json").write_text(json.dumps(_as_json(body), indent=1, allow_nan=False) + "\n")
    (folder / "report.html").write_text(page(history, body))
    return body


def _as_json(value: Any) -> Any:
    """Replaces numbers that JSON cannot hold (not a number, infinite) by null; the sentences give them."""
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(history: History, body: Mapping[str, Any]) -> str:
    """Returns report.html: one file that loads nothing and runs nothing."""
    assert history.setting is not None
    setting, unknown = history.setting, dict(body["unknown"])
    lanes, causes = _told(unknown, "the picture of the time", lambda: time_lanes(history, setting), ([], []))
    loss = _told(
        unknown,
        "the picture of the loss",
        lambda: loss_curve(history, body["loss_parity"]["curve"]),
        dict(curves.NO_CURVE),
    )
    marks = _marks(history, setting)
    return curves.template("report.html.j2").render(
        report=body,
        passed=sum(c["answer"] == "pass" for c in body["checkers"].values()),
        made=sum(fault.made is not None for fault in history.faults),
        lanes=lanes,
        causes=causes,
        columns=COLUMNS,
        marks=marks,
        top=max((mark["y"] for mark in marks), default=0) + MARK_HEIGHT + 2,
        loss=loss,
        unknown=unknown,
    )


def time_lanes(history: History, setting: Setting) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns each group's stretches of the picture, by the cause of most of the time in them, and the legend."""
    span = Span(setting.began, max(setting.ended, setting.began + 1e-6))
    seen: dict[Cause, float] = {}
    lanes = []
    for group in range(setting.groups):
        columns = _columns(ledger(history, group, span), span)
        for cause in columns:
            seen[cause] = seen.get(cause, 0) + 1
        stretches: list[dict[str, Any]] = []
        for at, cause in enumerate(columns):
            if stretches and stretches[-1]["cause"] == cause.value:
                stretches[-1]["width"] += 1
            else:
                stretches.append({"x": at, "width": 1, "cause": cause.value, "colour": COLOURS[cause]})
        lanes.append({"group": group, "stretches": stretches})
    legend = sorted(seen, key=lambda cause: -seen[cause])
    return lanes, [{"cause": cause.value, "colour": COLOURS[cause]} for cause in legend]


def _columns(intervals: Sequence[Interval], span: Span) -> list[Cause]:
    width = (span.end - span.begin) / COLUMNS
    seconds: list[dict[Cause, float]] = [{} for _ in range(COLUMNS)]
    for interval in intervals:
        first = max(0, int((interval.start - span.begin) / width))
        last = min(COLUMNS - 1, int((interval.end - span.begin) / width))
        for at in range(first, last + 1):
            left, right = span.begin + at * width, span.begin + (at + 1) * width
            within = min(interval.end, right) - max(interval.start, left)
            seconds[at][interval.cause] = seconds[at].get(interval.cause, 0.0) + max(0.0, within)
    return [max(each, key=lambda cause: each[cause]) if each else Cause.OTHER for each in seconds]


def _marks(history: History, setting: Setting) -> list[dict[str, Any]]:
    """Places the faults in the picture of the time. `y`: the top of a fault's number, which touches no other."""
    length = max(setting.ended - setting.began, 1e-6)
    marks, free = [], [0.0]
    for fault in sorted(history.faults, key=lambda f: f.began):
        x = round(COLUMNS * (fault.began - setting.began) / length, 1)
        row = next((row for row, since in enumerate(free) if since <= x), len(free))
        free[row:] = [x + MARK_WIDTH, *free[row + 1 :]]
        marks.append({"number": fault.number, "name": fault.name, "x": x, "y": row * MARK_HEIGHT})
    return marks


def loss_curve(history: History, of_twin: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
    """Draws the mean loss by committed step, and the twin's, with the faults' steps. Of a step that was made again, the
    newest loss counts."""
    lines = (line for steps in history.steps if steps.rank == 0 for line in steps.committed())
    noted = [line for line in lines if line.get("loss") is not None and math.isfinite(line["loss"])]
    by_step = {int(line["step"]): float(line["loss"]) for line in sorted(noted, key=lambda line: float(line["t"]))}
    twins = {step: loss for step, loss in of_twin if math.isfinite(loss)}
    return curves.drawn(by_step, twins, [(fault.step, f"{fault.number} {fault.name}") for fault in history.faults])
