"""The doctor's conclusions from given observations; a live system tests the observations."""

from __future__ import annotations

import fcntl
import io
import math
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.memory import GroupMemory, Lighthouse, Memory
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import PolicySpec, RunSpec
from supervisor.core.timeouts import solver as core_timeouts
from supervisor.ports.store import Item, Snapshot
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.home import system_folder
from supervisor.shell.dev.up_lock import POOL_LOCK
from supervisor.shell.etcd import StoreStatus
from supervisor.shell.etcd.convert import range_of
from supervisor.shell.inspect import doctor
from supervisor.shell.inspect.doctor import environment, machine, ports, store, system, timeouts, trust
from supervisor.shell.inspect.doctor.finding import Finding
from supervisor.wire import keys, node_requests
from supervisor.wire.kernel_clock import synchronised
from supervisor.wire.records import (
    GateGroup,
    GateObserved,
    GatePresence,
    LeaderRecord,
    NodeObserved,
    Registration,
    Restoring,
    RunRecord,
    TrainerObserved,
    encode,
)
from supervisor.wire.security import Security
from tests.helpers import site

DAY = 86400.0


def levels(found: Any) -> list[str]:
    return [f.level for f in found]


def only(found: Any, level: str) -> Finding:
    (one,) = [f for f in found if f.level == level]
    assert one.level == "good" or one.do, "a finding that is not good says what to do"
    return one


# --- the machine ---


@pytest.mark.parametrize(
    ("status", "level"), [(0x0040, "note"), (0x0040 | 0x2001, "note"), (0x2001, "good"), (0, "good"), (None, "note")]
)
def test_a_clock_that_nobody_keeps_is_a_note(status: int | None, level: str) -> None:
    assert machine.clock(None if status is None else synchronised(0, status)).level == level


