"""The catalogue of faults: complete, with a reason for each that cannot be made here; the others are made for real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.doubles.gpus import Gpus
from fault_injection.faults import control, engine, processes
from fault_injection.faults.catalogue import FAULTS, obeying
from fault_injection.faults.fault import Site, Target
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.in_rank.hooks import BIT, Obeying
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.etcd.errors import OutOfSpace
from supervisor.wire.checkpoints import MARKER
from supervisor.wire.records import CheckpointMark, encode

FAMILIES = {
    "process", "collectives", "data", "state", "agent", "node", "supervisor", "lighthouse", "etcd", "engine", "gpu",
}  # fmt: skip

OF_SLURM = ("job_cancelled", "node_drained", "controller_away")


def test_each_family_is_there_and_each_fault_can_be_made_or_says_why_not() -> None:
    assert {fault.family for fault in FAULTS.values()} == FAMILIES
    for fault in FAULTS.values():
        assert (fault.inject is None) == bool(fault.missing), fault.name
        of_slurm = "the engine is local and has no such thing" if fault.name in OF_SLURM else ""
        assert fault.why_not(Site()).startswith(fault.missing or of_slurm), fault.name
        assert bool(fault.why_not(Site())) == bool(fault.missing or of_slurm), fault.name
        assert fault.how


def test_what_a_site_lacks_is_said() -> None:
    for site, name in (
        (Site(not_here="elsewhere"), "sigkill"),
        (Site(not_here="elsewhere"), "segfault"),
        (Site(not_obeying="deaf"), "segfault"),
        (Site(no_memory_cgroup="no cgroup"), "killed_for_memory"),
        (Site(no_own_disks="shared"), "disk_full"),
        (Site(no_own_disks="shared"), "checkpoint_disk_full"),
        (Site(no_house="another's"), "checkpoint_folder_gone"),
        (Site(no_cut="not root"), "node_silent"),
        (Site(no_own_etcd="another's"), "etcd_killed"),
        (Site(no_house="another's"), "etcd_leader_lost"),
        (Site(no_reset="no ss"), "socket_reset"),
        (Site(no_collective="one rank"), "collective_skipped"),
        (Site(no_trace="no strace"), "etcd_slow"),
        (Site(no_faketime="no library"), "clock_moved"),
    ):
        reasons = {getattr(site, key) for key in Site.__dataclass_fields__} - {"", "local"}
        assert {FAULTS[name].why_not(site)} == reasons
    assert FAULTS["sigkill"].why_not(Site(not_obeying="deaf")) == ""


def test_nodes_that_a_pool_lends_are_not_taken_by_its_engine() -> None:
    of_pool = Site(engine="pool")
    assert {fault.why_not(of_pool) for fault in FAULTS.values() if fault.family == "engine"} == {engine.LENT}
    assert not FAULTS["node_killed"].why_not(of_pool)


def test_what_of_an_engine_can_be_made_is_said_by_what_it_needs() -> None:
    own = Site(engine="slurm", not_here="the nodes are elsewhere", no_house="another's")
    whole = [name for name, fault in FAULTS.items() if fault.family == "engine" and not fault.why_not(own)]
    assert whole == [*OF_SLURM[:2], "replacement_pending", "controller_away"], "of whatever machine the nodes are"
    assert FAULTS["allocation_gone"].why_not(own) == "the engine is slurm: see job_cancelled"
    for field_, name in (
        ("no_jobs", "job_cancelled"), ("no_drain", "node_drained"), ("no_filling", "replacement_pending"),
        ("no_controller", "controller_away"),
    ):  # fmt: skip
        assert FAULTS[name].why_not(replace(own, **{field_: "not allowed"})) == "not allowed"
    assert FAULTS["replacement_pending"].why_not(Site()) == ""
    assert FAULTS["replacement_pending"].why_not(Site(not_here="elsewhere")) == "elsewhere"
    for name in OF_SLURM:
        assert FAULTS[name].why_not(Site()).endswith("see allocation_gone")


# --- made for real, on a process of ours ---


@dataclass
class OneProcess:
    """A scene of one process, which plays every part."""

    run_dir: str
    pid: int
    run: str = "run"
    restarted: list[int] = field(default_factory=list)
    house: Any = None
    agents: list[int] = field(default_factory=list)
    written: int = 10
    writes: int = 1
    compacted: list[tuple[int, str]] = field(default_factory=list)
    room: int = 3 * control.FILL_BYTES
    pids: dict[tuple[int, int, int], int] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    facts: set[str] = field(default_factory=set)
    asks: int | None = None
    """The number of waits before it gives up."""
    allocation: AllocationSpec = field(default_factory=AllocationSpec)

    def nodes(self) -> dict[int, tuple[str, ...]]:
        return {}

    def grants(self) -> dict[str, Grant]:
        return {}

    def leader_pid(self) -> int:
        return self.pid

    def agent_pid(self, node: str) -> int:
        return self.agents.pop(0) if self.agents else self.pid

    def shim_pid(self, node: str) -> int:
        return self.pid

    def gate_pids(self) -> tuple[int, int]:
        return self.pid, self.pid

    def etcd_pids(self) -> list[int]:
        return [self.pid]

    def revision(self) -> int:
        self.written += self.writes
        return self.written

    def compact(self, revision: int) -> None:
        self.compacted.append((revision, state(self.pid)))

    def kill_node(self, target: Target) -> str:
        return f"{target.node} killed"

    def write(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise OutOfSpace("put")

    def ranks(self) -> dict[tuple[int, int, int], int]:
        return self.pids

    def phase(self) -> str:
        return self.phases.pop(0)

    def resume(self, because: str) -> None:
        self.house.done.append(f"resume: {because}")

    def told(self, node: str) -> set[str]:
        return self.facts

    def take_allocation(self, target: Target) -> str:
        return f"{target.allocation} taken"

    def restart(self, group: int) -> None:
        self.restarted.append(group)

    def left_out(self, group: int) -> bool:
        return False

    def wait(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        if self.asks is None:
            eventually(reached, 10, what)
        elif not any(reached() or time.sleep(0.01) for _ in range(self.asks)):
            raise Fatal(f"not: {what}")


class TheHouse:
    """A house that notes its calls. `leads`: the leaders of its three members, one after the other."""

    def __init__(self, folder: Path, *leads: int) -> None:
        self.done: list[str] = []
        self.folder, self._leads = folder, list(leads)
        self.etcds = SimpleNamespace(leader=lambda: self._leads.pop(0), members=[1, 2, 3])
        self.gpus = Gpus(folder / "gpus", ["n1"])

    def cut(self, node: str) -> None:
        raise Fatal("the link does not go down")

    def arm(self, name: str) -> Path:
        self.done.append(f"arm {name}")
        (self.folder / "once").touch()
        return self.folder / "once"

    def make_space(self, revision: int) -> None:
        self.done.append(f"make_space {revision}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *about: self.done.append(" ".join(map(str, (name, *about))))


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
    "name",
    [
        "stopped",
        "hiccup",
        "agent_stopped",
        "supervisor_stopped",
        "lighthouse_stopped",
        "lighthouse_delayed",
        "etcd_stopped",
    ],
)
def test_what_is_stopped_goes_on_when_it_is_healed(tmp_path: Path, victim: Any, name: str) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid), ExitStack()
    made(name, scene, target(tmp_path, victim.pid), after)
    eventually(lambda: state(victim.pid) == "T", 10, "it stands, or does so again and again")
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
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path)), ExitStack()
    with pytest.raises(Fatal, match="does not go down"), after:
        made("node_silent", scene, target(tmp_path, victim.pid), after)
    assert scene.house.done == ["mend n1"]


def test_a_killed_agent_has_a_successor(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid, agents=[victim.pid, victim.pid, 0, 4711])
    assert "SIGKILL" in made("agent_killed", scene, target(tmp_path, victim.pid))
    assert scene.agents == []


ASKS = 200
"""Looks for an expected state that never comes: two seconds, in which a thread reads its order."""


def records(folder: Path, lines: list[dict[str, Any]]) -> None:
    path = folder / "ranks" / "run.1.2.0" / "steps.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "st')


def steps(length: float, since: float, count: int = 4) -> list[dict[str, Any]]:
    return [
        {"event": "step", "committed": True, "step": n, "start": since + n * length, "t": since + (n + 1) * length}
        for n in range(count)
    ]


@pytest.mark.parametrize("longer", [0.95, 0.55])
def test_an_order_is_done_before_it_counts_and_a_person_restarts_what_nobody_mends(
    tmp_path: Path, victim: Any, longer: float
) -> None:
    scene, after, now = OneProcess(str(tmp_path), victim.pid), ExitStack(), time.time()
    records(tmp_path, [*steps(0.4, now - 9), *steps(longer, now + 9)])
    rank = threading.Thread(target=obey_once, args=(tmp_path, causes.SLOW))
    rank.start()
    scene.asks = None if longer > 0.9 else ASKS
    if longer > 0.9:
        said = made("slow_step", scene, target(tmp_path, victim.pid), after)
        assert said == f"pid {victim.pid} has begun it: slow; its steps take 0.95 s, 0.40 s before"
    else:
        with pytest.raises(Fatal, match=r"take 0\.5 s longer"):
            made("slow_step", scene, target(tmp_path, victim.pid), after)
    rank.join()
    assert scene.restarted == []
    after.close()
    assert scene.restarted == [1]


ORDERED = (
    "segfault", "abort", "exit_code", "exception", "exception_always", "exception_everywhere", "gil_held", "endless_loop", "slow_step",
    "collective_skipped", "data_blocked", "data_raises", "nan_weight", "bit_flip", "heal_source_killed", "checkpoint_blocked",
)  # fmt: skip


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), Fatal("not within 60 s")])
@pytest.mark.parametrize("name", ORDERED)
def test_an_order_that_nobody_has_begun_is_withdrawn(tmp_path: Path, name: str, ends: BaseException) -> None:
    scene = OneProcess(str(tmp_path), 0, pids={(1, 2, 0): 0, (1, 2, 1): 0}, phases=["running"])
    orders: list[Path] = []

    def wait(*_: Any) -> None:
        orders.extend((tmp_path / "faults").iterdir())
        raise ends

    scene.wait = wait  # type: ignore[method-assign]
    with pytest.raises(type(ends)), ExitStack() as after:
        made(name, scene, target(tmp_path, 0), after)
    assert orders
    assert list((tmp_path / "faults").iterdir()) == []


def test_all_that_is_ordered_is_asked_about_above() -> None:
    assert {name for name, fault in FAULTS.items() if obeying in fault.needs} == {*ORDERED, "killed_for_memory"}


def test_a_bit_that_was_flipped_is_one_that_the_rank_names(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid)
    flipped = {"event": "flipped", "step": 7, "parameter": 3, "element": 0, "bit": 22}
    for lines in ([], [flipped]):
        records(tmp_path, lines)
        rank = threading.Thread(target=obey_once, args=(tmp_path, causes.FLIP_BIT))
        rank.start()
        scene.asks = None if lines else ASKS
        if lines:
            said = made("bit_flip", scene, target(tmp_path, victim.pid))
            assert said.endswith("flip_bit: bit 22 of element 0 of parameter 3, at step 7")
        else:
            with pytest.raises(Fatal, match="which bit it flipped"):
                made("bit_flip", scene, target(tmp_path, victim.pid))
        rank.join()


def test_one_that_raises_whenever_it_is_started_is_left_out_until_a_person_asks(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path)), ExitStack()
    generations = iter((2, 3, 4))

    def left_out(group: int) -> bool:
        if scene.restarted:
            return False
        if (generation := next(generations, None)) is None:
            return True
        assert causes.Orders(tmp_path, group, generation, 0).due(causes.RAISE, step=1) is not None
        return False

    scene.left_out = left_out  # type: ignore[method-assign]
    said = made("exception_always", scene, target(tmp_path, victim.pid), after)
    assert said.startswith("rank 0 of group 1 raised in generations 2, 3, 4: ")
    assert scene.restarted == [1]
    assert causes.Orders(tmp_path, 1, 5, 0).due(causes.RAISE, step=1) is None, "it was withdrawn"
    after.close()
    scene.restarted, generations = [], iter((9,))
    with pytest.raises(Fatal, match="raised in 1 generations"), after:
        made("exception_always", scene, replace(target(tmp_path, victim.pid), generation=9), after)
    assert causes.Orders(tmp_path, 1, 10, 0).due(causes.RAISE, step=1) is None, "it is withdrawn then too"
    assert scene.restarted == [1], "and started again, also where it was broken off before"


def test_a_program_that_fails_everywhere_halts_the_run_and_a_person_lets_it_go_on(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path), pids={(0, 1, 0): 1, (1, 2, 0): 2})
    ranks = [causes.Orders(tmp_path, group, group + 1, 0) for group in (0, 1)]
    scene.phases = ["running", "stopping", "halted", "halted", "resuming", "running"]
    resumed = scene.resume
    seen: list[Any] = []

    def resume(because: str) -> None:
        seen.extend((rank.due(causes.RAISE, step=49), rank.due(causes.RAISE, step=50)) for rank in ranks)
        resumed(because)

    scene.resume = resume  # type: ignore[method-assign]
    after = ExitStack()
    said = made("exception_everywhere", scene, replace(target(tmp_path, victim.pid), step=40), after)
    assert said == "2 ranks raised at step 50: the run was halted, and resumed by a person"
    assert [(before is None, at is not None) for before, at in seen] == [(True, True)] * 2
    assert scene.house.done == ["resume: what was wrong with the program is mended"]
    scene.phases = ["running"]
    after.close()
    assert len(scene.house.done) == 1, "it is resumed once"
    scene.phases = ["halted", "halted", "running"]
    scene.pids = {(0, 3, 0): 1}
    with pytest.raises(Fatal, match="1 of 1 ranks have not raised"):
        made("exception_everywhere", scene, target(tmp_path, victim.pid))


def test_a_run_that_halts_too_late_goes_on_when_the_fault_is_given_up(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path), pids={(0, 1, 0): 1}, asks=3)
    scene.phases = ["running", "running", "stopping", "halted", "resuming", "running"]
    with pytest.raises(Fatal, match="the run is halted"), ExitStack() as after:
        made("exception_everywhere", scene, target(tmp_path, victim.pid), after)
    assert scene.house.done == ["resume: what was wrong with the program is mended"]
    assert scene.phases == []


def test_what_only_a_house_of_ours_has_is_not_broken_elsewhere(tmp_path: Path, victim: Any) -> None:
    for name in ("node_silent", "agent_cut_off", "etcd_leader_lost", "etcd_out_of_space", "failpoint", "gpu_lost"):
        with pytest.raises(Fatal, match="someone else's"):
            made(name, OneProcess(str(tmp_path), victim.pid), target(tmp_path, victim.pid))


def test_members_of_etcd_are_lost_and_brought_back(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path, 2, 0)), ExitStack()
    assert made("etcd_leader_lost", scene, target(tmp_path, victim.pid), after).endswith(
        "m2, which led, is killed; m0 leads"
    )
    after.close()
    assert scene.house.done == ["lose [2]", "bring_back"]
    scene.house = TheHouse(tmp_path, 2)
    with pytest.raises(Fatal, match="etcd still answers"), after:
        made("etcd_quorum_lost", scene, target(tmp_path, victim.pid), after)
    assert scene.house.done == ["lose [2, 0]", "bring_back"]

    def silent() -> int:
        raise Retryable("no quorum", after_s=0.1)

    scene.house, scene.revision = TheHouse(tmp_path, 1), silent  # type: ignore[method-assign]
    assert "no quorum" in made("etcd_quorum_lost", scene, target(tmp_path, victim.pid), after)


def test_etcd_is_filled_until_it_says_so_and_has_space_again(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path)), ExitStack()
    assert "NOSPACE" in made("etcd_out_of_space", scene, target(tmp_path, victim.pid), after)
    assert scene.house.done == []
    after.close()
    assert scene.house.done == ["make_space 11"]


def test_an_agent_is_cut_off_when_its_lease_has_lapsed(tmp_path: Path, victim: Any) -> None:
    scene = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path), agents=[victim.pid, victim.pid, 0])
    after = ExitStack()
    assert "its lease has lapsed" in made("agent_cut_off", scene, target(tmp_path, victim.pid), after)
    assert (scene.agents, scene.house.done) == ([], ["cut_off n1"])
    after.close()
    assert scene.house.done == ["cut_off n1", "hear n1"]


def test_a_clock_is_moved_once_its_agent_reads_it_and_put_back(tmp_path: Path, victim: Any) -> None:
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path)), ExitStack()
    scene.agents = [victim.pid, victim.pid, 4711]
    read = iter([None, 0.0, 0.1, 10_800.2])
    moves: list[tuple[str, str]] = []
    scene.house.clocks = SimpleNamespace(
        move=lambda *about: moves.append(about),
        ahead_s=lambda node: next(read),
        back=lambda node: moves.append((node, "back")),
    )
    assert made("clock_moved", scene, target(tmp_path, victim.pid), after).endswith("jumped 10800 s ahead")
    assert victim.wait(5) == -signal.SIGKILL
    assert moves == [("n1", "+0"), ("n1", "+10800")]
    after.close()
    assert moves[2:] == [("n1", "back")]


def test_a_gpu_fails_when_its_agent_tells_it_and_is_well_again(tmp_path: Path, victim: Any) -> None:
    scene, after = (
        OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path), facts={"xid 48", "gpu_ecc"}),
        ExitStack(),
    )
    made("gpu_ecc", scene, target(tmp_path, victim.pid), after)
    assert victim.wait(5) == -signal.SIGABRT
    after.close()
    said = json.loads((tmp_path / "gpus" / "n1.json").read_text())
    assert said["gpus"][0]["ecc"] == [0, 0]
    assert [event[:2] for event in said["events"]] == [[0, 48]]


def test_a_leader_dies_at_a_failpoint_when_it_decides_about_a_rank(tmp_path: Path, victim: Any) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    scene, after = OneProcess(str(tmp_path), victim.pid, house=TheHouse(tmp_path)), ExitStack()
    made("failpoint", scene, target(tmp_path, rank.pid), after)
    assert (victim.wait(5), rank.wait(5)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert scene.house.done == ["arm committed", "disarm"]


def test_whom_others_heal_from_is_killed_when_they_do(tmp_path: Path, victim: Any) -> None:
    """The other has to be killed first."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    scene = OneProcess(str(tmp_path), 0, pids={(0, 1, 0): other.pid, (1, 2, 0): victim.pid})

    def heals() -> None:
        other.wait()
        assert victim.poll() is None
        obey_once(tmp_path, causes.HOLD_HEAL)

    back = threading.Thread(target=heals)
    back.start()
    said = made("heal_source_killed", scene, target(tmp_path, victim.pid))
    back.join()
    assert said.startswith("while another group healed from it: SIGKILL")
    assert (other.returncode, victim.wait(5)) == (-signal.SIGKILL, -signal.SIGKILL)


