"""A user who is not root: a whole run, the control plane as jobs, and Slurm's refusals. Without slurmdbd."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.own_slurm import available, slurm
from fault_injection.testbed.slurm_world import SlurmWorld
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.remediation.restore import ENDED
from supervisor.shell.control.engine_driver import REFUSED_PAUSES_S
from supervisor.shell.control.system_id import system_id
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.engines.slurm.engine import POLL_S
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, RunRecord
from tests.helpers import ordinary_user as user

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(900),
]

SOON_S = 60.0
COMMAND_S = 120.0
"""Time to import torch and check the run file, beside other tests on 2 cores."""
REFUSED_S = 90.0
"""Time for three tries over 21 s, each of some commands of Slurm."""

RUN = """
name = "{name}"
[titan]
steps = 1000000
[allocation]
engine = "slurm"
nodes = 2
spares = 0
[allocation.slurm]
node_folder = "{folder}"
{slurm}
[policy]
node_lease_s = 5
term_grace_s = 1.0
"""

PARTITIONS = (
    # root and SlurmUser are always let in
    "staff Nodes=ALL MaxTime=INFINITE State=UP AllowGroups=daemon",
    "club Nodes=ALL MaxTime=INFINITE State=UP",
    "short Nodes=ALL MaxTime=5 State=UP",
    "none Nodes=ALL MaxTime=INFINITE MaxNodes=0 State=UP",
)


class Office(SlurmWorld):
    """A world in which all is the user's: `supervisor up --nodes 0`, the commands, the folder, and so the jobs."""

    def _spawn(self, log: str, *arguments: str, netns: str = "", **environment: str) -> subprocess.Popen[bytes]:
        self.system.mkdir(parents=True, exist_ok=True)
        user.own(self.runs, self.system, *self.system.iterdir())
        with (self.system / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                user.as_user(sys.executable, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**self.environment, **user.environment(self.runs), **environment},
                cwd="/",
                start_new_session=True,
            )

    def start_host(self, name: str = "host") -> subprocess.Popen[bytes]:
        return self._spawn(
            "up", *f"-m supervisor.cli up --nodes 0 --etcd {self.etcd.endpoint} --home {self.runs}".split()
        )

    def file(self, name: str, slurm: str = "drain_suspects = false", folder: str | None = None) -> Path:
        path = self.runs / f"{name}.toml"
        path.write_text(RUN.format(name=name, folder=self.system if folder is None else folder, slurm=slurm))
        return path

    def command(self, *arguments: str, code: int = 0, path: str = "") -> str:
        """Runs a `supervisor` command as the user. `path`: another PATH than ours."""
        about = {**self.environment, **user.environment(self.runs)}
        about |= {"SUPERVISOR_ETCD": self.etcd.endpoint, "SUPERVISOR_HOME": str(self.runs)}
        inside = ["env", f"PATH={path}"] if path else []
        result = subprocess.run(
            user.as_user(*inside, sys.executable, "-m", "supervisor.cli", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=about,
            cwd="/",
            check=False,
            timeout=COMMAND_S,
        )
        said = result.stdout + result.stderr
        assert result.returncode == code, said
        assert "Traceback" not in said
        return said

    def begun(self, file: Path, path: str = "") -> RunRecord:
        """Launches a run file by `supervisor launch`."""
        self.command("launch", str(file), path=path)
        record = client.choose_run(self.mirror(), file.stem)
        self.launched.append(record)
        return record

    def trains(self, record: RunRecord) -> RunRecord:
        eventually(lambda: self.all_run(record), SOON_S, f"{record.spec.name} trains")
        return record

    def submissions(self) -> int:
        """The number of sbatch's requests, with any answer."""
        return self.lab.log().count("_slurm_rpc_submit_batch_job")

    def leader_pid(self) -> int:
        leader = self.mirror().record(keys.LEADER, LeaderRecord)
        assert leader is not None
        return leader.pid

    def control_jobs(self) -> list[dict[str, Any]]:
        """The control plane's jobs that have not ended."""
        comment = f"supervisor-control/{system_id(self.store)}/"
        return [job for job in self.live_jobs() if job["comment"].startswith(comment)]

    def supervisor_log(self) -> str:
        return (self.system / "supervisor-host.log").read_text()


@contextlib.contextmanager
def office_in(logs: Path) -> Iterator[Office]:
    user.must_reach("supervisor.cli", "agents.cli", "fault_injection.doubles.toy_trainer")
    with contextlib.ExitStack() as stack:
        server = start_etcd(logs / "etcd")
        stack.callback(server.stop)
        folder = stack.enter_context(user.folder(logs))
        lab = stack.enter_context(slurm(logs, 4, partitions=PARTITIONS, slurmd_under=user.view()))
        made = Office(folder, lab, server, {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)})
        stack.callback(made.close)
        eventually(made.led, 30, "a supervisor leads")
        yield made


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with office_in(tmp_path_factory.mktemp("ordinary")) as made:
        yield made


