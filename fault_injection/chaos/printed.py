"""Prints the catalogue of faults, and the verdicts of checkers, for a person."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from fault_injection.checkers.consistency import Verdict
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site
from supervisor.wire.printer import Printer, print_line


def rows(site: Site) -> list[dict[str, Any]]:
    """Returns what `chaos list --json` prints."""
    return [
        {"fault": f.name, "family": f.family, "how": f.how, "kinds": list(f.kinds), "why_not": f.why_not(site)}
        for f in FAULTS.values()
    ]


def faults(site: Site) -> None:
    """Prints every fault, by family, and why some cannot be made on this machine."""
    console = Printer()
    reasons = Counter(why for f in FAULTS.values() if (why := f.why_not(site)))
    numbers = {why: number for number, why in enumerate(reasons, 1)}
    for family, members in itertools.groupby(sorted(FAULTS.values(), key=lambda f: f.family), lambda f: f.family):
        console.print(family, style="bold")
        table = _table()
        for fault in members:
            why = fault.why_not(site)
            right = f"not here: {numbers[why]}" if why else " or ".join(fault.kinds) or "no incident"
            table.add_row(fault.name, f"{fault.how} ({right})")
        console.print(table)
    if reasons:
        console.print("not here", style="bold")
        table = _table()
        for why, many in reasons.items():
            table.add_row(f"{numbers[why]} ({many} fault{'s' if many > 1 else ''})", why)
        console.print(table)
    possible = len(FAULTS) - reasons.total()
    print_line(f"{possible} of {len(FAULTS)} faults can be made here. In brackets: the expected incident.")


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=max(map(len, FAULTS)), no_wrap=True)
    return table


def verdicts(judged: Sequence[Verdict]) -> Iterator[str]:
    """Yields a line for each verdict, and one for each sentence of those that do not pass."""
    for verdict in judged:
        yield f"{verdict.answer:8} {verdict.checker}"
        yield from (f"         {sentence}" for sentence in verdict.sentences)
