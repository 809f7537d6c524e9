"""A live run as the runner sees it, from records in a store; and the parts that may not be broken."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.chaos import own
from fault_injection.chaos.campaign import Campaign, refuse_unless_allowed, setting
from fault_injection.chaos.live import LEARNED_STEPS, LiveRun
from fault_injection.chaos.schedule import Planned, Schedule, drawn, unfold
from fault_injection.chaos.watch import Watcher
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Orders
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Lighthouse, Memory
from supervisor.core.model.observed import Grant
from supervisor.core.model.seats import Seat
from supervisor.ports.errors import Fatal
from supervisor.shell.history.files import Left
from supervisor.shell.processes import pid_namespace, start_ticks
from supervisor.shell.runfile import parse
from supervisor.wire import keys
from supervisor.wire.records import (
    Fact,
    FaultsMade,
    Health,
    LeaderRecord,
    NodeObserved,
    Progress,
    RunRecord,
    TrainerObserved,
    decode,
    encode,
)
from tests.helpers.reasons import STARTS
from tests.unit.shell.records import MEMORY, SPEC, registration, run_values

WELL = Memory(
    clock=12.5,
    decisions=4,
    phase="running",
    groups={
        g: GroupMemory(group=g, generation=1, seats=(Seat(f"n{g + 1}", f"n{g + 1}", f"run-a{g + 1}"),), phase="running")
        for g in (0, 1)
    },
    allocations={
        f"run-a{i}": AllocationMemory(key=f"run-a{i}", state="wanted", since=1.0, reason=STARTS) for i in (1, 2, 3)
    },
    lighthouse=Lighthouse(node="host", generation=1, address="host:1"),
)  # fmt: skip


def trainer(
    group: int, commits: int = LEARNED_STEPS, step: int = 40, participants: int = 2, rank: int = 0
) -> TrainerObserved:
    progress = Progress(
        run="run", group=group, generation=1, rank=rank, pid=os.getpid(), sequence=1, phase="step", step=step, commits=commits,
        participants=participants,
    )  # fmt: skip
    return TrainerObserved(
        run="run", group=group, generation=1, rank=rank, pid=os.getpid(), state="running", progress=progress
    )


def node(name: str, *trainers: TrainerObserved, allocation: str) -> dict[str, bytes]:
    health = Health(
        node=name, sequence=1, warm="ready", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0
    )  # fmt: skip
    return {
        **registration(name, allocation=allocation, agent_pid=os.getpid()),
        keys.observed(name): encode(NodeObserved(node=name, sequence=1, trainers=trainers)),
        keys.health(name): encode(health),
    }


def grants() -> dict[str, bytes]:
    return {
        keys.grant("run", f"run-a{i}"): encode(Grant(key=f"run-a{i}", state="granted", nodes=(f"n{i}",)))
        for i in (1, 2, 3)
    }


class World:
    """A store with a run in it, and a folder with the files of its nodes."""

    def __init__(self, folder: Path) -> None:
        self.store, self.system = MemoryStore(), folder / "system"
        leader = led_by(os.getpid())
        self.put(
            {
                **run_values(WELL), **grants(), keys.LEADER: encode(leader),
                **node("n1", trainer(0), allocation="run-a1"), **node("n2", trainer(1), allocation="run-a2"),
                **node("n3", allocation="run-a3"),
            }
        )  # fmt: skip
        for name in ("n1", "n2", "n3"):
            (self.system / "nodes" / name).mkdir(parents=True)
            (self.system / "nodes" / name / "shim.lock").write_text(str(os.getpid()))
        self.record = RunRecord(spec=SPEC, run_dir=str(folder / "run"), launched_unix_s=1.0)
        self.watcher = Watcher(self.store, "run")
        self.live = LiveRun(self.store, self.watcher, self.record, self.system)

    def put(self, values: dict[str, bytes]) -> None:
        self.store.commit(values)

    def follow(self) -> None:
        self.watcher.start()


def led_by(pid: int) -> LeaderRecord:
    """A leader on this machine."""
    return LeaderRecord(
        host=socket.gethostname(), pid=pid, home="", start_ticks=start_ticks(pid) or 1, pid_namespace=pid_namespace()
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.watcher.stop()


def after(world: World, values: dict[str, bytes]) -> str:
    """The runner's reason why the run is not well, after these puts."""
    world.put(values)
    world.watcher.stop()
    world.watcher = Watcher(world.store, "run")
    world.live = LiveRun(world.store, world.watcher, world.record, world.system)
    return world.live.look().not_well


