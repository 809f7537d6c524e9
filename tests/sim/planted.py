"""Bugs to plant in the real program: one for each family of checks. None of them is caught by anything but what they break."""

from __future__ import annotations

from typing import Any

import pytest

from agents import reconcile
from agents.gate_state import GateState, Verdict
from supervisor.core import budget, detect, ending, invariants
from supervisor.core.model import Failure, Kind, Rung
from supervisor.core.round import Round
from supervisor.core.spec import BudgetSpec
from supervisor.ports.store import Expect
from supervisor.shell.store.election import Leadership


def budget_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = budget.allowed

    def one_more(spec: BudgetSpec, rung: Rung) -> int:
        return right(spec, rung) + 1

    patch.setattr(budget, "allowed", one_more)


def no_epoch_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "expect", lambda self: Expect(self.key))


def no_proof_of_emptiness(patch: pytest.MonkeyPatch) -> None:
    for module in (detect, invariants):  # the loop's own check must not be what finds it
        patch.setattr(module, "gone", lambda group, below, node, observed: True)


def stale_generation_accepted(patch: pytest.MonkeyPatch) -> None:
    def passage(self: GateState, group: int, generation: int, node: str) -> Verdict:
        entry = self.generations.get((group, generation))
        ready = entry is not None and entry.spoken and not entry.gone
        return "admit" if ready and self.opened and not self.retired and not self.closed else "hold"

    patch.setattr(GateState, "is_stale", lambda self, group, generation: False)
    patch.setattr(GateState, "passage", passage)


def nothing_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "release", lambda self, key, reason: None)


def agents_end_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_unwanted", lambda desired, known: iter(()))


def crash_called_oom(patch: pytest.MonkeyPatch) -> None:
    right = ending.Failure

    def named(kind: Kind, *args: Any, **more: Any) -> Failure:
        return right(Kind.OOM if kind == Kind.CRASH else kind, *args, **more)

    patch.setattr(ending, "Failure", named)


PLANTED = (
    (budget_off_by_one, "budget: "),
    (no_epoch_compared, "fencing: "),
    (no_proof_of_emptiness, "single_owner: fail: "),  # its node was said to be empty
    (nothing_is_given_back, "leak: "),
    (agents_end_nothing, "orphan: "),
    (crash_called_oom, "one_incident_each: fail: "),
    (stale_generation_accepted, "owners: "),  # the newer generation may step too
)
"""With how the sentences begin that tell of it."""
