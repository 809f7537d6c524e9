"""PromQL that asks only for metrics of the catalogue. tests/system/prometheus has Prometheus itself check the expressions."""

from __future__ import annotations

import re

from supervisor.shell.metrics.catalogue import CATALOGUE, Metric

_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": (), "gauge": ()}

KNOWN: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE if metric.kind != "histogram"} | {
    metric.name + part: metric for metric in CATALOGUE for part in _PARTS[metric.kind]
}
"""Names as Prometheus stores them: a histogram exists only as its parts."""

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that every series gets when it is scraped."""

_WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "by",
        "on",
        "without",
        "ignoring",
        "group_left",
        "group_right",
        "offset",
        "bool",
        "inf",
        "nan",
    ]
)
_ELSE = re.compile(r'\$\{?\w+\}?\w*|"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b[a-z_]+\s*(?=\()')
"""Parts of an expression that are no metric: variables, values, labels, windows, functions."""
_NAME = re.compile(r"\b[A-Za-z_:][\w:]*")

_METRIC = re.compile(r"\b(?:supervisor|agent|trainer)_[a-z_]+\b(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_IN_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")


def checked(expression: str, legend: str = "") -> str:
    """Returns the expression. Raises KeyError for a metric that the catalogue lacks, and ValueError for a label or
    value that its metric lacks. Prometheus would answer such a query with nothing, and no error."""
    for name in _NAME.findall(_ELSE.sub(" ", _GROUPED.sub(" ", expression))):
        if name not in KNOWN and name not in _WORDS:
            raise KeyError(f"the catalogue has no metric {name!r}: see supervisor/shell/metrics/catalogue.py")
    labels: set[str] = set()
    for found in _METRIC.finditer(expression):
        name = found[0].partition("{")[0]
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


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

BRIDGED = "5m"
"""How long a failed scrape, or a time without a leader, may last before earlier counts look new."""


def _seconds(window: str) -> str:
    """Returns the seconds of a duration, or of a variable of Grafana's, as text."""
    if window.startswith("$"):
        return f"{window}_s"
    found = re.fullmatch(r"(\d+)([a-z]+)", window)
    assert found is not None, window
    return f"{int(found[1]) * _UNITS[found[2]]:g}"


def _all_of_it(window: str) -> str:
    """Returns a query for the runs whose counters were 0 at the beginning of the window if they did not exist then.
    Those runs were launched since, or other metrics show them at that time. Of another run Prometheus has nothing older
    than its first scrape."""
    launched = "supervisor_run_launched_timestamp_seconds"
    return (
        f"(max by (run) ({launched}) > time() - {_seconds(window)} "
        f"or max by (run) (last_over_time({launched}[{BRIDGED}] offset {window})))"
    )


def since(counter: str, by: str, window: str) -> str:
    """Returns a query for the growth of a counter since the launch within the window. Its series begin at 1, which
    `increase` does not see, and another process, a new leader, continues them."""
    of_each = f"by ({', '.join(KNOWN[counter.partition('{')[0]].labels)})"
    now = f"max {of_each} ({counter})"
    before = f"max {of_each} (last_over_time({counter}[{BRIDGED}] offset {window}))"
    first = f"min {of_each} (min_over_time({counter}[{window}]))"
    return f"sum by ({by}) ({now} - ({before}\nor {now} * 0 and on (run) {_all_of_it(window)}\nor {first}))"


def grown(counter: str, by: str, window: str) -> str:
    """Returns a query for the growth within the window of a counter that begins at 0 in each process. `increase` misses
    what it counted before its first scrape; that is added where the process begins within the window."""
    seen = f"sum by ({by}) (increase({counter}[{window}]))"
    new = f"min_over_time({counter}[{window}]) unless last_over_time({counter}[{BRIDGED}] offset {window})"
    before = f"sum by ({by}) ({new} and on (run) {_all_of_it(window)})"
    return f"{seen}\n+ ({before} or {seen} * 0)"
