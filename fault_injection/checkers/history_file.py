"""Saves and loads a history as one file of JSON lines, each of one type. It holds all that a checker needs, so it can
be judged anywhere, at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from supervisor.shell.history.files import (
    ACCOUNT,
    Decided,
    FaultDone,
    History,
    Left,
    Outage,
    Outcome,
    Process,
    Seen,
    Setting,
    Signalled,
    Steps,
)
from supervisor.shell.history.schema import first_of, not_finite, wrong_with

VERSION = 1

KINDS: Mapping[str, TypeAdapter[Any]] = {
    "setting": TypeAdapter(Setting),
    "fault": TypeAdapter(FaultDone),
    "observation": TypeAdapter(Seen),
    "decision": TypeAdapter(Decided),
    "outcome": TypeAdapter(Outcome),
    "process": TypeAdapter(Process),
    "signal": TypeAdapter(Signalled),
    "outage": TypeAdapter(Outage),
    "left": TypeAdapter(Left),
}
"""Maps a line's type to its content. Others: `history` (first), `step` (of a step record), `unreadable`."""


class NoHistory(ValueError):
    """Raised if the file holds nothing of a history that this program reads. The text is a sentence."""


def save(history: History, path: Path) -> None:
    """Writes a history so that `load` reads the same one back."""
    first, *others = _lines(history)
    with path.open("w") as file:
        for line in (first | {"lines": 1 + len(others)}, *others):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def load(path: Path) -> History:
    """Reads a history. Raises OSError if the file does not exist. Raises NoHistory if no line can be read, or a newer
    program wrote it.

    A line is unreadable, and lets no checker pass, if it is torn or of an unknown type. So is one that lacks what its
    type needs, or holds a number that is not finite."""
    history = History("")
    steps: dict[tuple[int, int, int, str], list[dict[str, Any]]] = {}
    rows = path.read_text(errors="replace").splitlines()
    if rows and (version := _said(rows[0], "version")) is not None and version > VERSION:
        raise NoHistory(
            f"{path} is a history of version {version}, and this program reads up to {VERSION}: check it with the supervisor that "
            "wrote it, or a newer one"
        )
    any_read = False
    for number, row in enumerate(rows, 1):
        try:
            _take(history, steps, json.loads(row))
            any_read = True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = "no JSON" if isinstance(error, json.JSONDecodeError) else _why(error)
            history.unreadable.append(f"{path.name}: line {number}: {why}")
    if not any_read:
        what = "no history" if rows else "empty"
        raise NoHistory(f"{path} is {what}: `supervisor chaos run` writes one, history.jsonl")
    if rows and (told := _said(rows[0], "lines")) is not None and told > len(rows):
        history.unreadable.append(f"{path.name}: it had {told} lines, and has {len(rows)}")
    history.steps = [Steps(*owner, tuple(lines)) for owner, lines in steps.items()]
    if not history.run:
        history.unreadable.append(f"{path.name}: it does not begin as a history")
    return history


def _said(row: str, name: str) -> int | None:
    """Returns a number of the first line; None if it holds none."""
    try:
        return int(json.loads(row)[name])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _lines(history: History) -> Iterator[dict[str, Any]]:
    yield {
        "type": "history",
        "version": VERSION,
        "run": history.run,
        "epochs": history.epochs,
        "elected": history.elected,
        "told": sorted(history.told),
        "reached": history.reached,
        **({} if history.account is None else {"account": asdict(history.account)}),
    }
    for kind, records in (
        ("setting", [history.setting] if history.setting is not None else []),
        ("fault", history.faults),
        ("observation", history.seen),
        ("decision", history.decisions),
        ("outcome", history.outcomes),
        ("process", history.processes),
        ("signal", history.signals),
        ("outage", history.outages),
    ):
        for record in records:
            yield {"type": kind, **asdict(record)}
    for steps in history.steps:
        owner = {"group": steps.group, "generation": steps.generation, "rank": steps.rank, "node": steps.node}
        for line in steps.lines:
            yield {"type": "step", "of": owner, "line": line}
    if history.left is not None:
        yield {"type": "left", **asdict(history.left)}
    for what in history.unreadable:
        yield {"type": "unreadable", "what": what}


def _take(history: History, steps: dict[tuple[int, int, int, str], list[dict[str, Any]]], line: dict[str, Any]) -> None:
    kind = line.pop("type")
    # a step's own line may hold a loss that is not finite
    if infinite := not_finite(line["of"] if kind == "step" else line):
        raise ValueError(f"its {infinite} is no finite number")
    if kind == "history":
        history.run, history.reached, history.told = str(line["run"]), int(line["reached"]), set(line["told"])
        history.epochs = {int(epoch): int(at) for epoch, at in line["epochs"].items()}
        history.elected = {int(epoch): int(at) for epoch, at in line.get("elected", {}).items()}
        history.account = ACCOUNT.validate_python(line["account"]) if "account" in line else None
    elif kind == "step":
        of = line["of"]
        owner = (int(of["group"]), int(of["generation"]), int(of["rank"]), str(of["node"]))
        body = dict(line["line"])
        if wrong := wrong_with(body):
            raise ValueError(wrong)
        steps.setdefault(owner, []).append(body)
    elif kind == "unreadable":
        history.unreadable.append(str(line["what"]))
    else:
        record = KINDS[kind].validate_python(line)
        match record:
            case Setting():
                history.setting = record
            case Left():
                history.left = record
            case FaultDone():
                history.faults.append(record)
            case Seen():
                history.seen.append(record)
            case Decided():
                history.decisions.append(record)
            case Outcome():
                history.outcomes.append(record)
            case Process():
                history.processes.append(record)
            case Signalled():
                history.signals.append(record)
            case Outage():
                history.outages.append(record)


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_of(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"there is no type {error}" if isinstance(error, KeyError) else str(error)
