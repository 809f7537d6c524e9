"""Code that travels between machines with certificates, run by test_sync.py inside a hub's network namespace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from fault_injection.doubles.toys import TOYS
from fault_injection.testbed import netns
from fault_injection.testbed.own_slurm import slurm
from fault_injection.testbed.slurm_world import SlurmWorld
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World
from supervisor.core.model.code import SHOWN
from supervisor.shell.etcd.auth import init_auth
from supervisor.shell.inspect import client
from supervisor.wire import keys
from supervisor.wire.code import decode
from supervisor.wire.code_tree import DIGITS, MANIFESTS
from supervisor.wire.records import LeaderRecord, Registration
from supervisor.wire.security import load
from tests.helpers.tls import Certificates, tls_etcd
from tests.system.integration.test_cli import fails
from tests.system.integration.test_pools import done, pool
from tests.system.integration.test_sync import code, held, lies, printed, run_file, version_of
from tests.system.slurm.test_certificates import signing

NODES = ("n1", "n2")
"""Hosts of Slurm; the network's last machine is the operator's. The hub has etcd, the supervisor and the service host."""
CUT = NODES.index("n2")
SOON_S = 120.0
MB = 400
"""More than comes through in the moment until the link is cut."""
LEASE_S = 90
"""Above the 30 s after which a silent transfer has failed: the node is not lost meanwhile."""


class Site(SlurmWorld):
    """A Slurm world with certificates, whose leader listens off loopback."""

    host_security: Path

    def _spawn(self, log: str, *arguments: str, netns: str = "", **environment: str) -> subprocess.Popen[bytes]:
        # the option that is given last counts: the service host is a node
        own = {
            "host": [f"--security={self.host_security}"],
            "supervisor": ["--metrics-address", self.places["host"][1]],
        }
        return super()._spawn(log, *arguments, *own.get(log, []), netns=netns, **environment)


class Operator:
    """A person on another machine, with a copy of the supervisor's files, or another's."""

    def __init__(self, net: netns.Network, etcd: str, home: Path) -> None:
        self._inside = ["nsenter", f"--net=/run/netns/{net.nodes[-1][0]}", sys.executable, "-m", "supervisor.cli"]
        self._options = ["--etcd", etcd, "--home", str(home)]

    def said(self, security: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._inside, *words, *self._options, "--security", str(security)]
        own = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=own)


def part(w: World, version: str) -> list[Path]:
    """The files of a version that have arrived at the node whose link is cut."""
    return list(tree(w, f"{version[:DIGITS]}.part").rglob("*.bin"))


def blobs(home: Path) -> set[str]:
    """The contents that the leader of this home has."""
    return {path.name for path in (home / ".supervisor" / "code" / "blobs").glob("*/*")}


def sent(w: World) -> list[int]:
    """The contents that each node has sent a leader that lacked some, as its agent logs it."""
    logs = [(w.system / "nodes" / node / "agent.log").read_text() for node in NODES]
    return [int(number) for log in logs for number in re.findall(r"the leader got (\d+) contents", log)]


def tree(w: World, name: str) -> Path:
    return w.system / "nodes" / NODES[CUT] / "code" / name


def test_enrolled_nodes_fetch_from_another_machine_through_a_cut(tmp_path: Path) -> None:
    net = netns.entered()
    assert net is not None
    certificates = Certificates(tmp_path / "certificates")
    certificates.make("etcd", "root", "supervisor", "reader", "node-host")
    security = load(signing(certificates, tmp_path / "own", net.hub_address))
    plain = tmp_path / "plain.toml"
    plain.write_text("insecure = true\n")
    Site.host_security = certificates.file("node-host")
    places = dict(zip(NODES, net.nodes, strict=False))
    environment = {"SUPERVISOR_PROGRAMS": json.dumps(TOYS), "SUPERVISOR_SECURITY": security.path}
    with (
        tls_etcd(tmp_path / "etcd", certificates, net.hub_address) as server,
        slurm(tmp_path, len(NODES), places=places, hub=("", net.hub_address), slurmd_timeout=300) as lab,
    ):
        list(init_auth([server.endpoint], certificates.of("root"), ["host", *NODES]))
        here = {"PYTHONPATH": str(Path(__file__).parents[3])}
        w = Site(tmp_path, lab, server, environment | here, security=security, places={"host": ("", net.hub_address)})  # type: ignore[arg-type]
        try:
            w.supervisor()
            goes_through(w, net, Operator(net, server.endpoint, tmp_path / "far"), certificates, plain)
        finally:
            net.mend(CUT)
            w.close()


def goes_through(w: Site, net: netns.Network, operator: Operator, certificates: Certificates, plain: Path) -> None:
    folder = code(plain.parent / "code", "one")
    slurm = f"""
