"""Measures that a healthy run is left alone, with a detector as quick as a run file allows.

The run has checkpoints, pauses for evaluation and steps five times as long. Processes stand still for a moment, and
neighbours burn all processors. An ordinary step hangs after 9 s here, or ten usual ones (some 15 s). One group alone
evaluates for 20 s, so each of those pauses is longer than that. The slow steps, the other evaluations and the stops are
each shorter. Results without `evaluated_alone` were measured before there were such pauses.

`python -m benchmarks.healthy [--minutes 30]` writes benchmarks/results/healthy.json. Two groups of real TorchTitan
trainers run (llama3-debug, benchmarks/healthy_trainer.py). Nothing may be done in all that time; what was only ridden
through or waited for is listed. At the end a rank is stopped for good: that must be found, or the measurement proves
nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from benchmarks.healthy_trainer import ALONE_EVERY, ALONE_S, EVALUATE_EVERY, EVALUATE_S, SLOW_EVERY, SLOW_TIMES
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, world_on
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.reason import Code
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, HangSpec, PolicySpec, RunSpec, TitanSpec, TorchFTSpec
from supervisor.core.report.words import said, say
from supervisor.ports.errors import Fatal
from supervisor.shell.control import journal
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.runfile import parse
from supervisor.wire.records import RunRecord

RESULTS = Path(__file__).parent / "results" / "healthy.json"
TORCHFT = TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=3000, process_group_timeout_ms=6000)
HANGS = HangSpec(at_least_s=9.0, stopped_s=0.0)
"""The default of `at_least_s` is 30 s; this is the shortest that a run file accepts with these timeouts of TorchFT.
`stopped_s` is 0: the kernel showing a rank as stopped must not end it, because the length of a step is what is
measured."""
CHECKPOINT_STEPS = 15
STILL_S = 2.0
"""Seconds for which a rank is stopped: twice the heartbeat timeout, so that the gate does miss it."""
EVERY_S = 30.0
NEIGHBOURS_S = 20.0
"""Seconds that the neighbours are on, then off."""
BEGIN_STEPS = 10
FOUND_WITHIN_S = 120.0


def spec() -> RunSpec:
    """Returns the default policy in all but the shortest time of a hang, and what is stopped."""
    titan = TitanSpec(
        recipe="benchmarks.healthy_trainer:debug", steps=10**6, checkpoint_interval_steps=CHECKPOINT_STEPS
    )
    made = RunSpec(
        name="healthy",
        titan=titan,
        groups=GroupsSpec(count=2),
        allocation=AllocationSpec(nodes=2, spares=1),
        torchft=TORCHFT,
        policy=PolicySpec(hang=HANGS),
    )
    wrong = parse.contradictions(made)
    if wrong:
        raise Fatal("; ".join(wrong))
    return made


class Neighbours:
    """Runs a busy loop for each processor."""

    def __init__(self) -> None:
        self._loops: list[subprocess.Popen[bytes]] = []
        self.times = 0

    def switch(self, on: bool) -> None:
        if on == bool(self._loops):
            return
        if on:
            command = [sys.executable, "-c", "while True: pass"]
            self._loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
            self.times += 1
            return
        for loop in self._loops:
            loop.kill()
            loop.wait()
        self._loops = []


def disturb(w: World, record: RunRecord, seconds: float, rng: random.Random) -> dict[str, int]:
    """Disturbs the run for that many seconds. Returns how often each disturbance was made."""
    began, next_stop, stops = time.monotonic(), EVERY_S / 2, 0
    neighbours = Neighbours()
    try:
        while (now := time.monotonic() - began) < seconds:
            neighbours.switch(int(now / NEIGHBOURS_S) % 2 == 1)
            if now >= next_stop:
                pid = w.trainer(record, rng.randrange(record.spec.groups.count)).pid
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(STILL_S)
                    os.kill(pid, signal.SIGCONT)
                    stops += 1
                next_stop = now + EVERY_S * rng.uniform(0.5, 1.5)
            if acted(w, record):
                break  # no need to wait for the end: it failed
            time.sleep(0.25)
    finally:
        neighbours.switch(False)
    return {
        "stopped_for_a_moment": stops,
        "neighbours_on": neighbours.times,
        "seconds": round(time.monotonic() - began),
    }


def acted(w: World, record: RunRecord) -> list[Incident]:
    """Returns the incidents for which a group was acted on."""
    return [i for i in w.incidents(record) if i.decided is not None and i.rung > Rung.RIDE_THROUGH]


def control(w: World, record: RunRecord) -> dict[str, Any]:
    """Makes one real hang, in an ordinary step, and checks that it is found. A rank that is stopped while it evaluates
    may take as long as that, and is started again when it has been silent for `policy.silent_timeout_s`."""
    eventually(lambda: all(_is_ordinary(g.step) for g in w.status(record).groups), FOUND_WITHIN_S, "an ordinary step")
    trainer = w.trainer(record, 1)
    began = time.monotonic()
    os.kill(trainer.pid, signal.SIGSTOP)
    (incident,) = eventually(lambda: acted(w, record), FOUND_WITHIN_S, "the hang is found")
    seconds = time.monotonic() - began
    bound_s = max((float(why.about["bound_s"]) for why in incident.evidence if why.code == Code.NO_STEP), default=0.0)
    of_it = (incident.kind, incident.group, incident.rung) == (Kind.HANG, 1, Rung.RESTART)
    return {
        "how": "SIGSTOP to group 1, for good",
        "found": f"{incident.kind.value} of group {incident.group}, rung {int(incident.rung)}",
        "right": of_it and seconds <= 2 * bound_s,
        "seconds": round(seconds, 2),
        "bound_s": bound_s,
        "evidence": list(said(incident.evidence)),
    }


def _is_ordinary(step: int) -> bool:
    """Returns true if no step near this one is special: a group's reported step is up to a second old."""
    return all(3 <= step % every <= every - 4 for every in (CHECKPOINT_STEPS, EVALUATE_EVERY, ALONE_EVERY, SLOW_EVERY))


