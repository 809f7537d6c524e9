"""The command `supervisor simulate`: what failures at published rates cost a run of months, by policy."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fault_injection.whatif.rates import DAY_S, GPUS_A_NODE, LONGEST_S, known, rates, times
from supervisor.cli.common import sentences
from supervisor.core.model.spec import MAX_GROUPS, MAX_NODES_PER_GROUP
from supervisor.wire.printer import Printer

if TYPE_CHECKING:
    from fault_injection.whatif.months import Outcome

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
        typer.Option(min=2 * GPUS_A_NODE, max=GPUS_A_NODE * MAX_GROUPS, help="GPUs of the run, eight a node."),
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
    from fault_injection.whatif import compare
    from fault_injection.whatif.months import ByChance, Months

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
        specs = compare.specs(nodes // nodes_per_group, compare.spares_of(nodes), policy or [], nodes_per_group)
        console = Printer()
        console.print(compare.introduction(chosen, gpus, days, seeds, nodes_per_group))
        played: dict[str, list[Outcome]] = {}
        told: dict[str, list[dict[str, Any]]] = {}
        for name, run in specs.items():
            played[name], told[name] = [], []
            for seed in range(seeds):
                cpu, wall = time.process_time(), time.monotonic()
                played[name].append(Months(run, ByChance(chosen, gpus), times(), seed).run(days * DAY_S))
                took = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall}
                told[name].append({"seed": seed, **compare.figures(played[name][-1]), **took})
                if out is not None:
                    _write(out, {"rates": rate, "gpus": gpus, "days": days, "policies": told})
            console.print(compare.report(name, played[name]))
        first, *others = played
        for other in others:
            console.print(f"policy {other} less policy {first}:", soft_wrap=True)
            console.print(compare.difference(played[first], played[other]))


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


def _what_if(path: Path, policies: Sequence[Path]) -> None:
    from fault_injection.whatif import compare, past
    from fault_injection.whatif.months import Months

    try:
        found = past.read(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}", param_hint="--journal") from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--journal") from None
    console, measured = Printer(), past.as_measured(found, times())
    shape = found.nodes_per_group
    shipped = {compare.AS_SHIPPED: compare.spec(found.groups, found.spares, None, shape)}
    specs = shipped | (compare.specs(found.groups, found.spares, policies, shape) if policies else {})
    outcomes = {name: Months(run, found.failures, measured, 0).run(found.seconds) for name, run in specs.items()}
    console.print(compare.origin(path, found, measured))
    console.print(compare.compared(found, outcomes))
    for name, outcome in outcomes.items():
        for why in outcome.halted:
            console.print(f"policy {name} halts: {why}")
