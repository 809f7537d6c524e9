"""Checks a seed's files more strictly than a real run's: a node's host, and how budgets are counted, are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from fault_injection.sim.engine import host_of
from supervisor.core.model.kinds import Rung
from supervisor.core.model.reason import Code, Reason, of_json
from supervisor.core.report.words import say
from supervisor.shell.history.files import Decided, History, Unknown

MARGIN_S = 1.0
"""Seconds by which a decision may be written after the time from which it counts. The run's clock stands still while no
supervisor leads."""


def its_host_is_cordoned(history: History) -> list[str]:
    """Checks that a host is cordoned only for an incident of its own node."""
    actions = (action for decision in history.committed() for action in decision.actions)
    return [
        f"{action['key']} is about node {action['node']}, whose host is {host_of(action['node'])}"
        for action in actions
        if action["verb"] == "cordon" and action["key"].split(":")[1] != host_of(action["node"])
    ]


def spent_when_said(history: History) -> list[str]:
    """Checks that a budget reported as spent was drawn on within the window. Where nothing cheaper is reported left, no
    node could be requested."""
    if history.setting is None:
        raise Unknown("the history does not say what the budgets are")
    setting, found, drawn = history.setting, [], list(_draws(history))
    unled = [(two.t, two.t - one.t) for one, two in pairwise(history.committed()) if one.epoch != two.epoch]
    for t, choice in _choices(history.committed()):
        reason = of_json(choice.get("reason", ""))
        for name in sorted(_spent(reason)):
            scope = (name, choice["group"] if name == "restart" else None)
            since = t - setting.window_s - MARGIN_S - sum(lasted_s for at, lasted_s in unled if at <= t)
            times = sum(scope == other and since <= at <= t for at, other in drawn)
            if times < setting.budgets[name]:
                found.append(
                    f"{choice['id']}: {say(reason)}: but {name} was drawn on {times} times in {setting.window_s:g} s, of {setting.budgets[name]}"
                )
    return found


def _spent(reason: Reason | None) -> set[str]:
    """Returns the budgets that a choice reports as spent: where nothing is left, that of allocations too."""
    if reason is None:
        return set()
    own = {str(reason.about["rung"])} if reason.code == Code.BUDGET_SPENT else set()
    own |= {"reallocate"} if reason.code == Code.NOTHING_LEFT else set()
    within = (each for value in reason.about.values() for each in (value if isinstance(value, tuple) else (value,)))
    return own.union(*(_spent(each) for each in within if isinstance(each, Reason)))


def _choices(decisions: Iterable[Decided]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yields each choice of a rung once, with when it was first written down."""
    seen: set[tuple[str, float]] = set()
    for decision in decisions:
        for incident in decision.incidents:
            key = (incident["id"], incident.get("decided") or -1.0)
            if incident.get("decided") is not None and key not in seen:
                seen.add(key)
                yield decision.t, incident


def _draws(history: History) -> Iterator[tuple[float, tuple[str, int | None]]]:
    """Yields when a budget may have been drawn on, and which: rather too many than too few."""
    for t, choice in _choices(history.decisions):
        name = Rung(choice["rung"]).name.lower()
        yield t, (name, choice["group"] if name == "restart" else None)
    for decision in history.decisions:
        for action in decision.actions:
            if action["verb"] == "acquire" and action.get("rung"):
                yield decision.t, (Rung(action["rung"]).name.lower(), None)
