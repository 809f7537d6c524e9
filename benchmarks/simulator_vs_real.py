"""Compares the simulator with reality: `python -m benchmarks.simulator_vs_real [--calibrate FILE --compare FILE]`.

Two runs of the demo's size with real trainers (`supervisor chaos run` starts them) are broken by the same kinds of
faults, each with its own seed. The history of the first gives the simulator's pace. The simulator then plays the
second's plan, fault by fault and victim by victim, and the recovery times of each kind are compared. So it has seen
nothing of the run that it is compared with. The same is then done with the two swapped, which shows how much of a ratio
is the difference between two real runs.

With two history.jsonl given, nothing is started. Exits 1 when a kind's median is more than 25% off; the second
direction's misses are only listed, in `missed_swapped`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.breaking import chaos_run
from benchmarks.decide import machine
from fault_injection.chaos import own
from fault_injection.checkers import history_file
from fault_injection.sim import faults
from fault_injection.sim.judge import recorded as told_by
from fault_injection.sim.lane import commit
from fault_injection.sim.pace import Pace, pace
from fault_injection.sim.world import World
from supervisor.core.model.spec import RunSpec
from supervisor.shell.engines.local import POLL_S
from supervisor.shell.history.files import FaultDone, History

RESULTS = Path(__file__).parent / "results" / "simulator_vs_real.json"
PACE = Path(faults.__file__).parent / "data" / "pace" / "demo.toml"
BOUND = 0.25
FIRST_SEED, SECOND_SEED = 11, 12
FIRST_STEP, STEPS_APART = 20, 10
SIM_SEEDS = 20
WAIT_S = 120.0
FEW = 5
"""Number of values from which quartiles mean something."""
AFTER_S = 10.0
"""Longest time after a fault, in seconds, in which its stall is looked for."""


@dataclass(frozen=True)
class Kind:
    """Faults of the catalogue that are the same to the supervisor, and their counterpart in the simulator."""

    names: tuple[str, ...]
    sim: str
    counts_from: str
    """exit: from the process's end. fault: from the moment it is made. stall: the longest pause between commits."""
    times: int
    """How often a run that is started here makes it: its moment in a step changes one stall or start by half."""
    seconds: float = 0.0
    """Seconds that it lasts, where it ends by itself."""


KINDS = {
    "a rank is killed": Kind(
        ("sigkill", "sigsegv", "sigabrt", "sigterm", "segfault", "abort", "killed_for_memory"), "crash", "exit", 6
    ),
    "a rank ends with an error": Kind(("exception", "exit_code", "data_raises"), "error", "exit", 6),
    "a node is killed": Kind(("node_killed",), "node_lost", "fault", 3),
    "a node falls silent": Kind(("node_silent",), "unplugged", "fault", 3, 60.0),
    "an allocation is taken": Kind(("allocation_gone",), "allocation_taken", "fault", 4),
    "the lighthouse is killed": Kind(("gate_killed", "lighthouse_killed"), "gate_killed", "stall", 8),
    "the lighthouse stands still": Kind(("lighthouse_stopped",), "gate_frozen", "stall", 3, 8.0),
    "a rank stands still for 1.2 s": Kind(("hiccup",), "freeze", "stall", 4, 1.2),
}
OF = {name: kind for kind, about in KINDS.items() for name in about.names}
NOT_COMPARED = "hangs, GPUs, numerics and disks, of which the simulator has no model; what takes nothing from training"


@dataclass(frozen=True)
class Recovery:
    """Recovery from one fault, in seconds."""

    kind: str
    group: int
    seconds: float
    to_spawn: float | None = None
    """Part of these until the next generation is begun; None for a stall."""


# --- what a history shows, of a real run or a simulated one ---


def recoveries(history: History) -> Iterator[Recovery]:
    """Yields the recovery from every compared fault that was overcome."""
    for fault in history.faults:
        if fault.name not in OF or fault.made is None or fault.after:
            continue
        kind = OF[fault.name]
        if KINDS[kind].counts_from == "stall":
            yield Recovery(kind, fault.group, _stall(history, fault))
        elif (found := _restarted(history, fault, kind)) is not None:
            yield found


