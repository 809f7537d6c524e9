"""Faults of an engine: on the local one made with the real engine, on Slurm as far as it needs none
(tests/system/slurm/test_chaos.py)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.chaos.runner import bounds
from fault_injection.faults import engine as faults
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Target
from fault_injection.testbed import slurm
from fault_injection.testbed.slurm import SlurmHere, filling, reasons, takes_jobs
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import toy_spec
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, SlurmSpec
from supervisor.ports.engine import Request
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines import local
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.engines.slurm.commands import Node


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of an engine with four nodes, each of which is a sleeping process."""
    real, processes = subprocess.Popen, []

    def start(command: list[str], **about: Any) -> Any:
        processes.append(real(["sleep", "600"], **about))
        return processes[-1]

    monkeypatch.setattr(local.subprocess, "Popen", start)
    Pool(nodes=tuple(PoolNode(f"n{i}") for i in (1, 2, 3, 4)), etcd="127.0.0.1:1").save(tmp_path)
    yield tmp_path
    for process in processes:
        process.kill()
        process.wait()


@dataclass
class Supervised:
    """A run of two groups and a spare. Its supervisor asks for another allocation when that of group 1 is gone, and
    places it there. `asks`: false for one that asks for none."""

    engine: LocalEngine
    system: Path
    asks: bool = True
    run: str = "run"
    allocation: AllocationSpec = field(default_factory=AllocationSpec)
    wanted: list[str] = field(default_factory=list)
    placed: dict[int, str] = field(default_factory=lambda: {0: "run-a1", 1: "run-a2"})
    took: list[str] = field(default_factory=list)
    kept: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Other nodes of a group, which stay."""

    def acquire(self) -> str:
        self.wanted.append(f"run-a{len(self.wanted) + 1}")
        self.engine.acquire(Request(key=self.wanted[-1], run="run", slots=1, lease_s=5))
        return self.wanted[-1]

    def look(self) -> dict[str, Grant]:
        found = {grant.key: grant for grant in self.engine.list()}
        if self.asks and found[self.placed[1]].state == "gone":
            self.placed[1] = self.acquire()
            found = {grant.key: grant for grant in self.engine.list()}
        return found

    def grants(self) -> dict[str, Grant]:
        return self.look()

    def nodes(self) -> dict[int, tuple[str, ...]]:
        found = self.look()
        own = {g: found[key].nodes if found[key].state == "granted" else () for g, key in self.placed.items()}
        return {g: (*self.kept.get(g, ()), *nodes) for g, nodes in own.items()}

    def take_allocation(self, target: Target) -> str:
        self.took.append(f"{target.allocation} on {target.node}")
        self.engine.take_away(target.allocation, "taken")
        return f"{target.allocation} was taken"

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        for _ in range(20):
            if reached():
                return
        raise Fatal(f"not within {within_s:g} s: {what}")


@pytest.fixture
def run(home: Path) -> Supervised:
    made = Supervised(LocalEngine(home), home)
    for _ in range(3):
        made.acquire()
    return made


def target(system: Path) -> Target:
    return Target(
        group=1, generation=1, node="n2", rank=0, pids={0: 1}, allocation="run-a2", folder=system / "nodes" / "n2"
    )


def test_a_replacement_is_pending_with_the_spare_gone_and_comes_when_it_is_healed(run: Supervised) -> None:
    after = ExitStack()
    said = faults.replacement_pending(run, target(run.system), after)  # type: ignore[arg-type]
    assert run.took == ["run-a3 on n3", "run-a2 on n2"], "the spare's first"
    assert said.endswith(f"group 1 has no node, and run-a4 is pending: {faults.FULL}")
    assert run.nodes() == {0: ("n1",), 1: ()}
    assert run.grants()["run-a4"].state == "pending", "with a node of the pool free"
    after.close()
    assert run.grants()["run-a4"].state == "granted"
    assert run.nodes()[1] not in ((), ("n1",))


def test_a_group_of_two_nodes_waits_with_the_one_that_it_keeps(run: Supervised) -> None:
    run.kept[1] = ("n4",)
    with ExitStack() as after:
        said = faults.replacement_pending(run, target(run.system), after)  # type: ignore[arg-type]
    assert run.took == ["run-a3 on n3", "run-a2 on n2"]
    assert said.endswith(f"group 1 has 1 of 2 nodes, and run-a4 is pending: {faults.FULL}")


def test_a_replacement_that_nobody_asks_for_is_not_pending(run: Supervised) -> None:
    run.asks = False
    with pytest.raises(Fatal, match="group 1 waits for an allocation that is pending"), ExitStack() as after:
        faults.replacement_pending(run, target(run.system), after)  # type: ignore[arg-type]
    run.acquire()
    assert run.grants()["run-a4"].state == "granted", "it is healed all the same"


def test_nodes_that_another_withholds_stay_withheld(run: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as by_another:
        by_another.setattr(local.os, "getpid", os.getppid)
        run.engine.withhold("they are another's")
    with pytest.raises(Fatal, match="withheld already: they are another's"), ExitStack() as after:
        faults.replacement_pending(run, target(run.system), after)  # type: ignore[arg-type]
    assert run.took == []
    run.acquire()
    assert run.grants()["run-a4"].reason == "they are another's"


def test_an_allocation_that_is_not_there_is_not_taken(run: Supervised) -> None:
    about = replace(target(run.system), allocation="run-a9")
    with pytest.raises(Fatal, match="allocation run-a9 of the run is not granted: nothing is known of it"):
        faults.replacement_pending(run, about, ExitStack())  # type: ignore[arg-type]
    assert run.took == []
    with pytest.raises(Fatal, match="allocation - of the run is not granted"):
        faults.job_cancelled(run, replace(about, allocation=""), ExitStack())  # type: ignore[arg-type]


def test_who_takes_the_spares_too_is_given_the_time_until_they_are_asked_for_again() -> None:
    spec = toy_spec(allocation_timeout_s=77.0)
    pending = FAULTS["replacement_pending"]
    assert bounds(spec, pending).within_s - bounds(spec, replace(pending, takes_spares=False)).within_s == 77.0
    assert bounds(spec, pending).others_within_s == bounds(spec, FAULTS["allocation_gone"]).others_within_s


# --- the parts of a Slurm that can be broken from here ---

HERE = {"SlurmctldHost[0]": f"{socket.gethostname()}(127.0.0.1)", "SlurmdTimeout": "300 sec", "ClusterName": "lab"}


class Cell(SlurmHere):
    """A Slurm with this configuration. `said`: the output of a command, by its first two words."""

    def __init__(self, config: dict[str, str], **said: str) -> None:
        super().__init__()
        self._config, self._said_by = config, said

    def config(self) -> dict[str, str]:
        return self._config

    def _again(self, *argv: str) -> str:
        return self._said_by[argv[0]]


@pytest.fixture
def slurmctld(tmp_path: Path) -> Iterator[Path]:
    """The file with its pid: a process of that name."""
    program = tmp_path / "slurmctld"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        name = Path(f"/proc/{process.pid}/comm")
        eventually(lambda: name.read_text().strip() == "slurmctld", 5)  # the kernel reports an exec a little before it
        (tmp_path / "slurmctld.pid").write_text(f"{process.pid}\n")
        yield tmp_path / "slurmctld.pid"
        process.kill()


def test_slurmctld_is_found_where_it_can_be_stopped(slurmctld: Path) -> None:
    found = {**HERE, "SlurmctldPidFile": str(slurmctld)}
    assert Cell(found).controller() == int(slurmctld.read_text())
    assert Cell({**found, "SlurmdTimeout": "0 sec"}).controller(), "no node is ever taken for dead"
    for change, why in (
        ({"SlurmctldHost[1]": "other(10.0.0.2)"}, "a second slurmctld, on other, takes over"),
        ({"SlurmctldHost[0]": "head-01(10.0.0.1)"}, "slurmctld runs on head-01: break it there"),
        ({"SlurmdTimeout": "20 sec"}, "SlurmdTimeout is 20 s: .* at least 30 s are needed"),
        ({"SlurmctldPidFile": "/nonexistent"}, "slurmctld is not found by its SlurmctldPidFile, /nonexistent"),
    ):
        with pytest.raises(Fatal, match=why):
            Cell({**found, **change}).controller()


def test_a_pid_that_is_another_programs_is_not_stopped(slurmctld: Path) -> None:
    slurmctld.write_text(str(os.getpid()))
    with pytest.raises(Fatal, match=f"process {os.getpid()}, which .* names, is no slurmctld but "):
        Cell({**HERE, "SlurmctldPidFile": str(slurmctld)}).controller()


DATABASE = {**HERE, "SlurmUser": "slurm(64030)", "AccountingStorageType": "accounting_storage/slurmdbd"}


def test_nodes_are_changed_by_root_slurms_user_and_its_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld decides so. It notes a security violation by one who merely tries, so the user is refused
    beforehand."""
    no = "only root, slurm and Slurm's administrators may, and user nobody is none of them"
    monkeypatch.setattr(slurm.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="nobody"))
    for uid, level, why in (
        (0, "", ""), (64030, "", ""), (65534, "Administrator\n", ""), (65534, "Operator\n", no), (65534, "None\n", no), (65534, "", no),
    ):  # fmt: skip
        monkeypatch.setattr(slurm.os, "getuid", lambda uid=uid: uid)
        assert Cell(DATABASE, sacctmgr=level).no_administrator() == why
    none = {**DATABASE, "AccountingStorageType": "accounting_storage/none"}
    assert Cell(none).no_administrator() == no, "without a database there is nobody to ask"
    mute = Cell(DATABASE)
    monkeypatch.setattr(mute, "_again", raises(Fatal("sacctmgr: no such cluster")))
    assert mute.no_administrator() == f"{no} (sacctmgr: no such cluster)"


