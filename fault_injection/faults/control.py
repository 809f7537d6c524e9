"""Makes the faults of the control plane: of the supervisor, the lighthouse and etcd."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress

from fault_injection.faults.fault import Scene, Target
from fault_injection.faults.processes import DONE_WITHIN_S, end, go_on, house_of, listed_pids, state, stop, ticks_of
from fault_injection.testbed.etcds import slow_disk
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.etcd.errors import OutOfSpace
from supervisor.shell.processes import is_running

FILL_BYTES = 1 << 20
"""Below etcd's limit of 1.5 MiB for a request."""

FSYNC_LATER_S = 0.4

LATE_S, IN_TIME_S = 0.1, 0.05
"""Below the allowed lateness of the gate's heartbeats (agents.gate.lighthouse_child.BEAT_TIMEOUT_MS)."""

LOOKS = 40
"""Looks at a process that is repeatedly stopped: a second of them."""

AT_FAILPOINT = "committed"

LEADERS = ("observed", "decided", "journaled", "committed", "recorded")
"""Failpoints of a leader's round, in order. From `journaled` on, only a round that writes something passes them."""


def leader_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return end(scene, scene.leader_pid(), signal.SIGKILL)


def leader_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return stop(scene, scene.leader_pid(), after)


def lighthouse_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return end(scene, scene.gate_pids()[1], signal.SIGKILL)


def lighthouse_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    return stop(scene, scene.gate_pids()[1], after)


def gate_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    return end(scene, scene.gate_pids()[0], signal.SIGKILL)


def lighthouse_delayed(scene: Scene, target: Target, after: ExitStack) -> str:
    """Stops the lighthouse repeatedly, each time for less than the gate's heartbeats may be late."""
    pid = scene.gate_pids()[1]
    ticks, enough = ticks_of(pid), threading.Event()

    def delay() -> None:
        while not enough.is_set() and is_running(pid, ticks):
            os.kill(pid, signal.SIGSTOP)
            enough.wait(LATE_S)
            os.kill(pid, signal.SIGCONT)
            enough.wait(IN_TIME_S)

    thread = threading.Thread(target=delay, name="delay", daemon=True)
    after.callback(go_on, pid, ticks)
    after.callback(thread.join)
    after.callback(enough.set)
    thread.start()
    looks: list[bool] = []

    def seen() -> bool:
        looks.append(state(pid) == "T")
        return looks[-LOOKS:].count(True) >= LOOKS // 2 and looks[-LOOKS:].count(False) > 0

    scene.wait(seen, DONE_WITHIN_S, f"process {pid} is stopped again and again")
    spells = sum(one < two for one, two in itertools.pairwise([False, *looks]))
    return f"pid {pid} answers up to {LATE_S:g} s late: of {len(looks)} looks {sum(looks)} saw it stopped, in {spells} spells with it running between them"


def etcd_killed(scene: Scene, target: Target, after: ExitStack) -> str:
    """Kills all members at once."""
    members = {pid: ticks_of(pid) for pid in scene.etcd_pids()}
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    for pid, ticks in members.items():
        scene.wait(lambda: not is_running(pid, ticks), DONE_WITHIN_S, f"etcd, pid {pid}, ends")  # noqa: B023
    return f"SIGKILL to pid {listed_pids(members)}, which has ended"


def etcd_stopped(scene: Scene, target: Target, after: ExitStack) -> str:
    """Stops all members at once."""
    return "; ".join(stop(scene, pid, after) for pid in scene.etcd_pids())


def etcd_leader_lost(scene: Scene, target: Target, after: ExitStack) -> str:
    house = house_of(scene)
    lost = house.etcds.leader()
    after.callback(house.bring_back)
    house.lose([lost])
    return f"member m{lost}, which led, is killed; m{house.etcds.leader()} leads"


def etcd_quorum_lost(scene: Scene, target: Target, after: ExitStack) -> str:
    house = house_of(scene)
    lost = house.etcds.leader()
    after.callback(house.bring_back)
    house.lose([lost, (lost + 1) % len(house.etcds.members)])
    try:
        scene.revision()
    except Retryable as error:
        return f"two of three members are killed: {error}"
    raise Fatal("etcd still answers with one member of three")


def etcd_out_of_space(scene: Scene, target: Target, after: ExitStack) -> str:
    """Fills etcd with old revisions of one key, as a program does that writes too much between two compactions."""
    house = house_of(scene)
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
    house = house_of(scene)
    after.enter_context(slow_disk(scene.etcd_pids(), FSYNC_LATER_S, house.folder / "strace.log"))
    began = time.monotonic()
    with suppress(Retryable):
        scene.write(1)
    took = time.monotonic() - began
    if took < FSYNC_LATER_S:
        raise Fatal(f"a write to etcd took {took:.2f} s: its disk is not slow")
    return f"each fsync of etcd takes {FSYNC_LATER_S:g} s longer: a write took {took:.2f} s"


def etcd_compacted(scene: Scene, target: Target, after: ExitStack) -> str:
    """Compacts etcd while the leader is stopped: what its watch would read next is gone when it continues."""
    stop(scene, scene.leader_pid(), after)
    seen = scene.revision()
    scene.wait(lambda: scene.revision() > seen + 1, DONE_WITHIN_S, "someone writes to etcd")
    newest = scene.revision()
    scene.compact(newest)
    return f"etcd is compacted up to revision {newest}; the leader, stopped, had seen {seen} at the most"


def failpoint(scene: Scene, target: Target, after: ExitStack) -> str:
    """Makes the next leader die where the plan names, or right after it has committed a decision, before its effect."""
    house, where = house_of(scene), target.failpoint or AT_FAILPOINT
    after.callback(house.disarm)
    once = house.arm(where)
    end(scene, scene.leader_pid(), signal.SIGKILL)
    said = end(scene, target.pid, signal.SIGKILL)
    scene.wait(once.exists, DONE_WITHIN_S, f"a leader reaches the failpoint {where}")
    house.disarm()
    return f"{said}; the leader has died at the failpoint {where}"
