"""Plays compound faults with real trainers and many seeds: `python -m benchmarks.chaos_compound [--seeds N] [--go-on]`.

Each seed draws eight faults (`supervisor chaos run --seed`). In each, one group crashes at once with another or while
it is mended. The supervisor, the lighthouse or the gate is killed during the recovery of a third. Some other faults
come in twos as well.

For each seed the file keeps the result of its certificate; its folder is `runs/chaos-SEED`. The file is written after
each seed, so an interrupted lane goes on with `--go-on`. A seed in the file is not played again, whatever commit played
it. A new lane keeps the older file with `.before` behind its name. Exits 1 when a certificate is not green.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.breaking import chaos_run
from fault_injection.sim.lane import commit, machine

RESULTS = Path(__file__).parent / "results" / "chaos_compound.json"
RUNS = Path("runs")
FAULTS = 8
SEEDS = 20


def play(seed: int) -> dict[str, Any]:
    """Plays a seed and returns what its certificate says. Raises SystemExit where there is none."""
    name = f"chaos-{seed}"
    shutil.rmtree(RUNS / name, ignore_errors=True)
    code = chaos_run(["--seed", str(seed), "--faults", str(FAULTS), "--name", name])
    try:
        report = json.loads((RUNS / name / "report.json").read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"seed {seed} left no certificate (exit code {code}): {error}") from None
    return {
        "seed": seed,
        "green": report["green"] and code == 0,
        "faults": [fault["name"] for fault in report["faults"]],
        "plan": report["plan"],
        "wrong": {fault["name"]: fault["problem"] for fault in report["faults"] if fault["problem"]},
        "checkers_not_passed": {n: v for n, v in report["checkers"].items() if v["answer"] != "pass"},
        "loss_parity": report["loss_parity"]["why"],
        "steps_committed": report["steps_committed"],
        "ettr": report["ettr"],
        "seconds": round(report["seconds"], 1),
        "commit": commit(),
        "machine": machine(),
    }


def keep(played: list[dict[str, Any]]) -> None:
    body = {
        "what": f"compound faults with real trainers: {FAULTS} a seed, some at once or while another is mended",
        "command": "python -m benchmarks.chaos_compound --seeds N --go-on",
        "seeds": len(played),
        "green": sum(each["green"] for each in played),
        "each": sorted(played, key=lambda each: each["seed"]),
    }
    written = RESULTS.with_name(RESULTS.name + ".new")
    written.write_text(json.dumps(body, indent=1) + "\n")
    written.replace(RESULTS)


def _played() -> list[dict[str, Any]]:
    """Returns the seeds in the file. Raises SystemExit for a file that holds none."""
    try:
        return [
            each
            for each in json.loads(RESULTS.read_text())["each"]
            if isinstance(each["seed"], int) and "green" in each
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{RESULTS} holds no seeds that were played ({error!r}): leave out --go-on") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="from 1 to this")
    parser.add_argument("--go-on", action="store_true", help="keep the seeds that the file has")
    given = parser.parse_args()
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: at least 1 is played")
    played = _played() if given.go_on and RESULTS.exists() else []
    if not given.go_on and RESULTS.exists():
        shutil.copyfile(RESULTS, RESULTS.with_name(RESULTS.name + ".before"))
    for seed in range(1, given.seeds + 1):
        if all(each["seed"] != seed for each in played):
            played.append(play(seed))
            keep(played)
    wrong = [each["seed"] for each in played if not each["green"]]
    print(f"{len(played)} seeds, not green: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: what was played is kept, --go-on goes on")
