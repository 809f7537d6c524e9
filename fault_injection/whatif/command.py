"""The command `supervisor simulate`: what failures at published rates cost a run of months, by policy."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fault_injection.whatif import past
from fault_injection.whatif.months import ByChance, Months, Outcome, whole
from fault_injection.whatif.past import DAY_S, LONGEST_S
from fault_injection.whatif.rates import Rates, Times, known, rates, times
from supervisor.cli.common import sentences
from supervisor.core.model.spec import MAX_NODES_PER_GROUP, RunSpec
from supervisor.shell.history.schema import GROUPS
from supervisor.shell.runfile import parse
from supervisor.wire.printer import Printer

GPUS_A_NODE = 8
NODES_A_SPARE = 64
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a two-sided 95% interval, by degrees of freedom from 1; beyond them `student_t_95` computes it."""
Z_95 = 1.959964
AS_SHIPPED = "as shipped"
BY_CHANCE = {
    "gpus": "--gpus",
    "days": "--days",
    "rate": "--rates",
    "seeds": "--seeds",
    "out": "--out",
    "nodes_per_group": "--nodes-per-group",
}
"""Options that have no meaning beside a journal."""


def register(app: typer.Typer) -> None:
    """Adds `simulate` to the command line."""
    app.command(epilog="Example: supervisor simulate --rates llama3 --days 54 --policy mine.toml --policy other.toml")(
        simulate
    )


def simulate(
    context: typer.Context,
    gpus: Annotated[
        int,
        typer.Option(min=2 * GPUS_A_NODE, max=GPUS_A_NODE * GROUPS, help="GPUs of the run, eight a node."),
    ] = 16_384,
    days: Annotated[float, typer.Option(min=0.1, max=LONGEST_S / DAY_S, help="Days that the run trains.")] = 54.0,
    rate: Annotated[str, typer.Option("--rates", help=f"Failure rates: {', '.join(known())}.")] = "llama3",
    seeds: Annotated[int, typer.Option(min=1, help="Number of simulated runs. Two or more give an interval.")] = 3,
    policy: Annotated[
        list[Path] | None, typer.Option(help="A TOML file with [policy], as in a run file. Repeat it to compare.")
    ] = None,
    nodes_per_group: Annotated[int, typer.Option(min=1, max=MAX_NODES_PER_GROUP, help="Nodes of a replica group.")] = 1,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Failures of a real run instead of rates: its journal.jsonl, or the history.jsonl of a chaos run."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write each seed's figures, and the time it took, to this JSON file.")
    ] = None,
) -> None:
    """Simulate what months of failures cost under a policy. Thousands of GPUs fail at published rates; it takes minutes and
    prints ETTR, badput by cause and spares used.

    With --journal, it prints what the failures of a real run would have cost under each policy."""
    with sentences():
        if twice := [str(path) for path, count in Counter(policy or []).items() if count > 1]:
            raise typer.BadParameter(f"{twice[0]} is given twice: there is nothing to compare", param_hint="--policy")
        if journal is not None:
            for name, option in BY_CHANCE.items():
                source = context.get_parameter_source(name)
                if source is not None and source.name == "COMMANDLINE":
                    raise typer.BadParameter(
                        "it applies to random failures, but --journal gives recorded ones: leave out one",
                        param_hint=option,
                    )
            _what_if(journal, policy or [])
            return
        if math.isnan(days):
            raise typer.BadParameter("nan is not a number of days", param_hint="--days")
        if out is not None:
            _try(out)
        try:
            chosen = rates(rate)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--rates") from None
        nodes = gpus // GPUS_A_NODE
        if nodes < nodes_per_group:
            raise typer.BadParameter(
                f"{gpus} GPUs are {nodes} nodes, too few for one group: give fewer nodes a group, or more GPUs",
                param_hint="--nodes-per-group",
            )
        specs = _specs(nodes // nodes_per_group, spares_of(nodes), policy or [], nodes_per_group)
        console = Printer()
        console.print(_introduction(chosen, gpus, days, seeds, nodes_per_group))
        played: dict[str, list[Outcome]] = {}
        told: dict[str, list[dict[str, Any]]] = {}
        for name, run in specs.items():
            played[name], told[name] = [], []
            for seed in range(seeds):
                cpu, wall = time.process_time(), time.monotonic()
                played[name].append(Months(run, ByChance(chosen, gpus), times(), seed).run(days * DAY_S))
                took = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall}
                told[name].append({"seed": seed, **_figures(played[name][-1]), **took})
                if out is not None:
                    _write(out, {"rates": rate, "gpus": gpus, "days": days, "policies": told})
            console.print(report(name, played[name]))
        first, *others = played
        for other in others:
            console.print(f"policy {other} less policy {first}:", soft_wrap=True)
            console.print(difference(played[first], played[other]))


def _figures(outcome: Outcome) -> dict[str, Any]:
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


def _try(path: Path) -> None:
    """Rejects a file that cannot be written before anything is played."""
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{path} is not a file: give the path of one", param_hint="--out")
    _write_aside(path, "").unlink()


def _write(path: Path, body: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all: a full disk leaves what was there."""
    _write_aside(path, json.dumps(body, indent=1) + "\n").replace(path)


def _write_aside(path: Path, text: str) -> Path:
    aside = path.with_name(path.name + ".new")
    try:
        aside.write_text(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--out") from None
    return aside


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


def _specs(groups: int, spares: int, policies: Sequence[Path], nodes_per_group: int = 1) -> dict[str, RunSpec]:
    found = {str(path): spec(groups, spares, path, nodes_per_group) for path in policies}
    return found or {AS_SHIPPED: spec(groups, spares, None, nodes_per_group)}


def _what_if(path: Path, policies: Sequence[Path]) -> None:
    try:
        found = past.read(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}", param_hint="--journal") from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--journal") from None
    console, measured = Printer(), past.as_measured(found, times())
    shape = found.nodes_per_group
    shipped = {AS_SHIPPED: spec(found.groups, found.spares, None, shape)}
    specs = shipped | (_specs(found.groups, found.spares, policies, shape) if policies else {})
    outcomes = {name: Months(run, found.failures, measured, 0).run(found.seconds) for name, run in specs.items()}
    console.print(_told_of(path, found, measured))
    console.print(compared(found, outcomes))
    for name, outcome in outcomes.items():
        for why in outcome.halted:
            console.print(f"policy {name} halts: {why}")


def _of_nodes(size: int) -> str:
    return f" of {size} nodes" if size > 1 else ""


def _told_of(path: Path, found: past.Past, measured: Times) -> str:
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


def _introduction(chosen: Rates, gpus: int, days: float, seeds: int, size: int = 1) -> str:
    nodes, hours = gpus // GPUS_A_NODE, chosen.mttf_s(gpus) / 3600
    of = "a node" if size == 1 else f"{size} nodes"
    return (
        f"{gpus} GPUs as {nodes // size} groups of {of}, {spares_of(nodes)} spares, {days:g} days, {seeds} seeds; a failure "
        f"every {hours:.2f} h.\nRates: {chosen.title} ({chosen.source}).\nOther durations: fault_injection/whatif/data/times.toml."
    )
