"""Behaviour that only Slurm has, against a real one."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import GRACE_S
from fault_injection.testbed.waiting import eventually
from supervisor.ports.engine import RequestRefused
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines.slurm import grants as grants_module
from supervisor.shell.engines.slurm.commands import Commands
from tests.system.contract.places import WITHIN_S, SlurmPlace, become, executable, forgotten, grants, with_slurm

pytestmark = pytest.mark.slurm

WARNED = """\
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[1], "a").write("warned\\n"))
while True:
    signal.pause()
"""


def told(at: SlurmPlace, key: str) -> str:
    """The command line with which the node's agent was started."""
    path = at.folder / f"told-{at.jobs(key)[0]['job_id']}"
    return eventually(lambda: path.exists() and path.read_text().strip(), WITHIN_S, "the agent was started")


def test_the_agent_is_told_what_it_must_know(at_slurm: SlurmPlace) -> None:
    folder = at_slurm.folder / "a folder"
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1", slots=8, lease_s=7, exclude=("n1", "n2"), slurm={"node_folder": str(folder)}))
    assert become(engine, "a1", "granted").nodes == ("n3",)
    assert told(at_slurm, "a1") == (
        f"run --node n3 --host n3 --home {folder} --etcd 127.0.0.1:1 --address auto --allocation a1 --slots 8 --lease-s 7"
    )
    assert (folder / "nodes" / "n3" / "shim.log").exists()


