"""How each fault of the catalogue is made. Whatever has to be healed goes on the stack before it is broken."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from agents import sockets
from fault_injection import causes, connections
from fault_injection.causes import Order
from fault_injection.etcds import slow_disk
from fault_injection.faults import acts
from fault_injection.faults.fault import Inject, Scene, Target
from fault_injection.house import House
from fault_injection.memory_cgroup import memory_cgroup
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.processes import is_running, start_ticks
from supervisor.shell.store.errors import OutOfSpace
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import CheckpointMark

DONE_WITHIN_S = 60.0
"""A rank does as ordered at its next step; a checkpoint may be some steps away."""

SHIM_LOOKS_S = 2.0
"""The shim notes in which cgroup its processes are once a second."""

HOG_HAS = 96 << 20
"""Bytes that are left to a rank before the kernel kills it for memory."""

SLOWER_S = 0.5
"""By which each step of a slow rank is longer: several steps of the debug model."""

STEPS_AHEAD = 10
"""Enough for every rank to read its order before that step."""

HALTS_WITHIN_S = 60.0
"""The last groups end when their collectives time out."""

BEGINS_WITHIN_S = 120.0
"""From the end of all ranks to their first step: a hang's bound is not waited for, a start is."""

HEALS_FOR_S = 30.0
"""Long enough to be killed in it; a heal of the debug model takes milliseconds."""

FILL_BYTES = 1 << 20
"""Below etcd's limit of 1.5 MiB for a request."""

FSYNC_LATER_S = 0.4

LATE_S, IN_TIME_S = 0.1, 0.05
"""The lighthouse drops whom the gate has not beaten for within 150 ms."""

AHEAD_S = 10_800.0
"""Longer than any timeout."""

AT_FAILPOINT = "committed"


def signalled(number: signal.Signals) -> Inject:
    """A signal that ends one rank."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return _end(scene, target.pid, number)

    return inject


def stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    """SIGSTOP to one rank, SIGCONT in the end if it still is there."""
    return _stop(scene, target.pid, after)


def ordered(cause: str, seconds: float = 0.0) -> Inject:
    """The rank does it to itself, at the place of its next step where it belongs."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return _ordered(scene, target, Order(cause=cause, seconds=seconds))

    return inject


def until_restarted(cause: str, seconds: float = 0.0) -> Inject:
    """As `ordered`, for what no supervisor mends: in the end a person restarts the group."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        after.callback(scene.restart, target.group)
        return _ordered(scene, target, Order(cause=cause, seconds=seconds))

    return inject


def raised_everywhere(scene: Scene, target: Target, after: ExitStack) -> str:
    """Every rank raises the same at one step. That is the program's fault, so the run is halted; a person lets it go on."""
    step = target.step + STEPS_AHEAD
    whom = list(scene.ranks())
    for group, generation, rank in whom:
        causes.order(scene.run_dir, group, generation, rank, Order(cause=causes.RAISE, at_step=step))
    scene.wait(lambda: scene.phase() == "halted", HALTS_WITHIN_S, "the run is halted")
    scene.resume("what was wrong with the program is mended")
    scene.wait(lambda: scene.phase() == "running", HALTS_WITHIN_S, "the run goes on")
    done = [causes.done_at(scene.run_dir, *each) for each in whom]
    if None in done:
        raise Fatal(f"{done.count(None)} of {len(whom)} ranks have not raised")
    return f"{len(whom)} ranks raised at step {step}: the run was halted, and resumed by a person"


def for_memory(scene: Scene, target: Target, after: ExitStack) -> str:
    cgroup = after.enter_context(memory_cgroup(f"{target.group}-{target.generation}"))
    cgroup.add(target.pid)
    time.sleep(SHIM_LOOKS_S)
    cgroup.limit(cgroup.used() + HOG_HAS)
    _ordered(scene, target, Order(cause=causes.HOG))
    scene.wait(lambda: cgroup.kills() > 0, DONE_WITHIN_S, "the kernel kills for memory")
    return f"the kernel has counted a kill for memory in the cgroup of pid {target.pid}"


