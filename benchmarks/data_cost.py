"""Compares the time of a step on a token store, with a constant batch, with that on the folder of text which it was
made from, while nothing fails.

`python -m benchmarks.data_cost [--rounds 40]` writes benchmarks/results/data_cost.json. Needs eight minutes at most; it then
has fewer rounds.

Three runs of two groups of llama3-debug are alive in one system, and train a few steps in turn: `folder`, `store`, and
`after_quorum`, a store that is read once the quorum is there and never ahead. The steps that each trains in its turn are
the same in number and size. A round has a turn of each, in an order that rotates; the first step of a turn does not count.
Ratios are of the medians of one round, and `interval` holds their median with 95 % confidence, by resampling rounds.
`met` is true if all of the interval is within the bound, false if none of it is, else "not resolved".
`mean_ms` has the parts of a step: `compute` is what no other part has, waits for peers included. `cpu_ms` is what a rank's
process takes of the processors for a step, all of its threads together: what else runs on the machine counts less there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.data_cost_trainer import TURN, WAITS, WARM_UP
from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, world
from supervisor.core.model.spec import AllocationSpec, DataSpec, GroupsSpec, PolicySpec, RunSpec, TitanSpec
from supervisor.wire.records import RunRecord
from titan_actor.data import stdlib_files
from titan_actor.tokens.build import build
from titan_actor.tokens.sources import Corpus
from titan_actor.tokens.tokenizer import ASSETS

RESULTS = Path(__file__).parent / "results" / "data_cost.json"

GROUPS = 2
FILES = 8
"""Files of the text: a multiple of the groups, so that each reads its own."""

STEPS, LEFT_OUT = 6, 1
"""Steps of a turn, and how many of them, from the first on, do not count."""

MOST = 1.01
"""Greatest ratio of the store to the folder."""

WHOLE_S = 420.0
"""No round begins that may end after this."""

Seconds = dict[str, float]
"""Seconds of a step and of its parts, by name."""


def corpus(folder: Path) -> dict[str, DataSpec]:
    """Writes the standard library's source as jsonl, and a token store of it; returns the data of each run."""
    text, store = folder / "text", folder / "tokens"
    text.mkdir()
    lines = [json.dumps({"text": Path(path).read_text(errors="replace")}) + "\n" for path in stdlib_files()]
    for number in range(FILES):
        (text / f"{number}.jsonl").write_text("".join(lines[number::FILES]))
    build(Corpus(source=str(text)), ASSETS, store)
    tokens = DataSpec(source="tokens", path=str(store))
    return {"folder": DataSpec(source="folder", path=str(text)), "store": tokens, "after_quorum": tokens}


def spec(name: str, data: DataSpec) -> RunSpec:
    """Returns a run of two groups that never ends by itself."""
    recipe = "after_quorum" if name == "after_quorum" else "ahead"
    titan = TitanSpec(
        recipe=f"benchmarks.data_cost_trainer:{recipe}", steps=10**6, checkpoint_interval_steps=10**6, data=data
    )
    return RunSpec(
        name=name.replace("_", "-"),
        titan=titan,
        groups=GroupsSpec(count=GROUPS),
        allocation=AllocationSpec(nodes=GROUPS, spares=0),
        policy=PolicySpec(start_timeout_s=300.0),
    )


def train(w: World, record: RunRecord, until: int) -> None:
    """Has a run train to this step, and wait there."""
    turn = w.runs / TURN
    turn.with_suffix(".new").write_text(f"{record.spec.name} {until}")
    os.replace(turn.with_suffix(".new"), turn)
    eventually(lambda: _waits_at(record) == until, 300, f"{record.spec.name} trains to step {until}")


def _waits_at(record: RunRecord) -> int:
    """Returns the step at which all groups wait; 0: not yet."""
    files = [Path(record.run_dir) / WAITS.format(group=group) for group in range(GROUPS)]
    steps = {int(file.read_text()) if file.exists() else 0 for file in files}
    return steps.pop() if len(steps) == 1 else 0