def _restarted(history: History, fault: FaultDone, kind: str) -> Recovery | None:
    of_group = [p for p in history.processes if p.group == fault.group]
    next_ = min((p for p in of_group if p.spawned > fault.began), key=lambda p: p.spawned, default=None)
    if next_ is None:
        return None
    began = fault.began
    if KINDS[kind].counts_from == "exit":
        before = max((p for p in of_group if p.spawned < fault.began), key=lambda p: p.spawned)
        began = before.exited or began
    first = min(
        (
            x["t"]
            for s in history.steps
            if (s.group, s.generation) == (next_.group, next_.generation)
            for x in s.committed()
        ),
        default=None,
    )
    return None if first is None else Recovery(kind, fault.group, first - began, next_.spawned - began)


def _stall(history: History, fault: FaultDone) -> float:
    # not until all was well: the step under way may be missing something before the lighthouse is
    until = min([fault.began + AFTER_S, *(f.began for f in history.faults if f.began > fault.began)])
    at: list[float] = sorted(
        {x["t"] for s in history.steps for x in s.committed() if fault.began - 5 < x["t"] <= until}
    )
    return max(b - a for a, b in pairwise(at) if b > fault.began)


def steps_s(history: History) -> float:
    """Returns the median time from one committed step to the next of the same process."""
    gaps: list[float] = [
        b["t"] - a["t"] for s in history.steps for a, b in pairwise(s.committed()) if b["step"] == a["step"] + 1
    ]
    return statistics.median(gaps)


def heals_s(history: History) -> list[float]:
    """Returns for each step with a heal by how much longer than a median step it took the other groups."""
    rows = [x for s in history.steps for x in s.committed()]
    healed = {x["step"] for x in rows if x.get("healed")}
    usual_s = statistics.median(x["t"] - x["start"] for x in rows if x["step"] not in healed)
    return [x["t"] - x["start"] - usual_s for x in rows if x["step"] in healed and not x.get("healed")]


# --- the simulator's pace, as a real run shows it ---


def calibrated(histories: Sequence[History]) -> Pace:
    """Returns the pace that histories of the demo's size show. The rest is as configured (poll_s), or was never seen to
    matter here (queue_s, boot_s: a spare stands by)."""
    found = [recovery for history in histories for recovery in recoveries(history)]
    step_s, turn_s, delay_s, tick_s = statistics.median(map(steps_s, histories)), 0.02, (0.002, 0.01), 0.02
    begun = [r for r in found if r.to_spawn is not None]
    heals = [seconds for history in histories for seconds in heals_s(history)] or [0.0]
    # half a step of the others, then the one in which it heals
    joins_s = step_s / 2 + step_s + max(0.0, statistics.median(heals)) + tick_s
    built = {
        counts_from: [
            r.seconds - (r.to_spawn or 0.0) - joins_s for r in begun if KINDS[r.kind].counts_from == counts_from
        ]
        for counts_from in ("exit", "fault")
    }
    respawned = [r.to_spawn for r in begun if r.to_spawn is not None and KINDS[r.kind].counts_from == "exit"]
    lag_s = max(0.005, (statistics.median(respawned) - turn_s - sum(delay_s)) / 2)
    takings = [(h, f) for h in histories for f in h.faults if f.name == "allocation_gone"]
    ended = [seconds for h, f in takings if (seconds := _ended_after(h, f)) is not None]
    at = replace(
        pace(),
        step_s=round(step_s, 3),
        start_s=_span(built["exit"]),
        move_s=_span(built["fault"] or built["exit"]),
        lag_s=_span([lag_s / 2, lag_s * 1.5]),
        delay_s=delay_s,
        turn_s=turn_s,
        turn_s_a_node=0.0,
        idle_s=0.5,
        poll_s=POLL_S,
        kill_s=_span(ended or [0.1]),
        gate_tick_s=tick_s,
        heal_s=_span(heals),
    )
    return replace(at, rejoin_s=round(_rejoin_s(histories, at), 3))


def _rejoin_s(histories: Sequence[History], at: Pace) -> float:
    """Returns the rejoin time with which the simulator's stalls come closest to those of these runs. It is not simply
    added, because a group that comes back waits for the next step."""
    gates = [(h, f) for h in histories for f in h.faults if f.name in OF and KINDS[OF[f.name]].sim == "gate_killed"]
    if not gates:
        return 0.0
    real_s = statistics.median(_stall(h, f) for h, f in gates)
    plan = [f for _, f in gates]

    def apart_s(rejoin_s: float) -> float:
        paced = replace(at, rejoin_s=rejoin_s)
        told = (simulated(own.spec("sim"), plan, paced, seed) for seed in range(SIM_SEEDS))
        return abs(real_s - statistics.median(r.seconds for history in told for r in recoveries(history)))

    return min((at.step_s / 4 * n for n in range(int(4 * real_s / at.step_s) + 1)), key=apart_s)