def aborted(scene: Scene, target: Target, after: ExitStack) -> str:
    """The process group between the groups fails under whatever runs in it."""
    folder = target.folder / "ranks" / f"{scene.run}.{target.group}.{target.generation}.{target.rank}"
    with sockets.connect(folder / "command.sock", timeout_s=5.0) as command, command.makefile("rwb") as lines:
        lines.write(b'{"do":"abort"}\n')
        lines.flush()
        answer = json.loads(lines.readline() or b"{}")
    if not answer.get("ok"):
        raise Fatal(f"group {target.group} rank {target.rank} did not abort: {answer.get('error', 'no answer')}")
    return f"rank {target.rank} has aborted its process group"


def disk_full(scene: Scene, target: Target, after: ExitStack) -> str:
    after.callback((target.folder / acts.FILLER).unlink, missing_ok=True)
    return acts.fill_disk(target.group, target.node, target.folder).evidence


def agent_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    pid = scene.agent_pid(target.node)
    said = _end(scene, pid, signal.SIGKILL)
    scene.wait(lambda: scene.agent_pid(target.node) not in (0, pid), DONE_WITHIN_S, "the shim starts the next agent")
    return said


def agent_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.agent_pid(target.node), after)


def node_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.kill_node(target)


def node_cut(scene: Scene, target: Target, after: ExitStack) -> str:
    house = _house(scene)
    after.callback(house.mend, target.node)
    house.cut(target.node)
    return f"link of {target.node} is down"


def agent_cut_off(scene: Scene, target: Target, after: ExitStack) -> str:
    house = _house(scene)
    after.callback(house.hear, target.node)
    house.cut_off(target.node)
    scene.wait(lambda: scene.agent_pid(target.node) == 0, DONE_WITHIN_S, f"the lease of {target.node} lapses")
    return f"{target.node} does not reach etcd: its lease has lapsed"


def clock_moved(scene: Scene, target: Target, after: ExitStack) -> str:
    """The node's agent is started again for it, before and after."""
    house, node = _house(scene), target.node

    def everybodys() -> None:
        house.clocks.back(node)
        with suppress(Fatal):  # its node is gone
            _end(scene, scene.agent_pid(node), signal.SIGKILL)

    after.callback(everybodys)
    house.clocks.move(node, "+0")
    agent_killed(scene, target, after)
    scene.wait(
        lambda: house.clocks.ahead_s(node) is not None, DONE_WITHIN_S, f"the agent of {node} reads its own clock"
    )
    house.clocks.move(node, f"+{AHEAD_S:g}")
    scene.wait(
        lambda: abs((house.clocks.ahead_s(node) or 0.0) - AHEAD_S) < 1.0, DONE_WITHIN_S, f"the clock of {node} is moved"
    )
    return f"the agent of {node} reads a clock that has jumped {AHEAD_S:g} s ahead"


def leader_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.leader_pid(), signal.SIGKILL)


def leader_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.leader_pid(), after)


def lighthouse_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.gate_pids()[1], signal.SIGKILL)


def lighthouse_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return _stop(scene, scene.gate_pids()[1], after)


def gate_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return _end(scene, scene.gate_pids()[0], signal.SIGKILL)


def etcd_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    """All members at once."""
    members = {pid: _ticks(pid) for pid in scene.etcd_pids()}
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    for pid, ticks in members.items():
        scene.wait(lambda: not is_running(pid, ticks), DONE_WITHIN_S, f"etcd, pid {pid}, ends")  # noqa: B023
    return f"SIGKILL to pid {_listed(members)}, which has ended"


def etcd_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    """All members at once."""
    return "; ".join(_stop(scene, pid, after) for pid in scene.etcd_pids())


def etcd_leader_lost(scene: Scene, target: Target, after: ExitStack) -> str:
    house = _house(scene)
    lost = house.etcds.leader()
    after.callback(house.bring_back)
    house.lose([lost])
    return f"member m{lost}, which led, is killed; m{house.etcds.leader()} leads"


def etcd_quorum_lost(scene: Scene, target: Target, after: ExitStack) -> str:
    house = _house(scene)
    lost = house.etcds.leader()
    after.callback(house.bring_back)
    house.lose([lost, (lost + 1) % len(house.etcds.members)])
    try:
        scene.revision()
    except Retryable as error:
        return f"two of three members are killed: {error}"
    raise Fatal("etcd still answers with one member of three")