@pytest.mark.parametrize(
    ("uid", "there", "what", "do"),
    [(0, True, "", ""), (0, False, "no `ip` command", "apt-get install iproute2"), (1000, True, "not root", "as root")],
)
def test_what_a_silent_loss_lacks_is_named(
    uid: int, there: bool, what: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        (tmp_path / "ip").write_text("#!/bin/sh\n")
        (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    notes = [f for f in machine.namespaced() if f.level == "note"]
    assert [(f.what.startswith(what), do in f.do) for f in notes] == [(True, True)] * bool(what)


def test_the_kernel_is_asked_for_its_clock() -> None:
    assert machine.clock_is_synchronised() in (True, False, None)


def _gone() -> str:
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


def test_an_orphan_is_known_by_its_exact_folder_and_its_dead_shim(tmp_path: Path) -> None:
    dead, alive = _gone(), str(os.getpid())

    def of(folder: Path, shim: str, pid: str = "1") -> str:
        variables = {"A": "1", "SUPERVISOR_NODE_DIR": str(folder), "SUPERVISOR_SHIM_PID": shim}
        return machine.orphan(variables, tmp_path, pid)

    assert of(tmp_path / "nodes" / "n1", dead) == dead
    assert of(tmp_path / "nodes" / "n1", alive) == ""
    assert of(tmp_path / "nodes" / "n1", dead, pid=dead) == "", "the shim itself"
    assert of(Path(f"{tmp_path}2") / "nodes" / "n1", dead) == "", "another home whose name begins with ours"
    assert of(tmp_path / "nodes2" / "n1", dead) == ""
    assert machine.orphan({"SUPERVISOR_SHIM_PID": dead}, tmp_path, "1") == ""
    assert machine.orphan({}, tmp_path, "1") == ""


def test_a_namespace_is_left_over_when_the_process_in_its_name_is_gone() -> None:
    dead = _gone()
    listed = f"sv{dead}-hub (id: 3)\nsv{os.getpid()}-n1\nsvx-n1\nother\nsv{dead}\n\nsv{dead}-n1\n"
    assert machine.dead_namespaces(listed) == [f"sv{dead}-hub", f"sv{dead}-n1"]


# --- etcd ---

STATUS = StoreStatus(
    endpoint="h:1",
    version="3.4.23",
    db_size=2**20,
    has_leader=True,
    members=("m0", "m1", "m2"),
)


def test_an_etcd_of_three_with_a_leader_is_good() -> None:
    assert set(levels(store.server(STATUS, 2**31))) == {"good"}


def test_what_ails_an_etcd_is_said_with_the_mend() -> None:
    assert "3.6.14" in only(store.server(replace(STATUS, version="3.5.1"), None), "note").do
    assert only(store.server(replace(STATUS, alarms=("run etcdctl",)), None), "bad").do == "run etcdctl"
    assert "no leader" in only(store.server(replace(STATUS, has_leader=False), None), "bad").what
    assert "majority" in only(store.server(replace(STATUS, members_unknown="away"), None), "bad").do
    assert "one member" in only(store.server(replace(STATUS, members=STATUS.members[:1]), None), "note").what
    assert "2 members" in only(store.server(replace(STATUS, members=STATUS.members[:2]), None), "note").what


@pytest.mark.parametrize(
    ("used", "quota", "level"), [(79, 100, "good"), (80, 100, "bad"), (200, 100, "bad"), (5, None, "good")]
)
def test_a_database_near_its_quota_is_bad(used: int, quota: int | None, level: str) -> None:
    assert store.size(used, quota).level == level


@pytest.mark.parametrize(
    ("worst", "ttl", "level"),
    [(0.01, 5, "good"), (0.6, 5, "note"), (1.7, 5, "bad"), (0.6, 60, "good"), (9.0, 0, "good")],
)
def test_round_trips_are_held_against_the_shortest_lease(worst: float, ttl: int, level: str) -> None:
    assert levels(store.pace([0.001, 0.001, worst], ttl)) == [level]


def _margin(left: int, ttl: int = 9) -> store.Margin:
    return store.Margin(key=keys.registration("n1"), ttl_s=ttl, left_s=left)


@pytest.mark.parametrize(("left", "level"), [(9, "good"), (3, "good"), (2, "bad"), (0, "bad"), (-1, "bad")])
def test_a_lease_with_less_than_a_third_left_is_bad(left: int, level: str) -> None:
    assert levels(store.leases([_margin(left)])) == [level]


@pytest.mark.parametrize(("left", "level"), [(1, "good"), (0, "good"), (-1, "bad")])
def test_of_a_short_lease_whole_seconds_say_little(left: int, level: str) -> None:
    """0 may be 0.9 of 2 s."""
    assert levels(store.leases([_margin(left, ttl=2)])) == [level]


def test_the_late_lease_is_named_and_the_others_are_not_called_good() -> None:
    (found,) = store.leases([_margin(2), _margin(9)])
    assert "nodes/n1/registration has 2 of 9 s left" in found.what
    assert list(store.leases([])) == []


# --- ports ---

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   2: 00000000:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
   3: 00000000:1F93 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100 0 0 10 0
   4: 00000000000000000000000000000000:1F94 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 15 1 0
"""


def test_a_port_counts_when_one_of_the_sockets_listens_on_every_address() -> None:
    assert list(ports.wildcard_ports(TABLE, {"11", "12", "14", "15"})) == [8080, 8084]


def test_a_machine_with_loopback_alone_reaches_nobody() -> None:
    head = "Iface\tDestination\tGateway\n"
    assert not ports.leaves_loopback(head)
    assert not ports.leaves_loopback(head + "lo\t0000007F\t0\n")
    assert ports.leaves_loopback(head + "lo\t0000007F\t0\neth0\t00000000\t0\n")


def test_our_own_listener_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "leaves_loopback", lambda _: True)
    with socket.create_server(("0.0.0.0", 0)) as wide, socket.create_server(("127.0.0.1", 0)) as narrow:
        seen = ports.everywhere(Path("/proc/self"))
        assert wide.getsockname()[1] in seen
        assert narrow.getsockname()[1] not in seen


# --- trust ---


@pytest.mark.parametrize(("left", "level"), [(-1.0, "bad"), (0.0, "bad"), (9 * DAY, "note"), (11 * DAY, "good"), (math.inf, "good")])  # fmt: skip
def test_a_certificate_is_noted_ten_days_before_it_expires(left: float, level: str) -> None:
    assert trust.expiry("it", 1000.0 + left, 1000.0).level == level


def test_how_we_talk() -> None:
    tls = Security(ca="a", cert="b", key="c")
    assert trust.talk(["https://h:1"], tls).what.startswith("TLS")
    assert trust.talk(["http://127.0.0.1:1"], tls).level == "good"
    assert trust.talk(["h:1"], Security(insecure=True)).level == "note"


def _own(prefix: str, writes: bool) -> trust.Permission:
    return (*range_of(prefix), writes)


REQUESTS = [_own(node_requests.asked("n1", ""), False), _own(node_requests.ANSWERS + "n1/", True)]
NODE = [_own(keys.desired("n1", ""), False), _own(keys.NODES + "n1/", True), *REQUESTS]
OURS = [_own(keys.PREFIX, True), _own(node_requests.PREFIX, True)]


def test_a_user_that_may_what_init_auth_gave_it_is_good() -> None:
    assert levels(trust.surplus("supervisor", OURS)) == ["good"]
    assert levels(trust.surplus("reader", [_own(keys.PREFIX, False)])) == ["good"]
    assert levels(trust.surplus("node-n1", NODE)) == ["good"]


def test_what_a_user_may_too_much_or_too_little_is_named() -> None:
    wide = list(trust.surplus("reader", [_own(keys.PREFIX, False), _own(keys.RUNS, True)]))
    assert only(wide, "bad").what == f"user reader may write {keys.RUNS}, which it must not"
    raised = list(trust.surplus("node-n1", [_own(keys.desired("n1", ""), True), *NODE[1:]]))
    assert {f.what for f in raised} == {
        f"user node-n1 may write {keys.DESIRED}n1/, which it must not",
        f"user node-n1 may not read {keys.DESIRED}n1/, which it must",
    }
    assert "may not write" in only(trust.surplus("supervisor", OURS[:1]), "bad").what
    assert "everything" in next(
        f.what for f in trust.surplus("supervisor", [(b"\0", b"\0", True)]) if "must not" in f.what
    )
    assert levels(trust.surplus("root", [])) == ["note"]
    assert levels(trust.surplus("somebody", [])) == ["bad"]


# --- the live system ---

SEAT = Lighthouse(node="host", generation=2, address="127.0.0.1:1")
MEMORY = Memory(
    phase="running",
    lighthouse=SEAT,
    groups={0: GroupMemory(group=0, generation=3, seats=(Seat("n1"),), phase="running")},
)


def _registration(node: str) -> bytes:
    return encode(
        Registration(node=node, address="a", role="trainer", allocation="x", slots=1, agent_pid=1, version="v")
    )


def _trainer(**about: Any) -> bytes:
    values = {"run": "run", "group": 0, "generation": 3, "rank": 0, "pid": 9, "state": "running", **about}
    return encode(NodeObserved(node="n1", sequence=1, trainers=(TrainerObserved(**values),)))


def _mirror(**values: bytes) -> Mirror:
    places = {
        "host": keys.registration("host"),
        "n1": keys.registration("n1"),
        "seen": keys.observed("n1"),
        "gate": keys.gate("host", "run"),
        "presence": keys.gate_presence("host", "run"),
        "leader": keys.LEADER,
        "restoring": keys.RESTORING,
    }
    return Mirror(Snapshot(1, tuple(Item(places[name], value, 7, 7) for name, value in values.items())))


def _gate(hearing: Any, generation: int = 3) -> bytes:
    groups = (GateGroup(group=0, generation=generation, hearing=hearing),)
    return encode(GateObserved(run="run", node="host", generation=2, address="127.0.0.1:1", groups=groups))


PRESENT = encode(GatePresence(run="run", node="host", generation=2))


def _forwarders(memory: Memory = MEMORY, **about: Any) -> list[Finding]:
    return list(system.forwarders(_mirror(n1=_registration("n1"), seen=_trainer(**about)), "run", memory))


def test_a_forwarder_that_reaches_the_seat_is_good_and_others_are_named() -> None:
    assert levels(_forwarders(gate="127.0.0.1:1", reaches_gate=True)) == ["good"]
    assert "forwards to h:2, the seat is 127.0.0.1:1" in only(_forwarders(gate="h:2", reaches_gate=True), "bad").what
    assert "forwards to no gate" in only(_forwarders(gate="", reaches_gate=False), "bad").what
    assert "does not reach the gate" in only(_forwarders(gate="127.0.0.1:1", reaches_gate=False), "bad").what


def test_what_is_not_known_or_not_current_is_no_finding() -> None:
    assert _forwarders() == []
    assert _forwarders(gate="h:2", reaches_gate=False, generation=2) == []
    assert _forwarders(gate="h:2", reaches_gate=False, state="exited") == []
    assert list(system.forwarders(_mirror(seen=_trainer(gate="h:2")), "run", MEMORY)) == []


def _lighthouse(memory: Memory = MEMORY, **values: bytes) -> list[Finding]:
    return list(system.lighthouse(_mirror(**values), "run", memory))


def test_a_gate_that_listens_and_hears_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "connects", lambda _: "")
    assert levels(_lighthouse(host=_registration("host"), presence=PRESENT, gate=_gate("beating"))) == ["good"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"presence": PRESENT}, "the agent of its host is silent"),
        ({"host": _registration("host")}, "does not reach etcd"),
        ({"host": _registration("host"), "presence": PRESENT, "gate": _gate("silent")}, "hears group 0 as silent"),
        ({"host": _registration("host"), "presence": PRESENT, "gate": _gate("beating", 2)}, "admits its generation 2"),
    ],
)
def test_what_ails_a_lighthouse_is_named(values: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "connects", lambda _: "")
    assert words in only(_lighthouse(**values), "bad").what


@pytest.mark.parametrize("hearing", ["absent", "holding"])
def test_a_group_that_is_on_its_way_to_the_gate_is_a_note(hearing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "connects", lambda _: "")
    found = _lighthouse(host=_registration("host"), presence=PRESENT, gate=_gate(hearing))
    assert f"hears group 0 as {hearing}" in only(found, "note").what
    assert sorted(levels(found)) == ["good", "note"]


def test_a_gate_that_takes_no_connection_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        assert system.connects(taken) == ""
    assert system.connects(taken) != ""
    assert system.connects("nonsense") != ""
    seat = replace(MEMORY, lighthouse=replace(SEAT, address=taken))
    found = _lighthouse(seat, host=_registration("host"), presence=PRESENT)
    assert f"{taken} takes no connection" in only(found, "bad").what


def test_no_seat_and_a_seat_that_is_not_open() -> None:
    assert "no lighthouse" in only(_lighthouse(Memory()), "bad").what
    closed = replace(MEMORY, lighthouse=replace(SEAT, address=""))
    assert "not open" in only(_lighthouse(closed, host=_registration("host"), presence=PRESENT), "note").what


def test_what_an_environment_holds_is_told_with_what_becomes_of_it() -> None:
    of = {**site.OUTER_JOB, **site.PROXY, "LD_PRELOAD": "/x.so", "PATH": "/bin"}
    of |= {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "ib0", "XNCCL_DEBUG": "1"}
    found = list(environment.findings(of, "this shell's environment"))
    said = [finding.what for finding in found]
    assert {finding.level for finding in found} == {"note"}
    assert any("TORCHFT_MANAGER_PORT" in what and "[torchft]" in what for what in said)
    assert any("MASTER_ADDR" in what and "another job" in what for what in said)
    assert any("LD_PRELOAD" in what for what in said)
    assert any(": GLOO_SOCKET_IFNAME=ib0, NCCL_IB_HCA=mlx5: the ranks of all runs get them" in what for what in said)
    assert any("http_proxy, HTTP_PROXY" in what and "webhooks" in what for what in said)
    assert list(environment.findings({"PATH": "/bin"}, "this shell's environment")) == []


def test_where_up_runs_its_own_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert any("this shell's environment: RANK" in finding.what for finding in environment.examine(tmp_path))
    lock = system_folder(tmp_path) / POOL_LOCK
    lock.parent.mkdir()
    with (
        subprocess.Popen(["sleep", "60"], env={"WORLD_SIZE": "8", "PATH": os.environ["PATH"]}) as up,
        lock.open("w") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(str(up.pid))
        held.flush()
        # until its exec, the new process shows none
        (finding,) = eventually(lambda: list(environment.examine(tmp_path)), 10, "its environment is there")
        up.kill()
    assert "the environment of `supervisor up`: WORLD_SIZE" in finding.what


def test_the_whole_look() -> None:
    leader = encode(LeaderRecord(host="h", pid=3, home=""))
    assert levels(system.examine(_mirror(leader=leader))) == ["good"]
    assert "no supervisor leads" in only(system.examine(_mirror()), "bad").what
    found = system.examine(_mirror(leader=leader, restoring=encode(Restoring(file="f", host="h", pid=1))))
    assert "restore" in only(found, "bad").what
    torn = list(system.examine(_mirror(leader=leader, seen=b"{torn")))
    assert f"{keys.observed('n1')} cannot be read" in only(torn, "bad").what


@pytest.mark.parametrize(("host", "level"), [(socket.gethostname(), "bad"), ("another", "note")])
def test_a_webhook_whose_url_is_not_there_is_a_finding(host: str, level: str, tmp_path: Path) -> None:
    file = tmp_path / "url"
    spec = RunSpec(name="run", policy=PolicySpec(webhook_file=str(file)))
    record = RunRecord(spec=spec, run_dir="/r", launched_unix_s=1.0)
    mirror = _mirror(leader=encode(LeaderRecord(host=host, pid=3, home="")))
    found = only(system.webhook(mirror, record), level)
    assert f"run run: policy.webhook_file: {file} cannot be read here" in found.what
    file.write_text("no URL")
    assert "does not hold one http or https URL" in only(system.webhook(mirror, record), level).what
    file.write_text("https://chat.example/hook")
    file.chmod(0o600)
    assert list(system.webhook(mirror, record)) == []
    none = replace(record, spec=replace(spec, policy=PolicySpec()))
    assert list(system.webhook(mirror, none)) == []


# --- timeouts ---


def _fits(seen: Measured = NOTHING, **policy: Any) -> list[Finding]:
    spec = RunSpec(name="run", policy=PolicySpec(**policy))
    trainer = TrainerObserved(run="run", group=0, generation=3, rank=0, pid=1, state="running", measured=seen)
    mirror = _mirror(n1=_registration("n1"), seen=encode(NodeObserved(node="n1", sequence=1, trainers=(trainer,))))
    return list(timeouts.examine(mirror, RunRecord(spec=spec, run_dir="/r", launched_unix_s=1.0), MEMORY))


def _printed(found: list[Finding]) -> str:
    out = io.StringIO()
    Console(file=out, soft_wrap=True, width=400).print(doctor.render(found))
    return out.getvalue()


def test_the_whole_table_of_timeouts_is_printed_and_one_that_fits_is_no_finding_of_its_own() -> None:
    found = _fits()
    assert set(levels(found)) == {"good"}
    said = _printed(found)
    for row in core_timeouts.rows(RunSpec(name="run")):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{row.key} ")]
        assert line.endswith("fits")
        assert f"best: {row.best.why}" in said
        assert not row.least.value or f"safe: {row.least.why}" in said
    assert "timeouts of run run" in said
    assert "run run:" not in said


def test_a_timeout_that_a_live_run_has_outgrown_is_bad_and_one_that_is_short_a_note() -> None:
    found = _fits(Measured(collective_s=12.0, start_s=200.0))
    bad = only(found, "bad")
    assert "torchft.process_group_timeout_ms = 10000 is below 12001 ms: a healthy collective has taken 12 s" in bad.what
    assert bad.do == "torchft.process_group_timeout_ms = 24000 in the run file of the next run"
    do = {f.do for f in found if f.level == "note"}
    assert do == {
        "supervisor policy set hang.at_least_s=58 --because WHY --run run",
        "supervisor policy set start_timeout_s=600 --because WHY --run run",
    }
    said = _printed(found)
    assert bad.what in said
    assert "(longest collective 12 s, usual step: not measured yet)" in said


def test_what_the_run_was_seen_to_take_before_counts_too() -> None:
    known = replace(MEMORY, measured=Measured(start_s=301.0))
    record = RunRecord(spec=RunSpec(name="run"), run_dir="/r", launched_unix_s=1.0)
    found = list(timeouts.examine(_mirror(), record, known))
    assert "policy.start_timeout_s = 300 is below 301 s" in only(found, "bad").what