@pytest.fixture
def w(office: Office) -> Iterator[Office]:
    """An office in which every run has ended and every host is idle after the test."""
    yield office
    for record in office.launched:
        if office.status(record).phase not in ENDED:
            office.control(record, stop=True)
    eventually(lambda: all(office.status(r).phase in ENDED for r in office.launched), SOON_S, "runs end")
    eventually(lambda: not [j for j in office.live_jobs() if j["comment"]], SOON_S, "all is given back")
    office.lab.clear()
    office.launched.clear()


def test_a_run_of_a_user_who_is_not_root(w: Office) -> None:
    """No part of it is root's; a trainer is killed, then another user cancels a job."""
    record = w.trains(w.begun(w.file("own")))
    jobs = [job for job in w.live_jobs() if job["comment"]]
    assert [job["user_id"] for job in jobs] == [user.ENTRY.pw_uid] * 2
    nodes = [group.node for group in w.status(record).groups]
    pids = [w.trainer(record, group).pid for group in (0, 1)]
    pids += [find(node) for node in nodes for find in (w.shim_pid, w.agent_pid)]
    pids += [w.host.pid, w.leader_pid()]
    for pid in pids:
        assert user.uids(pid) == {user.ENTRY.pw_uid}, Path(f"/proc/{pid}/cmdline").read_bytes()
        assert user.capabilities(pid) == 0

    w.kill_trainer(record, 1)
    incident = eventually(lambda: w.recovered(record, 0), SOON_S, "it is started again")
    assert (incident.kind, incident.rung) == (Kind.CRASH, Rung.RESTART)
    assert w.status(record).groups[1].node == nodes[1]

    before = w.job_of(record, 1)
    w.lab.cancel(before)
    incident = eventually(lambda: w.recovered(record, 1), SOON_S, "another job is in its place")
    assert (incident.kind, incident.rung) == (Kind.ALLOCATION_LOST, Rung.REALLOCATE)
    w.trains(record)
    after = next(job for job in w.live_jobs() if job["job_id"] == w.job_of(record, 1))
    assert after["job_id"] != before
    assert after["user_id"] == user.ENTRY.pw_uid
    w.check(record)


@pytest.mark.long
def test_a_user_who_may_not_drain_goes_on_without(w: Office) -> None:
    """A node is lost twice. Slurm's refusal is logged once, no node is drained, and our own jobs exclude both."""
    record = w.trains(w.begun(w.file("suspects", "drain_suspects = true")))
    lost = []
    for known in range(2):
        lost.append(w.status(record).groups[1].node)
        w.lose_machine(lost[-1])
        incident = eventually(functools.partial(w.recovered, record, known), SOON_S, "another node is there")
        assert (incident.kind, incident.rung) == (Kind.NODE_LOST, Rung.REALLOCATE)
        w.trains(record)
    assert w.status(record).groups[1].node not in lost
    said = [line for line in w.supervisor_log().splitlines() if "does not let us drain" in line]
    assert len(said) == 1
    assert "Invalid user id" in said[0], "Slurm's own words"
    assert all("drain" not in words for words in w.lab.node_states().values())
    w.check(record)


