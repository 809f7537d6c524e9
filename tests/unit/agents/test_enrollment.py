"""A node asks a real listener for its certificate, and again before it expires."""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agents import enrollment as asking
from agents.enrollment import EnrollError, Renewal, enroll
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import Grant
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.enroll import listener
from supervisor.shell.enroll.listener import EnrollListener
from supervisor.shell.enroll.signer import LIFE_S, Signer
from supervisor.shell.metrics import listener as base
from supervisor.wire import enrollment
from supervisor.wire.address import free_ports
from supervisor.wire.security import Security, load, read_certificate
from tests.helpers.authority import Authority, authority
from tests.helpers.tls_client import without_certificate

GRANT = Grant(key="toy-a1", state="granted", nodes=("n1",))


class Site:
    """An authority, a supervisor's security file, and the state of the one grant."""

    def __init__(self, folder: Path) -> None:
        self.authority: Authority = authority(folder / "control", "supervisor", "reader")
        self.port, self.other = free_ports(2)
        self.security = self.secured("supervisor")
        self.grants: list[Grant | Exception | None] = []
        """Grants that the next requests find; then GRANT."""
        self.node = folder / "node" / "certificates"

    def secured(self, name: str) -> Security:
        # the first one is of no machine: TEST-NET-1
        addresses = f'["192.0.2.1:9101", "127.0.0.1:{self.port}", "127.0.0.1:{self.other}"]'
        return self.authority.security(name, f'signs = "ca.key"\nenroll = {addresses}\n')

    @property
    def given(self) -> enrollment.Given:
        # those that this machine has
        made = enrollment.given(self.security, ["toy-a1"])
        return replace(made, addresses=made.addresses[1:])

    def grant(self, allocation: str) -> Grant | None:
        found = self.grants.pop(0) if self.grants else GRANT
        if isinstance(found, Exception):
            raise found
        return found if allocation == "toy-a1" else None

    def serve(self, security: Security | None = None, life_s: float = LIFE_S) -> EnrollListener:
        security = security or self.security
        made = listener.serve(Signer(security, self.grant, life_s), security)
        assert made is not None
        return made


@contextmanager
def ended(served: EnrollListener) -> Iterator[EnrollListener]:
    try:
        yield served
    finally:
        served.shutdown()
        served.server_close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(asking, "FIRST_PAUSE_S", 0.05)
    return Site(tmp_path)


def test_a_node_gets_a_certificate_and_keeps_the_key_to_itself(site: Site) -> None:
    with ended(site.serve()):
        file = enroll("n1", "toy-a1", site.node, site.given)
    security = load(file)
    assert read_certificate(security).name == "node-n1"
    assert file.parent == site.node
    assert {path.name: path.stat().st_mode & 0o777 for path in site.node.iterdir()} == dict.fromkeys(
        ("enroll.json", "ca.pem", "node.pem", "node.toml"), 0o600
    )
    assert site.node.stat().st_mode & 0o777 == 0o700


