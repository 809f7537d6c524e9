"""Simulated against published: `python -m benchmarks.simulated_vs_published`.

With the failure rate and the recovery time that a paper states, the effective training time that it states must come out, within 3
points. What a paper does not state is not made up: such a run is named with what is missing. Exit code 1 when one is further off.
"""

from __future__ import annotations

import json
import statistics
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.command import interval
from fault_injection.sim.whole import Whole, estimate, ettr

RESULTS = Path(__file__).parent / "results" / "simulated_vs_published.json"
BOUND = 0.03
SEEDS, DAYS = 50, 54.0
DAY_S = 86_400.0
RECOVERY_S, INTERVAL_S = 300.0, 1800.0
"""Ours, for the paper's expression: it holds for any."""


def simulated(run: Whole) -> tuple[float, float | None]:
    """Mean of the seeds, and half of its 95% interval."""
    return interval([ettr(run, DAYS * DAY_S, seed) for seed in range(SEEDS)])


def of_run(body: dict[str, Any]) -> dict[str, Any]:
    """One published run, with what comes out here."""
    told: dict[str, Any] = {key: body[key] for key in ("name", "source", "note", "why_not") if key in body}
    told["reported"] = body.get("reported", f"> {body['reported_above']:g}" if "reported_above" in body else None)
    if "why_not" in body:
        if "mttf_min" in body and "reported_above" in body:
            allowed = (1 - body["reported_above"]) * body["mttf_min"]
            told["what_it_implies"] = f"at most {allowed:.1f} minutes for each failure, all in all"
        return told | {"compared": False}
    run = Whole(mttf_s=60 * body["mttf_min"], recovery_s=60 * body["recovery_min"])
    mean, half = simulated(run)
    return told | judged(mean, half, body["reported"])


def of_estimate(body: dict[str, Any]) -> dict[str, Any]:
    """What a paper's expression says, and what comes out here."""
    mttf_s = DAY_S / (body["nodes"] * body["failures_per_node_day"])
    run = Whole(mttf_s=mttf_s, recovery_s=RECOVERY_S, interval_s=INTERVAL_S)
    mean, half = simulated(run)
    ours = {"recovery_s": RECOVERY_S, "interval_s": INTERVAL_S}
    told = {"name": body["name"], "source": body["source"], "mttf_h": round(mttf_s / 3600, 2), "ours": ours}
    return told | {"reported": round(estimate(run), 4)} | judged(mean, half, estimate(run))


def judged(mean: float, half: float | None, reported: float) -> dict[str, Any]:
    off = mean - reported
    return {
        "compared": True, "simulated": round(mean, 4), "interval_95": round(half or 0.0, 4), "off_by": round(off, 4),
        "within_3_points": abs(off) <= BOUND,
    }  # fmt: skip


def main() -> int:
    text = (resources.files("fault_injection.sim") / "data/papers/published.toml").read_text()
    body = tomllib.loads(text)
    runs, estimates = [of_run(run) for run in body["run"]], [of_estimate(each) for each in body["estimate"]]
    compared = [told for told in (*runs, *estimates) if told["compared"]]
    missed = [told["name"] for told in compared if not told["within_3_points"]]
    result = {
        "what": "effective training time as published, and as simulated with the same rate of failures and time to recover",
        "command": "python -m benchmarks.simulated_vs_published",
        "bound": BOUND,
        "seeds": SEEDS,
        "days": DAYS,
        "missed": missed,
        "mean_off_by": round(statistics.fmean(abs(told["off_by"]) for told in compared), 4),
        "runs": runs,
        "estimates": estimates,
        "machine": machine(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for told in (*runs, *estimates):
        reported = told["reported"] if isinstance(told["reported"], str) else f"{told['reported']:.1%}"
        said = f"{told['simulated']:.1%} ({told['off_by'] * 100:+.1f} points)" if told["compared"] else told["why_not"]
        print(f"{told['name']:48} reported {reported:>6}  simulated {said}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