def planned(group: int = 1, rank: int = 0) -> Planned:
    return Planned(number=1, name="sigkill", at_step=4, group=group, rank=rank)


def test_a_run_that_trains_is_well(world: World) -> None:
    look = world.live.look()
    assert (look.step, look.not_well, look.acted, look.ended) == (40, "", frozenset(), "")


def test_what_the_engine_says_of_what_the_run_wants(world: World) -> None:
    assert world.live.nodes() == {0: ("n1",), 1: ("n2",)}
    assert {key: grant.nodes for key, grant in world.live.grants().items()} == {
        "run-a1": ("n1",), "run-a2": ("n2",), "run-a3": ("n3",),
    }  # fmt: skip
    given_back = replace(WELL.allocations["run-a3"], state="released")
    asked = AllocationMemory(key="run-a4", state="wanted", since=2.0, reason=STARTS)
    groups = {**WELL.groups, 1: replace(WELL.groups[1], seats=(), phase="placing")}
    memory = replace(WELL, groups=groups, allocations={**WELL.allocations, "run-a3": given_back, "run-a4": asked})
    pending = Grant(key="run-a2", state="pending", reason="Resources")
    after(world, {**run_values_of(memory), keys.grant("run", "run-a2"): encode(pending)})
    assert world.live.nodes() == {0: ("n1",), 1: ()}
    assert {key: grant.state for key, grant in world.live.grants().items()} == {
        "run-a1": "granted", "run-a2": "pending",
    }, "not what was given back, nor what the engine has not heard of"  # fmt: skip


def test_a_node_of_another_machine_is_broken_by_its_engine_alone(world: World) -> None:
    (world.system / "nodes" / "n2" / "shim.lock").unlink()
    with pytest.raises(Fatal, match="n2 is not one of this machine"):
        world.live.target(planned(), FAULTS["sigkill"])
    found = world.live.target(planned(), FAULTS["job_cancelled"])
    assert (found.node, found.allocation) == ("n2", "run-a2")


@pytest.fixture
def of_two(world: World) -> World:
    """Two groups of two nodes, with two ranks on each: group 0 has n1 and n4, group 1 has n2 and n5."""
    groups = replace(SPEC.groups, ranks_per_group=4, nodes_per_group=2)
    spec = replace(SPEC, groups=groups, allocation=replace(SPEC.allocation, nodes=4))
    world.record = replace(world.record, spec=spec)
    seats = {0: ("n1", "n4"), 1: ("n2", "n5")}
    memory = replace(
        WELL,
        groups={
            g: replace(WELL.groups[g], size=2, seats=tuple(Seat(n, n, f"run-a{n[1]}") for n in seats[g])) for g in seats
        },
    )
    for names in seats.values():
        for name in names:
            (world.system / "nodes" / name).mkdir(parents=True, exist_ok=True)
            (world.system / "nodes" / name / "shim.lock").write_text(str(os.getpid()))
    assert after(
        world, {**run_values_of(memory), **of_seats("n1", 0, 0), **of_seats("n4", 0, 1), **of_seats("n2", 1, 0)}
    ).startswith("group 1 has committed fewer than")
    assert after(world, of_seats("n5", 1, 1)) == ""
    return world


def of_seats(name: str, group: int, seat: int, commits: int = LEARNED_STEPS) -> dict[str, bytes]:
    """A node with its two ranks of a group."""
    ranks = [trainer(group, commits=commits, rank=rank) for rank in (2 * seat, 2 * seat + 1)]
    return node(name, *ranks, allocation=f"run-a{name[1]}")


def test_a_victim_is_on_the_node_that_has_its_rank(of_two: World) -> None:
    for rank, name in ((0, "n2"), (1, "n2"), (2, "n5"), (3, "n5")):
        target = of_two.live.target(planned(1, rank), FAULTS["sigkill"])
        assert (target.node, target.allocation) == (name, f"run-a{name[1]}")
        assert (sorted(target.pids), target.folder) == ([0, 1, 2, 3], of_two.system / "nodes" / name)
    with pytest.raises(Fatal, match="node n2, n5 shows no rank 4 of group 1"):
        of_two.live.target(planned(1, 4), FAULTS["sigkill"])
    (of_two.system / "nodes" / "n5" / "shim.lock").unlink()
    with pytest.raises(Fatal, match="node n5 is not one of this machine"):
        of_two.live.target(planned(1, 3), FAULTS["sigkill"])
    assert of_two.live.target(planned(1, 1), FAULTS["sigkill"]).node == "n2", "its other node can be broken"
    assert "node n5 is not one of this machine" in of_two.live.site().not_here


