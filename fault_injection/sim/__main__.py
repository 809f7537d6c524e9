"""python -m fault_injection.sim: plays many seeds, or one again."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path

from fault_injection.sim.faults import PLANNED, Fault
from fault_injection.sim.lane import Kept, LaneError, Part, command, commit, play
from fault_injection.sim.run import Result, run
from fault_injection.sim.shrink import shrunk

DAY_S = 86400.0
"""Longest virtual time of a plan: more is a mistake, which would be played for hours."""
OFTEN_S = 60.0
"""Seconds between two reports of progress."""
SEEDS = 200


def main() -> int:
    """Plays seeds. Exits 0 if nothing broke; 1 if something did, shown with the fewest faults; 2 for wrong input."""
    asked = _asked()
    try:
        plan = read_plan(asked.plan) if asked.plan is not None else None
        kept = Kept(asked.out, asked.nodes, asked.go_on, asked.nodes_per_group) if asked.out else None
        seeds = _seeds(asked, kept)
        broken = [(seed, sorted(map(_fault, told))) for seed, told in kept.broken] if kept is not None else []
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if asked.seed is not None:
        return _again(asked.seed, asked.nodes, plan, asked.plan, asked.nodes_per_group)
    try:
        bad = _those_that_broke(broken, kept) if kept is not None else 0
        bad += _lane(seeds, asked.nodes, asked.jobs, kept, asked.nodes_per_group) if seeds else 0
    except KeyboardInterrupt:
        print(f"interrupted{_kept(kept)}", file=sys.stderr)
        return 1
    except BrokenProcessPool:
        print(f"a process that played seeds has died, perhaps out of memory{_kept(kept)}", file=sys.stderr)
        return 1
    except OSError as error:
        if kept is None:
            raise
        what = "its earlier results are kept; free the disk or path, then go on with --go-on"
        print(f"cannot write results to {kept.path} any more ({error.strerror}): {what}", file=sys.stderr)
        return 1
    return 1 if bad else 0


def _kept(kept: Kept | None) -> str:
    return "" if kept is None else "; the results so far are kept: go on with --go-on"


def _seeds(asked: argparse.Namespace, kept: Kept | None) -> range:
    """Returns the seeds to play. Raises LaneError if the file lacks seeds before the next."""
    if kept is None or not asked.go_on:
        return range(asked.first, asked.first + asked.seeds)
    if kept.missing:
        raise LaneError(
            f"{kept.path} lacks {len(kept.missing)} seeds below {kept.next}, the first is {kept.missing[0]}: --go-on would skip them, "
            "so start again without it"
        )
    if kept.next >= asked.seeds:
        print(f"{kept.path} holds seeds 0 to {kept.next - 1} already: nothing is left to play", file=sys.stderr)
    return range(kept.next, asked.seeds)


def _those_that_broke(broken: Sequence[tuple[int, Sequence[Fault]]], kept: Kept) -> int:
    """Plays the seeds again that broke before, and returns how many still do."""
    now = commit()
    for seed, plan in broken:
        result = run(seed, kept.nodes, plan, kept.nodes_per_group)
        kept.again(result, now)
        if result.broken:
            print(failure(result), flush=True)
    if broken:
        say = f"{kept.path} held {len(broken)} broken seeds; played again, {len(kept.broken)} of them still break"
        print(say, file=sys.stderr)
    return len(kept.broken)


def _again(seed: int, nodes: int, plan: Sequence[Fault] | None, path: Path | None, size: int) -> int:
    result = run(seed, nodes, plan, size)
    print(described(result))
    if result.broken:
        print(failure(result, path))
    return 1 if result.broken else 0


def _lane(seeds: range, nodes: int, jobs: int, kept: Kept | None, size: int) -> int:
    began = said = time.monotonic()
    part = Part(seeds[0], nodes, jobs)
    try:
        for result, cpu_s in play(seeds, nodes, jobs, size):
            part.add(result, cpu_s)
            part.wall_s = time.monotonic() - began
            if result.broken:
                print(failure(result), flush=True)
            if kept is not None:
                kept.keep(part, at_once=bool(result.broken))
            if time.monotonic() - said > OFTEN_S:
                said = time.monotonic()
                print(
                    f"{part.seeds} of {len(seeds)} seeds, {len(part.broken)} broken, {said - began:.0f} s", flush=True
                )
    finally:
        if kept is not None and part.seeds:
            kept.keep(part, at_once=True)
    print(
        f"{part.seeds} seeds of {nodes} nodes{_in_groups(size)}: {len(part.broken)} broken, {part.recovered} recovered; {part.virtual_s / 3600:.1f} hours "
        f"of virtual time in {part.wall_s:.0f} s, {part.wall_s / part.seeds:.2f} s a seed"
    )
    return len(part.broken)


def _in_groups(size: int) -> str:
    return f" in groups of {size}" if size > 1 else ""


def _asked() -> argparse.Namespace:
    asks = argparse.ArgumentParser(prog="python -m fault_injection.sim", description=main.__doc__)
    asks.add_argument("--seeds", type=_positive, help=f"number of seeds (default {SEEDS}); with --go-on: in total")
    asks.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    asks.add_argument("--nodes", type=_positive, default=50, help="nodes of the run, spares included (default 50)")
    asks.add_argument("--nodes-per-group", type=_positive, default=1, help="nodes of a replica group (default 1)")
    asks.add_argument("--jobs", type=_positive, default=1, help="number of processes (default 1)")
    asks.add_argument("--out", type=Path, help="JSON file to which results are written as they come")
    asks.add_argument(
        "--go-on",
        action="store_true",
        help="with --out: replay its broken seeds, then go on after its last seed",
    )
    asks.add_argument("--seed", type=int, help="play only this seed, and print its plan and outcome")
    asks.add_argument(
        "--plan", type=Path, help="with --seed: file of faults that replaces its plan, one JSON object a line"
    )
    found = asks.parse_args()
    if found.plan is not None and found.seed is None:
        asks.error("--plan needs --seed: the seed gives the random numbers")
    if found.go_on and found.out is None:
        asks.error("--go-on needs --out: the file to continue")
    if found.go_on and found.first:
        asks.error("--go-on starts after the last seed in the file: leave out --first")
    if found.seed is not None and (found.seeds or found.out is not None or found.first or found.jobs != 1):
        asks.error("--seed plays one seed and keeps no file: leave out --seeds, --out, --first and --jobs")
    found.seeds = found.seeds or SEEDS
    if found.nodes <= found.nodes_per_group:
        asks.error(f"--nodes must be at least {found.nodes_per_group + 1}: a group trains, and one is a spare")
    return found


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return number


def described(result: Result) -> str:
    """Describes one seed: its plan and its end."""
    lines = [f"seed {result.seed}, {result.nodes} nodes{_in_groups(result.nodes_per_group)}, trace {result.digest}:"]
    lines += [json.dumps(fault.told()) for fault in result.plan]
    end = "not" if result.recovered_s is None else f"{result.recovered_s:.1f} s after the last fault"
    return "\n".join([*lines, f"all groups trained: {end}; virtual time {result.lasted_s:.0f} s"])


def failure(result: Result, plan: Path | None = None) -> str:
    """Describes what broke, with the seed and the fewest faults that break it. `plan`: the file of its faults, if
    any."""
    least = shrunk(result)
    lines = [
        f"seed {result.seed}, {result.nodes} nodes{_in_groups(result.nodes_per_group)}: {len(result.plan)} faults, of which {len(least.plan)} are enough:"
    ]
    lines += [f"  {json.dumps(fault.told())}" for fault in least.plan]
    lines += [f"  {sentence}" for sentence in least.broken]
    lines.append(f"  again: {command(result)}" + (f" --plan {plan}" if plan is not None else ""))
    return "\n".join(lines)


def read_plan(path: Path) -> Sequence[Fault]:
    """Reads the faults of a file. Raises ValueError if it cannot be read, or holds something else."""
    try:
        return _faults(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read the plan {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot read the plan {path}: {error}") from error


def _faults(text: str) -> Sequence[Fault]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(_fault(json.loads(line)))
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not a JSON object ({error})") from error
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return sorted(found)


def _fault(told: object) -> Fault:
    wanted = {field.name for field in fields(Fault)}
    if not isinstance(told, dict) or wanted != told.keys():
        raise ValueError(f"a fault must be one JSON object with {', '.join(sorted(wanted))}, and no other keys")
    if told["kind"] not in PLANNED:
        raise ValueError(f"there is no fault {told['kind']!r}; known: {', '.join(PLANNED)}")
    if type(told["target"]) is not int or told["target"] < 0:
        raise ValueError(f"target is {told['target']!r}, and must be a whole number from 0")
    for name in ("at", "seconds"):
        if type(told[name]) not in (int, float) or not 0 <= told[name] <= DAY_S:
            raise ValueError(f"{name} is {told[name]!r}, and must be a number of seconds from 0 to {DAY_S:g}")
    return Fault(**told)


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as a Ctrl-C: the processes end too, and the results are kept
    sys.exit(main())
