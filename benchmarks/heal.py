"""Measures how long a group takes to take the others' state, by its size, and what the others lose meanwhile. In turn, on
one machine, by loopback:

- `copy`: as many bytes by Python's own HTTP server and client, into memory: what a heal is held against;
- `ours`: groups of `everstep_trainer`, without a supervisor;
- `torchft`: the same groups with TorchFT's own manager, its defaults, and TorchTitan's process group timeout (10 s).

Two groups for each size; `slow`: five groups, and a link on which the transfer takes twice the process group timeout.
`stall_s` is the longest time between two commits of the groups that train, `back_s` runs from the newcomer's start to its
first commit with all, `heals` counts what it took, `in_vain` the steps of the others that were not committed.

`python -m benchmarks.heal [--rounds 3] [--sizes 10 100 1000]` writes benchmarks/results/heal.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TorchFTSpec
from supervisor.wire.address import free_port
from supervisor.wire.records import TrainerLaunch, encode

RESULTS = Path(__file__).parent / "results" / "heal.json"
MB = 1_000_000
TORCHFT = TorchFTSpec()
SLOW_GROUPS, SLOW_MB = 5, 20
SLOW_TIMES = 2
"""Process group timeouts that the slow transfer takes."""
SETTLED = 5
"""Steps before a newcomer comes, and after it is back."""
WITHIN_S = 180.0
GOAL = 2.0
"""Most seconds of a heal, as a multiple of the copy's."""


class Group:
    """One group's process, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.began, self.lines = process, time.time(), list[dict[str, Any]]()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def commits(self, groups: int) -> list[float]:
        """Returns the times of its committed steps with that many groups."""
        return [line["t"] for line in self.lines if line.get("committed") and line["groups"] == groups]


@contextmanager
def lighthouse() -> Iterator[str]:
    command = [
        *(sys.executable, "-m", "titan_actor.lighthouse", "--min-replicas=1"),
        f"--join-timeout-ms={TORCHFT.join_timeout_ms}",
        f"--heartbeat-timeout-ms={TORCHFT.heartbeat_timeout_ms}",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.kill()


@dataclass(frozen=True)
class Trial:
    mode: str
    groups: int
    size: int
    rate: float = 0.0


def start(trial: Trial, folder: Path, lighthouse_at: str, group: int) -> Group:
    rank_dir = folder / f"heal.{group}"
    rank_dir.mkdir()
    launch = TrainerLaunch(
        run="heal", group=group, generation=1, rank=0, world_size=1, groups=trial.groups, min_groups=1, node=f"n{group}",
        node_address="127.0.0.1", master_port=free_port(), lighthouse=lighthouse_at, run_dir=str(folder),
        rank_dir=str(rank_dir), torchft=TORCHFT,
    )  # fmt: skip
    (rank_dir / "launch.json").write_bytes(encode(launch))
    arguments = [trial.mode, str(rank_dir / "launch.json"), str(trial.size), str(trial.rate)]
    with (rank_dir / "output.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.heal_rank", *arguments],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "SUPERVISOR_NO_GATE": "1"},
        )  # fmt: skip
    return Group(process)


def heal(trial: Trial) -> dict[str, Any]:
    """Has a group come to others that train, and returns what it took."""
    with tempfile.TemporaryDirectory() as top, ExitStack() as after, lighthouse() as at:

        def begin(group: int) -> Group:
            made = start(trial, Path(top), at, group)
            after.callback(made.process.wait)
            after.callback(made.process.send_signal, signal.SIGKILL)
            return made

        groups = trial.groups
        others = [begin(group) for group in range(groups - 1)]
        eventually(lambda: all(len(o.commits(groups - 1)) > SETTLED for o in others), WITHIN_S, "the others train")
        (Path(top) / "slow").touch()
        late = begin(groups - 1)
        try:
            eventually(lambda: len(late.commits(groups)) > SETTLED, WITHIN_S, "it trains with them")
        except AssertionError:
            print(f"not within {WITHIN_S:g} s", flush=True)
        heals = [line["heal_s"] for line in late.lines if "heal_s" in line]
        back = late.commits(groups)
        since = [[line["t"] for line in o.lines if line.get("committed") and line["t"] > late.began] for o in others]
        stalls = [after_ - before for t in since for before, after_ in itertools.pairwise([*t, time.time()])]
        return {
            "heal_s": heals[0] if heals else None,
            "heals": len(heals),
            "back_s": back[0] - late.began if back else None,
            "stall_s": max(stalls, default=None),
            "in_vain": sum(
                line["t"] > late.began and not line.get("committed", True) for o in others for line in o.lines
            ),
            "ended": sum(each.process.poll() is not None for each in (*others, late)),
        }


def copy(size: int) -> dict[str, Any]:
    """Copies as many bytes from another process."""
    code = f"import benchmarks.heal as heal; heal.serve({size})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, into, at = int(process.stdout.readline()), memoryview(bytearray(size)), 0
        began = time.perf_counter()
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}/") as got:
            while at < size and (count := got.readinto(into[at:])):
                at += count
        took_s = time.perf_counter() - began
        process.kill()
    if at != size:
        raise RuntimeError(f"{at} of {size} bytes came")
    return {"heal_s": took_s}


def serve(size: int) -> None:
    data = bytes(size)

    class Whole(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Whole)
    print(server.server_port, flush=True)
    server.serve_forever()


def measure(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Runs all trials, in turn."""
    found: dict[str, Any] = {}
    for number in range(rounds):
        for mb in sizes:
            size = mb * MB
            trials: dict[str, Callable[[], dict[str, Any]]] = {
                "copy": partial(copy, size),
                "ours": partial(heal, Trial("ours", 2, size)),
                "torchft": partial(heal, Trial("torchft", 2, size)),
            }
            for name, trial in trials.items():
                found.setdefault(f"{mb}_mb", {}).setdefault(name, []).append(one := trial())
                print(number + 1, mb, "MB", name, one, flush=True)
        rate = SLOW_MB * MB / (SLOW_TIMES * TORCHFT.process_group_timeout_ms / 1000)
        for mode in ("ours", "torchft"):
            found.setdefault("slow", {}).setdefault(mode, []).append(
                one := heal(Trial(mode, SLOW_GROUPS, SLOW_MB * MB, rate))
            )
            print(number + 1, "slow", mode, one, flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000], metavar="MB")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    load_before = os.getloadavg()[0]
    found = measure(given.sizes, given.rounds)

    def median_s(mb: int, name: str) -> float:
        times = [one["heal_s"] for one in found[f"{mb}_mb"][name] if one["heal_s"] is not None]
        return statistics.median(times) if times else float("nan")

    ratio = {f"{mb}_mb": round(median_s(mb, "ours") / median_s(mb, "copy"), 2) for mb in given.sizes}
    made = {
        "about": f"python -m benchmarks.heal --rounds {given.rounds}", "at": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine(),
        "load_before": load_before, "process_group_timeout_s": TORCHFT.process_group_timeout_ms / 1000,
        "slow_groups": SLOW_GROUPS, "slow_transfer_s": SLOW_TIMES * TORCHFT.process_group_timeout_ms / 1000,
        "given_up_after_s": WITHIN_S, "trials": found, "ratio_to_copy": ratio, "goal_ratio": GOAL,
    }  # fmt: skip
    given.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(ratio))


if __name__ == "__main__":
    main()
