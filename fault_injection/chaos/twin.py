"""Loss parity: the run's losses beside those of a twin that trains the same steps again, in one process and without failures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fault_injection.chaos.replay import Committed, Replay, of_history
from fault_injection.history import History
from titan_actor import twin

PROGRAM = [sys.executable, "-m", "titan_actor.twin"]

TOLERANCE = 0.001
"""Of the loss."""

SLACK_READS = 64
"""Samples that a rank may have read and not noted, in all its generations."""

START_S = 120.0
"""For imports and for building the model, on a machine that others use too."""


@dataclass(frozen=True)
class Retrained:
    """What the twin says of the steps of a plan: as many as it came to."""

    losses: tuple[float, ...]
    states: tuple[str, ...]
    """Hash after each step; empty where none was wanted."""
    why: str = ""
    """Why there are no more; empty: these are all."""


def parity(
    history: History, say: Callable[[str], None], train: Callable[[twin.Plan, float], Retrained] | None = None
) -> dict[str, Any]:
    """`loss_parity` of the certificate: whether each committed step's loss is the twin's. Pass, fail or unknown, and why;
    `greatest` difference; `states`: after how many steps both had hashed the same; `curve`: (step, the twin's loss)."""
    try:
        replay = of_history(history)
        plan, why = planned(history, replay)
    except (KeyError, TypeError, ValueError) as error:
        return unknown(f"a step record is not as it should be: {error!r}")
    if plan is None:
        return unknown(why)
    seconds = START_S + plan.groups * plan.ranks * _length(history)
    say(f"loss parity: training a fault-free twin on {len(plan.steps)} steps, for {seconds:.0f} s at the most")
    return judged(replay, (train or trained)(plan, seconds), why)


def unknown(why: str) -> dict[str, Any]:
    """Nothing was compared."""
    return {
        "answer": "unknown",
        "why": why,
        "tolerance": TOLERANCE,
        "steps": 0,
        "greatest": None,
        "states": None,
        "curve": [],
    }


def planned(history: History, replay: Replay) -> tuple[twin.Plan | None, str]:
    """What the twin is to train; and what is missing, of all or of the rest."""
    if not replay.steps:
        return None, replay.why or "nothing was committed"
    told = [
        line
        for steps in history.steps
        for line in steps.lines
        if line.get("event") == "constructed" and "titan" in line
    ]
    if not told:
        return None, "the ranks do not say what they trained"
    if len({json.dumps(line["titan"], sort_keys=True) for line in told}) > 1:
        return None, "what is trained was changed during the run"
    if (device := told[0]["device"]) != "cpu":
        return (
            None,
            f"the run trained on {device}, and its twin is made for a CPU: they would differ by more than is allowed",
        )
    reads: dict[tuple[int, int], int] = {}
    for steps in history.steps:
        noted = sum(len(line["samples"]) for line in steps.lines if line.get("event") == "batch")
        reads[steps.group, steps.rank] = reads.get((steps.group, steps.rank), 0) + noted
    groups, ranks = int(told[0]["groups"]), max(steps.rank for steps in history.steps) + 1
    try:
        plan = twin.PLAN.validate_python(
            {
                "titan": told[0]["titan"],
                "groups": groups,
                "ranks": ranks,
                "reads": max(reads.values()) + SLACK_READS,
                "steps": tuple(_step(one, ranks) for one in replay.steps),
            }
        )
    except ValidationError as error:
        return None, f"what the ranks trained cannot be read: {error.errors()[0]['msg']}"
    return plan, replay.why


def _step(one: Committed, ranks: int) -> twin.Step:
    parts = {group: [of_ranks[rank] for rank in range(ranks)] for group, of_ranks in one.parts.items()}
    return twin.Step(after=one.after, parts=parts, hashed=bool(one.states) and ranks == 1)


def trained(plan: twin.Plan, seconds: float) -> Retrained:
    """Train it, in a process of its own; broken off after so many seconds, or by Ctrl-C."""
    asked = twin.PLAN.dump_json(plan)
    why = ""
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            told, errors = process.communicate(asked, seconds)
            if process.returncode:
                why = f"the twin failed: {(errors.decode(errors='replace').strip().splitlines() or ['no word'])[-1]}"
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as broken_off:
            process.kill()
            told, _ = process.communicate()
            why = (
                "interrupted"
                if isinstance(broken_off, KeyboardInterrupt)
                else f"the twin took longer than {seconds:.0f} s"
            )
    return _read(told.decode(), why)


def _read(told: str, why: str) -> Retrained:
    losses: list[float] = []
    states: list[str] = []
    for row in told.splitlines(keepends=True):
        if row.endswith("\n"):
            line = json.loads(row)
            if "unknown" in line:
                return Retrained(tuple(losses), tuple(states), line["unknown"])
            losses.append(math.nan if line["loss"] is None else float(line["loss"]))
            states.append(line["state"])
    return Retrained(tuple(losses), tuple(states), why)


def judged(replay: Replay, again: Retrained, why: str = "") -> dict[str, Any]:
    """One step that is too far off is a fail, whatever is missing; else what is missing makes it unknown."""
    pairs = list(_pairs(replay, again))
    if not pairs:
        return unknown(again.why or why or "no loss was recorded")
    step, run, of_twin, apart = max(pairs, key=lambda pair: math.inf if math.isnan(pair[3]) else pair[3])
    hashed = [state in one.states for one, state in zip(replay.steps, again.states, strict=False) if state]
    body = unknown("") | {
        "steps": len(pairs),
        "greatest": {"difference": apart, "step": step, "run": run, "twin": of_twin},
        "states": {"equal": sum(hashed), "of": len(hashed)} if hashed else None,
        "curve": [[one, loss] for one, loss in sorted(_curve(replay, again).items())],
    }
    if not apart <= TOLERANCE:
        first = next(pair for pair in pairs if not pair[3] <= TOLERANCE)
        return body | {
            "answer": "fail",
            "why": f"step {first[0]} has a loss of {first[1]:.4f}, and {first[2]:.4f} in a fault-free twin: {first[3]:.2g} apart, "
            f"{TOLERANCE:g} is allowed; at the most {apart:.2g}, at step {step}",
        }  # fmt: skip
    most = f"{apart:.2g} apart at the most (step {step}); {TOLERANCE:g} is allowed" if apart else "to the last bit"
    so_far = f"{len(pairs)} steps have the loss of a fault-free twin, {most}"
    missing = again.why or why
    if missing:
        return body | {"why": f"{missing}; before it {so_far}"}
    return body | {"answer": "pass", "why": so_far}


def _pairs(replay: Replay, again: Retrained) -> Iterator[tuple[int, float, float, float]]:
    """(step, the run's loss, the twin's, how far apart) of each step; of groups that differ the one that is farthest off."""
    for one, loss in zip(replay.steps, again.losses, strict=False):
        if one.losses:
            run = max(one.losses, key=lambda told: abs(told - loss))
            yield one.step, run, loss, abs(run - loss)


def _curve(replay: Replay, again: Retrained) -> dict[int, float]:
    """Of steps that were made again after a resume from disk the newest counts."""
    return {one.step: loss for one, loss in zip(replay.steps, again.losses, strict=False)}


def _length(history: History) -> float:
    return history.setting.ended - history.setting.began if history.setting is not None else 0.0