@pytest.mark.long
def test_what_a_user_may_not_break_is_said(w: Office) -> None:
    """The refusal comes before anything is broken, and its check changes nothing."""
    file = w.file("broken")
    file.write_text(file.read_text().replace("[titan]", 'chaos = "allowed"\n[titan]'))
    record = w.trains(w.begun(file))
    schedule, before = w.runs / "four.toml", (len(w.lab.jobs()), w.lab.node_states())
    logged = len(w.lab.log())  # others of these tests try to
    names = ("job_cancelled", "node_drained", "replacement_pending", "controller_away")
    schedule.write_text("".join(f'[[fault]]\nname = "{name}"\nat_step = 5\n' for name in names))
    about = ["chaos", "run", str(schedule), "--run", "broken", "--dry-run"]
    said = w.command(*about, code=2)
    assert "node_drained cannot be made here: Slurm does not let this user drain a node: " in said
    assert f"only root, root and Slurm's administrators may, and user {user.NAME} is none of them" in said
    assert re.search(r"controller_away cannot be made here: slurmctld, pid \d+, cannot be stopped by this user: ", said)
    refused = [line for line in said.splitlines() if "cannot be made here" in line]
    assert len(refused) == 2, "his own jobs he may cancel, and others submit"
    for name in ("node_drained", "controller_away"):
        schedule.write_text(schedule.read_text().replace(f'"{name}"', '"job_cancelled"'))
    assert "seed 0: 4 faults" in w.command(*about)
    assert (len(w.lab.jobs()), w.lab.node_states()) == before
    assert "ecurity violation" not in w.lab.log()[logged:], "nor is it tried"
    assert w.incidents(record) == []


@pytest.mark.long
def test_a_partition_that_is_closed_to_the_user(w: Office) -> None:
    """The refusal comes before a submission; where Slurm cannot be asked before, the run halts with it."""
    file, jobs = w.file("closed", 'partition = "staff"'), len(w.lab.jobs())
    for arguments in (["launch", "--check", str(file)], ["launch", str(file)]):
        said = w.command(*arguments, code=1)
        assert 'Slurm refuses allocation.slurm.partition = "staff": ' in said
        assert "User's group not permitted to use this partition" in said
    before = w.submissions()

    # a machine without Slurm's commands
    record = w.begun(file, path="/nonexistent")
    eventually(lambda: w.status(record).phase == "halted", REFUSED_S, "the run halts")
    reason = w.status(record).halt_reason
    assert 'allocation.slurm.partition = "staff"' in reason
    assert "User's group not permitted to use this partition" in reason
    asked = w.submissions() - before
    assert 0 < asked <= 12, "of two allocations each three times, with one more try each"
    settled = time.time()
    pause_s = max(REFUSED_PAUSES_S) + 2
    eventually(lambda: time.time() > settled + pause_s, 2 * pause_s, "longer than the longest pause between two tries")
    assert w.submissions() - before == asked, "it is not asked again"
    assert len(w.lab.jobs()) == jobs, "no job was made"


@pytest.mark.long
def test_a_right_that_is_taken_away_while_the_run_trains(w: Office) -> None:
    """The group whose job ended stays without a node, with Slurm's reason; the other trains on."""
    record = w.trains(w.begun(w.file("shut", 'partition = "club"\ndrain_suspects = false')))
    w.lab.command("scontrol", "update", "partitionname=club", "allowgroups=daemon")
    try:
        jobs, before = len(w.lab.jobs()), w.submissions()
        w.lab.cancel(w.job_of(record, 1))
        said = eventually(lambda: w.says(record, "not permitted"), REFUSED_S, "it says what Slurm says")
        assert 'allocation.slurm.partition = "club"' in said
        assert w.submissions() - before <= 6, "three tries, with one more each"
        assert len(w.lab.jobs()) == jobs
        step = w.status(record).groups[0].step
        eventually(lambda: w.status(record).groups[0].step > step + 3, SOON_S, "the other trains on")
        assert w.status(record).groups[0].generation == 1
    finally:
        w.lab.command("scontrol", "update", "partitionname=club", "allowgroups=ALL")


