"""Checks loss parity: compares a run's losses with those of a twin that trains the same steps again, without TorchFT or
failures.

The twin repeats one kind of fault: a bit of a parameter that was flipped on purpose and committed. It flips the bit in
the same group's copy, for as long as that group trained on with it. Such a bit makes another model; the question is
whether all else was the same."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from fault_injection.parity.replay import BEGINNING, Committed, Replay, of_history
from supervisor.shell.history.files import History
from supervisor.wire import environment
from titan_actor import twin

PROGRAM = [sys.executable, "-m", "titan_actor.twin"]

TOLERANCE = 1e-4
"""Greatest difference of the loss. Two groups on a CPU agree to the last bit, as a sum of two has one order. With more
groups, the process group sets the order. Three added the other way round were 1e-6 off in 600 steps of
llama3-debug-small, and it did not grow. One step of two groups in which one was added as zeros is 6e-3 off at the next
step, and 3e-2 ten steps later."""

NORM_TOLERANCE = 1e-3
"""Greatest difference of the gradient's norm, as a share of it. A sum divided by the wrong number is off by a half at
its own step, and may show in no loss. TorchTitan clips most gradients of a young model to the norm of one, and Adam is
insensitive to the scale. Groups of two ranks were 7e-5 off: each sums its shard first."""

READ_S = 1.0
"""Seconds before the end of the look at a live run. What was committed since may not be in every rank's record."""

SLACK_READS = 64
"""Samples that a rank may have read and not noted, in all its generations."""

START_S = 120.0
"""Seconds for imports and for building the model, on a machine that others use too."""


