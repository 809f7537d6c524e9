"""Plays seeds over several processes, and saves results as they come, so that an interruption loses nothing."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from fault_injection.sim.run import Result, run

AHEAD = 2
"""Seeds for each process that wait to be played, or whose results wait for an earlier one's. An interrupted lane
finishes those that have begun."""
KEEP_S = 30.0
"""Seconds between two writes of the file."""


class LaneError(ValueError):
    """Raised if the file of results is unusable, or belongs to something else."""


def play(seeds: Sequence[int], nodes: int, jobs: int, nodes_per_group: int = 1) -> Iterator[tuple[Result, float]]:
    """Yields each seed's result in order, with the seconds of CPU that it took. The results are the same for any
    `jobs`. Raises BrokenProcessPool when one of the processes ends, for instance killed for want of memory."""
    if jobs == 1:
        _begin()
        yield from map(_one, seeds, repeat(nodes), repeat(nodes_per_group))
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("forkserver"), _begin_aside) as pool:
        # no `map`: after a process has ended, what it cancels keeps the others from being ended (seen with 3.11)
        ahead: deque[Future[tuple[Result, float]]] = deque()
        try:
            for seed in seeds:
                ahead.append(pool.submit(_one, seed, nodes, nodes_per_group))
                if len(ahead) > AHEAD * jobs:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except (KeyboardInterrupt, GeneratorExit):
            for each in ahead:
                each.cancel()
            raise


def _begin() -> None:
    gc.disable()  # a seed is one heap that grows and is discarded as a whole
    gc.freeze()


def _begin_aside() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it
    _begin()


def _one(seed: int, nodes: int, nodes_per_group: int) -> tuple[Result, float]:
    began = time.process_time()
    result = run(seed, nodes, nodes_per_group=nodes_per_group)
    gc.collect()
    return result, time.process_time() - began


def command(result: Result) -> str:
    """Returns the command that plays this seed."""
    size = f" --nodes-per-group {result.nodes_per_group}" if result.nodes_per_group > 1 else ""
    return f"python -m fault_injection.sim --seed {result.seed} --nodes {result.nodes}{size}"


@dataclass
class Part:
    """Seeds that were played one after another by one commit."""

    first: int
    nodes: int
    jobs: int
    commit: str = field(default_factory=lambda: commit())
    seeds: int = 0
    broken: list[dict[str, Any]] = field(default_factory=list)
    recovered: int = 0
    """Seeds that recovered. Others had tight budgets, and halted with a reason."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    """Counts of faults (judge.Asked)."""
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def add(self, result: Result, cpu_s: float) -> None:
        self.seeds += 1
        self.virtual_s += result.lasted_s
        self.cpu_s += cpu_s
        self.recovered += result.recovered_s is not None
        self.asked.update(asdict(result.asked))
        if result.broken:
            plan = [fault.told() for fault in result.plan]
            self.broken.append(
                {"seed": result.seed, "plan": plan, "says": list(result.broken), "again": command(result)}
            )

    def told(self) -> dict[str, Any]:
        each = max(self.seeds, 1)
        return {
            "first": self.first,
            "seeds": self.seeds,
            "violations": self.broken,
            "recovered": self.recovered,
            "faults": dict(self.asked),
            "virtual_hours": round(self.virtual_s / 3600, 1),
            "cpu_s_a_seed": round(self.cpu_s / each, 2),
            "wall_s_a_seed": round(self.wall_s / each, 2),
            "jobs": self.jobs,
            "commit": self.commit,
            "machine": self.machine,
        }


class Kept:
    """The file of results: one part for each time that the lane was started or continued."""

    def __init__(self, path: Path, nodes: int, go_on: bool, nodes_per_group: int = 1) -> None:
        """`go_on`: keep the parts that are there; else the present file is kept beside, with `.before` after its name.
        Raises LaneError if the parts are unreadable or of another number of nodes, or no file can be written."""
        self.path, self.nodes, self.nodes_per_group = path, nodes, nodes_per_group
        self._aside = path.with_name(path.name + ".new")
        self._try()
        self._before = self._read() if go_on and path.exists() else []
        self._anew = not go_on
        self._kept_at = 0.0

    def _try(self) -> None:
        """Rejects a file that cannot be written before hours are played."""
        if self.path.exists() and not self.path.is_file():
            raise LaneError(f"{self.path} is not a file: give the path of one for the results")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._aside.touch()
            self._aside.unlink()
        except OSError as error:
            raise LaneError(
                f"the results cannot be written to {self.path} ({error.strerror}): name a file in a folder that can be written"
            ) from error

    def _read(self) -> list[dict[str, Any]]:
        try:
            body = json.loads(self.path.read_text())
            parts, nodes, size = list(body["parts"]), int(body["nodes"]), int(body.get("nodes_per_group", 1))
            if nodes != self.nodes:
                raise LaneError(f"{self.path} is of {nodes} nodes, not of {self.nodes}: name another file")
            if size != self.nodes_per_group:
                raise LaneError(
                    f"{self.path} is of groups of {size} nodes, not of {self.nodes_per_group}: name another file"
                )
            if not all(isinstance(p[k], int) for p in parts for k in ("first", "seeds")):
                raise ValueError("a part's first seed, or how many it has, is no number")
            if not all(
                isinstance(v["seed"], int) and isinstance(v["plan"], list) for p in parts for v in p["violations"]
            ):
                raise ValueError("a seed that broke is no number, or has no plan")
        except LaneError:
            raise
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise LaneError(f"{self.path} holds no results of the simulator ({error}): name another file") from error
        return parts

    @property
    def broken(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Returns the seeds that broke and have not passed since, with their plans, as today's may differ."""
        return [(violation["seed"], violation["plan"]) for part in self._before for violation in _open(part)]

    def again(self, result: Result, commit: str) -> None:
        """Records how a seed that broke before fares with the program of this commit, beside its first result, which
        stays. Raises OSError for a disk that fails."""
        for violation in (v for part in self._before for v in part["violations"] if v["seed"] == result.seed):
            violation["played_again"] = {"commit": commit, "says": list(result.broken)}
        self._write(self._before)

    @property
    def next(self) -> int:
        """Returns the first seed that is not in it."""
        return max((part["first"] + part["seeds"] for part in self._before), default=0)

    @property
    def missing(self) -> list[int]:
        """Returns the seeds before the next that no part has: a lane was begun with `--first`."""
        there = {seed for part in self._before for seed in range(part["first"], part["first"] + part["seeds"])}
        return [seed for seed in range(self.next) if seed not in there]

    def keep(self, part: Part, at_once: bool = False) -> None:
        """Writes the file, whole or not at all, unless just written. Raises OSError for a disk that fails meanwhile."""
        now = time.monotonic()
        if not at_once and now - self._kept_at < KEEP_S:
            return
        self._kept_at = now
        self._write([*self._before, part.told()])

    def _write(self, parts: list[dict[str, Any]]) -> None:
        several = self.nodes_per_group > 1
        size = f" --nodes-per-group {self.nodes_per_group}" if several else ""
        what = f" in groups of {self.nodes_per_group}" if several else ""
        body = {
            "what": f"the simulator's long lane: seeds of {self.nodes} nodes{what} (docs/adr/0011-simulator.md)",
            "command": f"python -m fault_injection.sim --seeds N --nodes {self.nodes}{size} --jobs J --out FILE --go-on",
            "nodes": self.nodes,
            **({"nodes_per_group": self.nodes_per_group} if several else {}),
            "seeds": sum(p["seeds"] for p in parts),
            "violations": sum(len(_open(p)) for p in parts),
            "parts": parts,
        }
        self._aside.write_text(json.dumps(body, indent=1) + "\n")
        if self._anew and self.path.exists():
            self.path.replace(self.path.with_name(self.path.name + ".before"))
        self._anew = False
        self._aside.replace(self.path)


def _open(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns its seeds that broke, and broke again if they were played again."""
    return [v for v in part["violations"] if v.get("played_again", {"says": ["it was not"]})["says"]]


def commit() -> str:
    """Returns the commit of the sources, with `+` after it when they differ from it. Results do not count, as a
    benchmark writes them. Returns `unknown` where there is no git."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)benchmarks/results")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{name}+" if changed else name


def _git(*asked: str) -> str:
    here = Path(__file__).parent
    said = subprocess.run(["git", *asked], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    return said.stdout.strip()


def machine() -> dict[str, Any]:
    """Describes the machine on which it runs."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "load_1m": round(os.getloadavg()[0], 2),
    }
