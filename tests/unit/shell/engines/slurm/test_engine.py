"""The Slurm engine with a site's Slurm that is not as it should be. Slurm is a list here."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec
from supervisor.ports.engine import Request, RequestDeferred, RequestRefused
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines.slurm import engine as slurm
from supervisor.shell.engines.slurm import submission
from supervisor.shell.engines.slurm.commands import Job, Node, NumberUnknown, Refused
from supervisor.shell.engines.slurm.engine import SlurmEngine
from supervisor.shell.engines.slurm.script import options, script
from supervisor.wire import enrollment
from supervisor.wire.security import Security, SecurityError

COMMENT = "supervisor/abc/a1"
REQUEST = Request(key="a1", run="run", slots=1, lease_s=5, spec=AllocationSpec(engine="slurm"))


def job(number: int, comment: str = COMMENT, node: str = "n1", state: str = "RUNNING", uid: int | None = None) -> Job:
    return Job(
        id=number, cluster="lab", states=(state,), why="", comment=comment, node=node, restarts=0, exit_code=0,
        submitted_unix_s=number, uid=os.getuid() if uid is None else uid,
    )  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_is_of_as_many_nodes_as_its_allocation(nodes: int) -> None:
    assert f"--nodes={nodes}" in options(replace(REQUEST, nodes=nodes), COMMENT)


class Commands:
    """Takes submissions, and runs them at once."""

    def __init__(self, *queue: Job) -> None:
        self.queue = list(queue)
        self.submitted = 0
        self.given: list[tuple[str, dict[str, str]]] = []
        """Options and script of each submission, and what its job gets beside the environment."""
        self.cancelled: list[int] = []
        self.drained: list[str] = []
        self.lists: list[Exception | None] = []
        """Errors that the next lists raise."""
        self.outcomes: list[Exception] = []
        """Errors that the next submissions raise, after they were done."""
        self.comment = COMMENT
        self.living: dict[tuple[int, str], str] = {}
        self.looks = 0
        self.signalled: list[tuple[str, str]] = []
        self.done = True
        self.holds = False

    def jobs(self) -> list[Job]:
        error = self.lists.pop(0) if self.lists else None
        if error is not None:
            raise error
        return list(self.queue)

    def submit(self, options: Sequence[str], script: str, more: Mapping[str, str]) -> int:
        self.given.append((f"{options} {script}", dict(more)))
        assert any(option.startswith("--comment=supervisor/abc/") for option in options)
        self.submitted += 1
        number = 100 + self.submitted
        if self.done:
            self.queue.append(job(number, self.comment))
        if self.outcomes:
            raise self.outcomes.pop(0)
        return number

    def refusal(self, options: Sequence[str], script: str) -> str:
        return ""

    def cancel(self, jobs: Sequence[int]) -> None:
        if self.holds:
            raise Fatal("scancel: access denied")
        self.cancelled += jobs
        self.queue = [replace(j, states=("CANCELLED",)) if j.id in jobs else j for j in self.queue]

    def nodes(self) -> dict[str, Node]:
        return {f"n{n}": Node(name=f"n{n}", states=("IDLE",), reason="") for n in (1, 2)}

    def steps(self) -> dict[tuple[int, str], str]:
        self.looks += 1
        return dict(self.living)

    def end_step(self, step: str, signal: str) -> None:
        self.signalled.append((step, signal))

    def drain(self, host: str, reason: str) -> str:
        self.drained.append(host)
        return ""

    def cluster(self) -> str:
        return "lab"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slurm, submission):
        monkeypatch.setattr(module, "ONCE_MORE_S", 0.0)
    monkeypatch.setattr(slurm, "load", lambda path: Security())


def engine_at(commands: Commands) -> SlurmEngine:
    engine = SlurmEngine(["e:1"], "", "abc")
    engine._commands = commands  # type: ignore[assignment]
    return engine


def test_a_job_with_another_comment_is_cancelled_and_not_made_again() -> None:
    commands = Commands()
    commands.comment = f"project=llm;{COMMENT}"
    engine = engine_at(commands)
    for _ in range(3):
        with pytest.raises(RequestRefused, match=r"accepted job 101, and its comment is 'project=llm;.*job_submit"):
            engine.acquire(REQUEST)
    assert commands.submitted == 1
    assert set(commands.cancelled) == {101}


def test_a_job_that_went_elsewhere_is_cancelled_and_not_made_again() -> None:
    commands = Commands()
    commands.done = False
    engine = engine_at(commands)
    for _ in range(3):
        with pytest.raises(RequestRefused, match=r"accepted job 101, and it is not in this cluster's list"):
            engine.acquire(REQUEST)
    assert (commands.submitted, set(commands.cancelled)) == (1, {101})


def test_of_another_clusters_number_nothing_is_cancelled_here() -> None:
    commands = Commands(job(101, "somebody's work, with the number that the other cluster gave"))
    commands.done = False
    with pytest.raises(RequestRefused, match=r"not in this cluster.*by hand"):
        engine_at(commands).acquire(REQUEST)
    assert commands.cancelled == []


def test_a_success_that_could_not_be_looked_up_is_looked_up_later() -> None:
    commands = Commands()
    commands.done = False
    engine = engine_at(commands)
    commands.lists = [None, Retryable("no controller")]
    with pytest.raises(Retryable):
        engine.acquire(REQUEST)
    with pytest.raises(RequestRefused):
        engine.acquire(REQUEST)
    assert commands.submitted == 1
    commands.queue = [job(101)]
    engine.acquire(REQUEST)
    assert commands.submitted == 1


@pytest.mark.parametrize("comment", [COMMENT, "another"])
def test_a_success_without_a_number_is_looked_up(comment: str) -> None:
    commands = Commands()
    commands.comment = comment
    commands.outcomes = [NumberUnknown("cost: 3 EUR")]
    engine = engine_at(commands)
    if comment == COMMENT:
        engine.acquire(REQUEST)
    for _ in range(2 * (comment != COMMENT)):
        with pytest.raises(RequestRefused, match="without printing its number"):
            engine.acquire(REQUEST)
    assert (commands.submitted, commands.cancelled) == (1, [])


def test_one_that_was_taken_at_the_second_try_is_no_refusal() -> None:
    commands = Commands()
    commands.done = False
    commands.outcomes = [Refused("timed out"), Refused("timed out")]
    commands.lists = [None, None]
    real = commands.submit

    def late(options: Sequence[str], script: str, more: Mapping[str, str]) -> int:
        commands.done = commands.submitted == 1
        return real(options, script, more)

    commands.submit = late  # type: ignore[method-assign]
    engine_at(commands).acquire(REQUEST)
    assert commands.submitted == 2


def test_sbatchs_refusal_is_one_and_squeues_is_not() -> None:
    commands = Commands()
    commands.done = False
    commands.outcomes = [Refused("too busy")] * 2
    with pytest.raises(RequestRefused, match="Slurm refuses the job: too busy"):
        engine_at(commands).acquire(REQUEST)
    commands.lists = [Fatal("squeue: timed out")]
    with pytest.raises(Fatal) as error:
        engine_at(commands).acquire(REQUEST)
    assert not isinstance(error.value, RequestRefused)


def test_where_all_hosts_are_left_out_these_are_told_and_not_the_partition() -> None:
    class Two(Commands):
        """A partition of two hosts; there are others beside it."""

        def refusal(self, options: Sequence[str], script: str) -> str:
            return "no node" if {"--exclude=n1,n2", "--partition=gpu"} <= set(options) else ""

    commands = Two()
    commands.done = False
    spec = AllocationSpec(engine="slurm", slurm=SlurmSpec(partition="gpu"))
    for exclude, expected in (
        (("n1", "n2"), "excluded: n1, n2. They are cordoned"),
        (("n1",), "Slurm refuses the job: no"),
    ):
        commands.outcomes = [Refused("no node")] * 2
        with pytest.raises(RequestRefused, match=expected) as error:
            engine_at(commands).acquire(replace(REQUEST, spec=spec, exclude=exclude))
        assert "partition" not in str(error.value)
        assert ('supervisor resume run --because "..."' in str(error.value)) == (len(exclude) == 2)


def test_a_partition_that_slurm_refuses_is_told_where_hosts_are_left_out_too() -> None:
    class Unknown(Commands):
        def refusal(self, options: Sequence[str], script: str) -> str:
            return "no partition" if "--partition=gpu" in options else ""

    commands = Unknown()
    spec = AllocationSpec(engine="slurm", slurm=SlurmSpec(partition="gpu"))
    with pytest.raises(RequestRefused, match=r'allocation.slurm.partition = "gpu": no partition'):
        engine_at(commands).check(replace(REQUEST, spec=spec, exclude=("n1",)))


def test_a_strangers_job_is_not_cancelled() -> None:
    commands = Commands()
    commands.done = False
    real = commands.submit

    def another_users(options: Sequence[str], script: str, more: Mapping[str, str]) -> int:
        number = real(options, script, more)
        commands.queue.append(job(number, uid=os.getuid() + 1))
        return number

    commands.submit = another_users  # type: ignore[method-assign]
    with pytest.raises(
        RequestRefused, match=r"accepted job 101, and it belongs to user \d+, not to ours.*not ours to cancel"
    ):
        engine_at(commands).acquire(REQUEST)
    assert commands.cancelled == []


def test_strangers_jobs_are_not_ours() -> None:
    commands = Commands(job(1, uid=os.getuid() + 1))
    engine = engine_at(commands)
    assert engine.list() == []
    engine.release("a1")
    assert commands.cancelled == []
    engine.acquire(REQUEST)
    assert [g.engine_id for g in engine.list()] == ["slurm:lab:101"]


def test_a_cancel_that_fails_hides_no_list(caplog: pytest.LogCaptureFixture) -> None:
    commands = Commands(job(1), job(2), job(3, "supervisor/abc/a2", state="SUSPENDED"))
    commands.holds = True
    with caplog.at_level(logging.WARNING):
        found = {g.key: g.state for g in engine_at(commands).list()}
    assert found == {"a1": "granted", "a2": "gone"}
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["not cancelled", "not cancelled"]


def test_a_host_that_was_resumed_is_drained_for_the_next_reason_and_not_again_for_the_same() -> None:
    commands = Commands(job(1))
    engine = engine_at(commands)
    for _ in range(2):
        engine.replace("a1", replace(REQUEST, key="a1"), "its disk is full")
    assert commands.drained == ["n1"]
    commands.queue = [job(2, "supervisor/abc/a0")]
    engine.replace("a0", REQUEST, "its disk is full again")
    assert commands.drained == ["n1", "n1"]


def test_a_list_that_takes_long_is_asked_for_less_often_but_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])

    class Slow(Commands):
        takes_s = 0.0

        def jobs(self) -> list[Job]:
            clock[0] += self.takes_s
            return super().jobs()

    commands = Slow()
    engine = engine_at(commands)
    for takes_s, poll_s in ((0.01, slurm.POLL_S), (0.3, 3.0), (25.0, slurm.POLL_MAX_S), (0.01, slurm.POLL_S)):
        commands.takes_s = takes_s
        engine.list()
        assert engine.poll_s == pytest.approx(poll_s)


@pytest.mark.parametrize(
    ("state", "booted", "slurmd", "ended"),
    [
        ("NODE_FAIL", 1031, 1040, True),
        ("CANCELLED", 1031, 1040, True),
        ("NODE_FAIL", 1030, 1040, False),  # a late registration
        ("NODE_FAIL", 1031, 990, False),  # a virtual machine that was frozen
        ("NODE_FAIL", 0, 1040, False),
        ("RUNNING", 1031, 1040, False),
    ],
)
def test_a_boot_after_the_start_is_the_end_of_its_processes(state: str, booted: int, slurmd: int, ended: bool) -> None:
    class Booted(Commands):
        def nodes(self) -> dict[str, Node]:
            return {"n1": Node(name="n1", states=("DOWN",), reason="", booted_unix_s=booted, slurmd_unix_s=slurmd)}

    (grant,) = engine_at(Booted(replace(job(7, state=state), started_unix_s=1000))).list()
    assert grant.ended is ended


def test_one_whose_host_failed_is_listed_after_its_release_and_not_looked_for_at_each() -> None:
    commands = Commands(job(7, state="NODE_FAIL"), job(8, COMMENT.replace("a1", "a2"), state="CANCELLED"))
    engine = engine_at(commands)
    for key in ("a1", "a2"):
        engine.release(key)
    assert [g.key for g in engine.list()] == ["a1"]
    commands.lists = [Retryable("nobody is asked")]
    engine.release("a1")


def test_no_more_than_max_pending_jobs_wait_at_once() -> None:
    waiting = [job(number, f"supervisor/abc/b{number}", "", "PENDING") for number in (1, 2)]
    others = [job(3, "", "", "PENDING"), job(4, "supervisor/abc/b4")]
    commands = Commands(*waiting, *others)
    request = replace(REQUEST, spec=replace(REQUEST.spec, slurm=SlurmSpec(max_pending=2)))
    with pytest.raises(RequestDeferred, match=r"2 jobs wait, and allocation\.slurm\.max_pending = 2"):
        engine_at(commands).acquire(request)
    assert commands.submitted == 0
    commands.queue[0] = replace(waiting[0], states=("RUNNING",), node="n1")
    engine_at(commands).acquire(request)
    assert commands.submitted == 1


@pytest.mark.parametrize("code", ["QOSMaxSubmitJobPerUserLimit", "AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit"])
def test_a_user_with_as_many_jobs_as_allowed_is_patient(code: str) -> None:
    commands = Commands()
    commands.done = False
    commands.outcomes = [
        Refused(f"sbatch: error: {code}; Batch job submission failed: Job violates accounting/QOS policy")
    ]
    with pytest.raises(RequestDeferred, match=code) as error:
        engine_at(commands).acquire(REQUEST)
    assert (error.value.after_s, commands.submitted) == (slurm.TOO_MANY_S, 1)


def test_a_suspect_host_is_given_back_though_its_replacement_must_wait() -> None:
    """Its job may be the one that is too many."""
    commands = Commands(job(1))
    commands.done = False
    commands.outcomes = [Refused("sbatch: error: QOSMaxSubmitJobPerUserLimit")]
    with pytest.raises(RequestDeferred):
        engine_at(commands).replace("a1", replace(REQUEST, key="a2"), "it is lost")
    assert commands.cancelled == [1]


GROUP = ("a1", "a2")
OF_GROUP = "supervisor/abc/a1+2"


def group_request(key: str, **slurm: Any) -> Request:
    spec = replace(REQUEST.spec, slurm=SlurmSpec(shape="job_per_group", **slurm))
    return replace(REQUEST, key=key, spec=spec, together=GROUP)


def test_a_job_of_a_group_has_a_step_for_each_node_and_outlives_one() -> None:
    request = group_request("a1")
    made = options(request, OF_GROUP)
    assert {"--nodes=2", "--no-kill", "--signal=USR1@300", "--exclusive"} <= set(made)
    assert "--signal=B:USR1@300" in options(REQUEST, COMMENT)
    assert "--no-kill" not in options(REQUEST, COMMENT)
    text = script(request, ["e:1"], Security(), "abc", OF_GROUP)
    assert ("keys=(a1 a2)" in text, f"comment={OF_GROUP}" in text, '--allocation "$1"' in text) == (True, True, True)


def test_the_nodes_of_a_group_are_one_submission() -> None:
    commands = Commands()
    commands.comment = OF_GROUP
    engine = engine_at(commands)
    for key in GROUP:
        engine.acquire(group_request(key))
    assert [(g.key, g.engine_id) for g in engine.list()] == [("a1", "slurm:lab:101"), ("a2", "slurm:lab:101")]
    commands.queue = [job(101, f"{OF_GROUP} n[1-2]", "n[1-2]")]
    other = engine_at(commands)
    for key in GROUP:
        other.acquire(group_request(key))
    assert commands.submitted == 1


def test_a_submission_that_names_its_hosts_at_once_is_recognized() -> None:
    commands = Commands()
    commands.comment = f"{OF_GROUP} n[1-2]"
    engine_at(commands).acquire(group_request("a1"))
    assert (commands.submitted, commands.cancelled) == (1, [])


def test_a_second_job_that_has_one_of_the_keys_is_cancelled_whole() -> None:
    commands = Commands(job(1, "supervisor/abc/a2"), job(2, f"{OF_GROUP} n[1-2]", "n[1-2]"), job(3, OF_GROUP, ""))
    assert [g.key for g in engine_at(commands).list()] == ["a2"]
    assert commands.cancelled == [2, 3]


def test_a_job_of_a_group_that_waits_counts_once_and_is_given_back_with_its_last_key() -> None:
    commands = Commands(job(1, OF_GROUP, "", "PENDING"))
    engine = engine_at(commands)
    with pytest.raises(RequestDeferred, match="1 jobs wait"):
        engine.acquire(replace(group_request("a3", max_pending=1), together=()))
    engine.release("a1")
    assert [g.state for g in engine.list()] == ["pending", "pending"]
    assert commands.cancelled == []
    engine.release("a2")
    engine.list()
    assert commands.cancelled == [1]


def test_one_of_several_ends_by_its_step_and_the_last_by_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])
    commands = Commands(job(1, f"{OF_GROUP} n[1-2]", "n[1-2]"))
    commands.living = {(1, "a1"): "1.0", (1, "a2"): "1.1"}
    engine = engine_at(commands)
    engine.release("a2")
    for _ in range(2):
        assert [g.key for g in engine.list()] == ["a1"]
    assert commands.signalled == [("1.1", "TERM")]
    clock[0] = slurm.KILL_AFTER_S
    engine.list()
    assert commands.signalled == [("1.1", "TERM"), ("1.1", "KILL")]
    del commands.living[1, "a2"]
    engine.list()
    assert (len(commands.signalled), commands.cancelled) == (2, [])
    engine.release("a1")
    engine.list()
    assert commands.cancelled == [1]


def test_a_new_leader_gives_back_what_the_one_before_did_not() -> None:
    commands = Commands(job(1, f"{OF_GROUP} n[1-2]", "n[1-2]"))
    commands.living = {(1, "a1"): "1.0", (1, "a2"): "1.1"}
    engine_at(commands).release("a2")
    other = engine_at(commands)
    assert [g.state for g in other.list()] == ["granted", "granted"]
    other.release("a2")
    assert [g.key for g in other.list()] == ["a1"]


def test_steps_are_asked_for_only_where_a_job_has_several_nodes() -> None:
    commands = Commands(job(1), job(2, f"{OF_GROUP[:-4]}b1+2 n[1-2]", "n[1-2]", "CANCELLED"))
    engine_at(commands).list()
    assert commands.looks == 0
    commands.queue.append(job(3, "supervisor/abc/c1+2 n[1-2]", "n[1-2]"))
    engine_at(commands).list()
    assert commands.looks == 1


def of_supervisor(folder: Path, **more: Any) -> Security:
    own = folder / "own"
    return Security(ca=f"{own}/ca.pem", cert=f"{own}/s.pem", key=f"{own}/s.key", path=f"{own}/s.toml", **more)


def test_a_node_gets_its_file_from_the_nodes_folder(tmp_path: Path) -> None:
    shared = of_supervisor(tmp_path, nodes=f"{tmp_path}/shared")
    assert f'--security {tmp_path}/shared/node-"$SLURMD_NODENAME".toml' in script(REQUEST, ["e:1"], shared, "abc")
    assert f"{tmp_path}/own" not in script(REQUEST, ["e:1"], shared, "abc")


@pytest.mark.parametrize("together", [(), ("a1", "a2")])
def test_a_job_gets_secrets_by_its_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: tuple[str, ...]
) -> None:
    signs = of_supervisor(tmp_path, signs=str(tmp_path / "ca.key"), enroll=("10.0.0.5:9101",))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "ca.pem").write_text("the authority")
    (tmp_path / "ca.key").write_bytes(b"the key")
    monkeypatch.setattr(slurm, "load", lambda path: signs)
    commands = Commands()
    commands.comment = OF_GROUP if together else COMMENT
    engine_at(commands).acquire(replace(REQUEST, together=together))
    ((shown, given),) = commands.given
    assert list(given) == ["SUPERVISOR_ENROLL"]
    found = enrollment.decode(given["SUPERVISOR_ENROLL"])
    assert (found.addresses, found.ca) == (("10.0.0.5:9101",), "the authority")
    assert found.secrets == {key: enrollment.secret(b"the key", key) for key in together or ("a1",)}
    assert not any(secret in shown for secret in found.secrets.values())
    assert "--security" not in shown
    (tmp_path / "ca.key").unlink()
    with pytest.raises(RequestRefused, match=r"ca\.key cannot be read: No such file"):
        engine_at(Commands()).acquire(REQUEST)


@pytest.mark.parametrize("nodes", ["", "own", "."])
def test_the_supervisors_key_is_not_where_trainers_read_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nodes: str
) -> None:
    beside = of_supervisor(tmp_path, nodes=str(tmp_path / nodes) if nodes else "")
    monkeypatch.setattr(slurm, "load", lambda path: beside)
    words = r"the supervisor's key .*own/s\.key lies in .*, where every trainer can read it: move"
    with pytest.raises(SecurityError, match=words):
        slurm.before_launch(RunSpec(name="run", allocation=REQUEST.spec), ["e:1"], beside.path)
    with caplog.at_level("WARNING"):
        engine_at(Commands()).acquire(REQUEST)
    assert re.search(words, caplog.text), "a run that trained before an upgrade gets its next node"
    for accepted in (replace(beside, accepts_holes=True), replace(beside, nodes=str(tmp_path / "shared"))):
        monkeypatch.setattr(slurm, "load", lambda path, accepted=accepted: accepted)
        commands = Commands()
        engine_at(commands).acquire(REQUEST)
        assert commands.submitted == 1
