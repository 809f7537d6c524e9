"""python -m fault_injection.sim: play many seeds, or one again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fault_injection.sim.faults import KINDS, Fault
from fault_injection.sim.run import Result, run
from fault_injection.sim.shrink import shrunk

OFTEN_S = 60.0
"""How often is said how far it is."""


def main() -> int:
    """0: nothing broke. 1: something did; it is told with its seed and the fewest faults. 2: a mistake in what was asked."""
    asked = _asked()
    try:
        plan = read_plan(asked.plan) if asked.plan else None
    except (OSError, ValueError) as error:
        print(f"cannot read the plan {asked.plan}: {error}", file=sys.stderr)
        return 2
    began = said = time.monotonic()
    virtual_s, recovered, bad = 0.0, [], 0
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    for number, seed in enumerate(seeds, 1):
        result = run(seed, asked.nodes, plan)
        virtual_s += result.lasted_s
        recovered += [result.recovered_s] if result.recovered_s is not None else []
        if asked.seed is not None:
            print(described(result))
        if result.broken:
            bad += 1
            print(failure(result), flush=True)
        if time.monotonic() - said > OFTEN_S:
            said = time.monotonic()
            print(f"{number} of {len(seeds)} seeds, {bad} broken, {said - began:.0f} s", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{len(seeds)} seeds of {asked.nodes} nodes: {bad} broken, {len(recovered)} recovered; {virtual_s / 3600:.1f} hours of "
        f"virtual time in {took_s:.0f} s, {took_s / len(seeds):.2f} s a seed"
    )
    return 1 if bad else 0


def _asked() -> argparse.Namespace:
    asks = argparse.ArgumentParser(prog="python -m fault_injection.sim", description=main.__doc__)
    asks.add_argument("--seeds", type=_positive, default=200, help="how many (default 200)")
    asks.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    asks.add_argument("--nodes", type=_positive, default=50, help="nodes of the run, spares among them (default 50)")
    asks.add_argument("--seed", type=int, help="this one alone, with its plan and what became of it")
    asks.add_argument(
        "--plan", type=Path, help="with --seed: a file of faults, one JSON object a line, in its plan's place"
    )
    found = asks.parse_args()
    if found.plan is not None and found.seed is None:
        asks.error("--plan needs --seed: the chance of that seed is played")
    if found.nodes < 2:
        asks.error("--nodes must be at least 2: one trains, one is a spare")
    return found


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def described(result: Result) -> str:
    """One seed: its plan and its end."""
    lines = [f"seed {result.seed}, {result.nodes} nodes, trace {result.digest}:"]
    lines += [json.dumps(fault.told()) for fault in result.plan]
    end = "not" if result.recovered_s is None else f"{result.recovered_s:.1f} s after the last fault"
    return "\n".join([*lines, f"all groups trained: {end}; virtual time {result.lasted_s:.0f} s"])


def failure(result: Result) -> str:
    """What broke, with the seed and the fewest faults that break it."""
    least = shrunk(result)
    lines = [
        f"seed {result.seed}, {result.nodes} nodes: {len(result.plan)} faults, of which {len(least.plan)} are enough:"
    ]
    lines += [f"  {json.dumps(fault.told())}" for fault in least.plan]
    lines += [f"  {sentence}" for sentence in least.broken]
    lines.append(f"  again: python -m fault_injection.sim --seed {result.seed} --nodes {result.nodes}")
    return "\n".join(lines)


def read_plan(path: Path) -> Sequence[Fault]:
    """Faults of a file; raises ValueError for what is none."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            fault = Fault(**json.loads(line))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from error
        if fault.kind not in KINDS:
            raise ValueError(f"line {number}: there is no fault {fault.kind!r}; known: {', '.join(KINDS)}")
        found.append(fault)
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
