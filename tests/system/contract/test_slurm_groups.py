"""A job of several nodes of a real Slurm, for the allocations of a group (`allocation.slurm.shape = "job_per_group"`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import available, slurm
from fault_injection.testbed.waiting import eventually
from supervisor.ports.engine import Request, RequestDeferred
from supervisor.shell.engines.slurm import group_job
from supervisor.shell.engines.slurm.engine import SlurmEngine
from tests.system.contract.places import WITHIN_S, SlurmPlace, become, executable, grants

pytestmark = pytest.mark.slurm

PAIR = ("a1", "a2")
JOB = "a1+2"

WARNED = """\
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[1], "a").write("warned\\n"))
while True:
    signal.pause()
"""


class Group:
    """Requests for the nodes of a group, of which each leaves its pid."""

    def __init__(self, place: SlurmPlace, keys: tuple[str, ...], **slurm: Any) -> None:
        self.place, self.keys, self.engine = place, keys, place.engine()
        self.name = group_job.named(keys)
        run = f'echo "$@" > {place.folder}/$SLURMD_NODENAME.args; trap "exit 0" TERM\n'
        run += (
            f'trap "touch {place.folder}/$SLURMD_NODENAME.warned" USR1; echo $$ > {place.folder}/$SLURMD_NODENAME.pid\n'
        )
        agent = executable(place.folder / "group-agent", run + "while :; do sleep 1 & wait $!; done")
        self._slurm = {"agent_command": str(agent), "shape": "job_per_group", **slurm}

    def request(self, key: str, together: bool = True) -> Request:
        return self.place.request(key, slurm=self._slurm, together=self.keys if together else ())

    def acquire(self) -> None:
        for key in self.keys:
            self.engine.acquire(self.request(key))

    def granted(self) -> dict[str, str]:
        """The hosts of all keys, once each node runs."""
        self.acquire()
        hosts = {key: become(self.engine, key, "granted").nodes[0] for key in self.keys}
        eventually(lambda: all(self.pid(host) for host in hosts.values()), WITHIN_S, "each node runs")
        return hosts

    def pid(self, host: str) -> int:
        path = self.place.folder / f"{host}.pid"
        return int(path.read_text().strip() or 0) if path.exists() else 0

    def lives(self, host: str) -> bool:
        try:
            os.kill(self.pid(host), 0)
        except ProcessLookupError:
            return False
        return True

    def job(self) -> dict[str, Any]:
        (found,) = self.place.jobs(self.name)
        return found


def states(engine: SlurmEngine) -> dict[str, str]:
    return {key: grant.state for key, grant in grants(engine).items()}


def is_state(engine: SlurmEngine, **expected: str) -> Callable[[], bool]:
    return lambda: states(engine) == expected


def test_a_group_is_one_job_and_a_new_leader_sees_the_same(at_slurm: SlurmPlace) -> None:
    group = Group(at_slurm, PAIR)
    hosts = group.granted()
    job = group.job()
    assert len(set(hosts.values())) == 2
    assert [job["comment"].split()[0], job["node_count"]] == [f"supervisor/{at_slurm.system}/{JOB}", 2]
    before = grants(group.engine)
    assert {grant.engine_id for grant in before.values()} == {f"slurm:lab:{job['job_id']}"}
    for key, host in hosts.items():
        told = (at_slurm.folder / f"{host}.args").read_text()
        assert f"--node {host} --host {host} " in told
        assert f" --allocation {key} " in told
        assert f"--switch=job-{job['job_id']}" in told
    other = at_slurm.engine()
    other.acquire(group.request("a2"))
    assert (grants(other), len(at_slurm.jobs(JOB))) == (before, 1)


def test_a_lost_node_that_is_not_the_first_is_gone_alone_and_is_replaced_beside_the_job(at_slurm: SlurmPlace) -> None:
    group = Group(at_slurm, PAIR)
    first, second = group.granted().values()
    pid = group.pid(first)
    at_slurm.lab.down(second)
    lost = become(group.engine, "a2", "gone")
    assert (lost.nodes, lost.ended, "taken the host out" in lost.reason) == ((second,), False, True)
    group.engine.replace("a2", group.request("a3", together=False), "it is lost")
    other = become(group.engine, "a3", "granted")
    assert grants(group.engine)["a1"].state == "granted"
    assert (group.pid(first), group.lives(first), other.nodes[0] in (first, second)) == (pid, True, False)
    assert grants(at_slurm.engine()).keys() == {"a1", "a2", "a3"}
    assert len(at_slurm.jobs("a3")) == 1


def test_one_that_is_given_back_ends_alone_and_with_the_last_the_job_is_gone(at_slurm: SlurmPlace) -> None:
    group = Group(at_slurm, PAIR)
    first, second = group.granted().values()
    group.engine.release("a2")
    assert states(group.engine) == {"a1": "granted"}
    eventually(lambda: not group.lives(second), WITHIN_S, "its processes end")
    eventually(lambda: at_slurm.lab.node_states()[second] == ["idle"], WITHIN_S, "the job is smaller by its host")
    assert (states(group.engine), group.lives(first)) == ({"a1": "granted"}, True)
    group.engine.release("a1")
    assert states(group.engine) == {}
    eventually(lambda: not group.lives(first), WITHIN_S, "its processes end")
    eventually(lambda: group.job()["job_state"] == "CANCELLED", WITHIN_S, "the job is gone")


@pytest.mark.long
def test_an_agent_that_ends_is_gone_alone(at_slurm: SlurmPlace) -> None:
    group = Group(at_slurm, PAIR)
    first, second = group.granted().values()
    os.kill(group.pid(first), 9)
    gone = become(group.engine, "a1", "gone")
    assert (gone.nodes, "its step has ended" in gone.reason) == ((first,), True)
    assert (grants(group.engine)["a2"].state, group.lives(second)) == ("granted", True)
    os.kill(group.pid(second), 9)
    become(group.engine, "a2", "gone")
    eventually(lambda: group.job()["job_state"] == "FAILED", WITHIN_S, "the job ends with the last")
    assert "exit code 137" in grants(group.engine)["a1"].reason


def test_jobs_that_wait_are_counted_and_given_back_as_one(at_slurm: SlurmPlace) -> None:
    for node in ("n1", "n2"):
        at_slurm.lab.drain(node)
    group = Group(at_slurm, PAIR, max_pending=1)
    group.acquire()
    assert states(group.engine) == {"a1": "pending", "a2": "pending"}
    with pytest.raises(RequestDeferred, match="1 jobs wait"):
        group.engine.acquire(group.request("a3", together=False))
    group.engine.release("a2")
    assert states(group.engine) == {"a1": "pending", "a2": "pending"}
    group.engine.release("a1")
    eventually(is_state(group.engine), WITHIN_S, "nothing is left")
    assert group.job()["job_state"] == "CANCELLED"


@pytest.mark.long
def test_a_first_node_that_is_set_down_ends_the_job(at_slurm: SlurmPlace) -> None:
    """Its batch script ends: Slurm hears of that, as it does not where the host falls silent."""
    group = Group(at_slurm, PAIR)
    first, second = group.granted().values()
    at_slurm.lab.down(first)
    gone = [become(group.engine, key, "gone") for key in PAIR]
    assert [grant.nodes for grant in gone] == [(first,), (second,)]
    eventually(lambda: not group.lives(second), WITHIN_S, "Slurm ends the others too")


@pytest.mark.long
def test_a_host_that_slurm_does_not_take_back_idles(at_slurm: SlurmPlace) -> None:
    """Without a database a job shrinks once."""
    group = Group(at_slurm, ("a1", "a2", "a3"))
    first, second, third = group.granted().values()
    for key, host in (("a2", second), ("a3", third)):
        group.engine.release(key)
        assert key not in states(group.engine)
        eventually(lambda host=host: not group.lives(host), WITHIN_S, "its processes end")
    log = at_slurm.folder / "nodes" / f"job-{group.job()['job_id']}.log"
    eventually(lambda: "DB index" in log.read_text(), WITHIN_S, "the second time is refused")
    assert at_slurm.lab.node_states()[third] == ["allocated"]
    assert (states(group.engine), group.lives(first)) == ({"a1": "granted"}, True)
    group.engine.release("a1")
    assert states(group.engine) == {}
    eventually(lambda: at_slurm.lab.node_states()[third] == ["idle"], WITHIN_S, "free with the job's end")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_time_limit_is_told_to_every_node(at_slurm: SlurmPlace) -> None:
    agent = at_slurm.folder / "agent.py"
    agent.write_text(WARNED)
    command = f"{sys.executable} {agent} {at_slurm.folder}/warned-$SLURMD_NODENAME"
    group = Group(at_slurm, PAIR, agent_command=command, time_limit="1", warn_s=30)
    group.acquire()
    for key in PAIR:
        (host,) = become(group.engine, key, "granted").nodes
        eventually((at_slurm.folder / f"warned-{host}").exists, 120, "Slurm's warning")
    assert states(group.engine) == {"a1": "granted", "a2": "granted"}, "the warning ends nothing"


def test_hosts_are_listed_as_slurm_lists_them(at_slurm: SlurmPlace) -> None:
    for listed in ("n1", "n[1-3]", "gpu[007-010,12],cpu-1", "a,b[1-2],c", "r[1-2]n[1,3]"):
        shown = at_slurm.lab.command("scontrol", "show", "hostnames", listed)
        assert group_job.hosts(listed) == tuple(shown.stdout.split()), (listed, shown.stderr)


@pytest.mark.long
@pytest.mark.skipif(bool(netns.available()), reason=netns.available() or "network")
@pytest.mark.timeout(300)
def test_a_first_host_that_falls_silent_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its link goes down, and so the batch script and every srun are out of reach. Then all that runs there dies."""
    if available():
        pytest.skip(available())
    with netns.network(2) as network:
        places = {f"n{i + 1}": place for i, place in enumerate(network.nodes)}
        hub = (network.hub, network.hub_address)
        with slurm(tmp_path, 2, places=places, hub=hub, slurmd_timeout=8) as lab:
            for program in ("sbatch", "squeue", "sinfo", "scancel", "scontrol"):
                executable(tmp_path / program, f'exec nsenter --net=/run/netns/{network.hub} {which(program)} "$@"')
            monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            group = Group(SlurmPlace(lab, tmp_path, monkeypatch), PAIR)
            first, second = group.granted().values()
            network.cut(lab.nodes.index(first))
            lost = become(group.engine, "a1", "gone", 120)
            assert (lost.nodes, states(group.engine)["a2"], group.lives(second)) == ((first,), "granted", True)
            inside = subprocess.run(
                ["ip", "netns", "pids", places[first][0]], capture_output=True, text=True, check=True
            )
            for pid in inside.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            eventually(lambda: not group.lives(first), WITHIN_S, "its processes are dead")
            network.mend(lab.nodes.index(first))
            lab.start_slurmd(first, booted=True)
            eventually(lambda: "down*" not in lab.node_states()[first][0], WITHIN_S, "its slurmd is back")
            assert (states(group.engine), group.lives(second)) == ({"a1": "gone", "a2": "granted"}, True)
            group.engine.release("a2")
            assert states(group.engine) == {"a1": "gone"}
            eventually(lambda: not group.lives(second), WITHIN_S, "its processes end")
            group.engine.release("a1")
            eventually(is_state(group.engine), WITHIN_S, "nothing is left")
            eventually(lambda: group.job()["job_state"] == "CANCELLED", WITHIN_S, "the job is gone")