def etcd_out_of_space(scene: Scene, target: Target, after: ExitStack) -> str:
    """With old revisions of one key, as a program does that writes too much between two compactions."""
    house = _house(scene)
    after.callback(lambda: house.make_space(scene.revision()))

    def full() -> bool:
        try:
            scene.write(FILL_BYTES)
        except OutOfSpace:
            return True
        return False

    scene.wait(full, DONE_WITHIN_S, "etcd says that it has no space left")
    return "etcd refuses a write: NOSPACE"


def etcd_slow(scene: Scene, target: Target, after: ExitStack) -> str:
    house = _house(scene)
    after.enter_context(slow_disk(scene.etcd_pids(), FSYNC_LATER_S, house.folder / "strace.log"))
    began = time.monotonic()
    with suppress(Retryable):
        scene.write(1)
    took = time.monotonic() - began
    if took < FSYNC_LATER_S:
        raise Fatal(f"a write to etcd took {took:.2f} s: its disk is not slow")
    return f"each fsync of etcd takes {FSYNC_LATER_S:g} s longer: a write took {took:.2f} s"


def etcd_compacted(scene: Scene, target: Target, after: ExitStack) -> str:
    """While the leader is stopped: what its watch would read next is gone when it goes on."""
    _stop(scene, scene.leader_pid(), after)
    seen = scene.revision()
    scene.wait(lambda: scene.revision() > seen + 1, DONE_WITHIN_S, "somebody writes to etcd")
    newest = scene.revision()
    scene.compact(newest)
    return f"etcd is compacted up to revision {newest}; the leader, stopped, had seen {seen} at the most"


def lighthouse_delayed(scene: Scene, target: Target, after: ExitStack) -> str:
    """It is stopped again and again, each time for less than the gate's heartbeats may be late."""
    pid = scene.gate_pids()[1]
    ticks, enough = _ticks(pid), threading.Event()

    def delay() -> None:
        while not enough.is_set() and is_running(pid, ticks):
            os.kill(pid, signal.SIGSTOP)
            enough.wait(LATE_S)
            os.kill(pid, signal.SIGCONT)
            enough.wait(IN_TIME_S)

    thread = threading.Thread(target=delay, name="delay", daemon=True)
    after.callback(_continue, pid, ticks)
    after.callback(thread.join)
    after.callback(enough.set)
    thread.start()
    scene.wait(lambda: _state(pid) == "T", DONE_WITHIN_S, f"process {pid} is stopped")
    return f"pid {pid} answers up to {LATE_S:g} s late: it runs for {IN_TIME_S:g} s, and is stopped for {LATE_S:g} s"


def connections_reset(scene: Scene, target: Target, after: ExitStack) -> str:
    """All between this rank and those of the other groups."""
    others = [pid for (group, _, _), pid in scene.ranks().items() if group != target.group]
    found = connections.between(target.pid, others)
    for local, peer in found:
        connections.end(target.pid, local, peer)
    left = set(connections.between(target.pid, others)) & set(found)
    if not found or left:
        raise Fatal(f"of {len(found)} connections between pid {target.pid} and {_listed(others)} {len(left)} are left")
    return f"{len(found)} connections between pid {target.pid} and {_listed(others)} were ended by the kernel"


