"""Grants of the keys of one job of several nodes, read from Slurm's lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model.observed import Grant
from supervisor.shell.engines.slurm import grants
from supervisor.shell.engines.slurm.commands import Job, Node
from supervisor.shell.engines.slurm.grants import granted, held_by, host_failed

PREFIX = "supervisor/abc/"
STEPS = {(7, "run-a1"): "7.0", (7, "run-a2"): "7.2", (7, "run-a3"): "7.1"}
JOB = Job(
    id=7, cluster="lab", states=("RUNNING",), why="", comment=f"{PREFIX}run-a1+3 n[1-3]", node="n[1-3]", restarts=0,
    exit_code=0, submitted_unix_s=1, uid=0, started_unix_s=1000,
)  # fmt: skip


def of(job: Job, steps: dict[tuple[int, str], str] | None = None, node: Node | None = None) -> list[Grant]:
    return [granted(held, node) for held in held_by(job, PREFIX, STEPS if steps is None else steps)]


def told(job: Job, steps: dict[tuple[int, str], str] | None = None) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(grant.key, grant.state, grant.nodes) for grant in of(job, steps)]


def test_each_key_has_a_host_in_their_order() -> None:
    assert told(JOB) == [(f"run-a{n}", "granted", (f"n{n}",)) for n in (1, 2, 3)]
    assert {grant.engine_id for grant in of(JOB)} == {"slurm:lab:7"}


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, states=("PENDING",), node="", comment=f"{PREFIX}run-a1+3"),
        replace(JOB, comment=f"{PREFIX}run-a1+3"),
    ],
)
def test_all_are_pending_until_the_hosts_are_in_the_comment(job: Job) -> None:
    assert told(job) == [(f"run-a{n}", "pending", ()) for n in (1, 2, 3)]


def test_a_host_that_has_left_the_job_is_a_key_that_is_gone() -> None:
    """Its step is listed on: Slurm does not hear that it has ended."""
    left = replace(JOB, node="n[1,3]")
    assert [state for _, state, _ in told(left)] == ["granted", "gone", "granted"]
    assert of(left)[1].nodes == ("n2",)


def test_a_step_that_has_ended_is_a_key_that_is_gone() -> None:
    steps = {about: step for about, step in STEPS.items() if about[1] != "run-a3"}
    assert [state for _, state, _ in told(JOB, steps)] == ["granted", "granted", "gone"]
    assert "its step has ended; the job goes on" in of(JOB, steps)[2].reason


def test_a_step_of_that_name_in_another_job_is_none_of_its() -> None:
    assert {state for _, state, _ in told(JOB, {(8, name): step for (_, name), step in STEPS.items()})} == {"gone"}


@pytest.mark.parametrize(("states", "restarts"), [(("NODE_FAIL",), 0), (("RUNNING",), 1), (("SUSPENDED",), 0)])
def test_a_job_that_is_gone_is_gone_with_all_its_keys(states: tuple[str, ...], restarts: int) -> None:
    assert told(replace(JOB, states=states, restarts=restarts)) == [
        (f"run-a{n}", "gone", (f"n{n}",)) for n in (1, 2, 3)
    ]


def test_one_that_no_nodes_can_satisfy_is_refused_for_all() -> None:
    job = replace(JOB, states=("FAILED",), node="", comment=f"{PREFIX}run-a1+3")
    assert {state for _, state, _ in told(job)} == {"refused"}


def test_a_host_that_is_drained_is_leaving_alone() -> None:
    drained = Node(name="n2", states=("ALLOCATED", "DRAIN"), reason="fan 3 is loud")
    found = [granted(held, drained if held.host == "n2" else None) for held in held_by(JOB, PREFIX, STEPS)]
    assert [bool(grant.leaving) for grant in found] == [False, True, False]


def test_only_a_boot_of_the_lost_host_says_that_its_processes_have_ended() -> None:
    _, lost, _ = held_by(replace(JOB, node="n[1,3]"), PREFIX, STEPS)
    down = Node(name="n2", states=("DOWN",), reason="", booted_unix_s=900, slurmd_unix_s=900)
    assert (granted(lost, down).ended, host_failed(lost, down)) == (False, True)
    booted = 1000 + grants.BOOT_MARGIN_S + 1
    up = replace(down, states=("IDLE",), booted_unix_s=booted, slurmd_unix_s=booted)
    assert (granted(lost, up).ended, host_failed(lost, up)) == (True, True)
    given_back = replace(down, states=("IDLE",))
    assert host_failed(lost, given_back) is False, "the job is smaller by it"
