"""A certificate on the deny list is refused at the next handshake, by every listener and client of ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Retryable
from supervisor.shell.etcd import connect
from supervisor.shell.inspect.doctor import trust
from supervisor.shell.metrics.listener import Handler, Listener
from supervisor.shell.web.server import QUIET_S, serve
from supervisor.shell.web.watcher import Page
from supervisor.wire.expiry import first_expiry_unix_s
from supervisor.wire.security import Reloading, Security, SecurityError, list_lapses, load
from tests.helpers.tls import Certificates, tls_etcd
from tests.helpers.tls_client import client_context, dial, metrics
from tests.system.security.test_forwarder import listening, tries

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path / "certificates")
    made.make("supervisor", "node-n1", "node-n2")
    return made


@contextlib.contextmanager
def serving(security: Security) -> Iterator[int]:
    """The port of a /metrics."""
    server = Listener("127.0.0.1", 0, CollectorRegistry(), security, Handler)
    server.serve()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def reads(port: int, context: ssl.SSLContext) -> bool:
    try:
        metrics(port, context)
    except OSError:
        return False
    return True


def test_a_listener_refuses_it_without_a_restart(certificates: Certificates) -> None:
    contexts = {name: client_context(certificates.of(name)) for name in ("node-n1", "node-n2")}
    with serving(certificates.of("supervisor")) as port:
        assert reads(port, contexts["node-n1"])
        certificates.revoke("node-n1")
        assert not reads(port, contexts["node-n1"])
        assert reads(port, contexts["node-n2"])
        certificates.make("node-n1")
        assert reads(port, client_context(certificates.of("node-n1")))


def test_a_page_that_is_open_ends_with_its_certificate(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Without any new connection, which would look at the list; the streams of others go on."""
    certificates.make("reader", "root")
    page = Page(MemoryStore())
    server = serve(CollectorRegistry(), page, "127.0.0.1", 0, certificates.of("supervisor"))
    page.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        stack.callback(page.stop)
        streams = []
        for name in ("reader", "root"):
            stream = stack.enter_context(dial(f"127.0.0.1:{server.server_port}", certificates.of(name)))
            stream.sendall(b"GET /events HTTP/1.0\r\n\r\n")
            assert stream.recv(12) == b"HTTP/1.0 200"
            streams.append(stream)
        revoked, other = streams
        certificates.revoke("reader")
        eventually(lambda: not revoked.recv(1 << 16), 10, "the revoked one's stream ends")
        assert "ended a connection of reader: its certificate was revoked" in caplog.text
        other.settimeout(3 * QUIET_S)
        since = time.monotonic()
        eventually(lambda: other.recv(1 << 16) and time.monotonic() - since > QUIET_S, 20, "the other's goes on")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_from_before_lets_it_in(certificates: Certificates, version: ssl.TLSVersion) -> None:
    context = client_context(certificates.of("node-n1"))
    context.maximum_version = version

    def asks(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5.0), session=session) as connected:
            connected.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return connected.recv(1), connected.session

    with serving(certificates.of("supervisor")) as port:
        session = None
        with contextlib.suppress(OSError):
            _, session = asks(None)
        certificates.revoke("node-n1")
        with pytest.raises(OSError):
            asks(session)


def test_a_forwarder_and_a_gate_refuse_it(certificates: Certificates, capfd: pytest.CaptureFixture[str]) -> None:
    ours = {name: certificates.of(name) for name in ("node-n1", "node-n2")}

    async def header(of_gate: str) -> bytes | None:
        async with listening(ours[of_gate]) as gate:
            try:
                return await tries(gate, ours["node-n1"], of_gate.removeprefix("node-"))
            except TimeoutError:
                return None  # no connection came as far as the gate

    assert asyncio.run(header("node-n2"))
    certificates.revoke("node-n2")
    assert asyncio.run(header("node-n2")) is None
    assert "certificate revoked" in capfd.readouterr().err
    certificates.make("node-n2")
    assert asyncio.run(header("node-n2"))
    certificates.revoke("node-n1")
    assert asyncio.run(header("node-n2")) is None


def test_a_list_may_have_words_of_any_encoding(certificates: Certificates) -> None:
    crl = certificates.folder / "crl.pem"
    crl.write_bytes("Aussteller: Süd\n".encode("latin-1") + crl.read_bytes())
    assert not math.isinf(list_lapses(certificates.of("node-n1")))


