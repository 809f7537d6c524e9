"""Cases of a cut network, run by test_split.py inside a hub's network namespace, never by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed import netns
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import TORCHFT, World
from supervisor.shell.dev.etcd_server import start_etcd
from supervisor.shell.inspect import client
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire.records import RunRecord
from supervisor.wire.security import load
from tests.helpers.measure import measured
from tests.real_trainers.test_lighthouse import commits, joint, pids, quorum_spec, seat

NODES = ("host", "other", "n1", "n2", "n3", "n4")
"""Two service hosts and four nodes, a namespace each; etcd and the supervisor are in the hub."""

HEARTBEAT_S = TORCHFT.heartbeat_timeout_ms / 1000
STUCK_S = TORCHFT.process_group_timeout_ms / 1000


@pytest.fixture(scope="module")
def net() -> netns.Network:
    body = json.loads(os.environ["SPLIT_NETWORK"])
    return netns.Network(body["hub"], body["hub_address"], tuple((a, b) for a, b in body["nodes"]))


@contextmanager
def apart(net: netns.Network, folder: Path) -> Iterator[World]:
    """A world in which every node and service host is a machine of its own."""
    file = folder / "security.toml"
    file.write_text("insecure = true\n")
    security = load(str(file))
    server = start_etcd(folder / "etcd", host=net.hub_address)
    try:
        environment = {"SUPERVISOR_PROGRAMS": json.dumps(TOYS)}
        places = dict(zip(NODES, net.nodes, strict=True))
        made = World(folder, server, 4, environment, security=security, places=places)
        try:
            made.second_host()
            yield made
        finally:
            net.join()
            _end_shims(made)
            made.close()
    finally:
        server.stop()


@pytest.fixture
def w(net: netns.Network, tmp_path: Path) -> Iterator[World]:
    with apart(net, tmp_path) as made:
        yield made


OUT_OF_REACH = ".out-of-reach"


def out_of_reach(w: World, node: str) -> subprocess.Popen[bytes]:
    """Puts this node out of the engine's reach, as of a scheduler's. The engine now signals a process of ours instead.
    The node's lock, by which it would find the shim again, is a copy that no process holds."""
    lock = w.system / "nodes" / node / "shim.lock"
    copy = lock.with_suffix(".copy")
    copy.write_text(lock.read_text())
    copy.rename(lock)
    lock.with_suffix(OUT_OF_REACH).write_text(lock.read_text())
    instead = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    for path in (w.system / "local").glob("allocation-*.json"):
        body = json.loads(path.read_text())
        if body["node"] == node:
            body |= {"pid": instead.pid, "ticks": start_ticks(instead.pid)}
            path.write_text(json.dumps(body))
            return instead
    raise AssertionError(f"no allocation has node {node}")


def _end_shims(w: World) -> None:
    """Ends the shims of nodes that the engine does not reach; it may have started another there meanwhile."""
    nodes = w.system / "nodes"
    for lock in (*nodes.glob(f"n*/shim{OUT_OF_REACH}"), *nodes.glob("n*/shim.lock")):
        pid = int(lock.read_text() or 0)
        ticks = start_ticks(pid) if pid else None
        if ticks is not None and f"--node={lock.parent.name}" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGTERM)
            eventually(lambda pid=pid, ticks=ticks: not is_running(pid, ticks), 30, f"shim {pid} ends")


def index(name: str) -> int:
    return NODES.index(name)


def trains(w: World) -> RunRecord:
    """Waits until two groups step together, with the lighthouse on `host`."""
    w.supervisor()
    eventually(lambda: _registered(w, "host"), 30, "the first host is there")
    record = w.launch(quorum_spec(2))
    eventually(w.running(record, 1, 1), 90, "both groups run")
    joint(w, record, time.time())
    return record


def _registered(w: World, node: str) -> bool:
    return f"/supervisor/v1/nodes/{node}/registration" in w.mirror().items


def old_and_new(w: World, record: RunRecord, group: int, since: float) -> tuple[list[float], list[float]]:
    """Times of the commits since then: of this group's first generation, and of all others."""
    old, new = [], []
    for steps in w.history(record).steps:
        times = [line["t"] for line in steps.committed() if line["t"] > since]
        (old if (steps.group, steps.generation) == (group, 1) else new).extend(times)
    return sorted(old), sorted(new)


def is_alive(pid: int) -> bool:
    return start_ticks(pid) is not None


def on(w: World, record: RunRecord, group: int) -> str:
    return w.status(record).groups[group].node


