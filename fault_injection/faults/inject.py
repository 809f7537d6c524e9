"""Makes the faults of ranks, agents and nodes. The healing of each goes on the stack before anything is broken."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

from fault_injection.faults import acts
from fault_injection.faults.fault import Inject, Scene, Target
from fault_injection.faults.processes import DONE_WITHIN_S, end, house_of, listed_pids, stop
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.testbed import connections
from fault_injection.testbed.memory_cgroup import memory_cgroup
from supervisor.ports.errors import Fatal
from supervisor.wire import sockets
from supervisor.wire.checkpoints import listed
from supervisor.wire.records import CheckpointMark

SHIM_LOOKS_S = 2.0
"""The shim notes the cgroups of its processes once a second."""

HOG_HAS = 96 << 20
"""Bytes that a rank may still take before the kernel kills it for memory."""

SLOWER_S = 0.5
"""Seconds that each step of a slow rank takes longer: more than a step of the debug model."""

LENGTHS = 4
"""Longer steps after which a rank counts as slow."""

NEARLY = 0.9
"""Share of SLOWER_S that counts: steps are not all alike."""

STEPS_AHEAD = 10
"""Enough for every rank to read its order before that step."""

LEFT_OUT_WITHIN_S = 120.0
"""Seconds for two starts in place and one on another node."""

MOST_STARTS = 10
"""More starts than a group has before it is suspended."""

HALTS_WITHIN_S = 60.0
"""Seconds within which the run halts: the last groups end when their collectives time out."""

BEGINS_WITHIN_S = 120.0
"""Seconds from the end of all ranks to their first step: time for a start, not for the bound of a hang."""

HEALS_FOR_S = 30.0
"""Seconds long enough to be killed in it; a heal of the debug model takes milliseconds."""

AHEAD_S = 10_800.0
"""Seconds, longer than any timeout."""


def signalled(number: signal.Signals) -> Inject:
    """Returns a fault that sends a signal to one rank, which ends."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return end(scene, target.pid, number)

    return inject


def stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    """Sends SIGSTOP to one rank, and SIGCONT in the end if it is still there."""
    return stop(scene, target.pid, after)


def ordered(cause: str, seconds: float = 0.0) -> Inject:
    """Returns a fault that the rank does to itself, at the right place of its next step."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        return _ordered(scene, target, after, Order(cause=cause, seconds=seconds))

    return inject


def until_restarted(cause: str, seconds: float = 0.0) -> Inject:
    """Returns a fault as `ordered`, of a kind that no supervisor mends: in the end a person restarts the group."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        after.callback(scene.restart, target.group)
        return _ordered(scene, target, after, Order(cause=cause, seconds=seconds))

    return inject


def slowed(scene: Scene, target: Target, after: ExitStack) -> str:
    """Slows a rank until a person restarts it. Its records show how long its steps take."""
    since = time.time()
    said = until_restarted(causes.SLOW, SLOWER_S)(scene, target, after)
    usual: list[float] = []
    now: list[float] = []

    def is_slower() -> bool:
        lengths = [(x["start"], x["t"] - x["start"]) for x in _lines(scene, target) if x.get("committed")]
        usual[:] = [length for start, length in lengths if start < since][-LENGTHS:-1]  # the last may be slow already
        now[:] = [length for start, length in lengths if start >= since][-LENGTHS:]
        return len(now) == LENGTHS and min(now) >= SLOWER_S and median(now) >= median(usual) + NEARLY * SLOWER_S

    scene.wait(is_slower, DONE_WITHIN_S, f"the steps of group {target.group} take {SLOWER_S:g} s longer")
    return f"{said}; its steps take {median(now):.2f} s, {median(usual):.2f} s before"


