"""A whole run with TLS everywhere and etcd's auth on. The toys step in a real TorchFT quorum, through the gate."""

from __future__ import annotations

import contextlib
import http.client
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents.shim import process
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import toy_spec
from supervisor.core.model.spec import TitanSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.code.sync import sync
from supervisor.shell.etcd import connect
from supervisor.shell.inspect import bundle, stacks
from supervisor.wire import keys
from supervisor.wire.code_client import CodeClient, StoreError
from supervisor.wire.listener_files import LOOKED_AT_S
from supervisor.wire.records import LeaderRecord, NodeObserved, Registration, RunRecord
from tests.helpers.code_site import written
from tests.helpers.prometheus import BINARY, prometheus
from tests.helpers.tls_client import client_context, closed, dial, header, metrics, without_certificate
from tests.system.security.world import NODES, TlsWorld, gate_address, tls_world

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

Run = tuple[TlsWorld, RunRecord]

CLOSED_WITHIN_S = 5.0
STAYS_S = 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two groups that train together; the history checkers run at the end over all tests."""
    with tls_world(tmp_path_factory.mktemp("run")) as world:
        world.supervisor()
        spec = toy_spec()
        titan = TitanSpec(steps=spec.titan.steps, overrides={"toy.mode": "torchft"})
        record = world.launch(replace(spec, titan=titan))
        eventually(lambda: beating(world, record, (1, 1)), 180, "both groups train through the gate")
        yield world, record
        world.check(record)


def beating(world: TlsWorld, record: RunRecord, generations: tuple[int, ...]) -> bool:
    """True if the gate hears all groups, at these generations, and they have committed steps."""
    groups = world.status(record).groups
    return tuple(g.generation for g in groups) == generations and all(
        g.phase == "running" and g.hearing == "beating" and g.step > 0 for g in groups
    )


def gate_log(world: TlsWorld) -> str:
    return "".join(path.read_text() for path in (world.system / "nodes" / "host" / "lighthouse").glob("*/output.log"))


def test_a_node_answers_those_who_may_ask(run: Run) -> None:
    world, record = run
    mirror = world.mirror()
    found = stacks.read(world.store, mirror, record.spec.name, None, None, 60.0)
    assert [(each.group, each.unknown) for each in found] == [(0, ""), (1, "")]
    assert all(each.threads[0]["frames"] for each in found)
    refused = "only the users `supervisor` and `root` may ask nodes"
    for name in ("reader", "node-n2"):
        theirs = connect([world.etcd.endpoint], security=world.certificates.of(name))
        with contextlib.closing(theirs) as store, pytest.raises(Fatal, match=refused):
            stacks.read(store, mirror, record.spec.name, None, None, 60.0)


def test_nodes_fetch_code_that_only_an_operator_syncs(run: Run, tmp_path: Path) -> None:
    world, record = run
    name, folder = record.spec.name, written(tmp_path / "code", {"mine.py": "V = 1\n"})
    for who in ("reader", "node-n1"):
        theirs = connect([world.etcd.endpoint], security=world.certificates.of(who))
        with contextlib.closing(theirs) as store, pytest.raises(Fatal):
            sync(store, name, folder, world.certificates.of(who))
    done = sync(world.store, name, folder, world.certificates.of("supervisor"))
    assert done.sent_files == 1

    def lies(node: str) -> bool:
        seen = world.mirror().record(keys.observed(node), NodeObserved)
        return seen is not None and seen.codes == (done.version,)

    for group in world.status(record).groups:
        eventually(partial(lies, group.node), 30, "its nodes have it")
    leader = world.mirror().record(keys.LEADER, LeaderRecord)
    assert leader is not None
    assert CodeClient(leader.page, world.certificates.of("node-n1")).manifest(done.version)
    with pytest.raises(StoreError, match="is no node that was given"):
        CodeClient(leader.page, world.certificates.of("reader")).manifest(done.version)


def test_nobody_is_insecure(run: Run) -> None:
    world, record = run
    mirror = world.mirror()
    leader = mirror.record(keys.LEADER, LeaderRecord)
    nodes = [mirror.record(keys.registration(name), Registration) for name in ("host", *NODES)]
    assert leader is not None
    assert not leader.insecure
    assert nodes
    assert not any(node is None or node.insecure for node in nodes)
    # the etcd's own holes, which the tests' files accept
    assert [line for line in world.status(record).warnings if not any(hole in line for hole in leader.holes)] == []


def test_a_plain_client_is_refused_at_the_gate(run: Run) -> None:
    world, record = run
    group = world.status(record).groups[0]
    address = gate_address(world, record)
    with dial(address, None) as stranger:
        stranger.sendall(header(group.node, record.spec.name, 0, group.generation) + b"GONE\n")
        stranger.settimeout(CLOSED_WITHIN_S)
        answer = stranger.recv(100)
        # a TLS alert at most; never the OK that a shim gets
        assert answer == b"" or answer[0] == 0x15
    with pytest.raises((OSError, http.client.HTTPException)):
        # TLS, but without our certificate: the header's place does not matter
        metrics(int(address.rpartition(":")[2]), without_certificate())
    assert beating(world, record, tuple(g.generation for g in world.status(record).groups))


def test_a_nodes_certificate_speaks_for_no_other_node(run: Run) -> None:
    world, record = run
    group = world.status(record).groups[0]
    other = next(name for name in NODES if name != group.node)
    name, address = record.spec.name, gate_address(world, record)
    truth = header(group.node, name, 0, group.generation)
    for who in (f"node-{other}", "supervisor", "reader"):
        with dial(address, world.certificates.of(who)) as impostor:
            impostor.sendall(truth + b"GONE\n")
            assert closed(impostor, CLOSED_WITHIN_S), who
        eventually(lambda who=who: f"shows the certificate of '{who}'" in gate_log(world), 5, "the gate says so")
    # nor may a node with its own name and certificate speak for a generation that another node has
    with dial(address, world.certificates.of(f"node-{other}")) as impostor:
        impostor.sendall(header(other, name, 0, group.generation) + b"GONE\n")
        assert closed(impostor, CLOSED_WITHIN_S)
    # the right one is let in: the one above was refused for its name alone
    with dial(address, world.certificates.of(f"node-{group.node}")) as honest:
        honest.sendall(truth)
        assert not closed(honest, STAYS_S)
    assert beating(world, record, tuple(g.generation for g in world.status(record).groups))


def test_a_revoked_certificates_open_connection_to_the_gate_is_cut(run: Run) -> None:
    """Without any new connection, and the groups train on."""
    world, record = run
    generations = tuple(g.generation for g in world.status(record).groups)
    world.certificates.make("node-n8", "node-n9")
    with contextlib.ExitStack() as stack:
        open_ = []
        for node in ("n8", "n9"):
            made = stack.enter_context(dial(gate_address(world, record), world.certificates.of(f"node-{node}")))
            made.sendall(header(node, record.spec.name, 0, generations[0] + 9))
            assert not closed(made, STAYS_S)
            open_.append(made)
        revoked, other = open_
        world.certificates.revoke("node-n8")
        assert closed(revoked, CLOSED_WITHIN_S)
        cut = "cut a connection of node n8: its certificate was revoked"
        eventually(lambda: cut in gate_log(world), CLOSED_WITHIN_S, "the gate says why")
        assert not closed(other, 2 * LOOKED_AT_S)
    assert beating(world, record, generations)


def test_metrics_are_for_who_shows_a_certificate(run: Run) -> None:
    world, _ = run
    mirror = world.mirror()
    leader = mirror.record(keys.LEADER, LeaderRecord)
    agent = mirror.record(keys.registration("n1"), Registration)
    assert leader is not None
    assert agent is not None
    for port, metric in (
        (leader.metrics_port, "supervisor_leader 1.0"),
        (agent.metrics_port, 'agent_info{node="n1",version='),
    ):
        # a client that sends nothing keeps no other out
        with dial(f"127.0.0.1:{port}", None):
            assert metric in metrics(port, client_context(world.certificates.of("reader")))
        for context in (None, without_certificate()):
            with pytest.raises((OSError, http.client.HTTPException)):
                metrics(port, context)
    for log in ("supervisor.log", "nodes/n1/agent.log"):
        assert "Traceback" not in (world.system / log).read_text()


@pytest.mark.skipif(BINARY is None, reason="prometheus is not installed")
def test_a_real_prometheus_scrapes_all_with_a_readers_certificate(run: Run, tmp_path: Path) -> None:
    world, _ = run
    leader = world.mirror().record(keys.LEADER, LeaderRecord)
    assert leader is not None
    reader = world.certificates.of("reader")
    tls = {"ca_file": reader.ca, "cert_file": reader.cert, "key_file": reader.key}
    with prometheus(tmp_path, [leader.page], tls) as scraper:
        supervisor = leader.page.removeprefix("https://").rstrip("/")
        eventually(lambda: scraper.up() >= {supervisor, "host", *NODES}, 40, "all are scraped")
        eventually(lambda: scraper.value("sum(supervisor_leader)") == 1, 30, "the leader's page is read")


def test_a_killed_trainer_comes_back_over_tls(run: Run) -> None:
    world, record = run
    world.kill_trainer(record, 1)
    eventually(lambda: beating(world, record, (1, 2)), 90, "group 1 is back in the quorum")


def test_no_secret_in_logs_records_titles_environments_or_the_bundle(run: Run, tmp_path: Path) -> None:
    world, record = run
    secrets = world.certificates.keys()
    assert len(secrets) >= 3 * len(NODES)
    assert all(len(secret) >= 8 for secret in secrets)
    places = dict(_files(world.runs)) | {item.key: item.value for item in world.mirror().items.values()}
    stats = [stat for name in ("host", *NODES) for stat in process.marked(str(world.system / "nodes" / name))]
    trainers = [stat for stat in stats if b"toy_trainer" in _proc(stat, "cmdline")]
    assert len(trainers) == 2
    for stat in stats:
        places |= {f"/proc/{stat.pid}/{file}": _proc(stat, file) for file in ("cmdline", "environ")}
    out = tmp_path / "bundle.tar.gz"
    assert bundle.write(out, world.mirror(), record, world.system) > 10
    with tarfile.open(out) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            places[f"bundle/{member.name}"] = content.read()
    assert not [place for place in places if place.endswith((".key", ".pem"))]
    assert len(places) > 50
    found = [(place, secret) for place, content in places.items() for secret in secrets if secret.encode() in content]
    assert found == []
    assert not [place for place, content in places.items() if b"PRIVATE KEY" in content]
    for stat in trainers:
        environment = _proc(stat, "environ")
        # both are set for the process that started all this
        assert b"SUPERVISOR_NODE_DIR=" in environment
        assert b"SUPERVISOR_SECURITY" not in environment
        assert b"SUPERVISOR_ETCD" not in environment


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile, as a rank's progress is
            if path.is_file():
                yield str(path), path.read_bytes()


def _proc(stat: process.Stat, file: str) -> bytes:
    with open(f"/proc/{stat.pid}/{file}", "rb") as content:
        return content.read()