def test_all_ranks_and_nodes_of_a_group_on_several_nodes(of_two: World) -> None:
    assert set(of_two.live.ranks()) == {(group, 1, rank) for group in (0, 1) for rank in range(4)}
    assert of_two.live.nodes() == {0: ("n1", "n4"), 1: ("n2", "n5")}


def test_a_group_is_well_with_the_ranks_of_all_its_nodes(of_two: World) -> None:
    few = of_seats("n5", 1, 1, commits=LEARNED_STEPS - 1)
    assert after(of_two, few) == f"group 1 has committed fewer than {LEARNED_STEPS} steps since its start"
    assert after(of_two, of_seats("n5", 1, 1)) == ""
    cold = Health(node="n3", sequence=2, warm="starting", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0)
    assert after(of_two, {keys.health("n3"): encode(cold)}) == "no spare is ready", (
        "four nodes are wanted for the groups"
    )
    allocation = replace(of_two.record.spec.allocation, spares=0)
    of_two.record = replace(of_two.record, spec=replace(of_two.record.spec, allocation=allocation))
    assert after(of_two, {}) == "", "and no more"


def test_what_is_not_well(world: World) -> None:
    few = node("n2", trainer(1, commits=LEARNED_STEPS - 1), allocation="run-a2")
    assert after(world, few) == f"group 1 has committed fewer than {LEARNED_STEPS} steps since its start"
    assert after(world, node("n2", trainer(1), allocation="run-a2")) == ""
    cold = Health(node="n3", sequence=2, warm="starting", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0)
    assert after(world, {keys.health("n3"): encode(cold)}) == "no spare is ready"
    ready = replace(cold, warm="ready", sequence=3)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = {keys.LEADER: encode(led_by(ended.pid))}
    assert after(world, {keys.health("n3"): encode(ready), **dead}) == f"the leader, pid {ended.pid}, has ended"
    elsewhere = {keys.LEADER: encode(replace(led_by(ended.pid), host="elsewhere"))}
    assert after(world, elsewhere) == "", "nobody can see that from here"
    groups = {**WELL.groups, 1: replace(WELL.groups[1], phase="starting")}
    assert after(world, run_values_of(replace(WELL, groups=groups))) == "group 1 is starting"


def test_a_group_that_steps_without_another_is_not_well_and_the_step_is_that_of_all(world: World) -> None:
    alone = after(world, node("n1", trainer(0, step=49, participants=1), allocation="run-a1"))
    assert alone == "group 0 made its last step in a quorum of 1 of 2 groups"
    assert world.live.look().step == 40
    back = node("n2", trainer(1, step=50), allocation="run-a2") | node("n1", trainer(0, step=50), allocation="run-a1")
    assert after(world, back) == ""
    assert world.live.look().step == 50


def made(world: World) -> dict[str, int]:
    item = world.store.get(keys.faults("run"))
    return {} if item is None else decode(item.value, FaultsMade).made


def test_faults_are_told_for_the_metrics_and_counted_on(world: World) -> None:
    world.live.made("sigkill")
    world.live.made("sigkill")
    world.live.made("etcd_slow")
    eventually(lambda: made(world) == {"sigkill": 2, "etcd_slow": 1}, 10)
    assert after(world, {}) == ""
    world.live.made("sigkill")
    eventually(lambda: made(world) == {"sigkill": 3, "etcd_slow": 1}, 10)


def test_a_fault_of_etcd_is_told_when_it_answers_again(world: World) -> None:
    world.live.look()
    watch = world.store.watch(keys.faults("run"), world.store.list(keys.PREFIX).revision)
    world.store.fail_next(2)  # a look at the current records would take one of these
    world.live.made("etcd_killed")
    told = eventually(lambda: (changes := watch.poll(0.1)) is not None and changes.puts, 10)
    assert [decode(item.value, FaultsMade).made for item in told] == [{"etcd_killed": 1}]


def run_values_of(memory: Memory) -> dict[str, bytes]:
    return {key: value for key, value in run_values(memory).items() if key != keys.spec("run")}


def test_a_run_that_is_mended_is_not_well_and_what_was_done_is_told(world: World) -> None:
    assert after(world, run_values_of(replace(MEMORY, groups=WELL.groups))) == "incident i1 is open"
    assert world.live.look().acted == {("i1", 1)}