def checkpoint_torn(scene: Scene, target: Target, after: ExitStack) -> str:
    """And then all groups are lost: they have to begin from the one before it."""
    scene.wait(lambda: len(_complete(scene)) > 1, DONE_WITHIN_S, "there are two checkpoints")
    torn, before = _complete(scene)[:2]
    largest = max(Path(torn.path).iterdir(), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    for pid in scene.ranks().values():
        os.kill(pid, signal.SIGKILL)
    if _complete(scene)[0] != torn:
        raise Fatal(f"a newer checkpoint than {torn.path} was written meanwhile")
    first: list[int] = []

    def begins_again() -> bool:
        first[:] = _first_step(scene, target)
        return bool(first)

    scene.wait(begins_again, BEGINS_WITHIN_S, f"group {target.group} commits a step again")
    if first[0] != before.step + 1:
        raise Fatal(f"group {target.group} began again with step {first[0]}, not with {before.step + 1}")
    return (
        f"{largest} is cut off in its middle, all ranks killed: they went on from step {before.step}, the one before it"
    )


def heal_source_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    """The others are killed first: when one is back, it has this group alone to heal from."""
    whom = (scene.run_dir, target.group, target.generation, target.rank)
    causes.order(*whom, Order(cause=causes.HOLD_HEAL, seconds=HEALS_FOR_S))
    for (group, _, _), pid in scene.ranks().items():
        if group != target.group:
            os.kill(pid, signal.SIGKILL)
    scene.wait(lambda: causes.done_at(*whom) is not None, BEGINS_WITHIN_S, "a group that is back heals from it")
    return f"while another group healed from it: {_end(scene, target.pid, signal.SIGKILL)}"


def gpu_fails(told: str, dies: bool = False, **says: Any) -> Inject:
    """The driver says so, and the agent tells it; `dies`: and then the rank that uses it ends."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        house = _house(scene)
        after.callback(house.gpus.say, target.node)
        house.gpus.say(target.node, **says)
        scene.wait(lambda: told in scene.told(target.node), DONE_WITHIN_S, f"the agent of {target.node} tells {told}")
        end = f"; {_end(scene, target.pid, signal.SIGABRT)}" if dies else ""
        return f"the driver on {target.node} says {says}, its agent tells {told}{end}"

    return inject


def failpoint(scene: Scene, target: Target, after: ExitStack) -> str:
    """The next leader dies right after it has committed a decision, before anything is done about it."""
    house = _house(scene)
    after.callback(house.disarm)
    once = house.arm(AT_FAILPOINT)
    _end(scene, scene.leader_pid(), signal.SIGKILL)
    said = _end(scene, target.pid, signal.SIGKILL)
    scene.wait(once.exists, DONE_WITHIN_S, f"a leader reaches the failpoint {AT_FAILPOINT}")
    house.disarm()
    return f"{said}; the leader has died at the failpoint {AT_FAILPOINT}"


def allocation_gone(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.take_allocation(target)


def _house(scene: Scene) -> House:
    if scene.house is None:
        raise Fatal("this run is somebody else's: its etcd, network and GPUs are not ours to break")
    return scene.house


def _listed(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))


def _complete(scene: Scene) -> list[CheckpointMark]:
    """Newest first."""
    return [mark for _, _, mark in listed(scene.run_dir) if mark is not None]


def _first_step(scene: Scene, target: Target) -> list[int]:
    """Of what follows this generation: the step that it committed first, if it has."""
    newer = []
    for path in target.folder.parent.glob(f"*/ranks/{scene.run}.{target.group}.*.0/steps.jsonl"):
        generation = int(path.parent.name.split(".")[2])
        lines = path.read_bytes().split(b"\n")[:-1]
        steps = [line["step"] for line in map(json.loads, lines) if line.get("committed")]
        if generation > target.generation and steps:
            newer.append((generation, steps[0]))
    return [step for _, step in sorted(newer)[:1]]


def _ordered(scene: Scene, target: Target, wanted: Order) -> str:
    whom = (scene.run_dir, target.group, target.generation, target.rank)
    causes.order(*whom, wanted)
    scene.wait(lambda: causes.done_at(*whom) is not None, DONE_WITHIN_S, f"the rank does as ordered ({wanted.cause})")
    return f"pid {target.pid} has begun it: {wanted.cause}"


def _end(scene: Scene, pid: int, number: signal.Signals) -> str:
    ticks = _ticks(pid)
    os.kill(pid, number)
    scene.wait(lambda: not is_running(pid, ticks), DONE_WITHIN_S, f"process {pid} ends after {number.name}")
    return f"{number.name} to pid {pid}, which has ended"


def _stop(scene: Scene, pid: int, after: ExitStack) -> str:
    ticks = _ticks(pid)
    after.callback(_continue, pid, ticks)
    os.kill(pid, signal.SIGSTOP)
    scene.wait(lambda: _state(pid) == "T", DONE_WITHIN_S, f"process {pid} is stopped")
    return f"SIGSTOP to pid {pid}, which the kernel shows as stopped"


def _continue(pid: int, ticks: int) -> None:
    if is_running(pid, ticks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _ticks(pid: int) -> int:
    ticks = start_ticks(pid) if pid > 0 else None
    if ticks is None:
        raise Fatal(f"there is no process {pid} any more")
    return ticks


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
