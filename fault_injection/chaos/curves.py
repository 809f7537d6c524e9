"""Draws two runs' curves by step, one over the other, for the pages of a certificate and of `make parity`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape

COLUMNS = 600
"""Width of a picture."""

POINTS = 800
"""Most points of a curve."""

NO_CURVE: Mapping[str, Any] = {
    "columns": COLUMNS, "points": "", "twin": "", "low": 0.0, "high": 0.0, "first": 0, "last": 0, "faults": [],
}  # fmt: skip


def template(name: str, folder: Path = Path(__file__).parent) -> Template:
    """Returns a page's template, which may use those of this folder."""
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def drawn(
    run: Mapping[int, float],
    twin: Mapping[int, float],
    faults: Iterable[tuple[int, str]],
    scale: Callable[[float], float] = float,
) -> dict[str, Any]:
    """Draws a number by step, and another run's, as SVG polylines in a box of 600 by 160, with the faults (step, name).
    NO_CURVE for fewer than two steps. `scale`: growing function of the number, by which heights are drawn."""
    if len(run) < 2:
        return dict(NO_CURVE)
    values = (*run.values(), *twin.values())
    low, high, first, last = min(values), max(values), min(run), max(run)
    height = (scale(high) - scale(low)) or 1.0

    def x(step: int) -> float:
        return round(COLUMNS * (step - first) / (last - first), 1)

    def points(curve: Mapping[int, float]) -> str:
        shown = sorted(curve)[:: max(1, len(curve) // POINTS)]
        return " ".join(f"{x(s)},{round(150 - 140 * (scale(curve[s]) - scale(low)) / height, 1)}" for s in shown)

    return {
        "columns": COLUMNS,
        "points": points(run),
        "twin": points(twin),
        "low": low,
        "high": high,
        "first": first,
        "last": last,
        "faults": [{"x": x(min(max(step, first), last)), "name": name} for step, name in faults],
    }


def apart(run: Mapping[int, float], twin: Mapping[int, float], faults: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Draws by step the difference of a run from its twin, as a share of the twin's number, on a logarithmic scale. Numbers
    that are equal are drawn at the least difference of any others."""
    found = {step: abs(run[step] - twin[step]) / abs(twin[step]) for step in run.keys() & twin.keys()}
    least = min((each for each in found.values() if each), default=1.0)
    return drawn({step: max(each, least) for step, each in found.items()}, {}, faults, math.log)
