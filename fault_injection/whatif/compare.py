"""Compares what failures cost a simulated run under several policies: its runs, their figures, and the tables of them."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from fault_injection.whatif import past
from fault_injection.whatif.months import Outcome, whole
from fault_injection.whatif.rates import GPUS_A_NODE, Rates, Times, times
from supervisor.core.model.spec import RunSpec
from supervisor.shell.runfile import parse

NODES_A_SPARE = 64

T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a two-sided 95% interval, by degrees of freedom from 1; beyond them `student_t_95` computes it."""

Z_95 = 1.959964

AS_SHIPPED = "as shipped"


def figures(outcome: Outcome) -> dict[str, Any]:
    """Returns an outcome's figures. Lost time is given as shares of all groups' time."""
    return {
        "ettr": outcome.ettr,
        "ettr_if_each_stopped_everybody": whole(outcome, times()),
        "failures": outcome.failures,
        "placed_on_another_node": outcome.spares,
        "allocations_asked_for": outcome.asked,
        "halts": outcome.halts,
        "badput": {cause: _share(outcome, lost_s) for cause, lost_s in outcome.badput.items()},
        "badput_after_a_failure_of": {look: _share(outcome, lost_s) for look, lost_s in outcome.by_look.items()},
    }


def spec(groups: int, spares: int, policy: Path | None, nodes_per_group: int = 1) -> RunSpec:
    """Returns the run to simulate. Raises BadParameter for a wrong policy."""
    body: dict[str, Any] = {
        "name": "simulated",
        "groups": {"count": groups},
        "allocation": {"engine": "slurm", "nodes": groups * nodes_per_group, "spares": spares},
    }
    if nodes_per_group > 1:
        body["groups"] |= {"nodes_per_group": nodes_per_group, "ranks_per_node": 1}
    try:
        if policy is not None:
            given = tomllib.loads(policy.read_text())
            if foreign := sorted(given.keys() - {"policy"}):
                raise ValueError(f"only [policy] is looked at here, not {', '.join(foreign)}")
            body |= given
        return parse.parse(body)
    except (OSError, ValueError, RecursionError) as error:  # the last: a list in a list in a list
        raise typer.BadParameter(f"{policy}: {error}", param_hint="--policy") from None