[allocation]
engine = "slurm"
nodes = 2
spares = 0
slurm = {{ node_folder = "{w.system}", drain_suspects = false }}
"""
    file = run_file(folder, plain.parent / "crash", slurm)
    file.write_text(
        file.read_text().replace("node_lease_s = 5", f"node_lease_s = {LEASE_S}, silent_timeout_s = {2 * LEASE_S}")
    )
    held(w, folder, 2)
    for node in NODES:
        registration = w.mirror().record(keys.registration(node), Registration)
        assert registration is not None
        assert not registration.insecure
        assert (w.system / "nodes" / node / "certificates" / "node.pem").exists(), "it has enrolled"

    sync = ("sync", str(folder), "--on", "lab")
    ours = operator.said(certificates.file("supervisor"), *sync)
    assert ours.returncode == 0, ours.stderr
    first = version_of(w, "lab")
    for node in NODES:
        eventually(partial(lies, w, node, first), 30, "the nodes have it")
    leader = w.mirror().record(keys.LEADER, LeaderRecord)
    assert leader is not None
    assert leader.page.startswith(f"https://{net.hub_address}:")
    refused = operator.said(certificates.file("reader"), *sync)
    fails(refused, 1, "'reader' may not put code here: only the certificates of supervisor and root may")
    assert refused.stderr.rstrip().endswith("root may"), "to repeat it would not help"
    fails(operator.said(plain, *sync), 2, "TLS to etcd needs a certificate")
    assert version_of(w, "lab") == first

    for number in range(MB // 10):
        (folder / f"data-{number}.bin").write_bytes(os.urandom(10_000_000))
    code(folder, "two")
    assert operator.said(certificates.file("supervisor"), *sync).returncode == 0
    second = version_of(w, "lab")
    eventually(lambda: part(w, second), 30, "the node is in the middle of it")
    net.cut(CUT)
    assert not tree(w, second[:DIGITS]).exists(), "it was cut before all was there"
    done(w, "launch", str(file), "--on", "lab")
    record = client.choose_run(w.mirror(), "first")
    eventually(lambda: w.says(record, "n2", "has not all of the code yet"), 30, "its group waits")
    log = w.system / "nodes" / NODES[CUT] / "agent.log"
    torn = f"code {second[:SHOWN]}: no transfer with the supervisor"
    eventually(lambda: torn in log.read_text(), 90, "the transfer is torn")
    arrived = len(part(w, second))
    assert 0 < arrived < MB // 10
    assert not tree(w, second[:DIGITS]).exists()
    net.mend(CUT)
    eventually(w.running(record, 1, 1), SOON_S, "both groups run")
    assert [printed(w, record, group, 1) for group in (0, 1)] == ["two", "two"]
    whole = tree(w, second[:DIGITS])
    assert {p.name: p.stat().st_size for p in folder.glob("*.bin")} == {
        p.name: p.stat().st_size for p in whole.glob("*.bin")
    }
    assert not [*tree(w, "").glob("*.part")]
    assert w.incidents(record) == []

    contents = decode((tree(w, MANIFESTS) / second).read_bytes()).digests().keys()
    elsewhere = plain.parent / "elsewhere"
    w.supervisors[0].kill()
    w.supervisors[0].wait()
    w.supervisor(home=elsewhere)
    eventually(lambda: contents <= blobs(elsewhere), SOON_S, "a leader with another home gets the code from the nodes")
    eventually(lambda: sorted(sent(w)) == [0, len(contents)], SOON_S, "one node sends all of it, and the other nothing")

    done(w, "stop", "first")
    eventually(lambda: not pool(w).used_by, SOON_S, "no run uses it")
    done(w, "release", "lab")
    eventually(lambda: not w.live_jobs(), SOON_S, "Slurm has all nodes back")
    w.check(record, stepped=False)
