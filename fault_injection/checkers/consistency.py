"""Checks a history for violations. Checkers read files alone, and answer pass, fail or unknown; unknown fails a run."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fault_injection.checkers.each_sample import each_sample_once
from fault_injection.checkers.kill_reasons import no_kill_without_reason
from fault_injection.checkers.ownership import nodes_of, one_quorum_per_step, single_owner, without_life
from supervisor.shell.history.files import History, Steps, Unknown


@dataclass(frozen=True)
class Verdict:
    """A checker's answer, with each violation as a sentence."""

    checker: str
    answer: Literal["pass", "fail", "unknown"]
    sentences: tuple[str, ...] = ()


def one_actuation_per_decision(history: History) -> list[str]:
    """Checks that each rank's process was spawned once, on the node on which a committed decision had started its
    generation. No other process wrote steps."""
    found = []
    spawns = Counter((p.group, p.generation, p.rank) for p in history.processes)
    found += [f"group {g} generation {n} rank {r} was spawned {k} times" for (g, n, r), k in spawns.items() if k > 1]
    started: dict[tuple[int, int], list[list[str]]] = defaultdict(list)
    decided: dict[tuple[int, int], float] = {}
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] in ("start", "place"):
                started[action["group"], action["generation"]].append(nodes_of(action))
                decided.setdefault((action["group"], action["generation"]), decision.t)
    found += [
        f"generation {n} of group {g} was started by {len(starts)} decisions"
        for (g, n), starts in started.items()
        if len(starts) > 1
    ]
    most = max((len(nodes) for starts in started.values() for nodes in starts), default=0)
    found += [
        f"generation {n} of group {g} was started on {', '.join(nodes)} alone: groups have {most} nodes"
        for (g, n), starts in started.items()
        for nodes in starts
        if len(nodes) < most
    ]
    born = {(p.group, p.generation, p.rank, p.node) for p in history.processes}
    found += [
        f"{s.name} on {s.node} wrote steps, and no one spawned it"
        for s in history.steps
        if s.lines and _owner(s) not in born
    ]
    for process in history.processes:
        nodes = [node for each in started.get((process.group, process.generation), []) for node in each]
        if process.node not in nodes:
            where = f"on {', '.join(nodes)}" if nodes else "nowhere"
            found.append(
                f"group {process.group} generation {process.generation} was spawned on {process.node}; it was decided {where}"
            )
        early = decided.get((process.group, process.generation), process.spawned) - process.spawned
        if early > 0:
            found.append(
                f"group {process.group} generation {process.generation} was spawned {early:.3f} s before that was decided"
            )
    return found


def _owner(steps: Steps) -> tuple[int, int, int, str]:
    return steps.group, steps.generation, steps.rank, steps.node


def no_stale_actuation(history: History) -> list[str]:
    """Checks that no generation is spawned after a newer one of its group was decided."""
    found = []
    raised: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for decision in history.committed():
        for group, state in decision.groups.items():
            raised[group].append((decision.committed_at or decision.t, int(state["generation"])))
    for process in history.processes:
        newer = [n for t, n in raised.get(process.group, []) if t < process.spawned and n > process.generation]
        if newer:
            found.append(
                f"group {process.group} generation {process.generation} was spawned on {process.node} after generation {max(newer)} was decided"
            )
    return found


def generations_grow(history: History) -> list[str]:
    """Checks that a group's generation and the decision count never go back, and that no two epochs share a decision.
    The newest checkpoint goes back only to what a start from disk found."""
    found = []
    last: dict[int, int] = {}
    seen: dict[int, int] = {}
    newest = checkpoint = 0
    for decision in history.committed():
        for action in decision.actions:
            step = _named_step(action)
            if action["verb"] == "load":
                checkpoint = step
            elif step >= 0:
                if step < checkpoint:
                    found.append(f"the newest checkpoint went back from step {checkpoint} to {step}")
                checkpoint = max(checkpoint, step)
        if decision.number in seen:
            found.append(
                f"decision {decision.number} was committed twice (epochs {seen[decision.number]}, {decision.epoch})"
            )
        elif decision.number < newest:
            found.append(f"decision {decision.number} was committed after decision {newest}")
        newest = max(newest, decision.number)
        seen[decision.number] = decision.epoch
        for group, state in decision.groups.items():
            if int(state["generation"]) < last.get(group, 0):
                found.append(
                    f"group {group} went back from generation {last[group]} to {state['generation']} in decision {decision.number}"
                )
            last[group] = max(last.get(group, 0), int(state["generation"]))
    return found


