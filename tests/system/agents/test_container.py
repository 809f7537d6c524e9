"""A node in a container: process and mount namespaces of its own, in which the shim is process 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.shim import process
from agents.shim.main import LEAVING
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import desire, observed, rank, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.wire import keys

pytestmark = [pytest.mark.etcd, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")]

NODE = "n1"


@pytest.fixture
def container(tmp_path: Path, etcd_server: EtcdServer) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a container as a runtime does: the shim is the first process, and all end with it."""
    shim = [sys.executable, "-m", "agents.cli", "run", f"--node={NODE}", f"--home={tmp_path}", "--cold", "--lease-s=2"]
    shim += [f"--etcd={etcd_server.endpoint}", "--report-s=1"]
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", *shim]
    environment = {**os.environ, "SUPERVISOR_PROGRAMS": json.dumps({**TOYS, "agent": "agents.agent"})}
    with (tmp_path / "out").open("wb") as out:
        made = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield made
    finally:
        made.kill()
        made.wait()
        eventually(lambda: not process.marked(str(tmp_path / "nodes" / NODE)), 10, "all of it ends with process 1")


def first(container: subprocess.Popen[bytes]) -> int:
    """Process 1 of the container, by its number outside."""
    (child,) = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
    return int(child)


def children(container: subprocess.Popen[bytes]) -> set[int]:
    """Children of the container's process 1, including ended ones that were not reaped."""
    return {stat.pid for stat in process.all_processes() if stat.parent == first(container)}


def status(pid: int) -> str:
    """The text of /proc/PID/status; empty once the process has ended, even during this call."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def test_it_runs_restarts_and_ends_in_order(container: subprocess.Popen[bytes], store: Store, tmp_path: Path) -> None:
    desire(store, NODE, trainer())
    eventually(lambda: (r := rank(store, NODE, 1)) and r.state == "running", 30, "a rank runs")
    pids = {stat.pid for stat in process.marked(str(tmp_path / "nodes" / NODE))}
    inside = rank(store, NODE, 1).pid
    assert inside < 100, "numbers of the container's own"
    victim = next(pid for pid in pids if f"NSpid:\t{pid}\t{inside}\n" in status(pid))

    os.kill(victim, signal.SIGKILL)
    eventually(lambda: (r := rank(store, NODE, 1)) and r.exit is not None and r.exit.signal == 9, 10, "its end is told")
    desire(store, NODE, trainer(generation=2))
    eventually(lambda: (r := rank(store, NODE, 2)) and r.state == "running", 30, "the next generation runs")

    before = children(container)
    orphan = ["nsenter", f"--target={first(container)}", "--pid", "--mount", "sh", "-c", "sleep 5 & true"]
    subprocess.run(orphan, check=True)
    eventually(lambda: children(container) > before, 4, "it is process 1's now")
    eventually(lambda: children(container) == before, 10, "which reaps it: nobody else can")

    os.kill(first(container), signal.SIGUSR1)
    eventually(lambda: observed(store, NODE).leaving == LEAVING, 10, "the scheduler's notice reaches process 1")

    os.kill(first(container), signal.SIGTERM)
    container.wait(30)
    assert store.get(keys.registration(NODE)) is None, "it has given its lease back"
    history = [json.loads(line) for line in (tmp_path / "nodes" / NODE / "shim.jsonl").read_text().splitlines()]
    assert history[-1]["event"] == "shim_stopped"
