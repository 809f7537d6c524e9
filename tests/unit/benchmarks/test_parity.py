"""The comparison of a broken run with one that is not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.parity import FIRST_STEPS, PLAN, Made, Trained, apart, compared, loss_apart, page
from supervisor.shell.history.samples import Audit, Unnoted
from tests.unit.fault_injection.chaos.test_certificate import Page

STEPS = FIRST_STEPS

ABOUT = {"commit": "c0ffee", "spec": {"recipe": "llama3-debug-small"}}


def run(loss: float, weight: float, **samples: int) -> Trained:
    return Trained(
        losses=dict.fromkeys(range(1, STEPS + 1), loss),
        parameters={"w": torch.tensor([weight, 1.0]), "optimizer.optim.w": torch.tensor([weight])},
        samples=Audit(once=12, **samples),
        seconds=1.0,
        faults=(Made(8, "sigkill", 0), Made(20, "scale", 2)),
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


def result(missed: bool = False) -> dict[str, Any]:
    """The result of two falling curves that drift apart as those of real runs do, as it is read from its file."""
    plain = {step: 8 * math.exp(-step / 60) + 2 for step in range(1, STEPS + 1)}
    broken = {step: loss * (1 + (1e-3 if missed else 1e-7) * (step > 20) * step) for step, loss in plain.items()}
    base = run(2.0, 1.0)
    other = replace(base, parameters=run(2.0, 1.1).parameters)
    found = compared(replace(base, losses=plain), replace(other, losses=plain), replace(base, losses=broken), STEPS)
    read: dict[str, Any] = json.loads(json.dumps({**found, **ABOUT}))
    return read


def test_the_page_has_both_curves_and_their_difference() -> None:
    parsed = Page()
    parsed.feed(page(result()))
    broken, plain, difference = (
        [tuple(map(float, point.split(","))) for point in str(line["points"]).split()]
        for line in parsed.tags["polyline"]
    )
    assert len(broken) == len(plain) == len(difference) == STEPS
    assert [x for x, _ in broken] == [x for x, _ in plain] == [x for x, _ in difference]
    assert max(abs(a - b) for (_, a), (_, b) in zip(broken, plain, strict=True)) <= 0.1, "one over the other"
    assert (broken[0][1], broken[-1][1]) == (10.0, 150.0), "a higher loss is drawn higher"
    assert {y for _, y in difference[:20]} == {150.0}, "equal losses"
    rising = [y for _, y in difference[20:]]
    assert rising == sorted(rising, reverse=True)
    assert (rising[0], rising[-1]) == (150.0, 10.0)
    assert [line["x1"] for line in parsed.tags["line"]] == ["92.4", "165.2"] * 2, "each fault in both pictures"
    text = " ".join(" ".join(parsed.text).split())
    assert "Parity: 100 steps with 2 faults, beside the same without" in text
    assert "As promised: the same loss, parameters and samples" in text
    assert "12 samples used once 0 more often 0 never" in text
    assert "1 8 sigkill 0 2 20 groups: 2" in text
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)


def test_the_page_says_what_is_not_as_promised() -> None:
    assert "Not as promised: loss within 0.0001 in the first steps." in page(result(missed=True))