def _ended_after(history: History, fault: FaultDone) -> float | None:
    """Returns the seconds from the end of an allocation until the end of the process there."""
    ends = [
        p.exited - fault.began
        for p in history.processes
        if p.group == fault.group and p.spawned < fault.began and p.exited
    ]
    return max((s for s in ends if s > 0), default=None)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Returns a range: even draws have the values' median and quartiles. For few values, their least and most."""
    least, most = min(values), max(values)
    if len(values) >= FEW:
        first, median, third = statistics.quantiles(values, n=4)
        least, most = median - (third - first), median + (third - first)
    return round(max(0.0, least), 3), round(max(0.0, most), 3)


def keep(found: Pace, source: str) -> None:
    """Writes the pace as the file that the package ships."""
    lines = [
        f"# Of the demo's size, with real trainers: {source}.",
        "# Written by `python -m benchmarks.simulator_vs_real`.",
        "",
    ]
    lines += [f"{name} = {json.dumps(value)}" for name, value in asdict(found).items()]
    PACE.write_text("\n".join(lines) + "\n")


# --- the same faults in the simulator ---


def simulated(spec: RunSpec, plan: Sequence[FaultDone], at: Pace, seed: int) -> History:
    """Plays the same kinds of faults on the same groups in the same order, each when all is well again."""
    allocation = replace(spec.allocation, engine="slurm")  # the model scheduler's name; its times are of `at`
    world = World(replace(spec, allocation=allocation), seed, at)
    done: list[FaultDone] = []
    phase = random.Random(seed)
    settle_s = (spec.titan.digest_interval_steps + 16) * at.step_s
    for fault in plan:
        _well(world)
        world.clock.wait(settle_s + phase.uniform(0, at.step_s))  # a real one comes anywhere in a step
        now = world.clock.now
        if not _injected(world, fault):
            raise RuntimeError(f"{fault.name} finds none in the simulator")
        world.clock.wait(2 * at.step_s)
        done.append(replace(fault, began=now, made=now, after="", over=None))
    _well(world)
    if world.checks.broken:
        raise RuntimeError(f"the simulator itself breaks on this plan: {world.checks.broken[0]}")
    history = told_by(world)
    history.faults = done
    return history


def _well(world: World) -> None:
    world.clock.run_until(world.clock.now + WAIT_S, world.healthy)
    if not world.healthy():
        raise RuntimeError(f"the simulated run does not get well within {WAIT_S:g} s")


def _injected(world: World, fault: FaultDone) -> bool:
    kind, placed = KINDS[OF[fault.name]], world.checks.memory.groups[fault.group]
    if kind.sim == "node_lost":  # and the local engine does not report it before its lease lapses
        world.nodes[placed.first_node].power_off()
        return True
    target = 0  # the simulator names a victim by a number: find the one for this group
    if kind.sim in ("crash", "error", "freeze"):
        ranks = [t.group for node in world.nodes.values() for t in node.living() if t.ending is None]
        target = next(n for n in range(999) if n % 3 == 0 and ranks[n % len(ranks)] == fault.group)
    elif kind.sim == "unplugged":
        target = [node.name for node in world.nodes.values() if node.power].index(placed.first_node)
    elif kind.sim == "allocation_taken":
        held = [key for key, h in world.engine.held.items() if h.state == "granted"]
        target = held.index(placed.seats[0].allocation)
    return faults.inject(world, faults.Fault(world.clock.now, kind.sim, target, kind.seconds))


# --- both ---


def real(seed: int, folder: Path) -> Path:
    """Breaks a run of its own, with an order and victims of this seed, and returns its history. Raises SystemExit when
    its certificate is not green; the folder then stays."""
    names = [kind.names[n % len(kind.names)] for kind in KINDS.values() for n in range(kind.times)]
    random.Random(f"order {seed}").shuffle(names)
    lines = [f"seed = {seed}"]
    for i, name in enumerate(names):
        lines += ["", "[[fault]]", f'name = "{name}"', f"at_step = {FIRST_STEP + i * STEPS_APART}"]
    folder.mkdir(parents=True, exist_ok=True)
    schedule = folder / f"seed{seed}.toml"
    schedule.write_text("\n".join(lines) + "\n")
    # the command gives each node its own network, which is cut when the node falls silent
    code = chaos_run([str(schedule), "--name", f"seed{seed}", "--home", str(folder)])
    if code:
        raise SystemExit(
            f"{folder / f'seed{seed}'}: `supervisor chaos run` ended with {code}, which it says why above: nothing is compared with this run"
        )
    return folder / f"seed{seed}" / "history.jsonl"


