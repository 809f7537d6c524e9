"""Plays rounds of kills: `python -m tests.nightly.killpoints [--rounds N] [--seed FIRST]`, which is `make killpoints`.

Each round kills one process at one failpoint while a run starts, loses something, or ends. It then checks that the run
trains on, that nothing was done twice, and that the history checkers pass. A round's seed alone determines it. A round
whose failpoint was not reached is counted apart. Exit code 1 when a round went wrong: its command is printed, its files
are kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from supervisor.shell.dev.etcd_server import start_etcd
from tests.nightly.plans import WAYS, Plan, plan
from tests.nightly.rounds import Lanes, Wrong

RESULTS = Path("benchmarks/results/killpoints.json")


@dataclass
class Tally:
    """All rounds so far."""

    fired: list[Plan] = field(default_factory=list)
    missed: list[Plan] = field(default_factory=list)
    wrong: list[tuple[Plan, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def report(self, command: str) -> dict[str, object]:
        kills = Counter(p.failpoint for p in self.fired)
        return {
            "what": "a process killed at a failpoint, then: trains on, nothing done twice, all history checkers pass",
            "command": command,
            "rounds": len(self.fired),
            "not_reached": len(self.missed),
            "violations": len(self.wrong),
            "kills_by_failpoint": {name: kills[name] for name in WAYS},
            "kills_by_scenario": dict(sorted(Counter(p.way.scenario for p in self.fired).items())),
            "kills_by_process": dict(sorted(Counter(p.way.who for p in self.fired).items())),
            "round_median_s": round(statistics.median(self.seconds), 1) if self.seconds else None,
            "total_s": round(sum(self.seconds), 1),
            "seeds": [p.seed for p in self.fired],
            "seeds_not_reached": [p.seed for p in self.missed],
            "wrong": [{"round": str(p), "why": why} for p, why in self.wrong],
            "commit": commit(),
            "machine": machine(),
        }


def rounds(options: argparse.Namespace, lanes: Lanes, tally: Tally) -> None:
    """Plays rounds until the asked number of failpoints was reached, or twice as many rounds were tried."""
    for seed in range(options.seed, options.seed + 2 * options.rounds):
        if len(tally.fired) + len(tally.wrong) >= options.rounds:
            return
        drawn = plan(seed, options.failpoint, options.scenario, options.nodes_per_group)
        began = time.monotonic()
        try:
            fired = lanes.play(drawn)
        except (Wrong, AssertionError) as error:
            tally.wrong.append((drawn, str(error)))
            print(
                f"WRONG  {drawn}: {error}\n       again: {_repeat(drawn, options)}\n       files: {lanes.files(drawn)}",
                flush=True,
            )
            continue
        took = time.monotonic() - began
        tally.seconds.append(took)
        (tally.fired if fired else tally.missed).append(drawn)
        print(f"{'well' if fired else 'not reached':12} {drawn} ({took:.1f} s)", flush=True)


def _repeat(drawn: Plan, options: argparse.Namespace) -> str:
    chosen = [f"--{name} {value}" for name in ("failpoint", "scenario") if (value := getattr(options, name))]
    chosen += [f"--nodes-per-group {options.nodes_per_group}"] if options.nodes_per_group > 1 else []
    return " ".join(["python -m tests.nightly.killpoints --rounds 1 --seed", str(drawn.seed), *chosen])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="in which a failpoint is reached")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first round")
    parser.add_argument("--failpoint", default="", choices=["", *WAYS], help="only this one")
    parser.add_argument("--scenario", default="", help="only this one")
    parser.add_argument("--nodes-per-group", type=int, default=1, choices=range(1, 9), help="of one rank each")
    parser.add_argument(
        "--results", type=Path, help=f"where to write what was counted ({RESULTS} for `make killpoints`)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended
    folder = Path(tempfile.mkdtemp(prefix="killpoints-"))
    print(f"{options.rounds} rounds from seed {options.seed}, in {folder}", flush=True)
    tally = Tally()
    server = start_etcd(folder / "etcd")
    lanes = Lanes(folder, server, options.nodes_per_group)
    try:
        rounds(options, lanes, tally)
    finally:
        lanes.close()
        server.stop()
        several = f" --nodes-per-group {options.nodes_per_group}" if options.nodes_per_group > 1 else ""
        command = f"python -m tests.nightly.killpoints --rounds {options.rounds} --seed {options.seed}{several}"
        report = tally.report(command)
        if options.results is not None:
            options.results.parent.mkdir(parents=True, exist_ok=True)
            options.results.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{len(tally.fired)} rounds with a kill, {len(tally.missed)} in which the failpoint was not reached, "
        f"{len(tally.wrong)} wrong; median {report['round_median_s']} s a round"
    )
    enough = len(tally.fired) + len(tally.wrong) >= options.rounds
    if not enough:
        print(f"only {len(tally.fired)} of {options.rounds} failpoints were reached")
    if not enough or tally.wrong:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