@dataclass(frozen=True)
class Retrained:
    """The twin's numbers for the steps of a plan, as far as it trained."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    """Norms of the gradients, before they are clipped."""
    states: tuple[dict[int, str], ...]
    """Hashes after each step: of the state of twin.EVERYBODY, and of each group with its own. Empty if not wanted."""
    why: str = ""
    """Why there are no more; empty: these are all."""
    no_twin: twin.NoTwin | None = None
    """The kind of that reason, where it is an excused one."""


def parity(
    history: History, say: Callable[[str], None], train: Callable[[twin.Plan, float], Retrained] | None = None
) -> dict[str, Any]:
    """Compares each committed step's loss, its gradient's norm and its hashed state with the twin's. Returns the
    certificate's `loss_parity`.

    `answer`: pass, fail or unknown, and `why`. `no_twin`: the reason for which no twin is possible, if it is one that
    is excused; else empty. `greatest`: greatest difference of the loss. `norms`: that of the norm. `states`: after how
    many steps both hashed the same, and the first after which they did not. `curve`: (step, the twin's loss)."""
    try:
        replay = _until_it_was_read(history, of_history(history)).for_twin()
        plan, why = planned(history, replay)
    # as in `checkers.check`: the content of a file decides what fails here, and a traceback would leave no certificate
    except Exception as error:  # noqa: BLE001
        return unknown(f"a step record is not as it should be: {error!r}")
    no_twin = twin.NoTwin.DISK_FULL if not replay.whose and _had_no_room(history, replay) else None
    if plan is None:
        return unknown(why, twin.NoTwin.DEVICE if _trained_on(history) not in ("", "cpu") else no_twin)
    seconds = START_S + plan.groups * plan.ranks * _length(history)
    say(f"loss parity: training a fault-free twin on {len(plan.steps)} steps, for {seconds:.0f} s at the most")
    again = (train or trained)(plan, seconds)
    if again.why:  # the twin got no farther, whatever is missing later
        no_twin = again.no_twin
    if no_twin is twin.NoTwin.ELSEWHERE and _has_ended(history):
        no_twin = None  # it was trained on this machine
    return judged(replay, again, why, no_twin)


def _until_it_was_read(history: History, replay: Replay) -> Replay:
    """Drops what a live run did while it was read: some ranks had written it down, and others not yet."""
    setting = history.setting
    ran_on = setting is not None and not setting.to_its_end and replay.since >= setting.ended - READ_S
    return replace(replay, why="") if ran_on else replay


def _had_no_room(history: History, replay: Replay) -> bool:
    """Returns true if all groups with missing records were on a disk that was full when that step was committed."""
    full = {f.group for f in history.faults if f.mute and f.began <= replay.since <= (f.over or math.inf)}
    return 0 < replay.missing <= len(full & replay.lacks)


def _has_ended(history: History) -> bool:
    return history.setting is None or history.setting.to_its_end


def _trained_on(history: History) -> str:
    """Returns the device that the first rank reports; empty if none does."""
    return next((str(line["device"]) for line in _told(history)), "")


def _told(history: History) -> list[dict[str, Any]]:
    lines = (line for steps in history.steps for line in steps.lines)
    return [line for line in lines if line.get("event") == "constructed" and "titan" in line]


def unknown(why: str, no_twin: twin.NoTwin | None = None) -> dict[str, Any]:
    """Returns the answer for a run that was not compared. `no_twin`: why no twin is possible."""
    return {
        "answer": "unknown",
        "why": why,
        "no_twin": no_twin or "",
        "tolerance": TOLERANCE,
        "norm_tolerance": NORM_TOLERANCE,
        "steps": 0,
        "greatest": None,
        "states": None,
        "curve": [],
    }


def planned(history: History, replay: Replay) -> tuple[twin.Plan | None, str]:
    """Returns what the twin must train, and what is missing, of all or of the rest."""
    if not replay.steps:
        return None, replay.why or "nothing was committed"
    told = _told(history)
    if not told:
        return None, "the ranks do not say what they trained"
    if len({json.dumps(line["titan"], sort_keys=True) for line in told}) > 1:
        return None, "what is trained was changed during the run"
    if (device := _trained_on(history)) != "cpu":
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
    return twin.Step(after=one.after, parts=parts, hashed=_is_hashed(one), flips=one.flips, taken=one.taken)


def _is_hashed(one: Committed) -> bool:
    """Returns true if there is a hash of the whole state: in a group of several ranks each hashes only its own part."""
    return bool(one.states) and all(len(of_ranks) == 1 for of_ranks in one.parts.values())


def trained(plan: twin.Plan, seconds: float) -> Retrained:
    """Trains the plan in a process of its own, and breaks off after `seconds` or on Ctrl-C."""
    asked = twin.PLAN.dump_json(plan)
    why = ""
    with subprocess.Popen(
        PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment.decided(os.environ),
    ) as process:
        try:
            told, errors = process.communicate(asked, seconds)
            if process.returncode < 0:
                why = f"the twin was ended by {signal.Signals(-process.returncode).name}"
            elif process.returncode:
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
    lines = [json.loads(row) for row in told.splitlines(keepends=True) if row.endswith("\n")]
    steps = [line for line in lines if "unknown" not in line]
    losses, norms = ([math.nan if s[name] is None else float(s[name]) for s in steps] for name in ("loss", "norm"))
    unlike = next((str(line["unknown"]) for line in lines if "unknown" in line), "")
    kind = next((twin.NoTwin(line["no_twin"]) for line in lines if "unknown" in line), None)
    return Retrained(
        tuple(losses),
        tuple(norms),
        tuple({int(group): state for group, state in s["states"].items()} for s in steps),
        unlike or why,
        kind,
    )


@dataclass(frozen=True)
class Pair:
    """A number of one step, in the run and in its twin."""

    step: int
    run: float
    twin: float
    apart: float
    """Their difference; for a norm, as a share of it."""

    def row(self) -> dict[str, float]:
        """Returns the pair for the report."""
        return {"difference": self.apart, "step": self.step, "run": self.run, "twin": self.twin}


def judged(replay: Replay, again: Retrained, why: str = "", no_twin: twin.NoTwin | None = None) -> dict[str, Any]:
    """Judges the run by its twin. A step that is too far off fails, whatever is missing, and so does a state that must
    be the twin's (`_states`). Otherwise the answer is unknown if anything is missing, a number or a state of a step
    included."""
    steps = replay.steps[: len(again.losses)]
    told, silent = _told_until(steps, again)
    losses = [_pair(one.step, one.losses, x) for one, x in zip(steps, again.losses, strict=False) if one.losses]
    norms = [_pair(one.step, one.norms, x, x) for one, x in zip(steps, again.norms, strict=False) if one.norms]
    states = _states(steps, again)
    wrong = [(pair.step, _sentence(pair, "loss", TOLERANCE)) for pair in losses if not pair.apart <= TOLERANCE]
    wrong += [(p.step, _sentence(p, "gradient's norm", NORM_TOLERANCE)) for p in norms if not p.apart <= NORM_TOLERANCE]
    wrong += [(state.step, state.wrong) for state in states if state.wrong]
    if silent and not wrong:  # whatever excuses what is missing later does not excuse this
        until = Retrained(again.losses[:told], again.norms[:told], again.states[:told])
        return judged(replace(replay, steps=steps[:told]), until, silent)
    missing = again.why or why
    if not missing and len(steps) < len(replay.steps):
        missing = f"the twin came to {len(steps)} steps of {len(replay.steps)}"
    if not losses:
        return unknown(missing, no_twin)
    loss, norm = _farthest(losses), _farthest(norms)
    curve = {one.step: x for one, x in zip(steps, again.losses, strict=False)}  # of a step made again, the newest
    body = unknown("", no_twin) | {
        "steps": len(losses),
        "greatest": loss.row(),
        "norms": norm.row() if norms else None,
        "states": {
            "equal": sum(state.equal for state in states),
            "of": len(states),
            "first_other": next((state.step for state in states if not state.equal), None),
        }
        if states
        else None,
        "curve": [[step, x] for step, x in sorted(curve.items())],
    }
    if wrong:
        more = f"; {len(wrong) - 1} more are not as in the twin either" if len(wrong) > 1 else ""
        return body | {"answer": "fail", "why": f"{min(wrong, key=lambda each: each[0])[1]}{more}"}
    apart = f"{loss.apart:.2g} apart at the most (step {loss.step})" if loss.apart else "to the last bit"
    so_far = f"{len(losses)} steps have the loss of a fault-free twin, {apart} ({TOLERANCE:g} is allowed, and {NORM_TOLERANCE:g} of its gradient's norm)"
    if len(norms) < len(losses):
        so_far += f"; {len(norms) or 'none'} of them tell the gradient's norm"
    if flips := _flips(steps):
        so_far += f"; of the faults it makes {len(flips)}, the flipped bit of step {', '.join(map(str, flips))}"
    so_far += _of_states(steps, states)
    if missing:
        return body | {"why": f"{missing}; before it {so_far}"}
    return body | {"answer": "pass", "why": so_far}


def _told_until(steps: Sequence[Committed], again: Retrained) -> tuple[int, str]:
    """Returns how many steps report all that is compared, and what the next one lacks; empty if none lacks anything.
    Each step reports the loss. The first step and every n-th (TorchTitan's log_freq) report the norm; a healing group
    may report it at any."""
    every = math.gcd(*(one.step for one in steps if one.logged and one.step > 1))
    for at, one in enumerate(steps):
        if not one.losses:
            return at, f"step {one.step}: no record tells its loss"
        if every and not one.norms and (one.step == 1 or one.step % every == 0):
            return at, f"step {one.step}: no record tells its gradient's norm"
        if _is_hashed(one) and not again.states[at]:
            return at, f"step {one.step}: the twin does not say its state after it"
    return len(steps), ""


@dataclass(frozen=True)
class State:
    """The hash after one step, compared with the twin's."""

    step: int
    equal: bool
    wrong: str
    """Why it should be the twin's and is not; empty: it is, or need not be."""


def _states(steps: Sequence[Committed], again: Retrained) -> list[State]:
    """Compares each hashed step. With one thread a sum has one order, also over two groups. So a state that follows
    from one of the twin's is the twin's too, if this machine computes as the run's did. That is shown by numbers that
    agree to the last bit until then, or by a state that did. The process group orders a sum over more groups."""
    found: list[State] = []
    exact = {BEGINNING: True}  # place -> whether the state after it must be the twin's
    known = 0  # the newest step after which it was
    for at, (one, loss, norm, states) in enumerate(zip(steps, again.losses, again.norms, again.states, strict=False)):
        same = one.losses <= {loss} and one.norms <= {norm}
        exact[at] = exact[one.after] and len(one.parts) <= 2 and (same or known > 0)
        if not states:
            continue
        other = [g for (g, _), state in one.states.items() if states.get(g, states[twin.EVERYBODY]) != state]
        wrong = ""
        if other and exact[at]:
            shown = f"that after step {known} was" if known else "all numbers until then are"
            wrong = (
                f"after step {one.step} the state of group {min(other)} is not that of a fault-free twin, and {shown} "
                "its own to the last bit"
            )
        found.append(State(one.step, not other, wrong))
        known = known if other else one.step
        exact[at] = not other
    return found


def _of_states(steps: Sequence[Committed], states: Sequence[State]) -> str:
    """Returns the end of a sentence: how much the states show, where that is not all."""
    if not states:
        sharded = any(one.states for one in steps)
        return f"; no state was compared: {'each rank hashes its own part' if sharded else 'none was hashed'}"
    other = sum(not state.equal for state in states)
    return f"; after {other} of {len(states)} hashed steps the state is another, as it may be here" if other else ""


def _flips(steps: Sequence[Committed]) -> list[int]:
    """Returns the steps at which a bit was flipped on purpose and committed, so that the twin must flip it too."""
    first: dict[twin.Flip, int] = {}
    for one in steps:
        for flip in itertools.chain.from_iterable(one.flips.values()):
            first.setdefault(flip, one.step)
    return list(first.values())


def _sentence(pair: Pair, what: str, allowed: float) -> str:
    return (
        f"step {pair.step} has a {what} of {pair.run:.5g}, and {pair.twin:.5g} in a fault-free twin: {pair.apart:.2g} apart, "
        f"{allowed:g} is allowed"
    )


def _pair(step: int, told: set[float], of_twin: float, unit: float = 1.0) -> Pair:
    """Pairs a step's number with the twin's. Where groups report different numbers, takes the one that is farthest off;
    not a number is the farthest."""
    run = max(told, key=lambda number: abs(number - of_twin) if math.isfinite(number) else math.inf)
    return Pair(step, run, of_twin, abs(run - of_twin) / (abs(unit) or 1.0))


def _farthest(pairs: list[Pair]) -> Pair:
    return max(
        pairs, key=lambda pair: math.inf if math.isnan(pair.apart) else pair.apart, default=Pair(0, 0.0, 0.0, 0.0)
    )


def _length(history: History) -> float:
    return history.setting.ended - history.setting.began if history.setting is not None else 0.0
