"""Checks owners and quorums by the trainers' step records: which processes trained a group, and with which others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, groupby
from typing import Any

from fault_injection.checkers.rank_records import (
    ALIKE,
    left_out_by_a_rank,
    mute_at,
    no_numbers,
    ranks_apart,
    told_until,
)
from fault_injection.parity.replay import tries_of
from supervisor.core.model.kinds import Kind
from supervisor.core.model.reason import Code
from supervisor.shell.history.files import History, Process, Steps, Unknown

OUT_OF_REACH = frozenset({Kind.HANG, Kind.STALLED, Kind.NODE_LOST, Kind.GPU})
"""Kinds of faults after which a process holds the run's state but can give it to no other. (A group whose GPU fails is
fenced and moved while it lives.)"""


def single_owner(history: History) -> list[str]:
    """Checks that a group never has two owners.

    Once a generation has committed, no older one commits, nor beside it. No rank commits after its shim saw it end, nor
    begins a step once its successor's place on another node was decided. On several nodes that holds of each of them,
    also of one that stays. On one node, a generation is begun only when the older ones there have ended.

    A step that one generation alone had, and that a later one makes again, has no second owner: it was lost with its
    process."""
    return [
        *_late_commits(history), *_beside_each_other(history), *_commits_of_the_dead(history), *_commits_of_the_fenced(history),
        *_two_on_a_node(history), *_not_fenced(history),
    ]  # fmt: skip


def _late_commits(history: History) -> Iterator[str]:
    by_owner: dict[tuple[int, int, str], list[dict[str, Any]]] = defaultdict(list)
    ranks: dict[tuple[int, int, str], set[int]] = defaultdict(set)
    for steps in history.steps:
        if steps.committed():
            by_owner[steps.group, steps.generation, steps.node] += steps.committed()
            ranks[steps.group, steps.generation, steps.node].add(steps.rank)
    owners = sorted((owner, sorted(lines, key=lambda x: x["t"])) for owner, lines in by_owner.items() if lines)
    of_group = groupby(owners, key=lambda owner: owner[0][0])
    pairs = chain.from_iterable(combinations(list(mine), 2) for _, mine in of_group)
    for ((group, generation, node), lines), ((_, newer, elsewhere), newer_lines) in pairs:
        if generation == newer:
            if twice := ranks[group, generation, node] & ranks[group, generation, elsewhere]:
                which = f"generation {generation} rank {min(twice)}"
                yield f"group {group}: {which} committed on {node} and on {elsewhere}"
            continue
        first = newer_lines[0]
        late = [x for x in lines if x["t"] > first["t"] and not _was_in_flight(x, first)]
        for line in late[:3]:
            yield (
                f"group {group}: generation {generation} on {node} committed step {line['step']} after generation {newer} "
                "had begun to commit"
            )


def _was_in_flight(line: dict[str, Any], first: dict[str, Any]) -> bool:
    """Returns true for a step of an older quorum that began before the newer generation's first. A process that was
    frozen in it ends it when it thaws, and no other group has a part in it."""
    known = isinstance(line.get("quorum_id"), int) and isinstance(first.get("quorum_id"), int)
    return bool(known and line["quorum_id"] < first["quorum_id"] and line["start"] < first["start"])


def _beside_each_other(history: History) -> Iterator[str]:
    """Finds a step of a rank made by two generations at once or in one quorum, unless in flight as the newer began."""
    pauses = without_life(history)
    made: dict[tuple[int, int, int, int], list[tuple[Steps, dict[str, Any]]]] = defaultdict(list)
    for steps in history.steps:
        for line in steps.committed():
            made[sum(p < line["t"] for p in pauses), steps.group, steps.rank, line["step"]].append((steps, line))
    for (_, group, _, step), rows in made.items():
        for (one, line), (two, other) in combinations(sorted(rows, key=lambda row: row[0].generation), 2):
            quorum = line.get("quorum_id")
            together = isinstance(quorum, int) and quorum == other.get("quorum_id")
            at_once = line["start"] < other["t"] and other["start"] < line["t"] and not _was_in_flight(line, other)
            if one.generation != two.generation and (together or at_once):
                where = f"in quorum {quorum}" if together else "at once"
                yield f"group {group}: generations {one.generation} and {two.generation} both committed step {step} {where}"


def _commits_of_the_dead(history: History) -> Iterator[str]:
    ended = {(p.group, p.generation, p.rank, p.node): p.over_by for p in history.processes if p.over_by is not None}
    for steps in history.steps:
        end = ended.get((steps.group, steps.generation, steps.rank, steps.node), float("inf"))
        late = [line for line in steps.committed() if line["t"] > end]
        if late:
            yield f"{steps.name} on {steps.node} committed step {late[0]['step']} after its shim had seen it end"


def _commits_of_the_fenced(history: History) -> Iterator[str]:
    """Finds steps of a fenced generation. A new place is decided only when the older generation elsewhere is gone, or
    no gate admits it: from then on it ends its step, and begins none. In place, its one agent ends it; of several nodes
    no agent sees all, so a generation is fenced on those that stay as well."""
    quorums: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for steps in history.steps:
        for line in steps.lines:
            if line.get("event") == "step" and isinstance(line.get("quorum_id"), int):
                quorums[line["quorum_id"]].append((steps.group, line["start"]))
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] not in ("start", "place"):
                continue
            for steps in (
                s for s in history.steps if s.group == action["group"] and s.generation < action["generation"]
            ):
                late = [line for line in steps.committed() if line["t"] > decision.t]
                bad = [x for x in late if x["start"] > decision.t or _is_newer(quorums, steps.group, x, decision.t)]
                if bad and nodes_of(action) != [steps.node]:
                    yield (
                        f"{steps.name} on {steps.node} began step {bad[0]['step']} after generation {action['generation']} was to "
                        f"begin on {', '.join(nodes_of(action))}: it was not fenced"
                    )


def nodes_of(action: Mapping[str, Any]) -> list[str]:
    """Returns the nodes of an action of the journal."""
    return [*(action.get("nodes") or [action["node"]])]


def _is_newer(quorums: dict[int, list[tuple[int, float]]], group: int, line: dict[str, Any], decided: float) -> bool:
    """Returns true if all others of its quorum began after the decision: it was given the quorum only then."""
    others = [start for other, start in quorums.get(line.get("quorum_id", -1), ()) if other != group]
    return bool(others) and min(others) > decided


def _two_on_a_node(history: History) -> Iterator[str]:
    places: dict[tuple[str, int], list[Process]] = defaultdict(list)
    for process in history.processes:  # in the order of their spawning
        places[process.node, process.group].append(process)
    for older, newer in chain.from_iterable(combinations(there, 2) for there in places.values()):
        still_there = older.over_by is None or older.over_by > newer.spawned
        if older.generation != newer.generation and still_there:
            yield (
                f"group {older.group} generation {newer.generation} was begun on {older.node} "
                f"while generation {older.generation} still ran there"
            )


def _not_fenced(history: History) -> Iterator[str]:
    """Finds a generation begun elsewhere without a fence while an older one lives. The fence must be decided before,
    and not because the older one was gone."""
    fences: dict[tuple[int, int], list[tuple[float, bool]]] = defaultdict(list)
    decided: dict[tuple[int, int], float] = {}
    for group, generation, t, was_gone in _fences(history):
        fences[group, generation].append((t, was_gone))
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] in ("start", "place"):
                decided.setdefault((action["group"], action["generation"]), decision.t)
    of_groups: dict[int, list[Process]] = defaultdict(list)
    for process in history.processes:  # in the order of their spawning
        of_groups[process.group].append(process)
    for older, newer in chain.from_iterable(combinations(own, 2) for own in of_groups.values()):
        lives = older.over_by is None or older.over_by > newer.spawned
        if older.node == newer.node or older.generation >= newer.generation or not lives:
            continue
        of_older = range(older.generation + 1, newer.generation + 1)
        told = [each for generation in of_older for each in fences[newer.group, generation]]
        by = decided.get((newer.group, newer.generation), newer.spawned)
        if not any(t <= by and not was_gone for t, was_gone in told):
            yield (
                f"group {older.group} generation {newer.generation} was begun on {newer.node} while generation "
                f"{older.generation} still ran on {older.node}, and it was not fenced before"
            )


def _fences(history: History) -> Iterator[tuple[int, int, float, bool]]:
    """Yields each group and generation that the gate must admit alone, when that was decided, and if it was because the
    older one was gone."""
    for decision in history.committed():
        for action in decision.actions:
            if action["verb"] == "fence":
                _, group, generation = action["key"].split(":")
                yield int(group), int(generation), decision.t, action.get("code") == Code.NODE_HAS_NONE


# --- quorums ---


@dataclass(frozen=True)
class _Commit:
    steps: Steps
    line: dict[str, Any]

    @property
    def quorum(self) -> int:
        quorum = self.line.get("quorum_id")
        if not isinstance(quorum, int) or not isinstance(self.line.get("participants"), int):
            raise Unknown(f"{self.steps.name} does not say in which quorum it committed step {self.line['step']}")
        return quorum


def one_quorum_per_step(history: History) -> list[str]:
    """Checks that no two quorums commit a step at once, and that no more groups commit one than its quorum held. The
    groups of a quorum must report the same loss. Unknown when groups took part whose record is missing.

    A step trained again after every process had ended (a resume from disk) is another step. `steps_not_lost` finds one
    that goes back behind a newer step.

    A step record holds its quorum's id and the number of participants, but not their names. So two quorums differ in
    their ids, in their numbers of participants, or in two groups at one place. The ids only grow: a later membership
    has another id, also under a new lighthouse. After a resume from disk no process knows an older one."""
    pauses = without_life(history)
    found = [*no_numbers(history), *ranks_apart(history), *_ids_given_again(history, pauses)]
    missing = [*_without_record(history), *left_out_by_a_rank(history)]
    rows: dict[tuple[int, int], list[_Commit]] = defaultdict(list)
    for steps in history.steps:
        if steps.rank == 0:
            for line in steps.committed():
                rows[sum(p < line["t"] for p in pauses), line["step"]].append(_Commit(steps, line))
    passed_at, stretch_above = float("inf"), -1
    for (stretch, step), commits in sorted(rows.items(), reverse=True):
        if stretch != stretch_above:
            passed_at, stretch_above = float("inf"), stretch
        if len({c.steps.group for c in commits}) > 1:
            current = [c for c in commits if c.line["start"] < passed_at]
            found += _two_quorums(step, sorted(current, key=lambda c: c.line["t"]))
            found += _overfull(step, current)
        passed_at = min(passed_at, *(c.line["t"] for c in commits))
    if missing and not found:
        raise Unknown("; ".join(missing[:3]))
    return found[::-1][:20]


def _without_record(history: History) -> Iterator[str]:
    """Finds steps in which more groups took part than there are records. Only ranks that note what they read have a
    record of a step in which they end."""
    if not any(line.get("event") == "batch" for steps in history.steps for line in steps.lines):
        return
    until = told_until(history)
    tried: dict[tuple[int, int], set[int]] = defaultdict(set)
    for each in tries_of(history):
        if each.takes_part:
            tried[each.key].add(each.group)
    for steps in history.steps:
        for line in steps.committed():
            if line["t"] > until:
                continue
            of = tried[line.get("quorum_id", 0), line["step"]]
            mute = mute_at(history, line["t"])
            if isinstance(line.get("participants"), int) and of and len(of | mute) < line["participants"]:
                yield (
                    f"step {line['step']} of {steps.name} had {line['participants']} groups, and there are the records "
                    f"of {len(of)}"
                )


def _ids_given_again(history: History, pauses: list[float]) -> Iterator[str]:
    """Finds steps begun in a quorum older than one that had committed, and quorums with two generations of a group."""
    stretches: dict[int, list[_Commit]] = defaultdict(list)
    for steps in history.steps:
        for line in steps.committed():
            if isinstance(line.get("quorum_id"), int):
                stretches[sum(p < line["t"] for p in pauses)].append(_Commit(steps, line))
    for commits in stretches.values():
        ends = sorted((c.line["t"], c.quorum) for c in commits)
        newest = at = 0
        generations: dict[tuple[int, int], int] = {}
        for commit in sorted(commits, key=lambda c: c.line["start"]):
            while at < len(ends) and ends[at][0] <= commit.line["start"]:
                newest, at = max(newest, ends[at][1]), at + 1
            steps = commit.steps
            what = f"step {commit.line['step']} of {steps.name} is of quorum {commit.quorum}"
            if commit.quorum < newest:
                yield f"{what}, and quorum {newest} had committed before it began"
            first = generations.setdefault((commit.quorum, steps.group), steps.generation)
            if first != steps.generation:
                yield f"{what}, and so was generation {first}"


def _two_quorums(step: int, commits: list[_Commit]) -> Iterator[str]:
    if len({commit.quorum for commit in commits}) < 2:
        return
    for one, two in combinations(commits, 2):
        if one.quorum == two.quorum or one.steps.group == two.steps.group:
            continue
        at_once = two.line["start"] < one.line["t"]
        if at_once or _went_on_beside(one, two):
            yield (
                f"step {step} was committed by {one.steps.name} in quorum {one.quorum} and "
                f"by {two.steps.name} in quorum {two.quorum}, and both trained on"
            )


def _went_on_beside(one: _Commit, two: _Commit) -> bool:
    """Returns true if the first trained on with its own copy of the step. If it dies after its commit the copy is lost,
    and if it heals it takes the other's: then the step counts once."""
    after = next((line for line in one.steps.committed() if line["t"] > two.line["t"]), None)
    return after is not None and not after.get("healed")