def no_dead_epoch(history: History) -> list[str]:
    """Checks that nothing is decided under an epoch once a newer one leads. An old leader may try and be refused, or
    write late about what it committed in its time.

    Neither check uses a clock. The first goes by the order of the journal's lines. The second goes by the store's
    revisions: an old leader's commit is too late if its revision is above that at which the newer leader was elected.
    Revisions from before and after the restore of a backup belong to different stores: their epochs are then farther
    apart than their revisions.

    Unknown where the lines of an epoch or of an outcome are missing."""
    found, missing = [], []
    said = {(o.epoch, o.number) for o in history.outcomes if not o.refused}
    for decision in history.committed():
        if decision.epoch not in history.epochs:
            missing.append(f"decision {decision.number} is of epoch {decision.epoch}, which never began")
        elif decision.committed_at is not None and (decision.epoch, decision.number) not in said:
            missing.append(f"decision {decision.number} of epoch {decision.epoch} has no outcome")

    def newer_before(epoch: int, line: int) -> list[int]:
        return [e for e, began in history.epochs.items() if e > epoch and began < line]

    late = {
        (o.epoch, o.number, o.intent_line)
        for o in history.outcomes
        if not o.refused and o.intent_line is not None and newer_before(o.epoch, o.intent_line)
    }
    late |= {(d.epoch, d.number, d.line) for d in history.committed() if newer_before(d.epoch, d.line)}
    for epoch, number, line in sorted(late, key=lambda x: x[2] or 0):
        led = newer_before(epoch, line or 0)
        found.append(f"decision {number} was committed under epoch {epoch} when epoch {max(led)} led")
    for outcome in history.outcomes:
        if outcome.refused or (outcome.epoch, outcome.number, outcome.intent_line) in late:
            continue
        led = newer_before(outcome.epoch, outcome.line)
        if led and outcome.revision is None:
            missing.append(f"decision {outcome.number} of epoch {outcome.epoch} has no revision")
            continue
        elected = {e: history.elected.get(e, e) for e in (*led, outcome.epoch)}
        ahead = outcome.epoch - elected[outcome.epoch]
        after = [e for e in led if e - elected[e] == ahead and (outcome.revision or 0) > elected[e]]
        if after:
            found.append(
                f"decision {outcome.number} of epoch {outcome.epoch} was committed at revision {outcome.revision}, "
                f"when epoch {min(after)} had been elected at {elected[min(after)]}"
            )
    if missing and not found:
        raise Unknown("; ".join(missing))
    return found


def _named_step(action: dict[str, Any]) -> int:
    """Returns the step of the checkpoint that an action names or loads; -1 for another action."""
    return int(action["key"].rpartition(":")[2]) if action["verb"] in ("checkpoint", "load") else -1


def steps_not_lost(history: History) -> list[str]:
    """Checks that a step begun after step N was committed commits at least N, unless every group had ended in between
    (a resume from disk). No process leaves a step out, and no resume goes behind the newest checkpoint."""
    found = [*_not_next(history), *_behind_the_disk(history)]
    commits = sorted((line["t"], line["step"]) for s in history.steps for line in s.committed())
    begun = sorted(
        (line["start"], line["step"], s.group, s.generation) for s in history.steps for line in s.committed()
    )
    pauses = without_life(history)
    newest, newest_at, at = 0, 0.0, 0
    for start, step, group, generation in begun:
        while at < len(commits) and commits[at][0] <= start:
            t, committed = commits[at]
            if committed >= newest or any(newest_at <= p < t for p in pauses):
                newest, newest_at = committed, t
            at += 1
        if step < newest and not any(newest_at <= p < start for p in pauses):
            found.append(f"group {group} generation {generation} committed step {step} after step {newest}")
    return found


