"""Compares simulated with published training times: `python -m benchmarks.simulated_vs_published`.

The model that `supervisor simulate` plays gets the failure rate and the recovery time that a paper states. It must then
yield the effective training time that the paper states, within 3 points. What a paper does not state is not made up:
such a run is named with what is missing. Exits 1 when one is further off.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.whatif import compare
from fault_injection.whatif.months import ByChance, Months, Outcome
from fault_injection.whatif.rates import GPUS_A_NODE, Times, rates, times
from supervisor.core.model.spec import RunSpec

RESULTS = Path(__file__).parent / "results" / "simulated_vs_published.json"
BOUND = 0.03
SEEDS, FAILURES = (5, 40), 300
"""Least and most seeds, played until the interval of their mean is within `SURE`; and the failures expected in each."""
SURE = 0.01
DAY_S = 86_400.0
NEVER_SPENT = 1_000_000
START_TIMEOUT_S = 3600.0
OF_ESTIMATE = "the expression of arXiv 2410.21680 for failures that are rare, with these figures: no paper's number"


def policy_of(groups: int, gpus: int) -> RunSpec:
    """Returns the shipped policy, but with budgets that are never spent, as in the papers, and time for starts of a
    quarter of an hour. Spares are those that `supervisor simulate` gives a run of that size: each is a node, even where
    one group is the whole job."""
    spec = compare.spec(groups, compare.spares_of(gpus // GPUS_A_NODE), None)
    many = replace(spec.policy.budget, restart=NEVER_SPENT, replace=NEVER_SPENT, reallocate=NEVER_SPENT)
    return replace(spec, policy=replace(spec.policy, budget=many, start_timeout_s=START_TIMEOUT_S))


def times_of(body: dict[str, Any], recovery_min: float) -> Times:
    """Returns the paper's recovery from the decision on; detection and decision take as long as in the model."""
    found = replace(times(), start_s=60 * recovery_min, heal_s=0.0, whole_interval_s=60 * body.get("interval_min", 0.0))
    if "stall_min" not in body:
        return found
    return replace(found, dropped_s=60 * body["stall_min"], silent_s=60 * body["stall_min"])


def mttf_min(body: dict[str, Any]) -> float:
    """Returns the published minutes between failures."""
    if "mttf_min" in body:
        return float(body["mttf_min"])
    return DAY_S / 60 / (float(body["nodes"]) * float(body["failures_per_node_day"]))


def simulated(
    body: dict[str, Any], recovery_min: float, seeds: tuple[int, int] = SEEDS, failures: int = FAILURES
) -> dict[str, Any]:
    """Returns the model's result for a published run.

    Its failures come only while a job trains. For a job that stops, a rate by the clock therefore counts from the
    restart, with a shorter time between failures. The causes are Llama 3's, unless the paper's own are known.
    """
    groups = int(body.get("replicas", 1))
    clock = body["counted"] == "clock" and groups == 1
    between_min = mttf_min(body) - (recovery_min if clock else 0.0)
    causes = "rsc" if "failures_per_node_day" in body else "llama3"
    chance = ByChance(replace(rates(causes), mttf=((body["gpus"], between_min / 60),)), body["gpus"])
    spec, lasts = policy_of(groups, body["gpus"]), times_of(body, recovery_min)
    seconds = 60 * mttf_min(body) * failures
    played: list[Outcome] = []
    mean, half = 0.0, 1.0
    while len(played) < seeds[0] or (half > SURE and len(played) < seeds[1]):
        played.append(Months(spec, chance, lasts, len(played)).run(seconds))
        if len(played) > 1:
            mean, half = interval_of(played)
    came = statistics.fmean(outcome.failures for outcome in played)
    return {
        "simulated": round(mean, 4),
        "interval_95": round(half, 4),
        "seeds": len(played),
        "minutes_between_failures": round(seconds / 60 / came, 1) if came else None,
        "halts": sum(outcome.halts for outcome in played),
    }