def _overfull(step: int, commits: list[_Commit]) -> Iterator[str]:
    by_quorum: dict[int, list[_Commit]] = defaultdict(list)
    for commit in commits:
        by_quorum[commit.quorum].append(commit)
    for quorum, members in by_quorum.items():
        for what, apart in ALIKE.items():
            told = [c.line[what] for c in members if c.line.get(what) is not None]
            if told and max(told) - min(told) > apart * max(1.0, *map(abs, told)):
                yield f"step {step} of quorum {quorum} has a {what} of {' and '.join(map(str, sorted(told)))}"
        # a group that heals in this step has no place among the participants
        taking_part = [
            c for c in members if "participating_rank" not in c.line or c.line["participating_rank"] is not None
        ]
        sizes = sorted({c.line["participants"] for c in taking_part})
        groups = sorted({c.steps.group for c in taking_part})
        by_group = {c.steps.group: c.line.get("participating_rank") for c in taking_part}
        places = [place for place in by_group.values() if place is not None]
        what = f"step {step} was committed in quorum {quorum} by groups {groups}, which say that it held "
        if sizes and (len(sizes) > 1 or len(groups) > sizes[0]):
            yield what + f"{' and '.join(map(str, sizes))}: two quorums of one id"
        elif len(places) > len(set(places)):
            yield what + f"two of them at the same place ({places}): two quorums of one id"