def raises(error: Exception) -> Callable[..., str]:
    def refuse(*argv: str) -> str:
        raise error

    return refuse


def test_hosts_are_free_when_nothing_runs_there_in_the_runs_own_partition() -> None:
    said = "n1 idle train*\nn2 allocated train*\nn3 idle* train*\nn4 drained train*\nn5 mixed train*\nn1 idle tiny\nn6 idle tiny\n"
    assert Cell(HERE, sinfo=said).idle("") == ["n1"]
    assert Cell(HERE, sinfo=said).idle("tiny") == ["n1", "n6"]
    assert Cell(HERE, sinfo=said).idle("train,tiny") == ["n1", "n6"]
    assert Cell(HERE, sinfo=said).idle("nowhere") == []


def test_what_fills_hosts_is_submitted_as_the_runs_own_jobs_are_and_ends_by_itself() -> None:
    spec = SlurmSpec(partition="gpu", account="llm", gres="gpu:8", time_limit="7-0", flags=("--reservation=r",))
    options = filling(spec, ["n1", "n2"], "chaos-run-1")
    assert {"--partition=gpu", "--account=llm", "--reservation=r", "--nodelist=n1,n2", "--nodes=2"} <= set(options)
    assert "--exclusive" in options
    assert f"--time={slurm.FILLS_MIN}" in options, "not the run's own limit"
    assert not [option for option in options if "gres" in option or "comment" in option], (
        "a comment names the run's own"
    )