def test_a_node_cut_off_from_the_control_plane_alone_cannot_bring_its_old_generation_back(
    w: World, net: netns.Network
) -> None:
    """Its peers still hear it. First it is cut off from etcd alone: unknown, hold. Then from the gate too."""
    record = trains(w)
    lost, before = on(w, record, 1), pids(w, record)
    instead = out_of_reach(w, lost)
    cut = time.time()
    net.separate(index(lost), [net.hub_address])
    eventually(lambda: not _registered(w, lost), 30, "its lease lapses")
    eventually(lambda: time.time() - cut > 10, 12)
    joint(w, record, time.time())
    assert w.incidents(record) == [], "it still steps: unknown, hold"
    assert pids(w, record) == before
    fenced = time.time()
    together = max(line["quorum_id"] for _, line in commits(w, record, 0.0))
    net.separate(index(lost), [net.nodes[index("host")][1], net.nodes[index("other")][1]])
    # by then group 1 may already be back elsewhere: so the next quorum, of any groups
    without = eventually(
        lambda: [line["t"] for g, line in commits(w, record, fenced) if g == 0 and line["quorum_id"] > together], 30
    )[0]
    measured("cut off from the gate: the survivor's next commit without it", without - fenced, heartbeat_s=HEARTBEAT_S)
    assert without - fenced < 2 * HEARTBEAT_S + STUCK_S
    eventually(w.running(record, 1, 2), 60, "group 1 runs elsewhere")
    moved = time.time()
    assert on(w, record, 1) != lost
    joint(w, record, moved)
    net.join()
    eventually(lambda: _registered(w, lost), 30, "the lost node is back")
    back = time.time()
    eventually(lambda: time.time() - back > 5, 7)
    old, _ = old_and_new(w, record, 1, without)
    assert old == [], "the old generation never commits again"
    eventually(lambda: not is_alive(before[1]), 30, "its own agent ends it once it hears what is desired")
    w.check(record)
    instead.wait(30)


def test_a_split_with_the_lighthouse_on_the_far_side(w: World, net: netns.Network) -> None:
    """The side with etcd wins; the other one's gate closes at the first loss. Never both."""
    record = trains(w)
    far, near = on(w, record, 1), on(w, record, 0)
    instead = out_of_reach(w, far)
    before, split = pids(w, record), time.time()
    net.split([index("host"), index(far)])
    eventually(lambda: seat(w, record) == ("other", 2), 60, "the lighthouse has moved to the near side")
    measured("split: the lighthouse has moved", time.time() - split)
    opened = time.time()
    first = eventually(lambda: [x["t"] for g, x in commits(w, record, opened) if g == 0], 30, "the near side trains")[0]
    measured("split: the near side steps", first - split)
    measured("split: the near side steps after the next lighthouse listens", first - opened)
    eventually(w.running(record, 1, 2), 60, "group 1 runs on the near side")
    joint(w, record, time.time())
    old, _ = old_and_new(w, record, 1, first)
    assert old == [], "the far side has not trained since"
    assert w.trainer(record, 0).pid == before[0]
    assert on(w, record, 0) == near
    net.join()
    eventually(lambda: _registered(w, "host") and _registered(w, far), 30, "the far side is back")
    joint(w, record, time.time())
    old, _ = old_and_new(w, record, 1, first)
    assert old == []
    assert seat(w, record) == ("other", 2)
    eventually(lambda: not is_alive(before[1]), 30, "the old one is ended by its own agent")
    w.check(record)
    instead.wait(30)


def test_a_lighthouse_cut_off_from_etcd_alone_serves_until_a_group_is_lost_and_then_gives_way(
    w: World, net: netns.Network
) -> None:
    """Its gate lets no group step on without the lost one. Once closed it is unreachable, and another takes over."""
    record = trains(w)
    before = pids(w, record)
    net.separate(index("host"), [net.hub_address])
    eventually(lambda: not _registered(w, "host"), 30, "its lease lapses")
    cut = time.time()
    eventually(lambda: time.time() - cut > 8, 10)
    joint(w, record, time.time())
    assert w.status(record).lighthouse.state == "mute", "all groups reach it: unknown, hold"
    lost = time.time()
    os.kill(before[1], signal.SIGKILL)
    eventually(lambda: seat(w, record) == ("other", 2), 60, "the lighthouse has moved")
    eventually(w.running(record, 1, 2), 60, "group 1 runs again")
    joint(w, record, time.time())
    measured("lighthouse cut off from etcd alone, and a group lost: all step together", time.time() - lost)
    assert w.trainer(record, 0).pid == before[0]
    net.join()
    eventually(lambda: _registered(w, "host"), 30, "its host is back")
    joint(w, record, time.time())
    assert seat(w, record) == ("other", 2)
    w.check(record)


def test_a_split_with_everybody_but_etcd_on_the_far_side(w: World, net: netns.Network) -> None:
    """They hear each other and train on. On etcd's side nothing is opened or started; afterwards all is as before."""
    record = trains(w)
    before, split = pids(w, record), time.time()
    net.split([index("host"), index("n1"), index("n2"), index("n3"), index("n4")])
    eventually(lambda: not _registered(w, "host") and not _registered(w, on(w, record, 1)), 30, "their leases lapse")
    eventually(lambda: time.time() - split > 20, 22)
    joint(w, record, time.time())
    assert w.incidents(record) == []
    net.join()
    eventually(lambda: _registered(w, "host") and _registered(w, on(w, record, 1)), 30, "they are back")
    joint(w, record, time.time())
    eventually(lambda: seat(w, record) == ("host", 1), 15, "its gate is heard again, and was never closed")
    assert pids(w, record) == before
    assert w.incidents(record) == []
    client.restart(w.store, record, 1)
    eventually(w.running(record, 1, 2), 60, "and the supervisor acts again")
    w.check(record)