def bit_flipped(scene: Scene, target: Target, after: ExitStack) -> str:
    """Flips a bit that stays until a person restarts the group. The rank's records show which bit it was."""
    said = until_restarted(causes.FLIP_BIT)(scene, target, after)
    flipped: dict[str, Any] = {}

    def is_told() -> bool:
        flipped.update(next((x for x in _lines(scene, target) if x.get("event") == "flipped"), {}))
        return bool(flipped)

    scene.wait(is_told, DONE_WITHIN_S, "the rank says which bit it flipped")
    return f"{said}: bit {flipped['bit']} of element {flipped['element']} of parameter {flipped['parameter']}, at step {flipped['step']}"


def raised_everywhere(scene: Scene, target: Target, after: ExitStack) -> str:
    """Makes every rank raise at one step. The program is at fault, so the run is halted, and a person resumes it."""
    step = target.step + STEPS_AHEAD
    whom = list(scene.ranks())

    def goes_on_if_halted() -> None:
        if scene.phase() == "halted":
            scene.resume("what was wrong with the program is mended")
            scene.wait(lambda: scene.phase() == "running", HALTS_WITHIN_S, "the run goes on")

    after.callback(goes_on_if_halted)
    for each in whom:
        _order(scene, after, each, Order(cause=causes.RAISE, at_step=step))
    scene.wait(lambda: scene.phase() == "halted", HALTS_WITHIN_S, "the run is halted")
    goes_on_if_halted()
    done = [causes.done_at(scene.run_dir, *each) for each in whom]
    if None in done:
        raise Fatal(f"{done.count(None)} of {len(whom)} ranks have not raised")
    return f"{len(whom)} ranks raised at step {step}: the run was halted, and resumed by a person"


def raised_always(scene: Scene, target: Target, after: ExitStack) -> str:
    """Makes a rank raise at each start, on every node, until its group is suspended. A person then removes the cause
    and has the group started again."""
    whom = (target.group, causes.EVERY, target.rank)

    def starts_again_if_left_out() -> None:
        if scene.left_out(target.group):
            scene.restart(target.group)
            scene.wait(
                lambda: not scene.left_out(target.group), HALTS_WITHIN_S, f"group {target.group} is asked for again"
            )

    after.callback(starts_again_if_left_out)  # the order is withdrawn before
    _order(scene, after, whom, Order(cause=causes.RAISE))
    scene.wait(lambda: scene.left_out(target.group), LEFT_OUT_WITHIN_S, f"group {target.group} is left out")
    raised = [n for n in range(target.generation, target.generation + MOST_STARTS) if _has_raised(scene, target, n)]
    if len(raised) < 2:
        raise Fatal(f"rank {target.rank} of group {target.group} has raised in {len(raised)} generations")
    causes.withdraw(scene.run_dir, *whom)
    starts_again_if_left_out()
    return (
        f"rank {target.rank} of group {target.group} raised in generations {', '.join(map(str, raised))}: the group was left out, "
        "and started again by a person"
    )


def _has_raised(scene: Scene, target: Target, generation: int) -> bool:
    return causes.done_at(scene.run_dir, target.group, generation, target.rank) is not None


def for_memory(scene: Scene, target: Target, after: ExitStack) -> str:
    cgroup = after.enter_context(memory_cgroup(f"{target.group}-{target.generation}"))
    cgroup.add(target.pid)
    time.sleep(SHIM_LOOKS_S)
    cgroup.limit(cgroup.used() + HOG_HAS)
    _ordered(scene, target, after, Order(cause=causes.HOG))
    scene.wait(lambda: cgroup.kills() > 0, DONE_WITHIN_S, "the kernel kills for memory")
    return f"the kernel has counted a kill for memory in the cgroup of pid {target.pid}"