def checkpoint(run_dir: Path, step: int) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step}.g0.gen1"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"x" * 1000)
    mark = CheckpointMark(step=step, path=str(folder), group=0, generation=1)
    (folder / MARKER).write_bytes(encode(mark))
    return folder


@pytest.mark.parametrize(
    ("begins", "other", "well"),
    [(26, None, True), (51, None, False), (27, 26, True), (27, None, False), (52, 51, False)],
)
def test_a_torn_checkpoint_is_not_begun_from(
    tmp_path: Path, victim: Any, begins: int, other: int | None, well: bool
) -> None:
    """Any group may be back first; the next one heals from it."""
    checkpoint(tmp_path, 25)
    newest = checkpoint(tmp_path, 50)
    node = tmp_path / "nodes" / "n1"
    for group, generation, step in ((1, 2, 70), (1, 3, begins), (0, 1, 70), *([(0, 2, other)] if other else [])):
        rank = node / "ranks" / f"run.{group}.{generation}.0"
        rank.mkdir(parents=True)
        lines = [
            {"committed": False, "step": step - 1},
            {"committed": True, "step": step},
            {"event": "digest", "step": 1},
        ]
        (rank / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"torn')
    scene = OneProcess(str(tmp_path), 0, pids={(0, 1, 0): victim.pid})
    if well:
        assert "from step 25, the one before it" in made("checkpoint_torn", scene, target(node, 0))
    else:
        with pytest.raises(Fatal, match=f"began again with step {other or begins}, not with 26"):
            made("checkpoint_torn", scene, target(node, 0))
    assert (newest / "__0_0.distcp").stat().st_size == 500
    assert victim.wait(5) == -signal.SIGKILL


def made(name: str, scene: Any, whom: Target, after: ExitStack | None = None) -> str:
    inject_ = FAULTS[name].inject
    assert inject_ is not None
    return inject_(scene, whom, after if after is not None else ExitStack())


def state(pid: int) -> str:
    return processes.state(pid)


def obey_once(folder: Path, cause: str) -> None:
    orders = causes.Orders(folder, 1, 2, 0)
    eventually(lambda: orders.due(cause, step=1), 10, "an order comes")


# --- the trainer's side ---


class Base:
    """Has the attributes that ReplicaTrainer calls."""

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

    def __getitem__(self, at: int) -> Any:
        return self.values[at]

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
        self.in_last_round = True
        self.activity = type("Activity", (), {"during": lambda _, name: nullcontext()})()
        self.noted: list[tuple[str, dict[str, int]]] = []
        self.ledger = type("Ledger", (), {"note": lambda _, event, **more: self.noted.append((event, more))})()


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
    assert rank.noted == [("flipped", {"step": 5, "parameter": 1, "element": 0, "bit": BIT})]


def test_a_bit_flips_before_all_of_a_steps_batches(tmp_path: Path) -> None:
    """If ordered between two of them, it waits for the next step."""
    rank = Rank(tmp_path)
    rank.forward_backward_step()
    causes.order(tmp_path, 1, 2, 0, Order(cause=causes.FLIP_BIT))
    rank.forward_backward_step()
    assert rank.noted == []
    rank.manager = type("Manager", (), {"current_step": lambda _: 5})()
    rank.forward_backward_step()
    assert [event for event, _ in rank.noted] == ["flipped"]


def test_a_heal_that_is_held(tmp_path: Path) -> None:
    rank = ordered(tmp_path, causes.HOLD_HEAL, seconds=0.05)
    began = time.monotonic()
    rank.before_heal()
    assert time.monotonic() - began >= 0.05
    assert causes.done_at(tmp_path, 1, 2, 0) is not None
    Rank(tmp_path / "other").before_heal()


def test_a_collective_is_left_out_once_and_after_the_step_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectives = SimpleNamespace(all_reduce=lambda tensor, group: f"{tensor} of all")
    monkeypatch.setitem(sys.modules, "torch.distributed._functional_collectives", collectives)
    rank = ordered(tmp_path, causes.SKIP_COLLECTIVE)
    assert rank.forward_backward_step(x=1) == "stepped {'x': 1}"
    assert [collectives.all_reduce(n, group="g") for n in ("norm", "loss")] == ["norm", "loss of all"]


def test_a_slow_step(tmp_path: Path) -> None:
    rank = ordered(tmp_path, causes.SLOW, seconds=0.05)
    began = time.monotonic()
    rank.forward_backward_step()
    assert time.monotonic() - began >= 0.05
