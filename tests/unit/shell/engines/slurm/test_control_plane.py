"""The control plane's jobs: idempotent, separate, and explained. Slurm is a list here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.spec import AllocationSpec, SlurmSpec
from supervisor.ports.engine import Request
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines.slurm import control_plane as submit
from supervisor.shell.engines.slurm import script as slurm_script
from supervisor.shell.engines.slurm import submission
from supervisor.shell.engines.slurm.commands import Job, NumberUnknown, Refused
from supervisor.wire import environment as decided
from supervisor.wire import keys
from supervisor.wire.security import Security


def job(number: int, comment: str, node: str = "", state: str = "", why: str = "") -> Job:
    return Job(
        id=number, cluster="c", states=(state or ("RUNNING" if node else "PENDING"),), why=why, comment=comment, node=node,
        restarts=0, exit_code=0, submitted_unix_s=number, uid=os.getuid(),
    )  # fmt: skip


@dataclass
class Slurm:
    """Takes submissions; starts each on a free host at the next look, unless it is `busy`."""

    queue: list[Job] = field(default_factory=list)
    hosts: tuple[str, ...] = ("n1", "n2", "n3")
    busy: bool = False
    refuses: str = ""
    """An option with which it refuses."""
    loses_answers: bool = False
    submitted: list[tuple[list[str], str]] = field(default_factory=list)

    def jobs(self) -> Sequence[Job]:
        found = list(self.queue)
        for n, waiting in enumerate(self.queue):
            if waiting.states == ("PENDING",) and not self.busy:
                left_out = self._excluded(waiting)
                free = [h for h in self.hosts if h not in left_out]
                self.queue[n] = replace(waiting, states=("RUNNING",), node=free[0])
        return found

    def _excluded(self, waiting: Job) -> list[str]:
        options = next((o for o, _ in self.submitted if f"--comment={waiting.comment}" in o), [])
        return next((o.removeprefix("--exclude=").split(",") for o in options if o.startswith("--exclude=")), [])

    def submit(self, options: Sequence[str], script: str) -> int:
        if self.refuses in options:
            raise Refused("these are Slurm's words")
        self.submitted.append((list(options), script))
        comment = next(o.removeprefix("--comment=") for o in options if o.startswith("--comment="))
        self.queue.append(job(len(self.queue) + 1, comment, why="Resources"))
        if self.loses_answers:
            raise Refused("the answer was lost")
        return len(self.queue)

    def refusal(self, options: Sequence[str], script: str) -> str:
        return "these are Slurm's words" if self.refuses in options else ""

    def cancel(self, jobs: Sequence[int]) -> None:
        self.queue = [replace(j, states=("CANCELLED",)) if j.id in jobs else j for j in self.queue]


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> submit.ControlPlane:
    for name in ("POLL_S", "ONCE_MORE_S"):
        monkeypatch.setattr(submit, name, 0.0)
    monkeypatch.setattr(submission, "ONCE_MORE_S", 0.0)
    spec = SlurmSpec(
        partition="cpu", account="llm", gres="gpu:8", constraint="h100", flags=("--reservation=x",), time_limit="1-0",
        warn_s=120, setup="module load python",
    )  # fmt: skip
    return submit.plane_of(spec, system="abc", etcd="e:1,e:2", home=tmp_path, security="/s/sup.toml")


def nothing(sentence: str) -> None:
    pass


def test_each_has_a_host_of_its_own(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 3, nothing, 60)
    slurm.jobs()
    assert [j.node for j in slurm.queue] == ["n1", "n2", "n3"]
    assert [j.comment for j in slurm.queue] == [f"supervisor-control/abc/{plane.etcd_mark}/{n}" for n in (1, 2, 3)]
    submit.ensure(slurm, plane, 3, nothing, 60)
    assert len(slurm.queue) == 3


def test_what_is_asked_of_slurm(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 1, nothing, 60)
    options, script = slurm.submitted[0]
    assert {"--partition=cpu", "--account=llm", "--time=1-0", "--requeue", "--signal=B:USR1@120"} <= set(options)
    assert not [o for o in options if o.startswith(("--gres", "--exclusive", "--constraint", "--reservation"))]
    lines = script.splitlines()
    assert "trap '' USR1" in lines
    assert lines.index("module load python") < len(lines) - 1
    command = shlex.split(lines[-1])
    assert command[0] == "exec"
    assert "up --nodes 0 --address auto --etcd e:1,e:2 --home" in lines[-1]
    assert command[command.index("--name") + 1] == "service-$SLURMD_NODENAME"
    assert command[command.index("--security") + 1] == "/s/sup.toml"


def test_one_that_has_ended_is_made_again_and_the_others_stay(plane: submit.ControlPlane) -> None:
    slurm = Slurm([job(1, plane.comment("1"), "n1", "FAILED"), job(2, plane.comment("2"), "n2")])
    slurm.queue.append(job(3, "supervisor-control/other/1", "n3"))
    submit.ensure(slurm, plane, 2, nothing, 60)
    assert [(j.comment, j.states[0]) for j in slurm.queue[3:]] == [(plane.comment("1"), "RUNNING")]
    assert "--exclude=n2" in slurm.submitted[0][0]


def test_those_with_other_endpoints_of_etcd_are_cancelled_and_made_anew(plane: submit.ControlPlane) -> None:
    before, said = replace(plane, etcd="lost:1"), list[str]()
    old = [
        job(1, before.comment("1"), "n1"),
        job(2, before.comment("after-1"), state="PENDING"),
        job(3, "supervisor-control/abc/2", "n2"),
    ]
    left = [
        job(4, before.comment("3"), "n1", "COMPLETED"),
        replace(job(5, before.comment("1"), "n1"), uid=os.getuid() + 1),
    ]
    left.append(job(6, replace(before, system="abcd").comment("1"), "n3"))
    slurm = Slurm([*old, *left])
    assert submit.living(slurm, plane) == []
    submit.ensure(slurm, plane, 2, said.append, 60)
    slurm.jobs()
    assert [j.states[0] for j in slurm.queue] == ["CANCELLED"] * 3 + ["COMPLETED"] + ["RUNNING"] * 4
    assert [j.comment for j in slurm.queue[6:]] == [plane.comment("1"), plane.comment("2")]
    assert said[:3] == [
        f"cancelled job {n}: a control-plane job of this system with other endpoints than e:1,e:2" for n in (1, 2, 3)
    ]


def test_the_same_endpoints_in_another_order_are_the_same(plane: submit.ControlPlane) -> None:
    slurm = Slurm([job(1, replace(plane, etcd="E:2, e:1,e:2").comment("1"), "n1")])
    submit.ensure(slurm, plane, 1, pytest.fail, 60)
    assert slurm.submitted == []


@pytest.mark.parametrize("etcd", ["http://e:1,http://e:2", "https://E:2/ ,e:1/", "e:2,HTTP://e:1,"])
def test_the_same_endpoints_in_another_spelling_are_the_same(plane: submit.ControlPlane, etcd: str) -> None:
    assert replace(plane, etcd=etcd).etcd_mark == plane.etcd_mark
    assert replace(plane, etcd="http://e:1").etcd_mark != plane.etcd_mark


def test_two_who_submit_at_once_with_other_endpoints_cancel_each_other_once(plane: submit.ControlPlane) -> None:
    other = replace(plane, etcd="lost:1")

    class Two(Slurm):
        looks = 0

        def jobs(self) -> Sequence[Job]:
            """The queue, to which another user submits while we wait."""
            self.looks += 1
            if self.looks == 4:
                self.queue.append(job(99, other.comment("1"), "n3"))
            self.busy = self.looks < 8
            return super().jobs()

    slurm, said = Two(), list[str]()
    submit.ensure(slurm, plane, 2, said.append, 60)
    assert slurm.looks >= 8
    assert [s for s in said if "cancelled" in s] == []
    submit.ensure(slurm, plane, 2, said.append, 60)
    assert [s.split(":")[0] for s in said if "cancelled" in s] == ["cancelled job 99"]


def test_a_cancel_that_slurm_refuses_is_told_before_more_are_submitted(plane: submit.ControlPlane) -> None:
    class Holds(Slurm):
        def cancel(self, jobs: Sequence[int]) -> None:
            raise Fatal("scancel: access denied")

    slurm = Holds([job(1, replace(plane, etcd="lost:1").comment("1"), "n1")])
    with pytest.raises(Fatal, match="access denied"):
        submit.ensure(slurm, plane, 1, nothing, 60)
    assert slurm.submitted == []


def test_jobs_that_end_at_once_are_not_submitted_for_ever(plane: submit.ControlPlane) -> None:
    class Dies(Slurm):
        def jobs(self) -> Sequence[Job]:
            self.queue = [replace(job, states=("FAILED",)) for job in self.queue]
            return super().jobs()

    slurm = Dies()
    with pytest.raises(Fatal, match=f"3 jobs were submitted and ended at once: their logs are in {plane.logs}"):
        submit.ensure(slurm, plane, 2, nothing, 60)
    assert len(slurm.submitted) == 3


def test_one_that_slurm_queues_again_lives(plane: submit.ControlPlane) -> None:
    slurm = Slurm([job(1, plane.comment("1"), state="PENDING")], busy=True)
    submit.ensure(slurm, plane, 1, nothing, 60)
    assert slurm.submitted == []


def test_of_two_of_one_name_the_younger_is_cancelled(plane: submit.ControlPlane) -> None:
    slurm = Slurm([job(1, plane.comment("1"), "n1"), job(2, plane.comment("1"), "n2")])
    assert [j.id for j in submit.living(slurm, plane)] == [1]
    assert slurm.queue[1].states == ("CANCELLED",)


def test_strangers_jobs_and_a_cancel_that_fails_hold_up_nothing(plane: submit.ControlPlane) -> None:
    class Holds(Slurm):
        def cancel(self, jobs: Sequence[int]) -> None:
            assert list(jobs) == [3], "a stranger's is not ours to cancel"
            raise Fatal("scancel: access denied")

    stranger = replace(job(1, plane.comment("1"), "n1"), uid=os.getuid() + 1)
    slurm = Holds([stranger, job(2, plane.comment("1"), "n1"), job(3, plane.comment("1"), "n2")])
    assert [j.id for j in submit.living(slurm, plane)] == [2]


def test_where_a_plugin_changes_the_comment_one_job_is_made_and_cancelled(plane: submit.ControlPlane) -> None:
    class Rewrites(Slurm):
        def submit(self, options: Sequence[str], script: str) -> int:
            number = super().submit(options, script)
            self.queue[-1] = replace(self.queue[-1], comment="project=llm")
            return number

    slurm = Rewrites()
    with pytest.raises(Fatal, match=r"accepted job 1, and its comment is 'project=llm'"):
        submit.ensure(slurm, plane, 2, nothing, 60)
    assert [j.states for j in slurm.queue] == [("CANCELLED",)]
    environment_of = {"SLURM_JOB_ID": "1", submit.VARIABLE: environment(slurm, 1)[submit.VARIABLE]}
    with pytest.raises(Fatal, match="accepted job 2"):
        submit.succeed(slurm, environment_of)
    assert [j.states for j in slurm.queue] == [("CANCELLED",)] * 2


def test_a_lost_answer_is_found_by_its_comment(plane: submit.ControlPlane) -> None:
    slurm = Slurm(loses_answers=True)
    submit.ensure(slurm, plane, 2, nothing, 60)
    assert [j.comment for j in slurm.queue] == [plane.comment("1"), plane.comment("2")]


def test_one_without_a_number_that_has_ended_already_is_told(plane: submit.ControlPlane) -> None:
    class Ends(Slurm):
        def submit(self, options: Sequence[str], script: str) -> int:
            super().submit(options, script)
            self.queue[-1] = replace(self.queue[-1], states=("FAILED",), node="n1")
            raise NumberUnknown("cost: 3 EUR")

    slurm = Ends()
    with pytest.raises(Fatal, match=r"without printing its number, and it has ended already: its log is .*control"):
        submit.ensure(slurm, plane, 1, nothing, 60)
    assert len(slurm.queue) == 1


def test_the_node_folder_is_made_as_in_a_nodes_job(plane: submit.ControlPlane) -> None:
    request = Request(key="a1", run="run", slots=1, lease_s=5, spec=AllocationSpec(engine="slurm", slurm=plane.slurm))
    lines = "\n".join(slurm_script.folder_lines(plane.slurm, plane.system))
    for script in (submit._script(plane), slurm_script.script(request, ["e:1"], Security(), plane.system)):
        assert lines in script
        assert slurm_script.SAY in script
    assert "mktemp" in lines
    assert f"/tmp/supervisor-{os.getuid()}/abc" in lines
    own = submit._script(replace(plane, slurm=replace(plane.slurm, node_folder="/local/me")))
    assert "mktemp" not in own
    assert "supervisor_folder=/local/me" in own


def test_what_tells_of_the_successor_is_no_trainers(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 1, nothing, 60)
    assert f"export {submit.VARIABLE}=" in slurm.submitted[0][1]
    assert decided.of_node({submit.VARIABLE: ""}) == {}


def test_why_it_is_pending_is_said_once(plane: submit.ControlPlane) -> None:
    said: list[str] = []

    class Later(Slurm):
        looks = 0

        def jobs(self) -> Sequence[Job]:
            self.looks += 1
            self.busy = self.looks < 6
            return super().jobs()

    submit.ensure(Later(), plane, 2, said.append, 60)
    assert said == [
        "submitted job 1: a supervisor and a service host",
        "Slurm has not started job 1 (Resources)",
        "submitted job 2: a supervisor and a service host",
    ]


def test_one_that_stays_pending_is_told_with_slurms_reason(plane: submit.ControlPlane) -> None:
    said: list[str] = []
    with pytest.raises(Fatal, match=r"has not started job 1 \(Resources\) after 0 s, and stays in the queue"):
        submit.ensure(Slurm(busy=True), plane, 2, said.append, 0)
    assert said == ["submitted job 1: a supervisor and a service host"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--partition=cpu", 'allocation.slurm.partition = "cpu": these are'),
        ("--time=1-0", 'allocation.slurm.time_limit = "1-0": these are'),
        ("--nodes=1", "job: these are Slurm's words"),
    ],
)
def test_a_refusal_names_our_key(plane: submit.ControlPlane, option: str, expected: str) -> None:
    slurm = Slurm(refuses=option)
    for call in (lambda: submit.check(slurm, plane), lambda: submit.ensure(slurm, plane, 1, nothing, 60)):
        with pytest.raises(Fatal) as error:
            call()
        assert expected in str(error.value)
    assert slurm.queue == []


def test_another_partition_is_named_as_it_was_given(plane: submit.ControlPlane, tmp_path: Path) -> None:
    other = submit.plane_of(plane.slurm, system="abc", etcd="e:1", home=tmp_path, partition="tiny")
    with pytest.raises(Fatal, match='--partition = "tiny": these are'):
        submit.check(Slurm(refuses="--partition=tiny"), other)


def test_too_few_hosts_are_told_as_such(plane: submit.ControlPlane) -> None:
    slurm = Slurm(refuses="--exclude=n1")
    with pytest.raises(Fatal, match="on another host than n1: give fewer --supervisors"):
        submit.ensure(slurm, plane, 2, nothing, 60)
    assert len(slurm.queue) == 1


def environment(slurm: Slurm, own: int) -> dict[str, str]:
    line = next(x for x in slurm.submitted[0][1].splitlines() if x.startswith("export "))
    name, _, value = shlex.split(line)[1].partition("=")
    json.loads(value)
    return {name: value, "SLURM_JOB_ID": str(own)}


def test_a_job_near_its_limit_has_one_successor(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 2, nothing, 60)
    slurm.jobs()
    assert submit.succeed(slurm, environment(slurm, 1)).endswith("job 3 follows this one")
    assert submit.succeed(slurm, environment(slurm, 1)).endswith("job 3 follows this one already")
    assert len(slurm.queue) == 3
    options, script = slurm.submitted[2]
    assert "--exclude=n2" in options, "its own host may be given: it waits there"
    assert f"--comment={plane.comment('after-1')}" in options
    assert script == slurm.submitted[0][1]


def test_a_job_near_its_limit_is_not_succeeded_by_one_with_another_etcd(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 1, nothing, 60)
    slurm.jobs()
    slurm.queue.append(job(2, replace(plane, etcd="lost:1").comment("after-1"), "n2"))
    assert submit.succeed(slurm, environment(slurm, 1)).endswith("job 3 follows this one")


def test_a_successor_without_another_host_waits_on_one_of_ours(plane: submit.ControlPlane) -> None:
    slurm = Slurm()
    submit.ensure(slurm, plane, 2, nothing, 60)
    slurm.jobs()
    slurm.refuses = "--exclude=n2"
    assert submit.succeed(slurm, environment(slurm, 1)).endswith("job 3 follows this one")
    assert not [o for o in slurm.submitted[2][0] if o.startswith("--exclude")]


def test_a_job_that_knows_nothing_says_so() -> None:
    with pytest.raises(Fatal, match="no successor is submitted"):
        submit.succeed(Slurm(), {submit.VARIABLE: "{}", "SLURM_JOB_ID": "1"})


def test_nobody_leads(plane: submit.ControlPlane) -> None:
    store, slurm = MemoryStore(), Slurm(busy=True)
    with pytest.raises(Fatal, match="jobs have ended and no supervisor leads: their logs are in"):
        submit.wait_for_leader(store, slurm, plane, nothing, 60)
    slurm.queue = [job(1, plane.comment("1"), why="Priority")]
    with pytest.raises(Fatal, match=r"no supervisor leads after 0 s: Slurm has not started job 1 \(Priority\)"):
        submit.wait_for_leader(store, slurm, plane, nothing, 0)
    slurm.queue = [job(1, plane.comment("1"), "n1")]
    with pytest.raises(Fatal, match="the logs of the jobs are in"):
        submit.wait_for_leader(store, slurm, plane, nothing, 0)
    store.put(keys.LEADER, b"somebody")
    submit.wait_for_leader(store, slurm, plane, nothing, 0)


def test_slurm_away_is_not_hidden(plane: submit.ControlPlane) -> None:
    class Away(Slurm):
        def jobs(self) -> Sequence[Job]:
            raise Retryable("no controller")

    with pytest.raises(Retryable):
        submit.ensure(Away(), plane, 1, nothing, 60)
