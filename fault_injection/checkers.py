"""Checkers over a history. They read files, never a cluster, and answer pass, fail or unknown; unknown fails a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fault_injection.history import History


@dataclass(frozen=True)
class Verdict:
    """A checker's answer, with each violation as a sentence."""

    checker: str
    answer: Literal["pass", "fail", "unknown"]
    sentences: tuple[str, ...] = ()


def one_actuation_per_decision(history: History) -> list[str]:
    """Every rank's process was spawned once, and because a committed decision started that generation, on that node."""
    found = []
    spawns = Counter((p.group, p.generation, p.rank) for p in history.processes)
    found += [f"group {g} generation {n} rank {r} was spawned {k} times" for (g, n, r), k in spawns.items() if k > 1]
    started: dict[tuple[int, int], list[str]] = defaultdict(list)
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] in ("start", "place"):
                started[action["group"], action["generation"]].append(action["node"])
    found += [
        f"generation {n} of group {g} was started by {len(nodes)} decisions"
        for (g, n), nodes in started.items()
        if len(nodes) > 1
    ]
    for process in history.processes:
        nodes = started.get((process.group, process.generation), [])
        if process.node not in nodes:
            where = f"on {nodes[0]}" if nodes else "nowhere"
            found.append(
                f"group {process.group} generation {process.generation} was spawned on {process.node}; it was decided {where}"
            )
    return found


def single_owner(history: History) -> list[str]:
    """Never two generations of a group in a quorum: once a generation has committed, no older one commits."""
    found = []
    for group in {s.group for s in history.steps}:
        newer_since: float | None = None
        newest = -1
        for steps in reversed(history.of_group(group)):
            committed = steps.committed()
            late = [line for line in committed if newer_since is not None and line["t"] > newer_since]
            found += [
                f"group {group}: generation {steps.generation} committed step {line['step']} after generation {newest} had begun to commit"
                for line in late[:3]
            ]
            if committed:
                first = committed[0]["t"]
                newer_since = first if newer_since is None else min(first, newer_since)
                newest = steps.generation
    return found


def no_stale_actuation(history: History) -> list[str]:
    """No generation is spawned after a newer one of its group was decided."""
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
    """A group's generation never goes back, nor does the decision count, and no two epochs share a decision."""
    found = []
    last: dict[int, int] = {}
    seen: dict[int, int] = {}
    for decision in history.committed():
        if decision.number in seen:
            found.append(
                f"decision {decision.number} was committed twice (epochs {seen[decision.number]}, {decision.epoch})"
            )
        seen[decision.number] = decision.epoch
        for group, state in decision.groups.items():
            if int(state["generation"]) < last.get(group, 0):
                found.append(
                    f"group {group} went back from generation {last[group]} to {state['generation']} in decision {decision.number}"
                )
            last[group] = max(last.get(group, 0), int(state["generation"]))
    return found


def steps_not_lost(history: History) -> list[str]:
    """The run's committed step never goes back, unless every group had ended in between (a resume from disk)."""
    found = []
    lines = sorted(
        (line["t"], line["step"], s.group, s.generation, line["start"]) for s in history.steps for line in s.committed()
    )
    newest, newest_at = 0, 0.0
    for t, step, group, generation, start in lines:
        # Groups in one quorum commit the same step within moments of each other.
        if step < newest and start > newest_at and not _all_ended(history, newest_at, t):
            found.append(f"group {group} generation {generation} committed step {step} after step {newest}")
        if step >= newest:
            newest, newest_at = step, t
    return found


def _all_ended(history: History, after: float, before: float) -> bool:
    """Whether at some moment between the two no process lived."""
    alive = [p for p in history.processes if p.spawned < after]
    return bool(alive) and all(p.exited is not None and p.exited < before for p in alive)


CHECKERS: Mapping[str, Callable[[History], list[str]]] = {
    "one_actuation_per_decision": one_actuation_per_decision,
    "single_owner": single_owner,
    "no_stale_actuation": no_stale_actuation,
    "generations_grow": generations_grow,
    "steps_not_lost": steps_not_lost,
}


def check(history: History) -> list[Verdict]:
    """Every checker's verdict. A checker that crashes, or a history with holes or nothing in it, is unknown."""
    verdicts = []
    for name, checker in CHECKERS.items():
        if not history.decisions or not history.processes:
            verdicts.append(Verdict(name, "unknown", ("the history is empty: no decisions or no processes",)))
            continue
        try:
            sentences = tuple(checker(history))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            verdicts.append(Verdict(name, "unknown", (f"the checker crashed: {error!r}",)))
            continue
        if sentences:
            verdicts.append(Verdict(name, "fail", sentences))
        elif history.unreadable:
            verdicts.append(Verdict(name, "unknown", tuple(f"unreadable: {u}" for u in history.unreadable)))
        else:
            verdicts.append(Verdict(name, "pass"))
    return verdicts