def steps_of(w: World, record: RunRecord, since: float, until: float) -> dict[str, Any]:
    """Returns what the trainers did in that time, from their own records."""
    seconds: list[float] = []
    commits: dict[int, list[float]] = defaultdict(list)
    events: Counter[str] = Counter()
    for steps in w.history(record).steps:
        for line in steps.lines:
            if since <= line["t"] <= until:
                events[line["event"]] += 1
                if line["event"] == "step" and line.get("committed"):
                    seconds.append(line["t"] - line["start"])
                    commits[steps.group].append(line["t"])
    usual = statistics.median(seconds)
    longest = max(b - a for times in commits.values() for a, b in itertools.pairwise(sorted(times)))
    return {
        "committed_steps": len(seconds),
        "usual_step_s": round(usual, 3),
        "longest_step_s": round(max(seconds), 3),
        "longest_over_usual": round(max(seconds) / usual, 1),
        "longest_between_commits_s": round(longest, 3),
        "longest_over_the_bound": round(longest / HANGS.at_least_s, 2),
        "slow_steps": events["slow_step"],
        "evaluations": events["evaluated"],
        "evaluated_alone": events["evaluated_alone"],
        "checkpoints": events["checkpoint_start"],
        "steps_not_committed": events["step"] - len(seconds),
    }


def measure(minutes: float, seed: int) -> dict[str, Any]:
    """Runs the whole measurement."""
    with tempfile.TemporaryDirectory(prefix="healthy-") as name:
        folder = Path(name)
        server = start_etcd(folder / "etcd")
        try:
            with world_on(server, folder, nodes=3, toys=False) as w:
                w.supervisor()
                record = w.launch(spec())
                eventually(w.running(record, 1, 1), 300, "both groups train")
                eventually(lambda: min(g.step for g in w.status(record).groups) >= BEGIN_STEPS, 300, "they step")
                before, since = machine(), time.time()
                done = disturb(w, record, 60 * minutes, random.Random(seed))
                until = time.time()
                killed, all_of_them = acted(w, record), w.incidents(record)
                lines = journal.read(Path(record.run_dir) / "journal.jsonl")
                waits = Counter(wait for line in lines if line["t"] >= since for wait in line.get("waits", []))
                result = {
                    "disturbed": done,
                    **steps_of(w, record, since, until),
                    "kills": len(killed),
                    "killed": [f"{i.kind.value} of group {i.group}: {say(i.evidence[0])}" for i in killed],
                    "generations": [g.generation for g in w.status(record).groups],
                    "rode_through": dict(Counter(i.kind.value for i in all_of_them if i not in killed)),
                    "waited_for": dict(waits.most_common(20)),
                    "machine": before,
                }
                if not killed:
                    result["control"] = control(w, record)
                return result
        finally:
            server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    measured_at = commit()
    found = measure(options.minutes, options.seed)
    met = found["kills"] == 0 and found.get("control", {}).get("right", False)
    result = {
        "what": "kills in a healthy run, and whether a real hang at its end is found",
        "command": f"python -m benchmarks.healthy --minutes {options.minutes:g} --seed {options.seed}",
        "goal": "no kill, and the hang is found",
        "goal_met": met,
        "commit": measured_at,
        **found,
        "set": {
            "recipe": "llama3-debug", "groups": 2, "checkpoint_interval_steps": CHECKPOINT_STEPS,
            "evaluation": f"{EVALUATE_S:g} s every {EVALUATE_EVERY} steps, in every group",
            "evaluated_alone": f"{ALONE_S:g} s every {ALONE_EVERY} steps, in one group after the other",
            "slow_steps": f"{SLOW_TIMES} times as long every {SLOW_EVERY} steps, in one group",
            "stopped": f"one rank for {STILL_S:g} s about every {EVERY_S:g} s",
            "neighbours": f"a busy loop a processor, {NEIGHBOURS_S:g} s on and {NEIGHBOURS_S:g} s off",
            "hang": {"factor": HANGS.factor, "at_least_s": HANGS.at_least_s, "at_most_s": HANGS.at_most_s},
            "torchft_ms": [TORCHFT.heartbeat_timeout_ms, TORCHFT.join_timeout_ms, TORCHFT.process_group_timeout_ms],
        },
    }  # fmt: skip
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k not in ("machine", "set")}, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