def aborted(scene: Scene, target: Target, after: ExitStack) -> str:
    """Makes the process group between the groups fail under whatever runs in it."""
    folder, at = _rank_folder(scene, target), time.time()
    with sockets.connect(folder / "command.sock", timeout_s=5.0) as command, command.makefile("rwb") as lines:
        lines.write(b'{"do":"abort"}\n')
        lines.flush()
        answer = json.loads(lines.readline() or b"{}")
    if not answer.get("ok"):
        raise Fatal(f"group {target.group} rank {target.rank} did not abort: {answer.get('error', 'no answer')}")
    failed: list[int] = []

    def has_failed() -> bool:
        lines = (x for x in _lines(scene, target) if x.get("event") == "step" and x["t"] >= at)
        failed[:] = [int(x["step"]) + 1 for x in lines if not x["committed"]]
        return bool(failed)

    scene.wait(has_failed, DONE_WITHIN_S, f"a step of group {target.group} is not committed")
    return f"rank {target.rank} has aborted its process group: it did not commit step {failed[0]}"


def disk_full(scene: Scene, target: Target, after: ExitStack) -> str:
    after.callback((target.folder / acts.FILLER).unlink, missing_ok=True)
    return acts.fill_disk(target.group, target.node, target.folder).evidence


def agent_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    pid = scene.agent_pid(target.node)
    said = end(scene, pid, signal.SIGKILL)
    scene.wait(lambda: scene.agent_pid(target.node) not in (0, pid), DONE_WITHIN_S, "the shim starts the next agent")
    return said


def agent_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return stop(scene, scene.agent_pid(target.node), after)


def node_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.kill_node(target)


def node_cut(scene: Scene, target: Target, after: ExitStack) -> str:
    house = house_of(scene)
    after.callback(house.mend, target.node)
    house.cut(target.node)
    return f"the kernel shows the link of {target.node} as down"


def agent_cut_off(scene: Scene, target: Target, after: ExitStack) -> str:
    house = house_of(scene)
    after.callback(house.hear, target.node)
    house.cut_off(target.node)
    scene.wait(lambda: scene.agent_pid(target.node) == 0, DONE_WITHIN_S, f"the lease of {target.node} lapses")
    return f"{target.node} does not reach etcd: its lease has lapsed"


def clock_moved(scene: Scene, target: Target, after: ExitStack) -> str:
    """Moves the clock of a node's agent, which is restarted for it before and after."""
    house, node = house_of(scene), target.node

    def everybodys() -> None:
        house.clocks.back(node)
        with suppress(Fatal):  # its node is gone
            end(scene, scene.agent_pid(node), signal.SIGKILL)

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


def connections_reset(scene: Scene, target: Target, after: ExitStack) -> str:
    """Resets all connections between this rank and those of the other groups."""
    others = [pid for (group, _, _), pid in scene.ranks().items() if group != target.group]
    found = connections.between(target.pid, others)
    for local, peer in found:
        connections.end(target.pid, local, peer)
    left = set(connections.between(target.pid, others)) & set(found)
    if not found or left:
        raise Fatal(
            f"of {len(found)} connections between pid {target.pid} and {listed_pids(others)} {len(left)} are left"
        )
    return f"{len(found)} connections between pid {target.pid} and {listed_pids(others)} were ended by the kernel"


