"""Upgrades a live system in place: `python -m tests.nightly.upgrade --from REVISION` (docs/UPGRADES.md has the order).

A system of the earlier revision of this repository trains toys in a real TorchFT quorum, once in plain and once with
certificates. Then this checkout takes the place of its files, the supervisor is replaced, each agent ended; a rank and
the gate are killed afterwards. Exit code 1 when something restarts that should not, or does not come back.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.decide import machine
from fault_injection.sim import lane
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, world
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import RunRecord
from tests.system.security.world import TlsWorld, authed_etcd

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks/results/upgrade.json"
ARMS = ("plain", "certificates")
RUN = f"""
name = "toy"
[titan]
steps = 1000000
checkpoint_interval_steps = 1000000
[titan.overrides]
"toy.mode" = "torchft"
[groups]
count = 2
[allocation]
nodes = 2
spares = 1
[torchft]
heartbeat_timeout_ms = 1000
join_timeout_ms = 5000
process_group_timeout_ms = 5000
[policy]
node_lease_s = {LEASE_S}
term_grace_s = 1.0
"""


class Installed:
    """The files that a system's processes import: first the earlier revision's, then this checkout's."""

    def __init__(self, folder: Path, revision: str) -> None:
        self.path = folder / "installed"
        self.path.mkdir()
        archive = folder / "earlier.tar"
        subprocess.run(["git", "-C", REPOSITORY, "archive", "-o", archive, revision], check=True)
        subprocess.run(["tar", "-xf", archive, "-C", self.path], check=True)
        # not the working folder's, not the editable installation's
        self.environment = {"PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-c", "import supervisor, agents; print(supervisor.__file__, agents.__file__)"]
        found = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True
        )
        assert found.stdout.count(str(self.path)) == 2, found.stdout
        # a revision from before etcd's holes were tried refuses `insecure` beside certificates
        self.accepts_holes = "accepts_holes" in (self.path / "supervisor/wire/security.py").read_text()

    def upgrade(self) -> None:
        new = self.path.with_name("new")
        new.mkdir()
        listed = subprocess.run(
            ["git", "-C", REPOSITORY, "ls-files", "-z"], capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (REPOSITORY / name).exists():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, new / name)
        self.path.rename(self.path.with_name("earlier"))
        new.rename(self.path)


def agent_of(w: World, node: str) -> int:
    """Returns the pid of a node's agent; 0 while there is none."""
    for listed in Path(f"/proc/{w.shim_pid(node)}/task").glob("*/children"):
        for pid in listed.read_text().split():
            if b"agents.agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    return 0


def gates(w: World) -> list[str]:
    return [name for name in w.host_processes() if name.startswith("lighthouse.toy.")]


def step_together(w: World, record: RunRecord) -> None:
    """Returns once both groups have committed a step with each other after now."""
    since = time.time()

    def groups() -> set[int]:
        return {
            steps.group
            for steps in w.history(record).steps
            for line in steps.committed()
            if line["t"] > since and line["participants"] == 2
        }

    eventually(lambda: groups() == {0, 1}, 60, "both groups step together")


def upgrade(arm: str, revision: str) -> dict[str, float]:
    """Plays one upgrade. Returns the seconds of each of its parts. Raises AssertionError."""
    found: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upgrade")))
        installed = Installed(folder, revision)
        os.environ.update(installed.environment)  # the system's processes get ours
        stack.callback(lambda: [os.environ.pop(name) for name in installed.environment])
        left_out: tuple[str, ...] = ()
        if arm == "plain":
            w = stack.enter_context(world(folder / "w", nodes=3))
        else:
            etcd = stack.enter_context(authed_etcd(folder / "w"))
            left_out = ("crl",) if installed.accepts_holes else ("crl", "insecure")
            for file in (folder / "w/certificates").glob("*.toml"):
                # an earlier revision may know no deny list
                lines = file.read_text().splitlines(True)
                file.write_text("".join(line for line in lines if not line.startswith(left_out)))
            w = TlsWorld(folder / "w", etcd)
            stack.callback(w.close)
        old = w.supervisor()
        eventually(w.led, 30, "the old one leads")
        run = folder / "toy.toml"
        run.write_text(RUN)
        ours = ["--etcd", w.etcd.endpoint, "--home", str(w.runs), *(["--security", w.security] if w.security else [])]
        launch = [sys.executable, "-m", "supervisor.cli", "launch", str(run), *ours]
        subprocess.run(launch, env=w.environment, check=True, capture_output=True, text=True)
        record = client.choose_run(w.mirror(), "toy")
        eventually(w.running(record, 1, 1), 60, "both groups run")
        step_together(w, record)
        nodes = ["host", *(group.node for group in w.status(record).groups)]
        shims, agents = {node: w.shim_pid(node) for node in nodes}, {node: agent_of(w, node) for node in nodes}
        trainers, before = [w.trainer(record, group).pid for group in (0, 1)], gates(w)
        assert all(agents.values()), agents

        def part(what: str, wanted: Callable[[], object]) -> None:
            began = time.monotonic()
            eventually(wanted, 60, what)
            step_together(w, record)
            found[f"{what}, and a step"] = round(time.monotonic() - began, 1)
            print(f"  {what}, and a step: {found[f'{what}, and a step']} s", flush=True)

        def leads() -> bool:
            item = w.mirror().items.get(keys.LEADER)
            return item is not None and json.loads(item.value)["pid"] == new.pid

        installed.upgrade()
        if "insecure" in left_out:
            # the etcd that is here has known holes, which docs/UPGRADES.md has one mend or accept
            with (folder / "w/certificates/supervisor.toml").open("a") as more:
                more.write("insecure = true\n")
        new = w.supervisor()
        old.terminate()
        part("the new supervisor leads", leads)
        for node, pid in agents.items():
            os.kill(pid, signal.SIGKILL)
            part(f"a new agent of {node}", lambda node=node, pid=pid: agent_of(w, node) not in (0, pid))  # type: ignore[misc]
        assert {node: w.shim_pid(node) for node in agents} == shims
        assert [w.trainer(record, group).pid for group in (0, 1)] == trainers, "a trainer was started again"
        assert w.running(record, 1, 1)(), "a group was built again"
        assert gates(w) == before, "the gate was started again"
        w.kill_trainer(record, 1)
        part("recovery from SIGKILL", w.running(record, 1, 2))
        (gate,) = gates(w)
        w.kill_host_process(gate)
        part("another gate", lambda: gates(w) not in ([], [gate]))
        w.check(record)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.upgrade", description=__doc__)
    parser.add_argument("--from", dest="revision", required=True, help="the earlier revision, as git names it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    resolve = ["git", "-C", str(REPOSITORY), "rev-parse", f"{options.revision}^{{commit}}"]
    found = subprocess.run(resolve, capture_output=True, text=True, check=False)
    if found.returncode:
        parser.error(f"--from {options.revision}: git knows no such commit here (a shallow clone has the newest alone)")
    commit = found.stdout.strip()
    seconds = {}
    for arm in ARMS:
        print(f"{arm}, from {commit[:8]}:", flush=True)
        seconds[arm] = upgrade(arm, commit)
    made = {
        "what": "an upgrade in place, of toys that step in a real TorchFT quorum; nothing restarted but what was killed",
        "command": f"python -m tests.nightly.upgrade --from {commit[:8]}",
        "seconds": seconds,
        "commit": lane.commit(),
        "machine": machine(),
    }
    options.results.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