def without_life(history: History) -> list[float]:
    """Returns the moments from which on no process had the run's state.

    A process that takes the state from a peer has it from then on. One that reads it from disk counts from its start,
    for it could have read it then. One that ends before either never had it. One whose end no shim saw (its node was
    lost) lived until its last line. A fault may make a process hang, its node silent or its GPU fail, and a generation may
    be fenced: it then gives the state to no other after its last commit. The ranks of a generation share the state: none
    has it once one has ended."""
    lines = {(s.group, s.generation, s.rank): s.lines for s in history.steps}
    begins: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    fences = [*_fences(history)]
    for p in history.processes:
        own = lines.get((p.group, p.generation, p.rank), ())
        first = next((x for x in own if x.get("committed") or x.get("event") == "heal"), None)
        if first is not None:
            healed = first.get("event") == "heal" or first.get("healed")
            ended = p.exited if p.exited is not None else max(x["t"] for x in own)
            fenced = (t for group, generation, t, _ in fences if group == p.group and generation > p.generation)
            if (since := min((*fenced, *_out_of_reach(history, p)), default=None)) is not None:
                ended = min(ended, max([since, *(x["t"] for x in own if x.get("committed"))]))
            begun, of = float(first["t"]) if healed else p.spawned, (p.group, p.generation)
            begins[of] = min(begun, begins.get(of, begun))
            ends[of] = min(ended, ends.get(of, ended))
    found, until = [], None
    for begun, ended in sorted((begins[of], ends[of]) for of in begins):
        if until is not None and begun > until:
            found.append(until)
        until = ended if until is None else max(until, ended)
    return found


def _out_of_reach(history: History, process: Process) -> list[float]:
    """Returns since when no other can heal from a process, though it has not ended, because of injected faults."""
    of = (process.group, process.generation)
    faults = (f for f in history.faults if f.made is not None and (f.group, f.generation) == of)
    return [f.began for f in faults if not OUT_OF_REACH.isdisjoint(f.kinds)]
