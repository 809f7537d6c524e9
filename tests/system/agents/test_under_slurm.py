"""A node as a job of a real Slurm: notice, an agent's upgrade, and a cancelled job."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.shim import process
from agents.shim.main import LEAVING
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.nodes import Node, desire, kill, observed, rank, registration, running, trainer
from fault_injection.testbed.own_slurm import Slurm, available, slurm
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.shell.dev.etcd_server import EtcdServer

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(available() != "", reason=available())]

FIRST = "toy.0.1.0"
REPOSITORY = str(Path(__file__).parents[3])


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Slurm]:
    with slurm(tmp_path, 1, options={"KillWait": "30"}) as made:
        yield made


def job(cell: Slurm, home: Path, etcd: str, *options: str, through: str = "") -> tuple[int, Node]:
    """A job that becomes a node, with the environment that Slurm gives to one with `--export=NONE`. `through`: what runs
    the agent's command."""
    node = Node.__new__(Node)
    node.name, node.folder, node.output = "n1", home / "nodes" / "n1", home / "n1.out"
    programs = json.dumps({**TOYS, "agent": "agents.agent"}).replace('"', '\\"')
    command = f"{sys.executable} -m agents.cli run --node=n1 --host=$SLURMD_NODENAME --home={home} --etcd={etcd}"
    script = home / "job.sh"
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={REPOSITORY} SUPERVISOR_PROGRAMS="{programs}"\n'
        f"trap '' USR1\nexec {through or 'env --block-signal=USR1'} {command} --address=auto --cold --lease-s=2 {' '.join(options)}\n"
    )
    flags = ["--export=NONE", "--chdir=/", f"--output={node.output}"]
    done = cell.command("sbatch", "--parsable", *flags, str(script))
    assert done.returncode == 0, done.stderr
    return int(done.stdout.strip()), node


def test_a_node_in_a_job(cell: Slurm, etcd_server: EtcdServer, store: Store, tmp_path: Path) -> None:
    number, node = job(cell, tmp_path, etcd_server.endpoint, "--report-s=600", "--grace-s=0.5")
    try:
        desire(store, "n1", trainer())
        pid = running(store, node, 1, deadline_s=30)
        assert (registration(store, "n1").host, registration(store, "n1").address) == ("n1", "127.0.0.1")
        # the job's main process is the shim itself: so a signal to it alone is a notice
        cell.command("scancel", "--batch", "--signal=USR1", str(number))
        eventually(lambda: observed(store, "n1").leaving == LEAVING, 10)
        # an agent that is upgraded: Slurm does not notice
        agent = node.pid("agent")
        kill(agent)
        eventually(lambda: (r := registration(store, "n1")) and r.agent_pid not in (0, agent), 20)
        assert observed(store, "n1").leaving == LEAVING
        assert node.pid(FIRST) == pid
        assert [x["step"] for x in node.steps(FIRST)] == list(range(1, len(node.steps(FIRST)) + 1))
        (running_job,) = cell.jobs()
        assert running_job["job_state"] == "RUNNING"
        cell.cancel(number)
        eventually(lambda: node.left() == [], 10, "nothing of the job is left")
        eventually(lambda: [j["job_state"] for j in cell.jobs()] == ["CANCELLED"], 10)
        assert node.history()[-1]["event"] == "shim_stopped", "it ended by itself, within KillWait"
        # the agent got Slurm's TERM as well, and stays to report
        assert rank(store, "n1", 1).exit.signal == signal.SIGTERM
        assert registration(store, "n1") is None
    finally:
        cell.cancel(number)
        assert process.kill_and_wait(node.left(), 5.0)


@pytest.mark.long
def test_a_node_in_a_step_of_srun(cell: Slurm, etcd_server: EtcdServer, store: Store, tmp_path: Path) -> None:
    """The recipe for Pyxis in docs/ENVIRONMENT.md, with a real srun and without a container."""
    step = f"env SLURM_CONF={cell.conf} srun --ntasks=1 --cpus-per-task=$SLURM_CPUS_ON_NODE --mem=0 --export=ALL"
    number, node = job(cell, tmp_path, etcd_server.endpoint, "--grace-s=0.5", through=f"{step} --kill-on-bad-exit=1")
    try:
        desire(store, "n1", trainer())
        pid = running(store, node, 1, deadline_s=30)
        before = (node.pid("agent"), pid)
        # the job's main process is srun, which hands the notice on
        cell.command("scancel", "--batch", "--signal=USR1", str(number))
        eventually(lambda: observed(store, "n1").leaving == LEAVING, 10)
        assert (node.pid("agent"), node.pid(FIRST)) == before, "srun gives it to every process of the step"
        cell.cancel(number)
        eventually(lambda: node.left() == [], 10, "nothing of the job is left")
        assert rank(store, "n1", 1).exit.signal == signal.SIGTERM
    finally:
        cell.cancel(number)
        assert process.kill_and_wait(node.left(), 5.0)
