"""The catalogue of faults: whole, honest about what cannot be made here, and each that can is made for real."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection import causes
from fault_injection.causes import Order
from fault_injection.faults import inject
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site, Target
from fault_injection.obeying import Obeying
from supervisor.ports.errors import Fatal
from tests.helpers.waiting import eventually

FAMILIES = {
    "process", "collectives", "data", "state", "agent", "node", "supervisor", "lighthouse", "etcd", "engine", "gpu",
}  # fmt: skip


def test_each_family_is_there_and_each_fault_can_be_made_or_says_why_not() -> None:
    assert {fault.family for fault in FAULTS.values()} == FAMILIES
    for fault in FAULTS.values():
        assert (fault.inject is None) == bool(fault.missing), fault.name
        assert fault.why_not(Site()) == fault.missing, fault.name
        assert fault.how


def test_what_a_site_lacks_is_said() -> None:
    for site, name in (
        (Site(not_here="elsewhere"), "sigkill"),
        (Site(not_here="elsewhere"), "segfault"),
        (Site(not_obeying="deaf"), "segfault"),
        (Site(no_memory_cgroup="no cgroup"), "killed_for_memory"),
        (Site(no_own_disks="shared"), "disk_full"),
        (Site(no_cut="not root"), "node_silent"),
        (Site(no_own_etcd="another's"), "etcd_killed"),
    ):
        reasons = {getattr(site, key) for key in Site.__dataclass_fields__} - {"", "local"}
        assert {FAULTS[name].why_not(site)} == reasons
    assert FAULTS["sigkill"].why_not(Site(not_obeying="deaf")) == ""
    assert "slurm" in FAULTS["allocation_gone"].why_not(Site(engine="slurm"))


# --- made for real, on a process of ours ---


@dataclass
class OneProcess:
    """A scene of one process, which plays every part."""

    run_dir: str
    pid: int
    run: str = "run"
    restarted: list[int] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    agents: list[int] = field(default_factory=list)
    written: int = 10
    writes: int = 1
    compacted: list[tuple[int, str]] = field(default_factory=list)

    def leader_pid(self) -> int:
        return self.pid

    def agent_pid(self, node: str) -> int:
        return self.agents.pop(0) if self.agents else self.pid

    def shim_pid(self, node: str) -> int:
        return self.pid

    def gate_pids(self) -> tuple[int, int]:
        return self.pid, self.pid

    def etcd_pid(self) -> int:
        return self.pid

    def revision(self) -> int:
        self.written += self.writes
        return self.written

    def compact(self, revision: int) -> None:
        self.compacted.append((revision, state(self.pid)))

    def kill_node(self, target: Target) -> str:
        return f"{target.node} killed"

    def cut(self, node: str) -> None:
        raise Fatal("the link does not go down")

    def mend(self, node: str) -> None:
        self.mended.append(node)

    def take_allocation(self, target: Target) -> str:
        return f"{target.allocation} taken"

    def restart(self, group: int) -> None:
        self.restarted.append(group)

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        eventually(reached, 10, what)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def target(folder: Path, pid: int) -> Target:
    return Target(group=1, generation=2, node="n1", rank=0, pids={0: pid}, allocation="a1", folder=folder)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sigkill", signal.SIGKILL), ("sigsegv", signal.SIGSEGV), ("sigabrt", signal.SIGABRT), ("sigterm", signal.SIGTERM),
        ("supervisor_killed", signal.SIGKILL), ("lighthouse_killed", signal.SIGKILL), ("gate_killed", signal.SIGKILL),
        ("etcd_killed", signal.SIGKILL),
    ],
)  # fmt: skip
def test_a_signal_ends_whom_it_is_for(tmp_path: Path, victim: Any, name: str, number: signal.Signals) -> None:
    said = made(name, OneProcess(str(tmp_path), victim.pid), target(tmp_path, victim.pid))
    assert victim.wait(5) == -number
    assert said == f"{number.name} to pid {victim.pid}, which has ended"


@pytest.mark.parametrize(
    "name", ["stopped", "hiccup", "agent_stopped", "supervisor_stopped", "lighthouse_stopped", "etcd_stopped"]
)
def test_what_is_stopped_goes_on_when_it_is_healed(tmp_path: Path, victim: Any, name: str) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid), ExitStack()
    made(name, scene, target(tmp_path, victim.pid), after)
    assert state(victim.pid) == "T"
    after.close()
    assert state(victim.pid) != "T"


def test_a_compaction_is_beyond_what_the_stopped_leader_has_seen(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid), ExitStack()
    said = made("etcd_compacted", scene, target(tmp_path, victim.pid), after)
    assert scene.compacted == [(14, "T")], "while it was stopped"
    assert said == "etcd is compacted up to revision 14; the leader, stopped, had seen 11 at the most"
    after.close()
    assert state(victim.pid) != "T"


def test_what_is_not_there_did_not_happen(tmp_path: Path, victim: Any) -> None:
    victim.kill()
    victim.wait()
    with pytest.raises(Fatal, match="there is no process"):
        made("sigkill", OneProcess(str(tmp_path), victim.pid), target(tmp_path, victim.pid))
    with pytest.raises(Fatal, match="there is no process 0"):
        made("agent_stopped", OneProcess(str(tmp_path), 0), target(tmp_path, 0))


def test_what_fails_while_it_is_made_is_healed_all_the_same(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid), ExitStack()
    with pytest.raises(Fatal, match="does not go down"), after:
        made("node_silent", scene, target(tmp_path, victim.pid), after)
    assert scene.mended == ["n1"]


def test_a_killed_agent_has_a_successor(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid, agents=[victim.pid, victim.pid, 0, 4711])
    assert "SIGKILL" in made("agent_killed", scene, target(tmp_path, victim.pid))
    assert scene.agents == []


def test_an_order_is_done_before_it_counts_and_a_person_restarts_what_nobody_mends(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid), ExitStack()
    rank = threading.Thread(target=obey_once, args=(tmp_path, causes.SLOW))
    rank.start()
    said = made("slow_step", scene, target(tmp_path, victim.pid), after)
    rank.join()
    assert said == f"pid {victim.pid} has begun it: slow"
    assert scene.restarted == []
    after.close()
    assert scene.restarted == [1]


def made(name: str, scene: Any, whom: Target, after: ExitStack | None = None) -> str:
    inject_ = FAULTS[name].inject
    assert inject_ is not None
    return inject_(scene, whom, after if after is not None else ExitStack())


def state(pid: int) -> str:
    return inject._state(pid)


def obey_once(folder: Path, cause: str) -> None:
    orders = causes.Orders(folder, 1, 2, 0)
    eventually(lambda: orders.due(cause, step=1), 10, "an order comes")


# --- the trainer's side ---


class Base:
    """As ReplicaTrainer calls itself."""

    def forward_backward_step(self, **batch: Any) -> str:
        return f"stepped {batch}"

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from (f"counted {batch}" for batch in batches)

    def _checkpoint(self, step: int, last: bool = False) -> None:
        self.saved = (step, last)


class Tensor:
    """A few floats that look like torch's."""

    def __init__(self) -> None:
        import numpy

        self.values = numpy.ones(4, dtype="float32")

    data = property(lambda self: self)

    def cpu(self) -> Tensor:
        return self

    def view(self, *shape: Any) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.values

    def __setitem__(self, at: int, value: float) -> None:
        self.values[at] = value