def test_an_incident_that_rides_a_failure_through_is_nothing_done(world: World) -> None:
    silent = Incident(
        id="i7", kind=Kind.SILENT, group=0, node="n1", rung=Rung.RIDE_THROUGH, generation_before=1, generation_after=1,
        reason="r", evidence=(), state="recovered", decided=1.0,
    )  # fmt: skip
    after(world, {keys.incident("run", "i7"): encode(silent)})
    assert world.live.look().acted == frozenset()
    left_out = replace(silent, id="i8", kind=Kind.ERROR, group=1, generation_after=5)
    after(world, {keys.incident("run", "i8"): encode(left_out)})
    assert world.live.look().acted == {("i8", 1)}, "who is left out has no rung, and was acted on"


def test_a_halted_run_has_ended(world: World) -> None:
    after(world, run_values_of(replace(WELL, phase="halted", halt_reason="the same error everywhere")))
    assert world.live.look().ended == "the run is halted: the same error everywhere"


def test_the_victim_is_where_its_node_says(world: World) -> None:
    target = world.live.target(planned(1), FAULTS["sigkill"])
    assert (target.group, target.generation, target.node, target.rank) == (1, 1, "n2", 0)
    assert (target.pids, target.allocation, target.folder) == (
        {0: os.getpid()}, "run-a2", world.system / "nodes" / "n2",
    )  # fmt: skip


def test_who_writes_the_checkpoints_is_hit_whoever_was_planned(world: World) -> None:
    target = world.live.target(planned(1), FAULTS["checkpoint_blocked"])
    assert target.group == 0


def test_a_victim_that_is_not_there(world: World) -> None:
    with pytest.raises(Fatal, match="node n2 shows no rank 3 of group 1"):
        world.live.target(planned(1, rank=3), FAULTS["sigkill"])
    (world.system / "nodes" / "n2" / "shim.lock").unlink()
    with pytest.raises(Fatal, match="node n2 is not one of this machine"):
        world.live.target(planned(1), FAULTS["sigkill"])


def test_what_can_be_broken_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    site = world.live.site()
    assert site.not_here == ""
    assert site.not_obeying == "rank 0 of group 0 does not look for orders (fault_injection/in_rank/trainer.py)"
    assert "its etcd is not one that was started in" in site.no_own_etcd
    for group in (0, 1):
        Orders(world.record.run_dir, group, 1, 0)
    assert world.live.site().not_obeying == ""
    assert "in a group of one rank" in world.live.site().no_collective
    two = replace(world.record, spec=replace(SPEC, groups=replace(SPEC.groups, ranks_per_group=2)))
    assert LiveRun(world.store, world.watcher, two, world.system).site().no_collective == ""
    assert causes.obeys(world.record.run_dir, 1, 1, 0)
    (world.system / "etcd").mkdir()
    (world.system / "etcd" / "server.json").write_text(json.dumps({"pid": os.getpid()}))
    assert world.live.site().no_own_etcd == ""
    (world.system / "nodes" / "n1" / "shim.lock").unlink()
    assert "node n1 is not one of this machine" in world.live.site().not_here


def test_pids_of_the_control_plane(world: World) -> None:
    live = world.live
    assert (live.leader_pid(), live.agent_pid("n1"), live.agent_pid("n9")) == (os.getpid(), os.getpid(), 0)
    with pytest.raises(Fatal, match="no etcd was started"):
        live.etcd_pids()
    with pytest.raises(Fatal, match="the lighthouse on host is not on this machine"):
        live.gate_pids()
    after(world, {keys.LEADER: encode(replace(led_by(1), host="elsewhere"))})
    with pytest.raises(Fatal, match="the leader is on elsewhere: break it there"):
        world.live.leader_pid()


def test_a_leader_to_be_broken_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come right after a leader has died, beside another fault: the record stays until its lease lapses."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    after(world, {keys.LEADER: encode(led_by(ended.pid))})
    asked: list[str] = []

    def tend() -> list[str]:
        if len(asked) == 2:
            after(world, {keys.LEADER: encode(led_by(os.getpid()))})
            live._watcher = world.live._watcher
        asked.append("")
        return asked

    live = world.live
    live._tended = tend
    assert live.leader_pid() == os.getpid()
    assert len(asked) == 3
    after(world, {keys.LEADER: encode(led_by(ended.pid))})
    monkeypatch.setattr("fault_injection.chaos.live.LEADS_WITHIN_S", 0.1)
    with pytest.raises(Fatal, match="a supervisor leads"):
        world.live.leader_pid()


