"""The doctor on live systems: healthy ones, and ones with a fault planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World
from supervisor.shell.control import observe
from supervisor.shell.etcd import EtcdStore, connect
from supervisor.shell.etcd.stubs import rpc
from supervisor.shell.inspect import doctor
from supervisor.shell.inspect.doctor import Finding, trust
from supervisor.wire import keys
from supervisor.wire.records import Registration, RunRecord, encode
from tests.helpers.tls import Certificates, tls_etcd
from tests.system.integration.test_cli import cli
from tests.system.security.world import authed_etcd

pytestmark = pytest.mark.etcd


def look(w: World) -> list[Finding]:
    return doctor.examine(w.etcd.endpoint, w.runs)


def found(w: World, level: str, *words: str) -> list[Finding]:
    return [f for f in look(w) if f.level == level and all(word in f.what for word in words)]


def test_a_healthy_system_has_nothing_bad(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run
    eventually(lambda: found(w, "good", "run toy: 2 forwarders reach the gate"), 20, "the forwarders are reported")
    result = cli("doctor", "--json", world=w)
    findings = json.loads(result.stdout)
    assert [f for f in findings if f["level"] == "bad"] == []
    assert result.returncode == 0, result.stderr
    said = "\n".join(f["what"] for f in findings)
    for words in (
        "etcd 3.", "MiB", "leases are renewed in time", "etcd answers in", "leader ", "takes connections",
        "clock", "on loopback", "etcd checks no permissions", "of 2048 MiB",
    ):  # fmt: skip
        assert words in said
    assert all(f["do"] for f in findings if f["level"] != "good")
    text = cli("doctor", world=w).stdout
    assert "etcd answers in" in text
    assert "timeouts of run toy" in text
    rows = {f["row"]["key"]: f["row"] for f in findings if "row" in f}
    assert rows["policy.node_lease_s"]["value"] == LEASE_S
    assert rows["torchft.quorum_timeout_ms"]["least"]["why"] in text


@pytest.mark.long
def test_timeouts_are_held_against_what_the_run_was_seen_to_take(toy_run: tuple[World, RunRecord]) -> None:
    w, _ = toy_run

    def measured() -> bool:
        said = cli("doctor", world=w).stdout
        # the way to the gate by the forwarders, etcd's answers and the starts by the agents
        seen = ("the gate answers within", "etcd's usual answer 0.", "longest start to first commit")
        return all(word in said for word in seen) and "first commit: not measured" not in said

    eventually(measured, 30, "the nodes have told what they measured")
    eventually(lambda: observe.memory(w.mirror(), "toy").measured.gate_ms > 0, 20, "the leader has written it down")
    refused = cli("policy", "set", "start_timeout_s=4", "--because", "why", world=w)
    assert refused.returncode == 2
    assert "policy.start_timeout_s = 4 is below" in refused.stderr


def test_a_lease_that_nobody_renews(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run
    ghost = Registration(node="ghost", address="a", role="trainer", allocation="", slots=1, agent_pid=1, version="v")
    lease = w.store.lease(12)
    w.store.put(keys.registration("ghost"), encode(ghost), lease=lease.id)
    assert found(w, "bad", "nodes/ghost/registration") == []
    lease.close()
    (late,) = eventually(lambda: found(w, "bad", "nodes/ghost/registration has"), 20, "it is seen before it lapses")
    assert "of 12 s left" in late.what
    assert "frozen, cut off" in late.do


@pytest.mark.long
def test_a_gate_that_is_gone_while_nobody_leads(toy_run: tuple[World, RunRecord]) -> None:
    w, _ = toy_run
    for process in w.supervisors:
        process.terminate()
        process.wait(30)
    (gate,) = [p for p in w.host_processes() if p.startswith("lighthouse.toy.")]
    w.kill_host_process(gate)
    eventually(lambda: found(w, "bad", "run toy", "takes no connection from here"), 20, "nobody listens there")
    eventually(
        lambda: len(found(w, "bad", "run toy: the forwarder", "does not reach the gate")) == 2, 20, "both forwarders"
    )
    eventually(lambda: found(w, "bad", "its gate does not reach etcd"), 30, "its lease lapses")
    assert found(w, "bad", "no supervisor leads")
    assert cli("doctor", world=w).returncode == 1


def _alarm(store: EtcdStore, action: int) -> None:
    with store.connection.call("alarm") as client:
        client.maintenancestub.Alarm(rpc.AlarmRequest(action=action, alarm=rpc.NOSPACE), 5.0)


def test_a_database_that_is_full_is_named_with_its_mend_though_reads_work(one_run: tuple[World, RunRecord]) -> None:
    w, _ = one_run
    _alarm(w.store, rpc.AlarmRequest.ACTIVATE)
    try:
        for command in (("status",), ("status", "--json")):
            result = cli(*command, world=w)
            assert result.returncode == 0, result.stderr
            assert "etcdctl alarm disarm" in result.stdout
        (alarm,) = found(w, "bad", "etcd has raised an alarm")
        assert "etcdctl compact" in alarm.do
    finally:
        _alarm(w.store, rpc.AlarmRequest.DEACTIVATE)
    assert "etcdctl" not in cli("status", world=w).stdout


@contextmanager
def _process(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_processes_of_a_node_whose_shim_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, others = tmp_path / ".supervisor" / "nodes" / "n1", tmp_path / ".supervisor2" / "nodes" / "n1"
    with (
        _process(SUPERVISOR_NODE_DIR=str(ours), SUPERVISOR_SHIM_PID=str(gone.pid)) as orphan,
        _process(SUPERVISOR_NODE_DIR=str(others), SUPERVISOR_SHIM_PID=str(gone.pid)),
        _process(SUPERVISOR_NODE_DIR=str(ours), SUPERVISOR_SHIM_PID=str(os.getpid())),
    ):
        (left,) = eventually(
            lambda: [f for f in doctor.examine("", tmp_path) if "whose shim is gone" in f.what], 10, "it is found"
        )
        assert left.do == f"kill {orphan.pid}"


def _rights(endpoint: str, certificates: Certificates, name: str) -> list[Finding]:
    """Without the holes of the etcd that is here, which test_holes.py is about."""
    security = certificates.of(name)
    with connect([endpoint], security=security) as store:
        return [
            f
            for f in trust.rights(store, [endpoint], security)
            if "users to their roles: " not in f.what and "known holes" not in f.what
        ]


def test_what_a_certificate_may_is_looked_at_and_what_is_too_much_is_named(tmp_path: Path) -> None:
    with authed_etcd(tmp_path) as server:
        for name in ("supervisor", "reader", "node-n1"):
            (right,) = _rights(server.endpoint, server.certificates, name)
            assert (right.level, name in right.what) == ("good", True)
        (root,) = _rights(server.endpoint, server.certificates, "root")
        assert root.level == "note"
        with (
            connect([server.endpoint], security=server.certificates.of("root")) as store,
            store.connection.call("x") as c,
        ):
            permission = rpc.auth_pb2.Permission(permType=rpc.auth_pb2.Permission.WRITE, key=b"/supervisor/v1/leader")
            request = rpc.AuthRoleGrantPermissionRequest(name="reader", perm=permission)
            rpc.AuthStub(c.channel).RoleGrantPermission(request, 5.0)
        (wide,) = [f for f in _rights(server.endpoint, server.certificates, "reader") if f.level == "bad"]
        assert wide.what == "user reader may write /supervisor/v1/leader, which it must not"
        told = doctor.examine(server.endpoint, tmp_path, str(server.certificates.file("supervisor")))
        assert any(f.level == "good" and "TLS to etcd" in f.what for f in told)
        assert any("our certificate" in f.what and "more days" in f.what for f in told)


def test_an_etcd_with_certificates_that_checks_nobody(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd", "root", "supervisor")
    with tls_etcd(tmp_path / "etcd", certificates) as server:
        (open_,) = _rights(server.endpoint, certificates, "supervisor")
    assert open_.level == "bad"
    assert "init-auth" in open_.do


def test_a_certificate_that_runs_out_soon(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.make("supervisor", seconds=3600)
    certificates.make("node-n1")
    told = {f.what: f.level for f in trust.examine(["https://h:1"], certificates.of("supervisor"))}
    (soon,) = [what for what, level in told.items() if level == "note"]
    assert f"{tmp_path}/supervisor.pem" in soon
    assert any("node-n1" in what and level == "good" for what, level in told.items())
