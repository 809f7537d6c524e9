"""Reads a real run's failures from its journal, or from a chaos history, to play them under another policy."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from fault_injection.checkers import history_file
from fault_injection.whatif.rates import DAY_S, LONGEST_S, Look, Times
from supervisor.core.model.kinds import Kind
from supervisor.core.model.spec import MAX_GROUPS
from supervisor.core.report.durations import from_first_sign_s
from supervisor.shell.history.files import History, of_lines
from supervisor.shell.history.schema import Group, wrong_by, wrong_with_journal

LOOKS: dict[Kind, Look] = {
    Kind.NODE_LOST: "node",
    Kind.ALLOCATION_LOST: "allocation",
    Kind.GPU: "gpu",
    Kind.NUMERICS: "numerics",
    **dict.fromkeys(
        (Kind.CRASH, Kind.OOM, Kind.ERROR, Kind.SAME_ERROR, Kind.PEERS_GONE, Kind.START_TIMEOUT, Kind.STALLED, Kind.SILENT,
         Kind.HANG),
        "process",
    ),
}  # fmt: skip
"""Maps a kind to what the model of months shows of it. A hang is shown as an end, when it was found."""

GIVE = "give a run's journal.jsonl, or the history.jsonl of `supervisor chaos run`"


Seconds = Annotated[float, Field(strict=True, ge=-1e11, le=1e11)]
"""A reading of any clock: none is beyond three thousand years."""


@checked(kw_only=True)
class _Incident:
    id: StrictStr
    kind: Kind
    group: Annotated[int, Field(strict=True, ge=0, lt=MAX_GROUPS)]
    opened: Seconds
    decided: Seconds | None = None
    acted: Seconds | None = None
    recovered: Seconds | None = None
    step_before: Annotated[int, Field(strict=True, ge=0, le=10**12)] = 0
    error: StrictStr = ""


@checked(kw_only=True)
class _Action:
    verb: StrictStr
    key: StrictStr


@checked(kw_only=True)
class _State:
    phase: StrictStr


@checked(kw_only=True)
class _Decision:
    t: Seconds
    actions: list[_Action]
    incidents: list[_Incident]
    groups: dict[Group, _State]


@checked(kw_only=True)
class _Line:
    t: Seconds
    start: Seconds = 0.0


@checked(kw_only=True)
class _Step:
    line: _Line


_PLAYED: Mapping[str, TypeAdapter[Any]] = {
    "decision": TypeAdapter(_Decision),
    "intent": TypeAdapter(_Decision),
    "step": TypeAdapter(_Step),
}
"""The shape of a line, by its type in a history or in a journal."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """One failure. `at_s`: seconds after all groups trained."""

    at_s: float
    group: int
    look: Look
    kind: Kind
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Past:
    """A run's failures, and what they cost."""

    groups: int
    nodes_per_group: int
    spares: int
    seconds: float
    failures: tuple[Failed, ...]
    left_out: dict[str, int]
    """Kinds of incidents that are no failures, came before all groups trained, or had a person resume the run."""
    lost: dict[Kind, float]
    """Group-seconds from an incident's opening until its group trained again, as it was."""
    restart_s: float | None
    """Median seconds from the start of a process until its group trained again; None: no incident shows it."""
    step_s: float | None
    queue_s: float | None
    """Seconds from the first requests for allocations until a group was placed; None: the file begins later."""


def read(path: Path) -> Past:
    """Reads a journal.jsonl or a history.jsonl. Raises OSError. Raises ValueError if it is neither, or a line lacks or
    garbles what is needed, with the line and what is wrong there."""
    history = _history(path)
    found = _incidents(history)
    began, ended = _span(history, path)
    told_of = {*(group for decision in history.decisions for group in decision.groups), *(b["group"] for b, _ in found)}
    groups = 1 + max(told_of, default=-1)
    if not groups or ended <= began:
        raise ValueError(f"{path}: nothing is known of the time after all its groups trained")
    if ended - began > LONGEST_S:
        raise ValueError(
            f"{path}: its times are {(ended - began) / DAY_S:.0f} days apart, and at most {LONGEST_S / DAY_S:.0f} are played"
        )
    asked = {a["key"] for a in history.decisions[0].actions if a["verb"] == "acquire"}
    # only what is done to a group of several nodes names them all
    size = max((len(a.get("nodes") or ()) for decision in history.decisions for a in decision.actions), default=0) or 1
    failures, left_out, lost = [], dict[str, int](), dict[Kind, float]()
    # Which errors are the same follows the judgement of then: a text alone does not show which group had it from which.
    same = {body.get("error", "") for body, _ in found if body["kind"] == Kind.SAME_ERROR}
    newest = max((opened for body, opened in found if body.get("state") != "halted"), default=0.0)
    for body, opened in found:
        kind = Kind(body["kind"])
        resumed = (
            body.get("state") == "halted" and opened < newest
        )  # by a person; another policy would have called one too
        if kind not in LOOKS or body.get("shadow") or opened < began or resumed:
            left_out[kind.value] = left_out.get(kind.value, 0) + 1
            continue
        failed = Failed(
            at_s=opened - began,
            group=body["group"],
            look=LOOKS[kind],
            kind=kind,
            error=text if (text := body.get("error", "")) in same else "",
        )
        failures.append(failed)
        if body.get("recovered") is not None:
            took_s = float(body.get("took_s") or 0.0)
            lasted_s = from_first_sign_s(float(body["opened"]), took_s, float(body["recovered"]))
            lost[kind] = lost.get(kind, 0.0) + lasted_s
    starts = [
        b["recovered"] - b["acted"] for b, _ in found if b.get("recovered") is not None and b.get("acted") is not None
    ]
    steps = [line["t"] - line["start"] for s in history.steps for line in s.committed() if "start" in line]
    return Past(
        groups=groups,
        nodes_per_group=size,
        spares=max(0, len(asked) - groups * size),
        seconds=ended - began,
        failures=tuple(sorted(failures, key=lambda f: f.at_s)),
        left_out=left_out,
        lost=lost,
        restart_s=max(0.0, statistics.median(starts)) if starts else None,
        step_s=statistics.median(steps) if steps else _step_s([body for body, _ in found]),
        queue_s=_queue_s(history) if asked else None,
    )


