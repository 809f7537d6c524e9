"""Checks the parts of [policy] that name kinds of failure, shares, or the webhook file."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection

from supervisor.core import ladder, words
from supervisor.core.model import PLANNED, Kind
from supervisor.core.spec import FirstRungSpec, PolicySpec

CLIMBING = tuple(field.name for field in dataclasses.fields(FirstRungSpec))
"""Kinds whose first rung, budget and pause the policy sets."""


def problems(policy: PolicySpec) -> list[str]:
    """Returns the problems as sentences."""
    observable = [kind.value for kind in Kind if kind not in PLANNED]
    found = [
        f"policy.observe: {name!r} is not a kind of failure that can be only observed; {_nearest(name, observable)}"
        for name in policy.observe
        if name not in observable
    ]
    if policy.webhook_file and not policy.webhook_file.startswith("/"):
        found.append(
            f"policy.webhook_file = {policy.webhook_file!r}: give the absolute path of a file with the URL; each supervisor reads it"
        )
    share = policy.breaker.share
    if share == 0 or 1 < share < math.inf:  # other bad values are reported with the ranges
        found.append(
            f"policy.breaker.share = {share:g}: a share of the run's nodes, above 0 and at most 1, as 0.2 for a fifth"
        )
    for kind, budget in policy.kind_budget.items():
        found += _kind(f"policy.kind_budget.{kind}", kind)
        if budget < 1:
            where = f"; policy.first_rung.{kind} sets where it begins" if kind in CLIMBING else ""
            found.append(f"policy.kind_budget.{kind} = {budget}: must be at least 1{where}")
    for kind, pause in policy.kind_backoff_s.items():
        found += _kind(f"policy.kind_backoff_s.{kind}", kind)
        if not math.isfinite(pause) or pause < 0:
            found.append(f"policy.kind_backoff_s.{kind} = {pause:g}: must be a finite number, at least 0")
        elif pause > policy.backoff_max_s:
            found.append(
                f"policy.kind_backoff_s.{kind} = {pause:g} is above policy.backoff_max_s = {policy.backoff_max_s:g}"
            )
    return found


def fixed(where: str, name: str) -> str:
    """Returns why [policy.first_rung] has no such key; empty unless the key is a kind with a fixed first rung."""
    if where != "policy.first_rung." or name not in ladder.FIXED:
        return ""
    kind = Kind(name)
    return f"{name} is always {ladder.FIXED[kind].name.lower()}: {words.WHY_FIRST[kind]}"


def _kind(key: str, kind: str) -> list[str]:
    if kind in CLIMBING:
        return []
    if kind in ladder.FIXED:
        return [f"{key}: {fixed('policy.first_rung.', kind)}"]
    return [f"{key}: there is no such kind of failure; {_nearest(kind, CLIMBING)}"]


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"nearest: {near[0]!r}" if near else f"kinds are {', '.join(sorted(known))}"