def _not_next(history: History) -> Iterator[str]:
    """Finds commits that are not the process's next step, unless it healed. Without a quorum, no heal is recorded."""
    for steps in history.steps:
        heals = [
            x["t"] for x in steps.lines if x.get("healed") or x.get("event") == "heal"
        ]  # also in a step that failed
        for one, two in itertools.pairwise(steps.committed()):
            if two["step"] <= one["step"]:
                yield f"{steps.name} committed step {two['step']} after step {one['step']}, in one process"
            jumped = two["step"] > one["step"] + 1 and isinstance(two.get("quorum_id"), int)
            healed = jumped and any(one["t"] < t <= two["t"] for t in heals)
            if jumped and not healed and not _mute(history, steps.group, one, two):
                yield f"{steps.name} committed step {two['step']} after step {one['step']}, and did not heal"


def _behind_the_disk(history: History) -> Iterator[str]:
    """Finds resumes from disk that did not continue from the newest checkpoint known to be complete. A checkpoint that
    a fault tore does not count. It was the newest until all groups began again, for the fault kills them all."""
    named = [(decision.t, action) for decision in history.committed() for action in decision.actions]
    known = [(t, step) for t, action in named if (step := _named_step(action)) >= 0]
    loads = [t for t, action in named if action["verb"] == "load"]
    tearing = [f.made for f in history.faults if f.name == "checkpoint_torn" and f.made is not None]
    torn = {max((step for t, step in known if t <= made), default=0) for made in tearing}
    for pause in without_life(history):
        began = [(x["start"], x["step"]) for s in history.steps for x in s.committed() if x["start"] >= pause]
        again = min((p.spawned for p in history.processes if p.spawned > pause), default=pause)
        # a checkpoint named before a start from disk may have been torn by then: that start shows what was complete
        since = max((t for t in loads if t <= again), default=0.0)
        newest = max((step for t, step in known if since <= t <= again and step not in torn), default=-1)
        if began and min(began)[1] <= newest:
            yield f"step {min(began)[1]} was committed after a resume, and step {newest} was complete on disk"


def _mute(history: History, group: int, one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Returns true if a fault between the two kept the group's lines from being written."""
    return any(
        f.mute and f.group == group and f.began <= two["t"] and (f.over is None or one["t"] <= f.over)
        for f in history.faults
    )


CHECKERS: Mapping[str, Callable[[History], list[str]]] = {
    "one_actuation_per_decision": one_actuation_per_decision,
    "single_owner": single_owner,
    "no_stale_actuation": no_stale_actuation,
    "generations_grow": generations_grow,
    "no_dead_epoch": no_dead_epoch,
    "no_kill_without_reason": no_kill_without_reason,
    "one_quorum_per_step": one_quorum_per_step,
    "steps_not_lost": steps_not_lost,
    "each_sample_once": each_sample_once,
}


OF_STEPS = (single_owner, one_quorum_per_step, steps_not_lost)
"""Checkers that know nothing without step records."""


def check(history: History, checkers: Mapping[str, Callable[[History], list[str]]] = CHECKERS) -> list[Verdict]:
    """Returns every checker's verdict. A checker that crashes, or a history with holes or nothing in it, is unknown."""
    verdicts = []
    for name, checker in checkers.items():
        if not history.decisions or not history.processes:
            verdicts.append(Verdict(name, "unknown", ("the history is empty: no decisions or no processes",)))
            continue
        if checker in OF_STEPS and not any(s.lines for s in history.steps):
            verdicts.append(Verdict(name, "unknown", ("there are no step records",)))
            continue
        try:
            sentences = tuple(checker(history))
        except Unknown as error:
            verdicts.append(Verdict(name, "unknown", (str(error),)))
            continue
        # a file's content decides what crashes a checker, and a traceback would leave neither certificate nor verdicts
        except Exception as error:  # noqa: BLE001
            verdicts.append(Verdict(name, "unknown", (f"the checker crashed: {error!r}",)))
            continue
        if sentences:
            verdicts.append(Verdict(name, "fail", sentences))
        elif history.unreadable:
            verdicts.append(Verdict(name, "unknown", tuple(f"unreadable: {u}" for u in history.unreadable)))
        else:
            verdicts.append(Verdict(name, "pass"))
    return verdicts