def compared(history: History, at: Pace) -> dict[str, dict[str, object]]:
    """Returns by kind the medians of both and their ratio."""
    plan = [fault for fault in history.faults if fault.name in OF and fault.made is not None and not fault.after]
    ours: dict[str, list[Recovery]] = defaultdict(list)
    theirs: dict[str, list[Recovery]] = defaultdict(list)
    for found in recoveries(history):
        ours[found.kind].append(found)
    for seed in range(SIM_SEEDS):
        for found in recoveries(simulated(own.spec("sim"), plan, at, seed)):
            theirs[found.kind].append(found)
    figures: dict[str, dict[str, object]] = {}
    for name in ours:
        a, b = (statistics.median(r.seconds for r in found[name]) for found in (ours, theirs))
        figures[name] = {
            "real_s": round(a, 2), "simulated_s": round(b, 2), "ratio": round(b / a, 2), "within_25%": abs(b / a - 1) <= BOUND,
            "real_all_s": [round(r.seconds, 2) for r in ours[name]], "n_simulated": len(theirs[name]),
            "counted_from": KINDS[name].counts_from,
        }  # fmt: skip
        spawn = [[r.to_spawn for r in found[name] if r.to_spawn is not None] for found in (ours, theirs)]
        if all(spawn):
            figures[name]["until_begun_s"] = [round(statistics.median(each), 2) for each in spawn]
    return figures


def _missed(figures: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, figure in figures.items() if not figure["within_25%"]]


def _about(histories: Sequence[History]) -> str:
    runs = (
        f"seed {h.setting.seed} with {len(h.faults)} faults, at {h.setting.versions.get('commit', '?')}"
        for h in histories
        if h.setting
    )
    return "supervisor chaos run: " + ", ".join(runs)


def main() -> int:
    asks = argparse.ArgumentParser(description=__doc__)
    asks.add_argument("--calibrate", type=Path, nargs="+", help="history.jsonl of runs; default: one is started")
    asks.add_argument("--compare", type=Path, help="history.jsonl of another; default: one is started")
    asks.add_argument("--home", type=Path, help="where runs are started and kept (default: a temporary folder)")
    asked = asks.parse_args()
    at_commit = commit()  # before the pace is written, which changes the tree
    home = asked.home or Path(tempfile.mkdtemp(prefix="simulator-vs-real-"))
    first = [history_file.load(path) for path in asked.calibrate or [real(FIRST_SEED, home)]]
    second = history_file.load(asked.compare or real(SECOND_SEED, home))
    if not asked.home:
        shutil.rmtree(home)  # a run that is not green ended the program before: its folder stays for a look
    at = calibrated(first)
    keep(at, f"benchmarks/results/simulator_vs_real.json, calibrated_by: {_about(first)}")
    figures = compared(second, at)
    missed = _missed(figures)
    swapped = compared(first[0], calibrated([second])) if len(first) == 1 else None
    result = {
        "what": "recovery times of the same faults, real and simulated: two groups and a spare, Llama 3 debug model, CPU",
        "command": "python -m benchmarks.simulator_vs_real",
        "calibrated_by": _about(first),
        "pace": asdict(at),
        "compared_with": _about([second]),
        "simulated_seeds": SIM_SEEDS,
        "bound": BOUND,
        "missed": missed,
        "not_in_this_run": sorted(KINDS.keys() - figures.keys()),
        "not_compared": NOT_COMPARED,
        "figures": figures,
        "swapped": swapped,
        "missed_swapped": None if swapped is None else _missed(swapped),
        "commit": at_commit,
        "machine": machine(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name, figure in figures.items():
        print(f"{name:30} real {figure['real_s']:6} s  simulated {figure['simulated_s']:6} s  ratio {figure['ratio']}")
    print(f"within {BOUND:.0%}: {len(figures) - len(missed)} of {len(figures)} kinds")
    if swapped:
        print(f"with the runs in each other's place: {len(swapped) - len(_missed(swapped))} of {len(swapped)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