def measure(folder: Path, rounds: int) -> tuple[dict[str, list[list[Seconds]]], dict[str, list[list[Seconds]]]]:
    """Trains all runs in turn; returns the steps of each round, and what a step took of the processors in it, by run."""
    began = time.monotonic()
    with world(folder / "world", nodes=3 * GROUPS, toys=False) as w:
        w.supervisor()
        records = {name: w.launch(spec(name, data)) for name, data in corpus(folder).items()}
        for record in records.values():
            eventually(lambda: _waits_at(record) == WARM_UP, 300, f"{record.spec.name} waits for its turn")  # noqa: B023
        names, longest = list(records), 0.0
        for number in range(rounds):
            start = time.monotonic()
            if start + longest > began + WHOLE_S:
                print(f"the time is over after {number} rounds", flush=True)
                break
            for name in names[number % 3 :] + names[: number % 3]:
                train(w, records[name], WARM_UP + (number + 1) * STEPS)
            longest = max(longest, time.monotonic() - start)
        wrong = [f"{name}: {each.kind.value}" for name, record in records.items() for each in w.incidents(record)]
        assert not wrong, f"something has failed: {', '.join(wrong)}"
        steps = {name: steps_of(w, record) for name, record in records.items()}
        return steps, {name: cpu_of(w, record) for name, record in records.items()}


def steps_of(w: World, record: RunRecord) -> list[list[Seconds]]:
    """Returns the steps of each round that count, of both groups."""
    found: dict[int, list[Seconds]] = defaultdict(list)
    for steps in w.history(record).steps:
        for line in steps.committed():
            number, at = divmod(int(line["step"]) - WARM_UP - 1, STEPS)
            if number >= 0 and at >= LEFT_OUT:
                assert line["participants"] == GROUPS, line
                found[number].append({"step": line["t"] - line["start"], **line["seconds"]})
    return [steps for _, steps in sorted(found.items())]


def cpu_of(w: World, record: RunRecord) -> list[list[Seconds]]:
    """Returns what a step of each round takes of the processors, of both groups."""
    of_groups: list[list[Seconds]] = []
    for steps in w.history(record).steps:
        turns = [line for line in steps.lines if line["event"] == "turn"]
        taken = [(b["ended_cpu_s"] - a["begins_cpu_s"]) / STEPS for a, b in itertools.pairwise(turns)]
        of_groups.append([{"cpu": each} for each in taken])
    return [list(each) for each in zip(*of_groups, strict=True)]


def medians(rounds: list[list[Seconds]], part: str = "step") -> list[float]:
    """Returns the median of each round."""
    return [statistics.median(step[part] for step in steps) for steps in rounds]


def compared(one: list[list[Seconds]], other: list[list[Seconds]], part: str = "step") -> dict[str, Any]:
    """Returns the ratios of two runs' steps, by round, and the interval of their median."""
    ratios = [a / b for a, b in zip(medians(one, part), medians(other, part), strict=True)]
    chance = random.Random(0)
    again = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "ratio": round(statistics.median(ratios), 4),
        "interval": [round(again[50], 4), round(again[1949], 4)],
        "by_round": [round(ratio, 4) for ratio in ratios],
    }


def within(most: float, interval: list[float]) -> bool | str:
    """Returns true for an interval within a bound, false for one above it, and "not resolved" for one of both."""
    low, high = interval
    return True if high <= most else False if low > most else "not resolved"


def figures(rounds: list[list[Seconds]]) -> dict[str, Any]:
    """Returns a run's median step and median wait for data, and means of all parts, in milliseconds."""
    steps = [step for each in rounds for step in each]
    return {
        "step_median_ms": round(1000 * statistics.median(step["step"] for step in steps), 2),
        "data_median_ms": round(1000 * statistics.median(step["data"] for step in steps), 3),
        "quorum_median_ms": round(1000 * statistics.median(step["quorum"] for step in steps), 3),
        "mean_ms": {part: round(1000 * statistics.fmean(step[part] for step in steps), 3) for part in steps[0]},
        "steps": len(steps),
    }


def main() -> int:
    """Measures, writes and prints; returns the exit code: 0 if a step on the store takes no longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ev", dir="/tmp") as folder:
        found, cpu = measure(Path(folder), given.rounds)
    store = compared(found["store"], found["folder"])
    result = {
        "what": "a step of two groups on a token store with a constant batch, beside one on a folder of the same text",
        "command": f"python -m benchmarks.data_cost --rounds {given.rounds}",
        "store_to_folder": store,
        "after_quorum_to_store": compared(found["after_quorum"], found["store"]),
        "most": MOST,
        "met": within(MOST, store["interval"]),
        "cpu_store_to_folder": compared(cpu["store"], cpu["folder"], "cpu"),
        "runs": {
            name: {**figures(rounds), "cpu_ms": round(1000 * statistics.median(medians(cpu[name], "cpu")), 2)}
            for name, rounds in found.items()
        },
        "rounds": len(found["store"]),
        "load_before": round(load, 1),
        "commit": commit(),
        "machine": machine(),
    }
    given.results.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "machine"}, indent=1))
    return 0 if result["met"] is True else 1


if __name__ == "__main__":
    sys.exit(main())