def test_what_faults_ask_of_the_run(world: World) -> None:
    live = world.live
    assert live.ranks() == {(0, 1, 0): os.getpid(), (1, 1, 0): os.getpid()}
    assert live.phase() == "running"
    assert live.told("n1") == set()
    facts = (
        Fact(kind="gpu_xid", subject="GPU 0", evidence="Xid 79", xid=79),
        Fact(kind="gpu_lost", subject="GPU 0", evidence="lost"),
    )
    health = Health(
        node="n1", sequence=2, warm="ready", disk_free_bytes=1, memory_available_bytes=1, load_1m=0.0, facts=facts
    )
    after(world, {keys.health("n1"): encode(health)})
    assert world.live.told("n1") == {"gpu_xid", "xid 79", "gpu_lost"}
    assert not world.live.left_out(1)
    without = replace(WELL, groups={**WELL.groups, 1: replace(WELL.groups[1], left_out="no other node cures that")})
    after(world, run_values_of(without))
    assert world.live.left_out(1)
    before = world.live.revision()
    world.live.write(10)
    assert world.live.revision() > before
    with pytest.raises(Fatal, match="neither halted nor paused"):
        world.live.resume("it is mended")


def test_a_house_of_ours_is_tended_also_while_a_fault_waits(world: World) -> None:
    tended: list[str] = []
    house: Any = SimpleNamespace(tend=lambda: tended.append("house"), etcd_pids=lambda: [1, 2, 3])
    live = LiveRun(
        world.store, world.watcher, world.record, world.system, tended=lambda: tended.append("up") or [], house=house
    )  # fmt: skip
    assert live.etcd_pids() == [1, 2, 3]
    live.wait(lambda: len(tended) > 2, 10, "it is tended")
    assert tended[:2] == ["house", "up"]


def test_a_compaction_reaches_the_store(world: World) -> None:
    newest = world.live.revision()
    assert newest == world.store.revision
    world.put(registration("n9"))
    world.put(registration("n8"))
    world.live.compact(world.live.revision())
    watch = world.store.watch(keys.PREFIX, newest)
    changes = watch.poll(0.1)
    watch.close()
    assert changes is not None
    assert changes.reset, "the place of a watch is lost"


def process(world: World, name: str, exited: bool = False, ticks: int | None = None) -> None:
    folder = world.system / "nodes" / "n1" / "processes"
    folder.mkdir(exist_ok=True)
    started = start_ticks(os.getpid()) if ticks is None else ticks
    body = {"name": name, "pid": os.getpid(), "start_ticks": started, "exited": exited}
    (folder / f"{name}.json").write_text(json.dumps(body))


def test_what_is_left(world: World) -> None:
    assert world.live.left(ended=True) == Left(processes=(), allocations=())
    process(world, "run.0.1.0")
    process(world, "run.1.0.0")
    process(world, "lighthouse.run.1")
    process(world, "run.0.7.0", exited=True)
    process(world, "run.0.8.0", ticks=1)
    process(world, "run-2.0.1.0")
    process(world, "my-run.0.1.0")
    (world.system / "local").mkdir()
    (world.system / "local" / "allocation-run-a3.json").write_text("{}")
    (world.system / "local" / "allocation-run-2-a3.json").write_text("{}")
    here = f"(pid {os.getpid()}) on n1"
    assert set(world.live.left(ended=True).processes) == {
        f"lighthouse.run.1 {here}", f"run.0.1.0 {here}", f"run.1.0.0 {here}",
    }  # fmt: skip
    assert world.live.left(ended=True).allocations == ("run-a3",)
    assert world.live.left(ended=False) == Left(processes=(f"run.1.0.0 {here}",), allocations=()), (
        "of an older generation"
    )