def as_measured(past: Past, assumed: Times) -> Times:
    """Replaces assumed durations by those that the run itself shows. It does not show how often it saved, so nothing is
    trained a second time, as in its cost."""
    found = replace(assumed, whole_interval_s=0.0)
    if past.restart_s is not None:
        found = replace(found, start_s=past.restart_s, heal_s=0.0)
    if past.queue_s is not None:
        found = replace(found, queue_s=past.queue_s)
    return found if past.step_s is None else replace(found, step_s=past.step_s)


def _history(path: Path) -> History:
    lines: list[tuple[int, dict[str, Any]]] = []
    for number, row in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if row.strip() and (body := _object(row, f"{path}: line {number}", first=not lines)) is not None:
            lines.append((number, body))
    if not lines:
        raise ValueError(f"{path} is empty")
    of_history = lines[0][1].get("type") == "history"
    for number, body in lines:
        if wrong := ("" if of_history else wrong_with_journal(body)) or _wrong_with(body):
            raise ValueError(f"{path}: line {number}: {wrong}, so it cannot be played again")
    history = history_file.load(path) if of_history else of_lines("", (body for _, body in lines), (), ())
    if not history.decisions:
        raise ValueError(f"{path} holds no decisions: {GIVE}")
    return history


def _object(row: str, where: str, first: bool) -> dict[str, Any] | None:
    """Parses a row; None for a torn one, as a killed writer leaves it. Raises ValueError where the first row shows that
    the file is something else."""
    try:
        body = json.loads(row)
    except (ValueError, RecursionError):
        if first:
            raise ValueError(f"{where} is no JSON: {GIVE}") from None
        return None
    if isinstance(body, dict):
        return body
    if first:
        raise ValueError(f"{where} is JSON, but no object: {GIVE}")
    return None


def _wrong_with(line: dict[str, Any]) -> str:
    """Returns why a line cannot be played, as the end of a sentence; empty: it can, or need not be."""
    shape = _PLAYED.get(str(line.get("type") or line.get("entry")))
    return wrong_by(shape, line) if shape is not None else ""


def _incidents(history: History) -> list[tuple[dict[str, Any], float]]:
    """Returns each incident's newest record, and when it was opened, by the file's wall clock."""
    newest: dict[str, dict[str, Any]] = {}
    opened: dict[str, float] = {}
    for decision in history.decisions:
        for body in decision.incidents:
            newest[body["id"]] = body
            if body["id"] not in opened:
                before_s = float(body.get("decided") or body["opened"]) - float(body["opened"])
                opened[body["id"]] = decision.t - before_s
    return [(body, opened[key]) for key, body in newest.items()]


def _span(history: History, path: Path) -> tuple[float, float]:
    """Returns the times from which all groups trained, and of the end."""
    ended = max(_times(history))
    firsts: dict[int, float] = {}
    for steps in history.steps:
        for line in steps.committed()[:1]:
            firsts[steps.group] = min(firsts.get(steps.group, line["t"]), line["t"])
    if firsts:
        return max(firsts.values()), ended
    for decision in history.decisions:
        if decision.groups and all(state["phase"] == "running" for state in decision.groups.values()):
            return decision.t, ended
    began = next((d.t for d in history.decisions if d.incidents), None)
    if began is None:
        raise ValueError(f"{path}: its groups never all trained")
    return began, ended


def _step_s(incidents: Sequence[dict[str, Any]]) -> float | None:
    """Returns the mean time of a step, stalls included, from two incidents that are apart."""
    told = sorted((b["step_before"], b["opened"]) for b in incidents if b.get("step_before"))
    if not told or told[-1][0] == told[0][0]:
        return None
    return max(0.0, told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0]) or None


def _queue_s(history: History) -> float | None:
    placed = (d.t for d in history.decisions if any(a["verb"] in ("place", "start") for a in d.actions))
    first = next(placed, None)
    return None if first is None else max(0.0, first - history.decisions[0].t)


def _times(history: History) -> Iterator[float]:
    yield from (d.t for d in history.decisions)
    yield from (line["t"] for s in history.steps for line in s.lines[-1:] if "t" in line)