@pytest.mark.long
def test_a_limit_that_slurm_holds_a_job_for(w: Office) -> None:
    """Where EnforcePartLimits is not set the job waits: so does the run, with Slurm's reason and one job each."""
    before, asked = {job["job_id"] for job in w.lab.jobs()}, w.submissions()
    file = w.file("long", 'partition = "short"\ntime_limit = "10"')
    # an earlier run may have seen the engine's answer take so long that this is refused, so: 10 s, and a lease of 5
    file.write_text(file.read_text().replace("[policy]", "[policy]\nallocation_timeout_s = 16"))
    record = w.begun(file)
    eventually(lambda: w.says(record, "PartitionTimeLimit"), SOON_S, "status says what Slurm says")
    since = time.time()
    eventually(lambda: time.time() > since + 20 * POLL_S, 40 * POLL_S, "many looks of the engine, past the deadline")
    made = [job for job in w.lab.jobs() if job["job_id"] not in before]
    assert [job["job_state"] for job in made] == ["PENDING"] * 2
    assert w.submissions() - asked == 2
    assert w.status(record).phase == "running"


@pytest.mark.parametrize(
    ("slurm", "told", "words"),
    [
        (
            'partition = "short"\ntime_limit = "10"',
            'allocation.slurm.partition = "short" with allocation.slurm.time_limit = "10": ',
            "Requested time limit is invalid",
        ),
        pytest.param(
            'partition = "none"',
            'allocation.slurm.partition = "none": ',
            "ode count specification invalid",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_limit_that_slurm_enforces(w: Office, slurm: str, told: str, words: str) -> None:
    """With EnforcePartLimits: Slurm's words and our keys, before anything is submitted."""
    conf = w.lab.conf.read_text()
    w.lab.conf.write_text("EnforcePartLimits=ALL\n" + conf)
    assert w.lab.command("scontrol", "reconfigure").returncode == 0
    try:
        jobs = len(w.lab.jobs())
        file = w.file("enforced", slurm)
        for arguments in (["launch", "--check", str(file)], ["launch", str(file)]):
            said = w.command(*arguments, code=1)
            assert f"Slurm refuses {told}" in said
            assert words in said
        assert len(w.lab.jobs()) == jobs
    finally:
        w.lab.conf.write_text(conf)
        w.lab.command("scontrol", "reconfigure")


@pytest.mark.long
def test_the_control_plane_as_jobs_of_the_user(tmp_path: Path) -> None:
    """`supervisor submit` with the default nodes' folder: the leader is the user's, in a job, and so are the jobs'
    files."""
    with office_in(tmp_path) as w, users_own_in_tmp(w) as folder:
        w.host.terminate()
        w.host.wait(30)
        eventually(lambda: not w.led(), SOON_S, "no supervisor leads")
        w.command("submit", str(w.file("submitted", folder="")))
        record = client.choose_run(w.mirror(), "submitted")
        jobs = w.control_jobs()
        assert len(jobs) == 2
        w.trains(record)
        assert {job["user_id"] for job in w.live_jobs()} == {user.ENTRY.pw_uid}
        leader = w.leader_pid()
        environment = Path(f"/proc/{leader}/environ").read_bytes().split(b"\0")
        assert user.uids(leader) == {user.ENTRY.pw_uid}
        assert {f"SLURM_JOB_ID={job['job_id']}".encode() for job in jobs} & set(environment)
        assert {group.node for group in w.status(record).groups} <= {path.name for path in (folder / "nodes").iterdir()}
        kept = [folder, *folder.rglob("*"), Path(record.run_dir)]
        assert {path.lstat().st_uid for path in kept} == {user.ENTRY.pw_uid}
        assert folder.stat().st_mode & 0o077 == 0
        w.control(record, stop=True)
        eventually(lambda: w.status(record).phase == "stopped", SOON_S, "the run ends")
        for job in w.control_jobs():
            w.lab.cancel(job["job_id"])
        eventually(lambda: not w.live_jobs(), SOON_S, "all jobs have ended")


@contextlib.contextmanager
def users_own_in_tmp(w: Office) -> Iterator[Path]:
    """The default folder of the user's jobs' records; gone after the block."""
    folder = Path(f"/tmp/supervisor-{user.ENTRY.pw_uid}") / system_id(w.store)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # another test's may be in it
