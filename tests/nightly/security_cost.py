"""Measures what certificates cost: `python -m tests.nightly.security_cost [--rounds N] [--agents N]`.

A system in plain on loopback and one with TLS and etcd's roles everywhere, in turn: a step of two toys in a real TorchFT
quorum, the recovery from a SIGKILL, and the start of agents. Exit code 1 when one costs more than 3%.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.decide import machine
from fault_injection.sim.lane import commit
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World, toy_spec, world
from supervisor.core.model.spec import TitanSpec
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.etcd import connect
from supervisor.shell.etcd.auth import init_auth
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from supervisor.wire.security import Security
from tests.helpers.tls import Certificates, tls_etcd
from tests.system.security.world import tls_world

RESULTS = Path("benchmarks/results/security_cost.json")
BOUND = 1.03
ARMS = ("plain", "certificates")
STEPS = 200
"""Steps of which a round takes the median."""
KILLS = 3
AT_ONCE = 4
"""Agents that start together, on two processors."""
NAMES = tuple(f"a{n}" for n in range(AT_ONCE))

Seconds = dict[str, list[float]]
"""By measurement, one number for each time."""


def train(w: World) -> Seconds:
    """Measures steps and recoveries of one system."""
    w.supervisor()
    spec = toy_spec()
    titan = TitanSpec(steps=spec.titan.steps, overrides={"toy.mode": "torchft"})
    record = w.launch(replace(spec, titan=titan, torchft=TORCHFT))
    recovered(w, record, time.time())
    since = time.time()
    eventually(lambda: len(commits(w, record, 0, since)) > STEPS, 120, "they step")
    times = commits(w, record, 0, since)
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    found = [statistics.median(steps)]
    recoveries = []
    for n in range(KILLS):
        eventually(w.running(record, 1, n + 1), 60, "both groups run")
        killed = time.time()
        w.kill_trainer(record, 1)
        recoveries.append(recovered(w, record, killed))
    return {"step": found, "recovery from SIGKILL": recoveries}


def commits(w: World, record: RunRecord, group: int, since: float) -> list[float]:
    """Returns when a group committed a step with the other one."""
    return sorted(
        line["t"]
        for steps in w.history(record).steps
        if steps.group == group
        for line in steps.committed()
        if line["t"] > since and line["participants"] == 2
    )


def recovered(w: World, record: RunRecord, since: float) -> float:
    """Returns the seconds until both groups have committed a step together."""
    # a step in which the other one was killed may still end
    after = since + 0.5

    def both() -> list[float]:
        return [times[0] for group in (0, 1) if (times := commits(w, record, group, after))]

    return max(eventually(lambda: len(found := both()) == 2 and found, 120, "both step together")) - since


@contextmanager
def plain_etcd(folder: Path) -> Iterator[tuple[str, None]]:
    server = start_etcd(folder / "etcd")
    try:
        yield server.endpoint, None
    finally:
        server.stop()


@contextmanager
def locked_etcd(folder: Path) -> Iterator[tuple[str, Certificates]]:
    certificates = Certificates(folder / "certificates")
    certificates.make("etcd", "root", "supervisor", *(f"node-{name}" for name in NAMES))
    with tls_etcd(folder / "etcd", certificates) as server:
        list(init_auth([server.endpoint], certificates.of("root"), NAMES))
        yield server.endpoint, certificates


def start_agents(folder: Path, count: int) -> dict[str, Seconds]:
    """Starts `count` agents in each of the two, a batch of AT_ONCE here and a batch there. Returns, by arm, the seconds
    that each batch took, from the start of its processes until all are registered."""
    found: dict[str, Seconds] = {arm: {"start of agents": []} for arm in ARMS}
    with plain_etcd(folder / "plain") as plain, locked_etcd(folder / "locked") as locked:
        etcds = dict(zip(ARMS, (plain, locked), strict=True))
        for batch in range(count // AT_ONCE):
            for arm in ARMS if batch % 2 == 0 else reversed(ARMS):
                home = folder / f"{arm}{batch}"
                home.mkdir()
                found[arm]["start of agents"].append(batch_of_agents(home, *etcds[arm]))
    return found


def batch_of_agents(home: Path, endpoint: str, certificates: Certificates | None) -> float:
    """Returns the seconds until AT_ONCE agents are registered, and ends them."""
    ours = certificates.of("supervisor") if certificates is not None else Security()
    with connect([endpoint], security=ours) as store, contextlib.ExitStack() as started:
        began = time.monotonic()
        for name in NAMES:
            security = [f"--security={certificates.file(f'node-{name}')}"] if certificates is not None else []
            command = [sys.executable, "-m", "agents.cli", "run", "--node", name, "--etcd", endpoint]
            with (home / f"{name}.log").open("wb") as log:
                agent = subprocess.Popen([*command, "--home", str(home), "--cold", *security], stdout=log, stderr=log)
            started.callback(agent.wait)
            started.callback(os.kill, agent.pid, signal.SIGTERM)
        eventually(lambda: all(store.get(keys.registration(name)) for name in NAMES), 60, "registered")
        took = time.monotonic() - began
        started.close()
        eventually(lambda: not any(store.get(keys.registration(name)) for name in NAMES), 60, "gone")
    return took


def trained(arm: str) -> Seconds:
    with tempfile.TemporaryDirectory(prefix="cost") as folder:
        system = world(Path(folder) / "world", nodes=3) if arm == "plain" else tls_world(Path(folder) / "world")
        with system as w:
            return train(w)


def report(found: dict[str, Seconds], options: argparse.Namespace) -> dict[str, object]:
    rows = {}
    for what in found["plain"]:
        plain, locked = (statistics.median(found[arm][what]) for arm in ARMS)
        rows[what] = {
            "plain_s": round(plain, 4),
            "certificates_s": round(locked, 4),
            "ratio": round(locked / plain, 3),
            "within_bound": locked <= BOUND * plain,
            "times": {arm: [round(each, 4) for each in found[arm][what]] for arm in ARMS},
        }
    return {
        "what": "a system in plain on loopback, and one with TLS and etcd's roles everywhere, in turn",
        "command": f"python -m tests.nightly.security_cost --rounds {options.rounds} --agents {options.agents}",
        "bound": f"each at most {BOUND} times that in plain, by the medians",
        "agents_at_once": AT_ONCE,
        "rows": rows,
        "commit": commit(),
        "machine": machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.security_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--agents", type=int, default=1000, help="starts in each of the two, in turn")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, Seconds] = {arm: {} for arm in ARMS}

    def keep(arm: str, more: Seconds) -> None:
        for what, times in more.items():
            found[arm].setdefault(what, []).extend(times)
            print(f"{arm}, {what}: median {statistics.median(times):.3f} s", flush=True)

    for n in range(options.rounds):
        for arm in ARMS if n % 2 == 0 else reversed(ARMS):
            keep(arm, trained(arm))
    with tempfile.TemporaryDirectory(prefix="cost") as folder:
        for arm, more in start_agents(Path(folder), options.agents).items():
            keep(arm, more)
    made = report(found, options)
    options.results.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps({what: row["ratio"] for what, row in made["rows"].items()}))  # type: ignore[attr-defined]
    return 0 if all(row["within_bound"] for row in made["rows"].values()) else 1  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
