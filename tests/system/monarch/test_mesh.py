"""A mesh from its beginning to its end, in every way in which it may end. The client is this process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor.client as everstep
from agents.shim import process
from fault_injection.doubles.toys import TOYS
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.shell.enroll.ephemeral import Authority
from supervisor.wire import monarch, node_requests, programs
from tests.system.monarch.conftest import held
from tests.system.monarch.needs import SupervisionError
from tests.system.security.world import tls_world

from tests.system.monarch.actors import Where  # isort: skip  (after `needs`)

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

Lab = tuple[World, everstep.Pool]

HOLDS = """
import sys, time
import supervisor.client as everstep
from tests.system.monarch.actors import Where
with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    where = mesh.host_mesh.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    print(*(pid for _, pid in where.pid.call().get()), flush=True)
    sys.stdin.read()
"""


def meshes(pool: everstep.Pool) -> list[str]:
    return [node.mesh for node in pool.status().nodes]


def free(lab: Lab) -> everstep.Pool:
    w, pool = lab
    eventually(lambda: meshes(pool) == ["", ""], 40, "no mesh is there")
    eventually(lambda: w.store.list(node_requests.PREFIX).items == (), 40, "nothing of it is left in etcd")
    return pool


def workers(w: World) -> list[int]:
    """Pids of the workers on these nodes."""
    found = []
    for stat in process.all_processes():
        argv = Path(f"/proc/{stat.pid}/cmdline")
        try:
            ours = str(w.system) in argv.read_text() and "titan_actor.mesh_worker" in argv.read_text()
        except OSError:
            continue
        if ours and stat.running:
            found.append(stat.pid)
    return found


def gone(*pids: int) -> bool:
    return not any((stat := process.stat_of(pid)) is not None and stat.running for pid in pids)


def test_a_mesh_keeps_its_nodes_from_runs_and_a_run_its_own_from_meshes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (w, _), pool = lab, free(lab)
    monkeypatch.setenv(programs.SEAM, json.dumps(TOYS))
    with pool.mesh() as mesh:
        assert mesh.nodes == ("n1", "n2")
        where = mesh.host_mesh.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
        assert len({pid for _, pid in where.pid.call().get(timeout=60)}) == 4
        eventually(lambda: all(meshes(pool)), 10, "it is shown")
        with pytest.raises(everstep.EverstepError, match=r"does not have a free node for a mesh .*n1: a mesh of "):
            pool.mesh()
        run = pool.launch(toy_spec(spares=0))
        found = eventually(
            lambda: [s for s in run.status().waiting if "Monarch" in s], 30, "the run waits for the mesh"
        )
        assert "pool lab has no free node for it (nodes: 2; 2 with a Monarch mesh)" in found[0]
        pids = [pid for _, pid in where.pid.call().get(timeout=60)]
    assert gone(*pids), "nothing of it runs on"
    run.wait("running", timeout_s=60)
    with pytest.raises(everstep.EverstepError, match="nodes: 2; free: 0; n1: run toy; n2: run toy"):
        pool.mesh(1)
    run.stop()
    eventually(lambda: not pool.status().used_by, 60, "the run gives them back")

    async def twin() -> int:
        async with await everstep.aconnect(w.etcd.endpoint, home=w.runs) as client:
            made = await (await client.pool("lab")).mesh(1)
            with made:
                return await made.host_mesh.spawn_procs().spawn("where", Where).pid.call_one()

    assert asyncio.run(twin()) > 0


def test_a_client_that_is_killed_ends_its_mesh(lab: Lab, tmp_path: Path) -> None:
    w, pool = lab
    free(lab)
    env = {**os.environ, "SUPERVISOR_ETCD": w.etcd.endpoint, "SUPERVISOR_HOME": str(w.runs), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        pids = [int(pid) for pid in client.stdout.readline().split()]
        assert len(pids) == 4
        client.send_signal(signal.SIGKILL)
    eventually(lambda: gone(*pids), 40, "its lease lapses")
    assert free(lab) is pool
    assert workers(w) == []


@pytest.mark.parametrize("victim", ["worker", "agent"])
def test_a_part_that_ends_is_lost_and_the_rest_goes_on(lab: Lab, victim: str) -> None:
    pool = free(lab)
    with pool.mesh() as mesh:
        where = mesh.host_mesh.spawn_procs().spawn("where", Where)
        pids = [pid for _, pid in where.pid.call().get(timeout=60)]
        pid = parent(pids[1]) if victim == "worker" else parent(parent(pids[1]))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pids[1]), 10, "its processes end with it")
        with pytest.raises(SupervisionError, match=r"Endpoint call where\.pid\(\) failed"):
            where.pid.call().get(timeout=60)
        assert where.slice(hosts=0).pid.call_one().get(timeout=60) == pids[0]
        lost = eventually(lambda: mesh.lost, 40, "the client learns of it")
        assert list(lost) == ["n2"]
        assert "its Monarch worker has ended (SIGKILL)" in lost["n2"] or victim == "agent"
    free(lab)


def test_a_process_that_dies_does_not_end_the_client(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Monarch reports it to the owner of the actors, this program, and would end it."""
    pool = free(lab)
    with pool.mesh() as mesh:
        where = mesh.host_mesh.spawn_procs().spawn("where", Where)
        pids = [pid for _, pid in where.pid.call().get(timeout=60)]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(SupervisionError, match=r"Endpoint call where\.pid\(\) failed"):
            where.pid.call().get(timeout=60)
        eventually(lambda: "a failure that no actor handles" in caplog.text, 30, "Monarch reports it to the program")
        assert where.slice(hosts=0).pid.call_one().get(timeout=60) == pids[0]
        again = mesh.host_mesh.spawn_procs().spawn("again", Where)
        assert len(again.pid.call().get(timeout=60)) == 2, "the node is still there"
        assert mesh.lost == {}