def test_a_list_that_cannot_be_used_leaves_the_last_one(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Certificates(tmp_path / "other")
    other.make("node-n1")
    good, revoked = (client_context(certificates.of(name)) for name in ("node-n2", "node-n1"))
    certificates.revoke("node-n1")
    crl = certificates.folder / "crl.pem"
    before = crl.read_text()
    certificates.list_again(3600.0, begins_in_s=600.0)
    ahead = crl.read_text()
    crl.write_text(before)
    with serving(certificates.of("supervisor")) as port:
        for text, words in (
            (ahead, "begins at .* UTC and refuses every connection until then: set this machine's clock"),
            ("no list", r"crl = .* cannot be used"),
            (None, "No such file"),
            ((certificates.folder / "ca.pem").read_text(), "must have lists of revoked certificates"),
            ((other.folder / "crl.pem").read_text(), "has no list of the authority that signed"),
            ((other.folder / "ca.pem").read_text() + crl.read_text(), "must have lists of revoked certificates"),
        ):
            crl.unlink(missing_ok=True)
            if text is not None:
                crl.write_text(text)
            caplog.clear()
            for _ in range(2):
                if text == ahead:
                    time.sleep(0.6)  # a second ends at one of the looks
                assert reads(port, good)
            assert not reads(port, revoked)
            (found,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            assert re.search(f"going on with the files that were read before: .*{words}", found)
            with pytest.raises((SecurityError, OSError), match=words):
                Reloading(certificates.of("node-n2"))


def test_a_renewed_certificate_leaves_the_sites_own_lines(certificates: Certificates) -> None:
    file, pem = certificates.file("supervisor"), certificates.folder / "supervisor.pem"
    file.write_text(file.read_text() + 'enroll = ["10.0.0.5:7100"]\n')
    before = file.read_text(), pem.read_bytes()
    certificates.make("supervisor")
    assert file.read_text() == before[0]
    assert pem.read_bytes() != before[1]


def test_a_list_that_lapses_refuses_all_until_there_is_another(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    certificates.list_again(seconds=5)
    until = list_lapses(certificates.of("supervisor"))
    context = client_context(certificates.of("node-n1"))
    with serving(certificates.of("supervisor")) as port:
        assert reads(port, context)
        assert "is valid for 0 more days" in findings(certificates)["note"]
        assert first_expiry_unix_s(certificates.of("supervisor")) == until
        # OpenSSL looks at the time a little later than the listener does: the first refusal may have no line yet
        eventually(lambda: not reads(port, context) and "has lapsed" in caplog.text, 15, "the list has lapsed")
        assert time.time() >= until
        assert caplog.text.count("has lapsed, so every new connection is refused: renew it, no restart is needed") == 1
        assert "the deny list" in findings(certificates)["bad"]
        certificates.list_again(seconds=3600)
        assert reads(port, client_context(certificates.of("node-n1")))


def findings(certificates: Certificates) -> dict[str, str]:
    """The newest sentence of each level about the deny list."""
    found = trust.certificates(certificates.of("supervisor"), time.time())
    return {finding.level: finding.what for finding in found if "deny list" in finding.what}


def test_a_new_authority_comes_with_a_list_of_its_own(certificates: Certificates, tmp_path: Path) -> None:
    """Both authorities have the same name, as the script gives it."""
    new = Certificates(tmp_path / "new")
    new.make("node-n1")
    old_context = client_context(certificates.of("node-n2"))
    both = {name: (certificates.folder / name).read_text() + (new.folder / name).read_text() for name in ("ca.pem", "crl.pem")}  # fmt: skip
    with serving(certificates.of("supervisor")) as port:
        (certificates.folder / "ca.pem").write_text(both["ca.pem"])
        (new.folder / "ca.pem").write_text(both["ca.pem"])
        (new.folder / "crl.pem").write_text(both["crl.pem"])
        of_new = client_context(new.of("node-n1"))
        assert not reads(port, of_new), "there is no list of the new authority yet"
        assert reads(port, old_context)
        (certificates.folder / "crl.pem").write_text(both["crl.pem"])
        for context in (of_new, client_context(certificates.of("node-n1"))):
            assert reads(port, context)


def test_its_own_process_does_not_start(certificates: Certificates) -> None:
    certificates.revoke("node-n1")
    with pytest.raises(SecurityError, match=r"node-n1\.pem is revoked by .*crl\.pem: make a new certificate"):
        certificates.of("node-n1")
    assert load(certificates.file("node-n2")).tls


@pytest.mark.etcd
def test_etcd_has_an_option_of_its_own_for_it(certificates: Certificates, tmp_path: Path) -> None:
    certificates.make("etcd", "root")
    thief = replace(certificates.of("node-n1"), crl="")
    with tls_etcd(tmp_path / "etcd", certificates) as server:
        connect([server.endpoint], security=thief).close()
        certificates.revoke("node-n1")
        with pytest.raises(Retryable):
            connect([server.endpoint], timeout_s=1.0, security=thief)
        connect([server.endpoint], security=certificates.of("root")).close()
