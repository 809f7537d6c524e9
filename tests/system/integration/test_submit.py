"""`supervisor submit` on a real Slurm: the control plane as jobs, from a login node that runs nothing itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.own_slurm import Slurm, available, slurm
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S
from supervisor.ports.errors import Retryable
from supervisor.shell.control.observe import memory
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.control.system_id import system_id
from supervisor.shell.dev.etcd_server import EtcdServer, start_etcd
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.inspect import client, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.wire import keys
from supervisor.wire.address import free_ports
from supervisor.wire.records import LeaderRecord

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.root,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(900),
]

REPOSITORY = Path(__file__).parents[3]
SOON_S = 60.0
SUBMIT_S = 360.0
"""Time to import torch, check the run file, and wait for two jobs and a leader, beside other tests on 2 cores."""

RUN = f"""
name = "toy"
[titan]
steps = 1000000
[allocation]
engine = "slurm"
nodes = 2
spares = 0
[allocation.slurm]
partition = "PARTITION"
node_folder = "FOLDER"
drain_suspects = false
setup = "SETUP"
[policy]
node_lease_s = {LEASE_S}
term_grace_s = 1.0
"""


APART = """
import os
if "SLURMD_NODENAME" in os.environ:
    from supervisor.wire import address
    address.towards = lambda _: "127.0.0.1" + os.environ["SLURMD_NODENAME"].removeprefix("n")
"""
"""A sitecustomize.py by which host n2 reaches etcd from 127.0.0.12: the lab's hosts share one machine and address."""