def spares_of(nodes: int) -> int:
    """Returns the number of spares for a run of that many nodes."""
    return max(1, nodes // NODES_A_SPARE)


def specs(groups: int, spares: int, policies: Sequence[Path], nodes_per_group: int = 1) -> dict[str, RunSpec]:
    """Returns the run under each policy file; without any, under the policy as shipped."""
    found = {str(path): spec(groups, spares, path, nodes_per_group) for path in policies}
    return found or {AS_SHIPPED: spec(groups, spares, None, nodes_per_group)}


def _of_nodes(size: int) -> str:
    return f" of {size} nodes" if size > 1 else ""


def origin(path: Path, found: past.Past, measured: Times) -> str:
    """Returns sentences on recorded failures: their run, how many of which kind, and what is assumed about them."""
    kinds = Counter(failed.kind.value for failed in found.failures)
    lines = [
        f"{path}: {found.groups} groups{_of_nodes(found.nodes_per_group)}, {found.spares} spares, {found.seconds / 60:.1f} minutes since all groups trained; failures: "
        f"{', '.join(f'{n} {kind}' for kind, n in kinds.items()) or 'none'}.",
        f"A group trains {measured.start_s + measured.heal_s:.1f} s after its start "
        f"({'as this run shows' if found.restart_s is not None else 'assumed'}), and waits {measured.queue_s:.1f} s for an allocation "
        f"({'as at its launch' if found.queue_s is not None else 'assumed'}); other durations: whatif/data/times.toml.",
    ]
    if found.left_out:
        out = ", ".join(f"{n} {kind}" for kind, n in found.left_out.items())
        lines.append(
            f"Left out, because they are no failures, come from before all groups trained, or are halts that a person ended: {out}."
        )
    return "\n".join(lines)


def compared(found: past.Past, outcomes: Mapping[str, Outcome]) -> Table:
    """Returns a table of what the same failures cost, as it was and under each policy."""
    table = Table(title="the same failures under each policy", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("as it was", justify="right")
    for name in outcomes:
        table.add_column(name, justify="right", overflow="fold")

    def row(what: str, was: str, of: Callable[[Outcome], str]) -> None:
        table.add_row(what, was, *(of(outcome) for outcome in outcomes.values()))

    whole_s = found.seconds * found.groups
    lost_s = sum(found.lost.values())
    row("group-seconds lost to them", f"{lost_s:.1f}", lambda o: f"{sum(o.badput.values()):.1f}")
    row("ETTR", f"{1 - lost_s / whole_s:.2%}", lambda o: f"{o.ettr:.2%}")
    row("groups placed on another node", "", lambda o: str(o.spares))
    row("allocations requested", "", lambda o: str(o.asked))
    row("halts", "", lambda o: str(o.halts))
    table.add_section()
    for cause in _largest(o.badput for o in outcomes.values()):
        row(f"lost to: {cause}", "", lambda o, cause=cause: f"{o.badput[cause]:.1f}")  # type: ignore[misc]
    return table


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean, and half of its 95% interval; None for the latter with a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, student_t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student_t_95(freedom: int) -> float:
    """Returns Student's t for a two-sided 95% interval. From 10 degrees of freedom on it uses the expansion in their
    inverse (Abramowitz and Stegun, 26.7.5), to 0.0002."""
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z, n = Z_95, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def report(name: str, outcomes: Sequence[Outcome]) -> Table:
    """Returns the table of one policy, over its seeds."""
    table = Table(title=f"policy {name}", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="right")

    def row(what: str, values: Sequence[float], form: str) -> None:
        mean, half = interval(values)
        table.add_row(what, format(mean, form), "one seed" if half is None else f"± {format(half, form)}")

    row("ETTR", [o.ettr for o in outcomes], ".4%")
    row("ETTR if each failure stopped all groups", [whole(o, times()) for o in outcomes], ".2%")
    row("failures", [o.failures for o in outcomes], ".1f")
    row("groups placed on another node", [o.spares for o in outcomes], ".1f")
    row("allocations requested", [o.asked for o in outcomes], ".1f")
    row("halts", [o.halts for o in outcomes], ".1f")
    table.add_section()
    for cause in _largest(o.badput for o in outcomes):
        row(f"badput: {cause}", [_share(o, o.badput[cause]) for o in outcomes], ".4%")
    table.add_section()
    for look in _largest(o.by_look for o in outcomes):
        row(f"badput after a failure of: {look}", [_share(o, o.by_look[look]) for o in outcomes], ".4%")
    return table


def difference(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Table:
    """Returns a table of what another policy changes on the same seeds. It compares seed by seed, so that what the
    seeds share is not in the interval. Rows that no seed shows are left out, except ETTR."""
    table = Table()
    table.add_column("", no_wrap=True)
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="right")

    def row(what: str, of: Callable[[Outcome], float], unit: str = "") -> None:
        each = [of(b) - of(a) for a, b in zip(ours, theirs, strict=True)]
        mean, half = interval(each)
        if any(each) or what == "ETTR":
            table.add_row(what, f"{mean:+.3g}{unit}", "one seed" if half is None else f"± {half:.3g}{unit}")

    row("ETTR", lambda o: 100 * o.ettr, " %")
    row("groups placed on another node", lambda o: o.spares)
    row("allocations requested", lambda o: o.asked)
    row("halts", lambda o: o.halts)
    for cause in _largest(o.badput for o in (*ours, *theirs)):
        row(f"badput: {cause}", lambda o, cause=cause: 100 * _share(o, o.badput.get(cause, 0.0)), " %")  # type: ignore[misc]
    return table


def _largest(found: Iterable[Mapping[str, float]]) -> list[str]:
    """Returns the names of values above 0, the largest first."""
    total: dict[str, float] = {}
    for each in found:
        for name, value in each.items():
            total[name] = total.get(name, 0.0) + value
    return sorted((name for name, value in total.items() if value > 0), key=lambda name: -total[name])


def _share(outcome: Outcome, group_seconds: float) -> float:
    return group_seconds / (outcome.seconds * outcome.groups)


def introduction(chosen: Rates, gpus: int, days: float, seeds: int, size: int = 1) -> str:
    """Returns sentences on a simulation: its run, its rates, and the sources of its numbers."""
    nodes, hours = gpus // GPUS_A_NODE, chosen.mttf_s(gpus) / 3600
    of = "a node" if size == 1 else f"{size} nodes"
    return (
        f"{gpus} GPUs as {nodes // size} groups of {of}, {spares_of(nodes)} spares, {days:g} days, {seeds} seeds; a failure "
        f"every {hours:.2f} h.\nRates: {chosen.title} ({chosen.source}).\nOther durations: fault_injection/whatif/data/times.toml."
    )
