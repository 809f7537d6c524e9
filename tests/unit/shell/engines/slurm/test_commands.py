"""Slurm's output, as recorded from 22.05, and as documented of later versions, with which this was not run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.core.model.observed import Grant
from supervisor.ports.errors import Retryable
from supervisor.shell.engines.slurm.commands import (
    Commands,
    Job,
    Node,
    NumberUnknown,
    environment,
    parse_jobs,
    parse_nodes,
)
from supervisor.shell.engines.slurm.grants import granted, held_by

JOB_22 = {
    "cluster": "lab",
    "comment": "supervisor/5a5a/run-a1",
    "exit_code": 768,
    "job_id": 7,
    "job_state": "FAILED",
    "nodes": "n1",
    "restart_cnt": 0,
    "state_description": "",
    "state_reason": "NonZeroExitCode",
    "submit_time": 1795201393,
    "user_id": 1007,
}
JOB_LATER = {
    **JOB_22,
    "exit_code": {"status": ["ERROR"], "return_code": {"set": True, "infinite": False, "number": 3}},
    "job_state": ["FAILED"],
    "submit_time": {"set": True, "infinite": False, "number": 1795201393},
}
PREFIX = "supervisor/5a5a/"
NODE_22 = {"name": "n1", "state": "allocated", "state_flags": ["DRAIN"], "reason": "fan 3 is loud"}
NODE_LATER = {
    "nodes": {"nodes": ["n1", "n2"]},
    "node": {"state": ["ALLOCATED", "DRAIN"]},
    "reason": {"description": "fan 3 is loud"},
}


@pytest.mark.parametrize("job", [JOB_22, JOB_LATER])
def test_a_job_is_read(job: dict[str, object]) -> None:
    assert parse_jobs({"jobs": [job]}) == [
        Job(
            id=7,
            cluster="lab",
            states=("FAILED",),
            why="NonZeroExitCode",
            comment="supervisor/5a5a/run-a1",
            node="n1",
            restarts=0,
            exit_code=3,
            submitted_unix_s=1795201393,
            uid=1007,
        )
    ]


def test_a_signals_end_is_told_as_a_shell_does() -> None:
    (job,) = parse_jobs({"jobs": [{**JOB_22, "exit_code": 9}]})
    assert job.exit_code == 137


KILLED = json.loads(Path(__file__).with_name("slurm_signal.json").read_text())
"""Version -> the exit code of a job that signal 9 has ended."""
NOT_SET = {"set": False, "infinite": False, "number": 4294967294}


@pytest.mark.parametrize("version", KILLED)
def test_a_job_that_a_signal_has_ended_is_no_exit_code_0_in_any_version(version: str) -> None:
    (job,) = parse_jobs({"jobs": [{**JOB_22, "exit_code": KILLED[version]}]})
    assert job.exit_code == 137


@pytest.mark.parametrize("signal", [{"id": NOT_SET, "name": ""}, {"signal_id": 0, "name": "NONE"}, {}, None])
def test_one_that_no_signal_has_ended_has_its_own_code(signal: object) -> None:
    code = {"status": ["ERROR"], "return_code": {"set": True, "infinite": False, "number": 3}, "signal": signal}
    (job,) = parse_jobs({"jobs": [{**JOB_22, "exit_code": code}]})
    assert job.exit_code == 3


def test_nodes_are_read_with_their_flags() -> None:
    marked = Node(name="n1", states=("ALLOCATED", "DRAIN"), reason="fan 3 is loud")
    assert parse_nodes({"nodes": [NODE_22]}) == {"n1": marked}
    assert parse_nodes({"sinfo": [NODE_LATER]})["n1"] == marked
    assert set(parse_nodes({"sinfo": [NODE_LATER]})) == {"n1", "n2"}


def test_steps_with_a_number_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "1.0|run-a1\n12.3|run-a2\n1.batch|batch\n1.extern|extern\n2.TBD|run-a3\n4_7.0|array\nplugin: hello\n"
    monkeypatch.setattr(Commands, "_once", lambda self, *argv: listed)
    assert Commands().steps() == {(1, "run-a1"): "1.0", (12, "run-a2"): "12.3"}


def grant_of(*states: str, **about: object) -> Grant:
    (job,) = parse_jobs(
        {"jobs": [{**JOB_22, "exit_code": 0, "state_reason": "None", **about, "job_state": list(states)}]}
    )
    (held,) = held_by(job, PREFIX, {})
    return granted(held, None)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("PENDING",), "pending"),
        (("CONFIGURING",), "pending"),
        (("RUNNING", "CONFIGURING"), "pending"),
        (("RUNNING",), "granted"),
        (("SIGNALING",), "granted"),
        (("RUNNING", "COMPLETING"), "gone"),
        (("COMPLETING",), "gone"),
        (("NODE_FAIL",), "gone"),
        (("PREEMPTED",), "gone"),
        (("SUSPENDED",), "gone"),
        (("REQUEUE_HOLD",), "gone"),
        (("STOPPED", "RUNNING"), "gone"),
        (("RUNNING", "REQUEUED"), "gone"),
        (("RUNNING", "A_FLAG_OF_LATER"), "granted"),
        (("A_STATE_OF_LATER",), "granted"),
    ],
)
def test_a_state_is_a_grant(states: tuple[str, ...], expected: str) -> None:
    grant = grant_of(*states)
    assert (grant.state, grant.engine_id) == (expected, "slurm:lab:7")
    if expected == "gone":
        assert (grant.nodes, all(state in grant.reason for state in states)) == (("n1",), True)


def test_a_job_that_waits_says_why() -> None:
    grant = grant_of("PENDING", state_reason="Resources", state_description="", nodes="")
    assert (grant.state, grant.nodes, grant.reason) == ("pending", (), "Resources")


def test_a_job_that_never_had_a_node_and_failed_was_refused() -> None:
    grant = grant_of("FAILED", state_reason="BadConstraints", nodes="")
    assert (grant.state, "BadConstraints" in grant.reason) == ("refused", True)
    assert grant_of("CANCELLED", nodes="").state == "gone"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_that_runs_a_second_time_is_gone(state: str) -> None:
    grant = grant_of(state, restart_cnt=1)
    assert (grant.state, "queued again" in grant.reason) == ("gone", True)


@pytest.mark.parametrize("later", [False, True])
def test_a_job_that_is_preempted_is_leaving_and_says_how_long_it_stays(later: bool) -> None:
    begun, ends = ({"set": True, "infinite": False, "number": n} if later else n for n in (1795201400, 1795201460))
    grant = grant_of("RUNNING", preempt_time=begun, end_time=ends)
    assert (grant.state, grant.nodes, grant.leaves_in_s) == ("granted", ("n1",), 60.0)
    assert grant.leaving == "Slurm preempts job 7, after a grace of 60 s"
    unset = {"set": False, "infinite": False, "number": 0} if later else 0
    other = grant_of("RUNNING", preempt_time=unset, end_time=ends)
    assert (other.leaving, other.leaves_in_s) == ("", 0.0), "an end is the time limit's"
    assert "PREEMPTED" in grant_of("COMPLETING", preempt_time=begun, end_time=ends).reason
    assert "PREEMPTED" not in grant_of("COMPLETING", preempt_time=unset, end_time=ends).reason
    waits = grant_of("PENDING", preempt_time=begun, end_time=ends, nodes="")
    assert (waits.state, waits.leaving) == ("pending", "")


def test_that_it_is_preempted_says_more_than_that_its_host_is_drained() -> None:
    (job,) = parse_jobs({"jobs": [{**JOB_22, "job_state": "RUNNING", "preempt_time": 100, "end_time": 130}]})
    (held,) = held_by(job, PREFIX, {})
    grant = granted(held, Node(name="n1", states=("ALLOCATED", "DRAIN"), reason="fan 3 is loud"))
    assert (grant.leaving, grant.leaves_in_s) == ("Slurm preempts job 7, after a grace of 30 s", 30.0)


def test_the_environment_of_a_job() -> None:
    ours = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SBATCH_ACCOUNT": "llm",
        "SUPERVISOR_PROGRAMS": "{}",
        "BASH_FUNC_module%%": "() { :; }",
        "LMOD_KEYS": "kept",
        "SBATCH_WAIT_ALL_NODES": "1",
        "PWD": "/",
        "OLDPWD": "/home/me",
        "CPATH": "/usr/include",
        "KEYTIMEOUT": "1",
        "SSH_AUTH_SOCK": "/tmp/agent",
    }
    not_ours = ["SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_CLUSTERS", "SQUEUE_STATES", "SINFO_FORMAT", "SCANCEL_QOS"]
    not_ours += ["SBATCH_CLUSTERS", "SBATCH_CLUSTER_CONSTRAINT", "SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_EXPORT"]
    not_ours += ["SUPERVISOR_CONTROL_PLANE"]
    secret = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "db_password", "GITHUB_TOKEN_FILE"]
    secret += ["MYSQL_PWD", "GITHUB_PAT", "OPENAI_KEY", "openai_key", "DB_PASS", "SSH_PASSPHRASE"]
    assert environment({**ours, **dict.fromkeys([*not_ours, *secret], "x")}) == ours


def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Commands:
    """Slurm's commands, replaced by these shell scripts."""
    for name, script in scripts.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Commands()


def test_what_is_no_utf_8_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = '{"job_id": 7, "user_id": 1, "job_state": "RUNNING", "comment": "caf\\xe9"}'
    (job,) = says(tmp_path, monkeypatch, squeue=f"printf '{{\"jobs\": [{job}]}}'").jobs()
    assert (job.id, job.comment) == (7, "caf\ufffd")


@pytest.mark.parametrize(
    ("output", "number"),
    [("7", 7), ("7;lab", 7), ("Estimated cost: 3 EUR\\n7\\nhave fun", 7), ("1\\n7;lab", 7)],
)
def test_the_number_is_found_among_what_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, number: int
) -> None:
    assert says(tmp_path, monkeypatch, sbatch=f"printf '{output}\\n'").submit([], "") == number


@pytest.mark.parametrize("output", ["", "Estimated cost: 3 EUR", "Submitted batch job 7"])
def test_without_a_number_it_is_not_known_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    with pytest.raises(NumberUnknown, match="did not print the number") as error:
        says(tmp_path, monkeypatch, sbatch=f"printf '{output}\\n'").submit([], "")
    assert isinstance(error.value, Retryable)