class Login:
    """A login node: runs a user's commands, and looks at the rest of the system."""

    def __init__(self, folder: Path, lab: Slurm, etcd: EtcdServer) -> None:
        self.lab, self.etcd, self.home = lab, etcd, folder / "runs"
        self.file = folder / "run.toml"
        self.local = lab.folder / "local"
        self.environment = {
            **os.environ,
            **lab.environment,
            "SUPERVISOR_PROGRAMS": json.dumps(TOYS),
            "PYTHONPATH": str(REPOSITORY),
        }
        self.store: EtcdStore = connect([etcd.endpoint])
        self.setup = ""
        self.write()

    def write(self, partition: str = "train", more: str = "") -> None:
        text = RUN.replace("PARTITION", partition).replace("FOLDER", str(self.local)).replace("SETUP", self.setup)
        self.file.write_text(text + more)

    def hosts_apart(self) -> None:
        """Gives each host an address of its own in all later jobs."""
        folder = self.lab.folder / "apart"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(APART)
        self.setup = f"export PYTHONPATH={folder}:$PYTHONPATH"
        self.write()

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        # pytest itself may run where Ctrl-C is ignored, which is inherited
        return self._cli("submit", str(self.file), *arguments)

    def _cli(self, *arguments: str) -> subprocess.Popen[str]:
        command = ["env", "--default-signal=INT", sys.executable, "-m", "supervisor.cli", *arguments]
        return subprocess.Popen(
            [*command, "--etcd", self.etcd.endpoint, "--home", str(self.home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )

    def submit(self, *arguments: str, code: int = 0) -> str:
        return self._output(self.begin(*arguments), code)

    def says(self, *arguments: str) -> str:
        """The output of another command."""
        return self._output(self._cli(*arguments), 0)

    def _output(self, process: subprocess.Popen[str], code: int) -> str:
        with process:
            try:
                output, _ = process.communicate(timeout=SUBMIT_S)
            finally:
                process.kill()
        assert process.returncode == code, output
        assert "Traceback" not in output
        return output

    def move(self, etcd: EtcdServer) -> None:
        """Uses this etcd from now on."""
        self.store.close()
        self.etcd, self.store = etcd, connect([etcd.endpoint])

    def control(self) -> list[dict[str, Any]]:
        """The control plane's jobs that have not ended, oldest first."""
        comment = f"supervisor-control/{system_id(self.store)}/"
        live = ("PENDING", "RUNNING", "CONFIGURING")
        ours = [j for j in self.lab.jobs() if j["comment"].startswith(comment) and j["job_state"] in live]
        return sorted(ours, key=lambda job: int(job["job_id"]))

    def mirror(self) -> Mirror:
        return Mirror(self.store.list(keys.PREFIX))

    def leading_job(self) -> int:
        """The job in which the leader runs; 0 while there is no leader."""
        leader = self.mirror().record(keys.LEADER, LeaderRecord)
        if leader is None:
            return 0
        try:
            words = Path(f"/proc/{leader.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return 0
        return next((int(w.partition(b"=")[2]) for w in words if w.startswith(b"SLURM_JOB_ID=")), 0)

    def leader_is_scraped_at_its_host(self) -> None:
        """Checks that the leader's metrics answer at its job's host, and name it and the agents to Prometheus. That
        list is refreshed every 10 s at least."""
        job = self.leading_job()
        host = next(j["nodes"] for j in self.control() if j["job_id"] == job)
        leader = self.mirror().record(keys.LEADER, LeaderRecord)
        assert leader is not None
        at = urlsplit(leader.page)
        assert at.hostname == f"127.0.0.1{host.removeprefix('n')}"
        metrics, targets = (f"{leader.page}{name}" for name in ("metrics", "targets"))
        eventually(
            lambda: "supervisor_leader 1.0" in _read(metrics).splitlines(), SOON_S, "its metrics say that it leads"
        )

        def named() -> dict[str, str]:
            return {t["labels"]["instance"]: t["targets"][0] for t in json.loads(_read(targets))}

        assert named()[at.netloc] == at.netloc
        agents = {f"service-{host}", *(g.node for g in self.status().groups)}
        eventually(lambda: agents <= named().keys(), SOON_S, "it names the agents")
        for name, target in named().items():
            assert name not in agents or target.startswith(f"127.0.0.1{name.rpartition('n')[2]}:")

    def status(self) -> RunStatus:
        mirror = self.mirror()
        return status.run_status(mirror, client.choose_run(mirror, "toy"))

    def steps(self) -> int:
        return min(g.step for g in self.status().groups)

    def trains(self, beyond: int) -> None:
        def look() -> bool:
            return all(g.phase == "running" for g in self.status().groups) and self.steps() > beyond

        eventually(look, SOON_S, f"both groups train beyond step {beyond}")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        return str(answer.read().decode())


def _running(lab: Slurm) -> list[str]:
    live = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
    return [str(j["job_id"]) for j in lab.jobs() if j["job_state"] in live]


@pytest.fixture
def login(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Login]:
    """A login node with four hosts, or as many as the test asks for."""
    server = start_etcd(tmp_path / "etcd")
    try:
        with slurm(tmp_path, getattr(request, "param", 4)) as lab:
            made = Login(tmp_path, lab, server)
            try:
                yield made
            finally:
                made.store.close()
                lab.command("scancel", *_running(lab))
                eventually(lambda: not _running(lab), SOON_S, "all jobs have ended")
                made.etcd.stop()
    finally:
        server.stop()


@pytest.mark.long
def test_a_run_whose_leader_is_cancelled(login: Login) -> None:
    login.hosts_apart()
    said = login.submit()
    assert "toy launched; folder" in said
    jobs = login.control()
    assert len(jobs) == 2
    assert f"job {jobs[0]['job_id']} on {jobs[0]['nodes']}, job {jobs[1]['job_id']} " in said
    jobs = eventually(lambda: [j for j in login.control() if j["nodes"]][1:] and login.control(), SOON_S, "both run")
    assert len({j["nodes"] for j in jobs}) == 2, "they are on hosts of their own"
    assert all(j["requeue"] for j in jobs)
    login.trains(beyond=3)
    first = login.leading_job()
    assert first in {j["job_id"] for j in jobs}
    login.leader_is_scraped_at_its_host()

    login.lab.cancel(first)
    eventually(lambda: login.leading_job() not in (0, first), SOON_S, "the one that stood by leads")
    assert login.leading_job() in {j["job_id"] for j in jobs}
    login.leader_is_scraped_at_its_host()
    login.trains(beyond=login.steps() + 3)
    assert [g.generation for g in login.status().groups] == [1, 1], "no group was touched"

    # a second submit brings back what is missing, and starts no second run
    said = login.submit()
    assert "toy was launched before" in said
    now = login.control()
    assert len(now) == 2
    assert len({j["nodes"] for j in now}) == 2
    assert {j["job_id"] for j in now} & {j["job_id"] for j in jobs} == {login.leading_job()}
    login.write(more="backoff_max_s = 50.0\n")
    assert "another run is already named 'toy'" in login.submit(code=1)
    assert [j["job_id"] for j in login.control()] == [j["job_id"] for j in now]

    # near its time limit a job submits the next one, once
    own = login.leading_job()
    for _ in range(2):
        login.lab.command("scancel", "--batch", "--signal=USR1", str(own))
        eventually(lambda: len(login.control()) == 3, SOON_S, "a successor")
    log = login.home / ".supervisor" / "control" / f"{own}.log"
    eventually(lambda: log.read_text().count("follows this one") == 1, SOON_S, "it says so")
    after = next(j for j in login.control() if j["comment"].endswith(f"/after-{own}"))
    login.lab.cancel(own)
    eventually(lambda: login.leading_job() not in (0, own), SOON_S, "another leads")
    eventually(lambda: after["job_id"] in [j["job_id"] for j in login.control() if j["nodes"]], SOON_S, "it runs")
    login.trains(beyond=login.steps() + 3)
    assert [g.generation for g in login.status().groups] == [1, 1]


@pytest.mark.long
def test_what_slurm_refuses_has_its_words_and_our_key(login: Login) -> None:
    login.write(partition="nowhere")
    said = login.submit(code=1)
    assert 'Slurm refuses allocation.slurm.partition = "nowhere"' in said
    assert "invalid partition specified: nowhere" in said
    login.write()
    said = login.submit("--partition", "elsewhere", code=1)
    assert 'Slurm refuses the control plane\'s job: --partition = "elsewhere"' in said
    assert login.control() == []
    assert login.lab.jobs() == []
    assert login.store.get(keys.spec("toy")) is None


@pytest.mark.long
def test_what_was_interrupted_is_gone_on_with(login: Login) -> None:
    others = [login.lab.submit("sleep 600", "--exclusive") for _ in login.lab.nodes]
    process = login.begin()
    try:
        pending = eventually(login.control, SOON_S, "the first job is in the queue")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SOON_S)
        assert process.returncode != 0, output
        assert "Traceback" not in output
    finally:
        process.kill()
    assert "has not started job" in login.submit("--wait-s", "0", code=1)
    assert login.store.get(keys.spec("toy")) is None
    for job in others:
        login.lab.cancel(job)
    login.submit()
    jobs = login.control()
    assert len(jobs) == 2
    assert jobs[0]["job_id"] == pending[0]["job_id"]
    login.trains(beyond=0)


@pytest.mark.long
def test_a_job_that_waits_for_the_one_before_it_has_a_successor_too(login: Login) -> None:
    """Both are on the only host that there is, and the one that waits may wait until its own end."""
    login.submit("--supervisors", "1")
    (first,) = login.control()
    for node in set(login.lab.nodes) - {first["nodes"]}:
        login.lab.drain(node)

    def succeeded(job: int) -> dict[str, Any] | None:
        return next((j for j in login.control() if j["comment"].endswith(f"/after-{job}")), None)

    def warned(job: int) -> dict[str, Any]:
        login.lab.command("scancel", "--batch", "--signal=USR1", str(job))
        return eventually(lambda: succeeded(job), SOON_S, f"job {job} has a successor")

    second = warned(int(first["job_id"]))["job_id"]
    log = login.home / ".supervisor" / "control" / f"{second}.log"
    eventually(lambda: log.exists() and "waiting for its end" in log.read_text(), SOON_S, "it waits")
    third = warned(second)["job_id"]
    eventually(lambda: "follows this one" in log.read_text(), SOON_S, "it says so")
    assert "up: etcd" not in log.read_text(), "it waits still"
    login.lab.cancel(int(first["job_id"]))
    eventually(lambda: login.leading_job() == second, SOON_S, "the one that waited leads")
    assert [j["job_id"] for j in login.control()] == [second, third]


@pytest.mark.parametrize("login", [6], indirect=True)
@pytest.mark.long
@pytest.mark.parametrize("kept", ["data", "backup"])
def test_etcd_is_at_another_address_after_its_host_was_lost(login: Login, tmp_path: Path, kept: str) -> None:
    """docs/SLURM.md has the remedies: with its data on another disk, and with a backup."""
    login.submit()
    login.trains(beyond=60)
    before, training = login.control(), [j for j in login.lab.jobs() if j["name"] == "supervisor-toy"]
    if kept == "backup":
        login.says("backup", "--out", str(tmp_path / "backup.json.gz"))
    login.etcd.stop()
    if kept == "data":
        # processes that no one can reach any more are ended, before a person marks their host as down
        login.lab.command("scancel", "--name=supervisor-toy")
        eventually(lambda: not {str(j["job_id"]) for j in training} & set(_running(login.lab)), SOON_S, "they end")
    (port,) = free_ports(1)
    login.move(start_etcd(tmp_path / ("etcd" if kept == "data" else "another"), client_port=port))
    if kept == "backup":
        assert "toy" in login.says("restore", str(tmp_path / "backup.json.gz"))

    said = login.submit()
    for job in before:
        assert f"cancelled job {job['job_id']}: a control-plane job of this system with other endpoints than " in said
    assert "toy was launched before" in said
    now = login.control()
    assert len(now) == 2
    assert not {j["job_id"] for j in now} & {j["job_id"] for j in before}

    def anew() -> bool:
        if memory(login.mirror(), "toy").lighthouse.mute_since is not None:
            # Where the old lighthouse's host did not come back; it may have come back just now. Asked for as long as it
            # takes: the engine's word may give the groups their next generation before the lighthouse counts as mute.
            word = ("resume", "toy", "--because", "its host was lost, the jobs are cancelled", "--they-are-down")
            login._cli(*word).communicate(timeout=SUBMIT_S)
        groups = login.status().groups
        return all(g.generation > 1 and g.phase == "running" for g in groups) and login.steps() > 60

    eventually(anew, SOON_S, "both are started anew, and train beyond step 60")
    live = _running(login.lab)
    assert not [j for j in training if str(j["job_id"]) in live], "what talks to the lost etcd is given back"


def test_the_etcd_job_finds_its_data_again(tmp_path: Path) -> None:
    """examples/slurm/etcd.sbatch, for users who have no host outside of Slurm."""
    (port,) = free_ports(1)
    about = {"ETCD_DATA": str(tmp_path / "etcd"), "ETCD_PORT": str(port), "ETCD_ADDRESS": "127.0.0.1"}
    script = str(REPOSITORY / "examples" / "slurm" / "etcd.sbatch")

    def serves() -> EtcdStore | None:
        try:
            return connect([f"127.0.0.1:{port}"])
        except Retryable:
            return None

    with slurm(tmp_path, 2) as lab:
        for attempt in range(2):
            result = lab.command(
                "sbatch", "--parsable", f"--chdir={tmp_path}", "--nodelist=n2", script, environment=about
            )
            assert result.returncode == 0, result.stderr
            with eventually(serves, SOON_S, "etcd serves") as store:
                if attempt:
                    assert store.get(keys.SYSTEM) is not None
                else:
                    system_id(store)
            lab.cancel(int(result.stdout))
            eventually(lambda: not _running(lab), SOON_S, "its job has ended")
        assert (tmp_path / "etcd" / "endpoint").read_text() == f"127.0.0.1:{port}\n"
