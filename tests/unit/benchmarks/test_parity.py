"""The comparison of a broken run with one that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.parity import FIRST_STEPS, PLAN, Trained, apart, compared, loss_apart
from supervisor.shell.history.samples import Audit, Unnoted

STEPS = FIRST_STEPS


def run(loss: float, weight: float, **samples: int) -> Trained:
    return Trained(
        losses=dict.fromkeys(range(1, STEPS + 1), loss),
        parameters={"w": torch.tensor([weight, 1.0]), "optimizer.optim.w": torch.tensor([weight])},
        samples=Audit(once=12, **samples),
        seconds=1.0,
        faults=("step 8: sigkill 0",),
    )


def test_distances_are_relative() -> None:
    assert loss_apart({1: 2.0, 2: 3.0}, {1: 2.0, 2: 2.0}, 1, 2) == 0.5
    assert loss_apart({1: 2.0, 2: 3.0}, {1: 2.0, 2: 2.0}, 1, 1) == 0.0
    assert apart({"w": torch.tensor([3.0, 5.0])}, {"w": torch.tensor([3.0, 4.0])}) == pytest.approx((1 / 34) ** 0.5)


def test_what_is_not_as_promised_is_named() -> None:
    plain, other = run(2.0, 1.0), run(2.0, 1.1)
    assert compared(plain, other, run(2.0001, 1.05), STEPS)["missed"] == []
    assert compared(plain, other, run(2.001, 1.0), STEPS)["missed"] == ["loss within 0.0001 in the first steps"]
    assert compared(plain, other, run(2.0, 1.2), STEPS)["missed"] == ["parameters within the spread"]
    again = run(2.0, 1.0)
    for samples in (Audit(wrong=["step 2 has samples 1 to 2 again"]), Audit(unnoted=[Unnoted(1.0, 1, "no record")])):
        assert compared(plain, other, replace(again, samples=samples), STEPS)["missed"] == ["each sample once"]


def test_the_plan_has_the_promised_kinds() -> None:
    kinds = [name for name, _ in PLAN]
    assert len(kinds) >= 12
    assert {"sigkill", "node_killed", "allocation_gone", "group_aborted", "stop_resume", "scale"} <= set(kinds)