def parent(pid: int) -> int:
    stat = process.stat_of(pid)
    assert stat is not None
    return stat.parent


def test_who_has_no_certificate_of_it_does_not_get_in(lab: Lab, tmp_path: Path) -> None:
    pool = free(lab)
    with pool.mesh(1) as mesh:
        host, _, port = mesh.wait_for_workers()[0].removeprefix("tls://").rpartition(":")
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            talk(host, int(port), None)
        monarch.settle(tmp_path, Authority().pems("other", "127.0.0.1"))
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca|decrypt.error|bad.certificate"):
            talk(host, int(port), tmp_path)
        own = Path(os.environ["HYPERACTOR_TLS_KEY"]).parent
        assert own.stat().st_mode & 0o777 == 0o700
        talk(host, int(port), own)


def talk(host: str, port: int, files: Path | None) -> None:
    """Shakes hands, and waits for what the server says of our certificate. Raises SSLError if it refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files / "cert.pem", files / "key.pem")
    with socket.create_connection((host, port), 10) as raw, context.wrap_socket(raw) as connected:
        connected.settimeout(2)
        try:
            connected.recv(1)
        except TimeoutError:
            pass  # it waits for more: the handshake was good


def test_a_pool_that_is_released_ends_its_mesh_and_not_the_client(empty: World) -> None:
    with held(empty) as pool, pool.mesh() as mesh:
        where = mesh.host_mesh.spawn_procs().spawn("where", Where)
        pids = [pid for _, pid in where.pid.call().get(timeout=60)]
        assert pool.release() == "pool lab: its 2 nodes are given back to the engine"
        eventually(lambda: gone(*pids), 40, "it ends with its nodes")
        with pytest.raises(SupervisionError, match=r"where\.pid"):
            where.pid.call().get(timeout=60)


def test_with_certificates_of_the_system(tmp_path: Path) -> None:
    with tls_world(tmp_path) as w, held(w) as pool:
        with pool.mesh() as mesh:
            assert len(mesh.host_mesh.spawn_procs().spawn("where", Where).pid.call().get(timeout=60)) == 2
        eventually(lambda: not any(meshes(pool)), 30, "it has ended")
        reader = str(w.certificates.file("reader"))
        with everstep.connect(w.etcd.endpoint, home=w.runs, security=reader) as client:
            pool_of_a_reader = client.pool("lab")
            with pytest.raises(everstep.EverstepError, match="only the users `supervisor` and `root` may ask nodes"):
                pool_of_a_reader.mesh()