def test_hosts_that_are_shared_are_not_filled() -> None:
    assert "exclusive = false" in Cell(HERE).no_filling(SlurmSpec(exclusive=False), ["n1"])


@pytest.mark.parametrize(
    ("states", "takes"),
    [(("IDLE",), True), (("ALLOCATED",), True), (("IDLE", "DRAIN"), False), (("IDLE", "NOT_RESPONDING"), False)],
)
def test_a_node_takes_jobs_when_it_is_neither_drained_nor_silent(states: tuple[str, ...], takes: bool) -> None:
    assert takes_jobs(Node(name="n1", states=states, reason="")) is takes


def test_without_slurms_commands_none_of_it_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = reasons(SlurmSpec(), [])
    assert set(found) == {"no_jobs", "no_drain", "no_filling", "no_controller"}
    assert set(found.values()) == {"there is no scontrol here: the supervisor must run where Slurm's commands are"}


def test_a_slurm_that_is_not_the_runs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SlurmHere", lambda: Cell({"ClusterName": "other"}))
    found = reasons(SlurmSpec(), [Grant(key="run-a1", state="granted", nodes=("n1",), engine_id="slurm:lab:7")])
    assert set(found.values()) == {"Slurm's commands here ask cluster other; allocation run-a1 is slurm:lab:7"}


def test_a_slurmctld_that_is_away_already_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Cell):
        def config(self) -> dict[str, str]:
            raise Retryable("scontrol: timed out (and no controller of Slurm answers `scontrol ping`)")

    monkeypatch.setattr(slurm, "SlurmHere", lambda: Away({}))
    assert all("no controller of Slurm answers" in why for why in reasons(SlurmSpec(), []).values())