class Part:
    def __init__(self) -> None:
        self.tensor = Tensor()

    def parameters(self) -> list[Tensor]:
        return [Tensor(), self.tensor]


class Rank(Obeying, Base):
    def __init__(self, folder: Path) -> None:
        self.launch = replace(LAUNCH, run_dir=str(folder), rank_dir=str(folder))
        self.manager = type("Manager", (), {"current_step": lambda _: 4})()
        self.model_parts = [Part()]
        self.activity = type("Activity", (), {"during": lambda _, name: nullcontext()})()


@dataclass
class Launch:
    run_dir: str = ""
    rank_dir: str = ""
    group: int = 1
    generation: int = 2
    rank: int = 0


LAUNCH = Launch()


def ordered(folder: Path, cause: str, **about: Any) -> Rank:
    rank = Rank(folder)
    causes.order(folder, 1, 2, 0, Order(cause=cause, **about))
    return rank


def test_a_rank_says_that_it_obeys_and_without_an_order_does_what_it_did(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    assert not causes.obeys(tmp_path, 1, 2, 0)
    assert rank.forward_backward_step(x=1) == "stepped {'x': 1}"
    assert next(rank._counted(iter([("a", [])]))) == "counted ('a', [])"
    rank._checkpoint(5, last=True)
    assert rank.saved == (5, True)
    assert causes.obeys(tmp_path, 1, 2, 0)
    assert not causes.obeys(tmp_path, 1, 3, 0)


def test_it_raises_where_it_is_ordered_to(tmp_path: Path) -> None:
    with pytest.raises(causes.Bug, match="shapes"):
        ordered(tmp_path, causes.RAISE).forward_backward_step()
    rank = ordered(tmp_path, causes.RAISE_DATA)
    assert rank.forward_backward_step() == "stepped {}"
    with pytest.raises(causes.Bug, match="shard"):
        next(rank._counted(iter([("a", [])])))


def test_nothing_before_its_step(tmp_path: Path) -> None:
    rank = ordered(tmp_path, causes.RAISE, at_step=6)
    rank.forward_backward_step()  # step 5
    rank.manager = type("Manager", (), {"current_step": lambda _: 5})()
    with pytest.raises(causes.Bug):
        rank.forward_backward_step()


def test_a_nan_and_a_flipped_bit(tmp_path: Path) -> None:
    rank = ordered(tmp_path, causes.PLANT_NAN)
    rank.forward_backward_step()
    assert str(rank.model_parts[0].tensor.values[0]) == "nan"
    (tmp_path / "other").mkdir()
    rank = ordered(tmp_path / "other", causes.FLIP_BIT)
    rank.forward_backward_step()
    values = rank.model_parts[0].tensor.values
    assert 0 < abs(values[0] - 1) < 1e-3
    assert list(values[1:]) == [1, 1, 1]
    flipped = float(values[0])
    rank.forward_backward_step()
    assert float(values[0]) == flipped, "once"


def test_a_slow_step(tmp_path: Path) -> None:
    rank = ordered(tmp_path, causes.SLOW, seconds=0.05)
    began = time.monotonic()
    rank.forward_backward_step()
    assert time.monotonic() - began >= 0.05