def interval_of(played: list[Outcome]) -> tuple[float, float]:
    """Returns the mean of at least two seeds, and half of its 95% interval."""
    mean, half = compare.interval([outcome.ettr for outcome in played])
    assert half is not None
    return mean, half


def estimate(between_min: float, recovery_min: float, interval_min: float) -> float:
    """1 - (recovery + half an interval) / MTTF (Kokolis and others, arXiv 2410.21680); checkpoints stop no group."""
    return 1 - (recovery_min + interval_min / 2) / between_min


def of_run(body: dict[str, Any], seeds: tuple[int, int] = SEEDS, failures: int = FAILURES) -> dict[str, Any]:
    """Returns one published run with its result here."""
    told: dict[str, Any] = {key: body[key] for key in ("name", "source", "cited", "note", "why_not") if key in body}
    told["reported"] = body.get("reported", f"> {body['reported_above']:g}" if "reported_above" in body else None)
    told["reported_is"] = "what the paper's own expression gave its authors" if body.get("expected") else "of a run"
    if "why_not" in body:
        return told | {"compared": False} | not_held(body, seeds, failures)
    cases = [case(body, recovery, seeds, failures) for recovery in body["recovery_min"]]
    return told | {"compared": True, "within_3_points": all(c["within"] for c in cases), "cases": cases}


def case(body: dict[str, Any], recovery_min: float, seeds: tuple[int, int], failures: int) -> dict[str, Any]:
    """Returns the result with one recovery time. A run for which only a least is reported is `within` above it."""
    told: dict[str, Any] = {"recovery_min": recovery_min, **simulated(body, recovery_min, seeds, failures)}
    if "interval_min" in body:
        of = estimate(mttf_min(body), recovery_min, body["interval_min"])
        told |= {"estimate": round(of, 4), "estimate_is": OF_ESTIMATE}
    if "reported_above" in body:
        return told | {"within": told["simulated"] > body["reported_above"]}
    off = told["simulated"] - body["reported"]
    return told | {"off_by": round(off, 4), "within": abs(off) <= BOUND}


def not_held(body: dict[str, Any], seeds: tuple[int, int], failures: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if "mttf_min" in body and "reported_above" in body:
        allowed = (1 - body["reported_above"]) * body["mttf_min"]
        told["what_it_implies"] = f"at most {allowed:.1f} minutes for each failure, all in all"
    if "with" in body:
        told["with_figures_of_others"] = [
            each | simulated(body | each, each["recovery_min"], seeds, failures) for each in body["with"]
        ]
    return told


def main() -> int:
    began, cpu = commit(), time.process_time()
    text = (resources.files("fault_injection.whatif") / "data/papers/published.toml").read_text()
    runs = [of_run(run) for run in tomllib.loads(text)["run"]]
    compared = [told for told in runs if told["compared"]]
    missed = [told["name"] for told in compared if not told["within_3_points"]]
    result = {
        "what": "effective training time as published, and as `supervisor simulate`'s model has it with the same failures and recoveries",
        "command": "python -m benchmarks.simulated_vs_published",
        "commit": began,
        "bound": BOUND,
        "interval_within": SURE,
        "failures_a_seed": FAILURES,
        "missed": missed,
        "runs": runs,
        "cpu_s": round(time.process_time() - cpu, 1),
        "machine": machine(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for told in runs:
        print(f"{told['name']:55} reported {told['reported']}{'' if told['compared'] else ', ' + told['why_not']}")
        for each in told.get("cases") or told.get("with_figures_of_others", []):
            off = f" ({each['off_by'] * 100:+.1f} points)" if "off_by" in each else ""
            said = f"  expression {each['estimate']:.1%}" if "estimate" in each else ""
            print(
                f"    recovery {each['recovery_min']:g} min: simulated {each['simulated']:.1%} ± {each['interval_95']:.1%}{off}{said}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