def test_an_allocation_that_a_live_run_does_not_want_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner waits: a returned allocation is not cleared at once, and a requested one not at once in the mirror."""
    given_back = AllocationMemory(key="run-a4", state="released", since=1.0, reason=STARTS)
    after(world, run_values_of(replace(WELL, allocations={**WELL.allocations, "run-a4": given_back})))
    (world.system / "local").mkdir()
    for key in ("run-a3", "run-a4", "run-a9"):
        (world.system / "local" / f"allocation-{key}.json").write_text("{}")
    monkeypatch.setattr("fault_injection.chaos.live.GIVEN_BACK_S", 0.2)
    assert world.live.left(ended=False).allocations == ("run-a4", "run-a9")
    monkeypatch.setattr("fault_injection.chaos.live.GIVEN_BACK_S", 60.0)
    put_away = [world.system / "local" / f"allocation-{key}.json" for key in ("run-a4", "run-a9")]
    threading.Timer(0.3, lambda: [path.unlink() for path in put_away]).start()
    assert world.live.left(ended=False).allocations == ()


def test_a_wish_to_restart_waits_for_the_store(world: World) -> None:
    world.store.fail_next(2)
    world.live.restart(1)
    assert b'"restarts":{"1":1}' in world.store.commits[-1][keys.control("run")]


def test_what_comes_is_noted_once_and_in_order(world: World) -> None:
    world.follow()
    groups = {**WELL.groups, 1: replace(WELL.groups[1], phase="starting", generation=2)}
    world.put(run_values_of(replace(WELL, groups=groups)))
    world.put(run_values_of(replace(WELL, groups=groups, clock=13.0)))
    eventually(lambda: [s for s in world.watcher.seen if s.says.get("generation") == 2], 5)
    world.watcher.stop()
    of_one = [s.says for s in world.live.seen() if (s.what, s.subject) == ("group", "1")]
    assert of_one == [
        {"phase": "running", "generation": 1, "node": "n2"}, {"phase": "starting", "generation": 2, "node": "n2"},
    ]  # fmt: skip
    assert [s.what for s in world.live.seen()].count("leader") == 1


# --- parts that may be broken ---


def test_a_run_that_does_not_allow_it_is_refused(world: World) -> None:
    said: list[str] = []
    campaign = Campaign(wanted=lambda site: drawn(1, 3, 20, site), say=said.append)
    with pytest.raises(Fatal, match='run run may not be broken: its run file does not say chaos = "allowed"'):
        campaign.against(world.store, "run", Path())
    assert said == []
    assert len(world.store.commits) == 1
    allowed = replace(world.record, spec=replace(SPEC, chaos="allowed"))
    refuse_unless_allowed(allowed)
    world.put({keys.spec("run"): encode(allowed)})
    dry = replace(
        campaign, dry_run=True, wanted=lambda site: Schedule(fault=drawn(1, 3, 20, Site()).fault[:0], each=None)
    )
    assert dry.against(world.store, "run", world.system.parent) is True
    warning, plan = said
    assert warning.startswith(
        "warning: this cannot be green: titan.digest_interval_steps is 0 in the run file of run, "
    )
    assert plan.startswith("seed 0: 0 faults")
    said.clear()
    hashes = replace(allowed.spec, titan=replace(SPEC.titan, digest_interval_steps=5))
    world.put({keys.spec("run"): encode(replace(allowed, spec=hashes))})
    assert dry.against(world.store, "run", world.system.parent) is True
    assert [line[:6] for line in said] == ["seed 0"]


def test_the_run_that_is_started_to_be_broken_can_be_launched_and_allows_it() -> None:
    made = own.spec("chaos")
    assert parse.contradictions(made) == []
    assert made.chaos == "allowed"
    assert made.titan.digest_interval_steps > 0, "the groups' states are compared"
    assert (made.groups.nodes_per_group, made.allocation.nodes) == (1, 2)
    of_two = own.spec("chaos", ranks=4, nodes=2)
    assert parse.contradictions(of_two) == []
    assert (of_two.groups.ranks_per_group, of_two.groups.nodes_per_group, of_two.allocation.nodes) == (4, 2, 4)
    smaller = replace(made.titan, recipe="llama3-debug-small")
    assert replace(of_two, groups=made.groups, allocation=made.allocation) == replace(made, titan=smaller)


def test_the_setting_is_of_the_run_and_its_plan() -> None:
    plan = unfold(drawn(5, 4, 20, Site()), 2, 1, Site())
    made: Any = setting(RunRecord(spec=own.spec("chaos"), run_dir="/r", launched_unix_s=1.0), plan, 1.0, 9.0, True)
    assert (made.seed, made.planned, made.groups, made.ranks, made.began, made.ended) == (5, 4, 2, 1, 1.0, 9.0)
    assert made.plan == tuple(str(p) for p in plan.faults)
    assert made.budgets == {"restart": 60, "replace": 60, "reallocate": 60}
    assert made.not_available == dict(plan.not_available)
    assert made.nodes == 1
    of_two = RunRecord(spec=own.spec("chaos", 4, nodes=2), run_dir="/r", launched_unix_s=1.0)
    assert setting(of_two, plan, 1.0, 9.0, True).nodes == 2
    assert "python" in made.versions