def test_it_asks_until_its_grant_is_known_and_etcd_is_there(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    site.grants = [None, replace(GRANT, state="pending"), Retryable("etcd is away"), GRANT]
    with ended(site.serve()):
        enroll("n1", "toy-a1", site.node, site.given)
    assert not site.grants
    secret = site.given.secrets["toy-a1"]
    assert "from 127.0.0.1 is refused: node 'n1' of allocation 'toy-a1': the allocation is pending" in caplog.text
    assert "node n1 (allocation toy-a1, from 127.0.0.1) gets a certificate until" in caplog.text
    assert secret not in caplog.text


def test_a_foreign_name_is_refused_and_learns_nothing(site: Site) -> None:
    with (
        ended(site.serve()),
        pytest.raises(
            EnrollError, match=r"no certificate of node n2: .* this gets no certificate; the supervisor's log"
        ),
    ):
        enroll("n2", "toy-a1", site.node, site.given, within_s=0.0)
    assert not (site.node / "node.pem").exists()


def test_no_secret_goes_to_another_than_a_supervisor(site: Site, tmp_path: Path) -> None:
    with (
        ended(site.serve(site.secured("reader"))),
        pytest.raises(EnrollError, match="it shows the certificate of 'reader', not of 'supervisor'"),
    ):
        enroll("n1", "toy-a1", site.node, site.given, within_s=0.0)
    stranger = authority(tmp_path / "stranger", "supervisor")
    other = stranger.security("supervisor", f'signs = "ca.key"\nenroll = ["127.0.0.1:{site.port}"]\n')
    with ended(site.serve(other)), pytest.raises(EnrollError, match="certificate verify failed"):
        enroll("n1", "toy-a1", site.node, site.given, within_s=0.0)


def test_a_revoked_supervisor_gets_no_secret_at_a_renewal(site: Site) -> None:
    site.authority.deny()
    listed = replace(site.security, crl=str(site.authority.folder / "crl.pem"))
    from cryptography import x509

    with ended(site.serve(listed)):
        enroll("n1", "toy-a1", site.node, site.given)
        certificate = x509.load_pem_x509_certificate((site.authority.folder / "supervisor.pem").read_bytes())
        asking.renew(site.node)
        site.authority.deny(certificate)
        (site.node / "crl.pem").write_bytes((site.authority.folder / "crl.pem").read_bytes())
        with pytest.raises(EnrollError, match="certificate revoked"):
            asking.renew(site.node)


def test_without_a_supervisor_it_ends_with_what_each_address_answered(site: Site) -> None:
    with pytest.raises(EnrollError, match=r"127.0.0.1:\d+: .*refused; 127.0.0.1:\d+: .*refused; asked for 0.1 s"):
        enroll("n1", "toy-a1", site.node, site.given, within_s=0.1)
    with pytest.raises(EnrollError, match="this job was given no secret of allocation 'toy-a7'"):
        enroll("n1", "toy-a7", site.node, site.given)


def test_each_supervisor_listens_at_an_address_of_its_machine_that_is_free(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with ended(site.serve()) as first, ended(site.serve()) as second:
        assert (first.server_port, second.server_port) == (site.port, site.other)
        with pytest.raises(
            Fatal, match=f"cannot listen for nodes .* at 127.0.0.1:{site.other}: Address already in use"
        ):
            site.serve()
    assert listener.serve(Signer(site.security, site.grant), replace(site.security, enroll=("192.0.2.1:9101",))) is None
    assert "this supervisor gives nodes no certificates: no address of enroll in" in caplog.text


def request(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10.0, context=without_certificate())
    with closing(connection):
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/metrics", {}, 404),
        ("GET", "/enroll", {}, 404),
        ("HEAD", "/", {}, 404),
        ("PUT", "/enroll", {}, 405),
        ("POST", "/other", {}, 404),
        ("POST", "/enroll", {"Content-Length": "16385"}, 404),
        ("POST", "/enroll", {"Content-Length": "9" * 5000}, 404),
        ("POST", "/enroll", {"Content-Length": "-1"}, 404),
        ("POST", "/enroll", {}, 403),
    ],
)
def test_there_is_one_path_and_it_takes_small_requests(
    site: Site, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with ended(site.serve()) as served:
        assert request(served.server_port, method, path, headers) == status


def test_a_request_that_never_ends_is_cut(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SPEAKS_WITHIN_S", 2.0)
    with ended(site.serve()) as served:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", served.server_port, timeout=10.0, context=without_certificate()
        )
        with closing(connection):
            connection.putrequest("POST", "/enroll")
            connection.putheader("Content-Length", "1000")
            connection.endheaders()
            connection.send(b"{")
            with pytest.raises((http.client.HTTPException, OSError)) as raised:
                connection.getresponse()
            assert raised.type is not TimeoutError, "it was cut, and did not wait"


def test_a_renewed_certificate_of_the_supervisor_is_shown_and_still_none_is_asked(site: Site) -> None:
    with ended(site.serve()) as served:
        assert request(served.server_port, "POST", "/enroll", {}) == 403
        shown = ssl.get_server_certificate(("127.0.0.1", served.server_port))
        site.authority.make("supervisor")
        assert request(served.server_port, "POST", "/enroll", {}) == 403
        assert ssl.get_server_certificate(("127.0.0.1", served.server_port)) != shown


def test_it_is_renewed_when_a_third_of_its_life_is_left(site: Site) -> None:
    with ended(site.serve(life_s=300)):
        file = enroll("n1", "toy-a1", site.node, site.given)
        pem = site.node / "node.pem"
        got, before = pem.stat().st_mtime, pem.read_bytes()
        early = Renewal(str(file), lambda: got + 190)
        assert 0 < early.look() <= 60
        assert pem.read_bytes() == before
        Renewal(str(file), lambda: got + 205).look()
        assert pem.read_bytes() != before
        assert read_certificate(load(file)).name == "node-n1"


def test_a_renewal_that_fails_is_reported_once_and_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asking, "LOOK_S", 0.1)
    monkeypatch.setattr(asking, "SHARE_LEFT", 1.0)
    tries: list[str] = []
    with ended(site.serve()):
        file = enroll("n1", "toy-a1", site.node, site.given)
    monkeypatch.setattr(asking, "TRIES_PER_LIFE", 1e9)
    ask = asking._ask

    def counted(address: str, context: ssl.SSLContext, body: bytes) -> bytes:
        tries.append(address)
        return ask(address, context, body)

    monkeypatch.setattr(asking, "_ask", counted)
    renewal = Renewal(str(file))
    before = (site.node / "node.pem").read_bytes()
    renewal.start()
    try:
        eventually(lambda: len(tries) >= 4, 20, "it tried twice")
        assert caplog.text.count("the certificate is not renewed yet: no certificate of node n1: 127.0.0.1:") == 1
        assert (site.node / "node.pem").read_bytes() == before
        with ended(site.serve()):
            eventually(lambda: (site.node / "node.pem").read_bytes() != before, 20, "it is renewed after all")
            renewal.stop()
            # A server that ends under a handshake resets it, and Python leaves that socket to the collector.
            eventually(lambda: "renewal" not in [thread.name for thread in threading.enumerate()], 20, "it stopped")
    finally:
        renewal.stop()


def test_a_node_that_did_not_enroll_renews_nothing(site: Site) -> None:
    site.node.mkdir(parents=True)
    (site.node / "node.toml").write_text("insecure = true\n")
    for file in ("", str(site.node / "node.toml")):
        Renewal(file).start()
    assert "renewal" not in [thread.name for thread in threading.enumerate()]


def test_what_a_job_is_given_is_in_no_file_that_others_read(site: Site) -> None:
    old = os.umask(0)
    try:
        with ended(site.serve()):
            enroll("n1", "toy-a1", site.node, site.given)
    finally:
        os.umask(old)
    kept = site.node / "enroll.json"
    assert json.loads(kept.read_text())["secret"] == site.given.secrets["toy-a1"]
    assert kept.stat().st_mode & 0o777 == 0o600
