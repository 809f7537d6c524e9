"""PromQL that asks only for what the catalogue has. What Prometheus itself would say of an expression, tests/prometheus asks it."""

from __future__ import annotations

import re

from supervisor.shell.catalogue import CATALOGUE, Metric

_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": (), "gauge": ()}

KNOWN: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE if metric.kind != "histogram"} | {
    metric.name + part: metric for metric in CATALOGUE for part in _PARTS[metric.kind]
}
"""As Prometheus stores them: of a histogram there are only its parts."""

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that every series gets when it is scraped."""

_METRIC = re.compile(r"\b(?:supervisor|agent|trainer)_[a-z_]+\b(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_IN_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")


def checked(expression: str, legend: str = "") -> str:
    """The expression. Raises KeyError for a metric that the catalogue does not have, ValueError for a label or a value of one
    that its metric does not have: Prometheus would answer with nothing, and no error."""
    labels: set[str] = set()
    for found in _METRIC.finditer(expression):
        name = found[0].partition("{")[0]
        if name not in KNOWN:
            raise KeyError(f"the catalogue has no metric {name!r}: see supervisor/shell/catalogue.py")
        has = _labels(name)
        labels |= has
        for label, how, value in _MATCHER.findall(found[1] or ""):
            if label not in has:
                raise ValueError(f"{name} has no label {label!r}: {expression}")
            _check_value(KNOWN[name], label, how, value)
    asked = {label.strip() for inside in _GROUPED.findall(expression) for label in inside.split(",") if label.strip()}
    for label in sorted(asked | set(_IN_LEGEND.findall(legend))):
        if label not in labels:
            raise ValueError(f"no metric of it has the label {label!r}: {expression} {legend}")
    return expression


def _labels(name: str) -> set[str]:
    return {*KNOWN[name].labels, *OF_PROMETHEUS, *(["le"] if name.endswith("_bucket") else [])}


def _check_value(metric: Metric, label: str, how: str, value: str) -> None:
    may_be = metric.values.get(label)
    if may_be is None or "$" in value:
        return
    for one in value.split("|") if "~" in how else [value]:
        if one not in may_be:
            raise ValueError(f"{label} of {metric.name} is one of {', '.join(may_be)}, not {one!r}")


def since(counter: str, by: str, window: str) -> str:
    """How much a counter of what was since the launch grew within the window. Its series begin at 1, of which `increase` sees
    nothing, and another process, a new leader, goes on with them."""
    name = counter.partition("{")[0]
    told = f"max by ({', '.join(KNOWN[name].labels)})"
    now, before = f"{told} ({counter})", f"{told} ({counter} offset {window})"
    return f"sum by ({by}) ({now} - ({before} or {now} * 0))"


def grown(counter: str, by: str, window: str) -> str:
    """How much a counter that begins at 0 in each process grew within the window. What it had counted before it was first scraped,
    `increase` does not see; where the process begins within the window it is added."""
    seen = f"sum by ({by}) (increase({counter}[{window}]))"
    before = f"sum by ({by}) (min_over_time({counter}[{window}]) unless {counter} offset {window})"
    return f"{seen}\n+ ({before} or {seen} * 0)"
