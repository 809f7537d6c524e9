"""Checks that the ranks of a group, each of which has its own record, agree on the steps that they made together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from supervisor.shell.history.files import History, Steps

ALIKE = {"loss": 1e-4, "gradient_norm": 1e-3}
"""Greatest difference of a number that the groups of one quorum report of a step, as a share of it. They compute the
same sum, as do the ranks of a group. On CPUs it agrees to the last bit. As with loss parity, different machines may
round differently."""


def no_numbers(history: History) -> Iterator[str]:
    """Finds a loss or a norm that is not finite, of any rank, also in a step that one group made alone."""
    for steps in history.steps:
        who = f"rank {steps.rank} of {steps.name}" if steps.rank else steps.name
        for line in steps.committed():
            told = {what: line[what] for what in ALIKE if line.get(what) is not None}
            yield from (
                f"step {line['step']} of {who} has a {k} of {x}" for k, x in told.items() if not math.isfinite(x)
            )


def ranks_apart(history: History) -> Iterator[str]:
    """Finds ranks of a group that report different numbers. A loss below zero is ignored: in a pipeline, a rank without
    the last part of the model has no loss, and TorchTitan reports -1."""
    for (group, generation), ranks in _by_rank(history).items():
        if len(ranks) < 2:
            continue
        for step in sorted(set().union(*ranks.values())):
            lines = [own[step] for own in ranks.values() if step in own]
            for what, apart in ALIKE.items():
                told = [x[what] for x in lines if x.get(what) is not None and x[what] >= 0]
                if told and max(told) - min(told) > apart * max(1.0, *told):
                    yield (
                        f"the ranks of group {group} generation {generation} tell of step {step} a {what} of "
                        f"{' and '.join(map(str, sorted(set(told))))}"
                    )


def left_out_by_a_rank(history: History) -> Iterator[str]:
    """Finds steps that one rank of a group committed and another has no record of. A rank that failed may lack its last
    step. A rank number without a record in any process keeps none, as toys do."""
    by_rank = _by_rank(history)
    kept = {rank for ranks in by_rank.values() for rank in ranks}
    if len(kept) < 2:
        return
    until = told_until(history)
    for process in history.processes:
        if process.rank in kept:
            by_rank[process.group, process.generation].setdefault(process.rank, {})
    well = {(p.group, p.generation, p.rank) for p in history.processes if p.exit_code == 0}
    for (group, generation), ranks in by_rank.items():
        made = {step: float(line["t"]) for own in ranks.values() for step, line in own.items()}
        for rank, own in ranks.items():
            in_its_last = {max(made, default=0)} if (group, generation, rank) not in well else set()
            lacks = sorted(made.keys() - own.keys() - in_its_last)
            lacks = [step for step in lacks if made[step] <= until and group not in mute_at(history, made[step])]
            if lacks:
                yield (
                    f"rank {rank} of group {group} generation {generation} has no record of step {lacks[0]}, which another "
                    f"rank of it committed, nor of {len(lacks) - 1} more"
                )


def _by_rank(history: History) -> dict[tuple[int, int], dict[int, dict[int, dict[str, Any]]]]:
    """Maps (group, generation), rank and step to the line of its commit."""
    found: dict[tuple[int, int], dict[int, dict[int, dict[str, Any]]]] = defaultdict(dict)
    for steps in history.steps:
        if steps.lines:
            found[steps.group, steps.generation].setdefault(steps.rank, {}).update(_by_step(steps))
    return found


def _by_step(steps: Steps) -> dict[int, dict[str, Any]]:
    return {line["step"]: line for line in steps.committed()}


def mute_at(history: History, t: float) -> set[int]:
    """Returns the groups whose commits may then be unwritten because of a fault."""
    return {f.group for f in history.faults if f.mute and f.began <= t <= (f.over or t)}


def told_until(history: History) -> float:
    """Returns, for a run that goes on, when the record that was read first ends: the others' are newer."""
    newest: dict[int, int] = defaultdict(int)
    for process in history.processes:
        newest[process.group] = max(newest[process.group], process.generation)
    live = {(p.group, p.generation, p.rank) for p in history.processes if p.over_by is None}
    ends = [
        max(line["t"] for line in s.lines)
        for s in history.steps
        if s.lines and (s.group, s.generation, s.rank) in live and s.generation == newest[s.group]
    ]
    return min(ends, default=float("inf"))
