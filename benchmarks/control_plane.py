"""Measures how long the control plane takes to come back: runs the tests that measure it, on a quiet machine, and
checks the bounds.

`python -m benchmarks.control_plane [--rounds 3]` writes benchmarks/results/control_plane.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.lane import commit

RESULTS = Path(__file__).parent / "results" / "control_plane.json"
TESTS = (
    "tests/system/integration/test_takeover.py",
    "tests/real_trainers/test_lighthouse.py",
    "tests/system/integration/test_split.py",
)

BOUNDS: dict[str, tuple[str, Any]] = {
    "takeover after SIGKILL": ("lease + 1 s", lambda m: m["lease_s"] + 1),
    "takeover after SIGSTOP": ("lease + 1 s", lambda m: m["lease_s"] + 1),
    "takeover after a cut from etcd": ("lease + 1 s", lambda m: m["lease_s"] + 1),
    "takeover after TERM": ("at once: 1 s", lambda m: 1.0),
    "first joint step after the next lighthouse is open": ("1 s", lambda m: 1.0),
    "cut off from the gate: the survivor's next commit without it": (
        "heartbeat timeout + 1 s",
        lambda m: m["heartbeat_s"] + 1,
    ),
}
"""Beginning of a measurement's name -> its bound in words, and in seconds."""


def run(rounds: int) -> list[dict[str, Any]]:
    """Returns every measurement of every round. Raises CalledProcessError when a test fails."""
    found = []
    for number in range(rounds):
        command = [sys.executable, "-m", "pytest", *TESTS, "-q", "-rP", "-p", "no:cacheprovider"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("MEASURED {")]
        found += [json.loads(line.removeprefix("MEASURED ")) for line in lines]
        print(f"round {number + 1}: {done.stdout.splitlines()[-1]}", flush=True)
        if done.returncode != 0:
            print(done.stdout[-3000:])
            raise subprocess.CalledProcessError(done.returncode, command)
    return found


def figure(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one quantity over all rounds, with its bound if it has one."""
    seconds = sorted(m["seconds"] for m in measured)
    result: dict[str, Any] = {
        "n": len(seconds),
        "median_s": round(statistics.median(seconds), 3),
        "min_s": seconds[0],
        "max_s": seconds[-1],
    }
    for begins, (words, bound) in BOUNDS.items():
        if measured[0]["what"].startswith(begins):
            limit = bound(measured[0])
            result |= {"bound": words, "bound_s": limit, "met": seconds[-1] <= limit}
            result["ratio_to_bound"] = round(result["median_s"] / limit, 2)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    before = machine()
    measured = run(rounds)
    names = sorted({m["what"] for m in measured})
    figures = {name: figure([m for m in measured if m["what"] == name]) for name in names}
    missing = [begins for begins in BOUNDS if not any(name.startswith(begins) for name in names)]
    met = not missing and all(f.get("met", True) for f in figures.values())
    result = {
        "what": "the control plane's own failures: seconds until it is back",
        "command": f"python -m benchmarks.control_plane --rounds {rounds}",
        "bounds_met_by_the_slowest": met,
        "not_measured": missing,
        "figures": figures,
        "commit": commit(),
        "machine": before,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name, each in figures.items():
        bound = f"  bound {each['bound']}: {'met' if each['met'] else 'MISSED'}" if "bound" in each else ""
        print(f"{each['median_s']:8.2f} s (to {each['max_s']:.2f})  {name}{bound}")
    for begins in missing:
        print(f"not measured: {begins}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