def test_the_job_has_its_whole_host_and_waits_for_no_requeue(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    become(engine, "a1", "granted")
    (job,) = at_slurm.jobs("a1")
    assert (job["shared"], job["cpus"], job["requeue"], job["name"]) == ("none", 2, False, "supervisor-run")
    assert job["comment"] == f"supervisor/{at_slurm.system}/a1"


def test_jobs_that_share_a_host_are_nodes_of_their_own(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    for key in ("a1", "a2"):
        engine.acquire(at_slurm.request(key, exclude=("n2", "n3"), slurm={"exclusive": False}))
    for key in ("a1", "a2"):
        grant = become(engine, key, "granted")
        job = at_slurm.jobs(key)[0]["job_id"]
        assert grant.nodes == (f"n1.{job}",)
        assert f"--node n1.{job} --host n1 " in told(at_slurm, key)


def test_the_environment_goes_along_without_secrets_and_without_another_jobs(
    at_slurm: SlurmPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = at_slurm.folder / "seen"
    for name in ("SUPERVISOR_PROGRAMS", "HF_TOKEN", "ETCD_PASSWORD", "AWS_SECRET_ACCESS_KEY", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "9876")
    monkeypatch.setenv("SQUEUE_PARTITION", "tiny")  # would hide our jobs
    setup = f"export OF_SETUP=1\nenv > {seen}.part; mv {seen}.part {seen}"
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1", slurm={"setup": setup}))
    become(engine, "a1", "granted")
    eventually(seen.exists, WITHIN_S, "the setup has run")
    found = dict(line.split("=", 1) for line in seen.read_text().splitlines() if re.match(r"\w+=", line))
    assert (found["SUPERVISOR_PROGRAMS"], found["OF_SETUP"], found["SLURMD_NODENAME"]) == ("9876", "1", "n1")
    assert {name for name, value in found.items() if value == "9876"} == {"SUPERVISOR_PROGRAMS"}


def test_of_two_jobs_with_one_key_the_older_stays(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    older = become(engine, "a1", "granted")
    second = at_slurm.lab.submit("sleep 600", f"--comment=supervisor/{at_slurm.system}/a1")
    assert grants(engine) == {"a1": older}
    eventually(lambda: at_slurm.running("a1") == 1, WITHIN_S, "the second is cancelled")
    states = {job["job_id"]: job["job_state"] for job in at_slurm.jobs("a1")}
    assert states[int(older.engine_id.rpartition(":")[2])] == "RUNNING"
    assert states[second] in ("CANCELLED", "COMPLETING")
    assert at_slurm.engine().list() == [older]


def test_a_drained_host_is_leaving_with_the_administrators_reason(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    (node,) = become(engine, "a1", "granted").nodes
    at_slurm.lab.drain(node, "fan 3 is loud")
    grant = eventually(lambda: (g := grants(engine)["a1"]).leaving and g, WITHIN_S, "it is leaving")
    assert (grant.state, "DRAIN" in grant.leaving, "fan 3 is loud" in grant.leaving) == ("granted", True, True)
    at_slurm.lab.resume(node)
    eventually(lambda: grants(engine)["a1"].leaving == "", WITHIN_S, "it stays")


def test_a_host_that_is_down_takes_its_job_along(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    for key in ("a1", "a2"):
        engine.acquire(at_slurm.request(key))
        become(engine, key, "granted")
    (node,) = grants(engine)["a1"].nodes
    at_slurm.lab.down(node)
    gone = become(engine, "a1", "gone")
    assert gone.nodes == (node,)
    eventually(lambda: "NODE_FAIL" in grants(engine)["a1"].reason, WITHIN_S, "Slurm says why")
    assert grants(engine)["a2"].state == "granted"
    eventually(lambda: at_slurm.running("a1") == 0, WITHIN_S, "it does not come again")


@pytest.mark.parametrize("released", [False, True])
def test_only_a_boot_of_its_host_says_that_the_processes_have_ended(
    at_slurm: SlurmPlace, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    monkeypatch.setattr(grants_module, "BOOT_MARGIN_S", 0)
    lab, engine = at_slurm.lab, at_slurm.engine()
    for key in ("a1", "a2"):
        engine.acquire(at_slurm.request(key))
        become(engine, key, "granted")
    (node,) = grants(engine)["a1"].nodes
    lab.cancel(at_slurm.jobs("a2")[0]["job_id"])
    lab.kill_slurmd(node)
    lab.down(node)
    eventually(lambda: "NODE_FAIL" in grants(engine)["a1"].reason, WITHIN_S, "its host failed")
    if released:
        engine.release("a1")
        engine.release("a1")
    assert grants(engine)["a1"].ended is False, "what it ran lives on"
    lab.start_slurmd(node)
    lab.resume(node)
    eventually(lambda: lab.node_states()[node] == ["idle"], WITHIN_S, "its slurmd is back")
    eventually(lambda: at_slurm.jobs("a2")[0]["job_state"] == "CANCELLED", WITHIN_S, "cancelled")
    assert [grants(engine)[key].ended for key in ("a1", "a2")] == [False, False], "nor is that a proof"

    started = at_slurm.jobs("a1")[0]["start_time"]
    eventually(lambda: time.time() >= started + 1, WITHIN_S, "Slurm's times are whole seconds")
    lab.kill_slurmd(node)
    lab.start_slurmd(node, booted=True)
    ended = eventually(lambda: (g := grants(engine)["a1"]).ended and g, WITHIN_S, "its host was booted")
    assert (ended.state, ended.nodes, grants(engine)["a2"].ended) == ("gone", (node,), False)
    if not released:
        again = grants(at_slurm.engine())["a1"]
        # Slurm adds the exit code to the words a while after the state
        assert replace(again, reason="") == replace(ended, reason=""), "to a new object too"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_time_limit_is_told_to_the_main_process_and_ends_the_job(at_slurm: SlurmPlace) -> None:
    warned, agent = at_slurm.folder / "warned", at_slurm.folder / "agent.py"
    agent.write_text(WARNED)
    engine = at_slurm.engine()
    command = f"{sys.executable} {agent} {warned}"
    engine.acquire(at_slurm.request("a1", slurm={"agent_command": command, "time_limit": "1", "warn_s": 30}))
    node = become(engine, "a1", "granted").nodes
    eventually(warned.exists, 120, "Slurm's warning")
    assert grants(engine)["a1"].state == "granted", "the warning ends nothing"
    gone = become(engine, "a1", "gone", 180)
    assert gone.nodes == node
    eventually(lambda: "TIMEOUT" in grants(engine)["a1"].reason, WITHIN_S, "Slurm says why")


def test_what_an_administrator_queues_again_is_gone_and_cancelled(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    become(engine, "a1", "granted")
    job = str(at_slurm.jobs("a1")[0]["job_id"])
    at_slurm.lab.command("scontrol", "update", f"jobid={job}", "requeue=1")
    assert at_slurm.lab.command("scontrol", "requeue", job).returncode == 0
    become(engine, "a1", "gone")
    eventually(lambda: grants(engine) and at_slurm.jobs("a1")[0]["job_state"] == "CANCELLED", WITHIN_S, "cancelled")
    assert "queued again" in grants(engine)["a1"].reason


def test_a_suspended_job_is_gone_and_does_not_wake_up(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    become(engine, "a1", "granted")
    assert at_slurm.lab.command("scontrol", "suspend", str(at_slurm.jobs("a1")[0]["job_id"])).returncode == 0
    become(engine, "a1", "gone")
    eventually(lambda: at_slurm.running("a1") == 0, WITHIN_S, "it is cancelled")


def test_a_job_of_more_right_takes_the_node(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1", exclude=("n2", "n3"), slurm={"partition": "low"}))
    become(engine, "a1", "granted")
    at_slurm.lab.submit("sleep 600", "--partition=high", "--exclusive", "--nodelist=n1")
    become(engine, "a1", "gone")
    eventually(lambda: "PREEMPTED" in grants(engine)["a1"].reason, WITHIN_S, "Slurm says why")


@pytest.mark.long
def test_a_job_that_is_preempted_after_a_grace_is_leaving_until_then(at_slurm: SlurmPlace) -> None:
    """Its main process gets no signal: SIGTERM goes to its steps alone, and it has none."""
    warned, agent = at_slurm.folder / "warned", at_slurm.folder / "agent.py"
    agent.write_text(WARNED)
    engine = at_slurm.engine()
    command = f"{sys.executable} {agent} {warned}"
    slurm = {"agent_command": command, "partition": "graced", "time_limit": "60"}
    engine.acquire(at_slurm.request("a1", exclude=("n2", "n3"), slurm=slurm))
    assert become(engine, "a1", "granted").leaving == ""
    at_slurm.lab.submit("sleep 600", "--partition=high", "--exclusive", "--nodelist=n1")
    grant = eventually(lambda: (g := grants(engine)["a1"]).leaving and g, WITHIN_S, "it is leaving")
    seen, job = time.time(), at_slurm.jobs("a1")[0]["job_id"]
    assert (grant.state, grant.leaves_in_s) == ("granted", GRACE_S)
    assert grant.leaving == f"Slurm preempts job {job}, after a grace of {GRACE_S} s"
    gone = become(engine, "a1", "gone", 60)
    assert time.time() - seen > GRACE_S / 2, "a SIGTERM at once would have ended it"
    assert ("PREEMPTED" in gone.reason, warned.exists()) == (True, False)
    assert at_slurm.running("a1") == 0, "it is not queued again"


def test_an_agent_that_fails_is_gone_with_its_exit_code(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1", slurm={"agent_command": "sh -c 'exit 3'"}))
    become(engine, "a1", "gone")
    eventually(lambda: "FAILED" in (r := grants(engine)["a1"].reason) and "exit code 3" in r, WITHIN_S, "why")


@pytest.mark.long
def test_while_the_controller_is_away_nothing_is_gone_and_nothing_is_submitted_twice(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    before = become(engine, "a1", "granted")
    at_slurm.lab.stop_controller()
    try:
        for call in (
            engine.list,
            lambda: engine.acquire(at_slurm.request("a2")),
            lambda: at_slurm.engine().release("a1"),
            lambda: engine.check(at_slurm.request("a2")),
        ):
            with pytest.raises(Retryable, match="scontrol ping"):
                call()
    finally:
        at_slurm.lab.start_controller()
    eventually(lambda: grants(engine) == {"a1": before}, WITHIN_S, "it runs as before")
    engine.acquire(at_slurm.request("a2"))
    become(engine, "a2", "granted")
    assert [len(at_slurm.jobs(key)) for key in ("a1", "a2")] == [1, 1]


def test_a_submission_whose_command_fails_after_it_was_done_is_found(at_slurm: SlurmPlace) -> None:
    with at_slurm.instead("sbatch", 'REAL "$@" >/dev/null; exit 1') as calls:
        at_slurm.engine().acquire(at_slurm.request("a1"))
    assert len(calls.read_text().splitlines()) == 1
    assert len(at_slurm.jobs("a1")) == 1


def test_where_a_plugin_changes_the_comment_one_job_is_made_and_cancelled(at_slurm: SlurmPlace) -> None:
    engine, other = at_slurm.engine(), f"project={at_slurm.system}"
    with at_slurm.instead("sbatch", f'exec REAL "${{@/--comment=*/--comment={other}}}"') as calls:
        for _ in range(2):
            with pytest.raises(RequestRefused, match=f"and its comment is '{other}'"):
                engine.acquire(at_slurm.request("a1"))
    assert len(calls.read_text().splitlines()) == 1
    (job,) = [j for j in at_slurm.lab.jobs() if j["comment"] == other]
    assert job["job_state"] in ("CANCELLED", "COMPLETING")


def test_a_name_that_is_no_utf_8_hides_nothing(at_slurm: SlurmPlace) -> None:
    at_slurm.lab.submit("sleep 600", "--job-name=caf\udce9", "--hold")
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    become(engine, "a1", "granted")
    assert set(grants(engine)) == {"a1"}, "and the stranger's is none of ours"


def test_a_command_that_hangs_is_retryable(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine._commands = Commands(deadline_s=1.0)
    with (
        at_slurm.instead("squeue", "exec sleep 60"),
        pytest.raises(Retryable, match="squeue has not answered within 1 s"),
    ):
        engine.list()


def test_without_slurms_commands_it_says_so(at_slurm: SlurmPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(at_slurm.folder))
    with pytest.raises(Fatal, match="there is no squeue here"):
        at_slurm.engine().list()


@pytest.mark.parametrize(
    ("about", "key", "words"),
    [
        ({"partition": "nope"}, 'partition = "nope"', "[Pp]artition"),
        ({"constraint": "gold"}, 'constraint = "gold"', "feature"),
        ({"gres": "gpu:8"}, 'gres = "gpu:8"', "gres"),
        ({"time_limit": "soon"}, 'time_limit = "soon"', "time"),
        ({"flags": ("--mem=900T",)}, 'flags = ["--mem=900T"]', "configuration"),
    ],
)
def test_what_slurm_refuses_is_fatal_with_its_words_and_our_key(
    at_slurm: SlurmPlace, about: dict[str, str], key: str, words: str
) -> None:
    engine, asked = at_slurm.engine(), with_slurm(at_slurm.request("a1"), **about)
    for call in (engine.check, engine.acquire):
        with at_slurm.instead("sbatch", 'exec REAL "$@"') as calls, pytest.raises(Fatal) as error:
            call(asked)
        assert f"allocation.slurm.{key}: " in str(error.value)
        assert re.search(words, str(error.value).partition(key)[2])
    real = [line for line in calls.read_text().splitlines() if "--test-only" not in line]
    assert len(real) in (1, 2), "once, and once more if it left nothing; nothing by the check"
    assert {grant.state for grant in grants(at_slurm.engine()).values()} <= {"refused"}
    with at_slurm.instead("sbatch", 'exec REAL "$@"') as calls:
        calls.write_text("")
        if grants(engine):
            engine.acquire(asked)
            assert calls.read_text() == "", "what is known is not asked for again"


def test_check_submits_nothing(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.check(at_slurm.request("a1", slurm={"partition": "train", "constraint": "n1", "time_limit": "2-00:00:00"}))
    assert (grants(engine), at_slurm.jobs("a1")) == ({}, [])


def test_a_suspect_host_is_drained_and_the_administrators_reason_stays(at_slurm: SlurmPlace) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1", exclude=("n2", "n3")))
    become(engine, "a1", "granted")
    engine.replace("a1", at_slurm.request("a2", exclude=("n1", "n3")), "its disk is full")
    become(engine, "a2", "granted")
    nodes = Commands().nodes()
    assert ("DRAIN" in nodes["n1"].states, "DRAIN" in nodes["n2"].states) == (True, False)
    assert nodes["n1"].reason == "supervisor, run run: its disk is full"
    at_slurm.lab.drain("n2", "fan 3 is loud")
    engine.replace("a2", at_slurm.request("a3", exclude=("n1", "n2")), "it is slow")
    become(engine, "a3", "granted")
    assert Commands().nodes()["n2"].reason == "fan 3 is loud"
    without = at_slurm.request("a4", exclude=("n3",), slurm={"drain_suspects": False})
    engine.replace("a3", without, "it is slow")
    assert "DRAIN" not in Commands().nodes()["n3"].states


def test_who_may_not_drain_replaces_all_the_same_and_says_it_once(
    at_slurm: SlurmPlace, caplog: pytest.LogCaptureFixture
) -> None:
    engine = at_slurm.engine()
    engine.acquire(at_slurm.request("a1"))
    become(engine, "a1", "granted")
    nobody = 'if [ "$1" = update ]; then exec setpriv --reuid=65534 --regid=65534 --clear-groups REAL "$@"; fi; exec REAL "$@"'
    with at_slurm.instead("scontrol", nobody), caplog.at_level(logging.WARNING):
        for old, new in (("a1", "a2"), ("a2", "a3")):
            engine.replace(old, at_slurm.request(new), "its disk is full")
            become(engine, new, "granted")
    said = [r.getMessage() for r in caplog.records if "drain" in r.getMessage()]
    assert len(said) == 1
    assert "drain_suspects = false" in said[0]
    forgotten(engine, "a1")
    assert all("DRAIN" not in node.states for node in Commands().nodes().values())


def test_the_folder_in_tmp_must_be_the_users_own(at_slurm: SlurmPlace, tmp_path: Path) -> None:
    """Any user may have made a folder of that name."""
    folder = Path(f"/tmp/supervisor-0/{at_slurm.system}")
    engine = at_slurm.engine()
    agent = executable(tmp_path / "touch", f'echo "$*" >{tmp_path}/started-$SLURM_JOB_ID; exec sleep 600')
    others: list[Path] = []
    request = at_slurm.request("a1", slurm={"node_folder": "", "agent_command": str(agent)})
    engine.acquire(request)
    become(engine, "a1", "granted")
    try:
        eventually(lambda: list(tmp_path.glob("started-*")), WITHIN_S, "the agent was started")
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (0, 0o700)
        os.chown(folder, 65534, 65534)
        engine.acquire(at_slurm.request("a2", slurm={"node_folder": "", "agent_command": str(agent)}))
        become(engine, "a2", "granted")
        eventually(lambda: len(list(tmp_path.glob("started-*"))) == 2, WITHIN_S, "the second agent was started")
        words = max(tmp_path.glob("started-*")).read_text().split()
        others.append(Path(words[words.index("--home") + 1]))
        assert others[0].parent == Path("/tmp")
        assert others[0].name.startswith("supervisor-0.")
        assert (others[0].stat().st_uid, others[0].stat().st_mode & 0o777) == (0, 0o700)
        (log,) = others[0].glob("nodes/*/shim.log")
        assert f"{folder} is not this user's alone" in log.read_text()
    finally:
        for made in (folder, *others):
            shutil.rmtree(made)