def checkpoint_torn(scene: Scene, target: Target, after: ExitStack) -> str:
    """Tears the newest checkpoint and kills all groups: they must begin from the one before it."""
    scene.wait(lambda: len(_complete(scene)) > 1, DONE_WITHIN_S, "there are two checkpoints")
    torn, before = _complete(scene)[:2]
    largest = max(Path(torn.path).iterdir(), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    killed = {target.group: target.generation}
    for (group, generation, _), pid in scene.ranks().items():
        killed[group] = generation
        os.kill(pid, signal.SIGKILL)
    if _complete(scene)[0] != torn:
        raise Fatal(f"a newer checkpoint than {torn.path} was written meanwhile")
    first: dict[int, int] = {}

    def begins_again() -> bool:
        first.update(_first_steps(scene, target, killed))
        return target.group in first

    scene.wait(begins_again, BEGINS_WITHIN_S, f"group {target.group} commits a step again")
    group = min(first, key=lambda each: first[each])  # a group that is back later heals from it
    if first[group] != before.step + 1:
        raise Fatal(f"group {group} began again with step {first[group]}, not with {before.step + 1}")
    return (
        f"{largest} is cut off in its middle, all ranks killed: they went on from step {before.step}, the one before it"
    )


def heal_source_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    """Kills the other groups first: one that is back can heal only from this group. This rank is killed meanwhile."""
    whom = (target.group, target.generation, target.rank)
    _order(scene, after, whom, Order(cause=causes.HOLD_HEAL, seconds=HEALS_FOR_S))
    for (group, _, _), pid in scene.ranks().items():
        if group != target.group:
            os.kill(pid, signal.SIGKILL)
    scene.wait(
        lambda: causes.done_at(scene.run_dir, *whom) is not None, BEGINS_WITHIN_S, "a group that is back heals from it"
    )
    return f"while another group healed from it: {end(scene, target.pid, signal.SIGKILL)}"


def gpu_fails(told: str, dies: bool = False, **says: Any) -> Inject:
    """Returns a fault that the driver reports and the agent passes on. `dies`: the rank that uses the GPU then ends."""

    def inject(scene: Scene, target: Target, after: ExitStack) -> str:
        house = house_of(scene)
        after.callback(house.gpus.say, target.node)
        house.gpus.say(target.node, **says)
        scene.wait(lambda: told in scene.told(target.node), DONE_WITHIN_S, f"the agent of {target.node} tells {told}")
        ended = f"; {end(scene, target.pid, signal.SIGABRT)}" if dies else ""
        return f"the driver on {target.node} says {says}, its agent tells {told}{ended}"

    return inject


def allocation_gone(scene: Scene, target: Target, after: ExitStack) -> str:
    return scene.take_allocation(target)


def _complete(scene: Scene) -> list[CheckpointMark]:
    """Returns the marks of the complete checkpoints, newest first."""
    return [mark for _, _, mark in listed(scene.run_dir) if mark is not None]


def _first_steps(scene: Scene, target: Target, killed: Mapping[int, int]) -> dict[int, int]:
    """Maps each group to the step that it committed first after its generation in `killed`, if it has."""
    found: dict[int, int] = {}
    for group, before in killed.items():
        newer = []
        for path in target.folder.parent.glob(f"*/ranks/{scene.run}.{group}.*.0/steps.jsonl"):
            generation = int(path.parent.name.split(".")[2])
            lines = path.read_bytes().split(b"\n")[:-1]
            steps = [line["step"] for line in map(json.loads, lines) if line.get("committed")]
            if generation > before and steps:
                newer.append((generation, steps[0]))
        if newer:
            found[group] = min(newer)[1]
    return found


def _rank_folder(scene: Scene, target: Target) -> Path:
    return target.folder / "ranks" / f"{scene.run}.{target.group}.{target.generation}.{target.rank}"


def _lines(scene: Scene, target: Target) -> list[dict[str, Any]]:
    """Returns its step records so far, without the last line, which may be incomplete."""
    rows = (_rank_folder(scene, target) / "steps.jsonl").read_bytes().split(b"\n")[:-1]
    return [json.loads(row) for row in rows]


def _ordered(scene: Scene, target: Target, after: ExitStack, wanted: Order) -> str:
    whom = (target.group, target.generation, target.rank)
    _order(scene, after, whom, wanted)
    begun = f"the rank does as ordered ({wanted.cause})"
    scene.wait(lambda: causes.done_at(scene.run_dir, *whom) is not None, DONE_WITHIN_S, begun)
    return f"pid {target.pid} has begun it: {wanted.cause}"


def _order(scene: Scene, after: ExitStack, whom: tuple[int, int, int], wanted: Order) -> None:
    """Gives an order, withdrawn in the end even if the rank never began it. `whom`: group, generation, rank."""
    after.callback(causes.withdraw, scene.run_dir, *whom)
    causes.order(scene.run_dir, *whom, wanted)
