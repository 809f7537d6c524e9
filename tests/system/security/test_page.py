"""Access to the page over TLS."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.shell.web.server import READ_BY, Server, serve, url_of
from supervisor.shell.web.watcher import Page
from tests.helpers.tls import Certificates
from tests.helpers.tls_client import client_context, dial, metrics, without_certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make(*READ_BY, "node-n1")
    return made


@pytest.fixture
def server(certificates: Certificates) -> Iterator[Server]:
    page = Page(MemoryStore())
    made = serve(CollectorRegistry(), page, "127.0.0.1", 0, certificates.of("supervisor"))
    page.start()
    yield made
    page.stop()
    made.shutdown()
    made.server_close()


def ask(server: Server, context: ssl.SSLContext, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", server.server_port, timeout=10.0, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("who", READ_BY)
def test_those_who_read_all_of_etcd_read_the_page(server: Server, certificates: Certificates, who: str) -> None:
    assert url_of(server).startswith("https://")
    context = client_context(certificates.of(who))
    assert ask(server, context, "/")[0] == 200
    status, body = ask(server, context, "/snapshot.json")
    assert (status, json.loads(body)["run"]) == (200, "")
    status, body = ask(server, context, "/targets")
    own = f"127.0.0.1:{server.server_port}"
    assert (status, json.loads(body)) == (200, [{"targets": [own], "labels": {"instance": own, "__scheme__": "https"}}])


def test_a_nodes_certificate_reads_metrics_and_no_page(server: Server, certificates: Certificates) -> None:
    context = client_context(certificates.of("node-n1"))
    for path in ("/", "/snapshot.json", "/events", "/targets", "/nothing"):
        status, body = ask(server, context, path)
        assert status == 403
        assert b"the page is for the certificates of reader, supervisor, root" in body
    assert ask(server, context, "/metrics")[0] == 200


def test_without_a_certificate_there_is_nothing(server: Server, certificates: Certificates) -> None:
    # a client that sends nothing keeps no other out
    with dial(f"127.0.0.1:{server.server_port}", None):
        for context in (None, without_certificate()):
            with pytest.raises((OSError, http.client.HTTPException)):
                metrics(server.server_port, context)
        assert ask(server, client_context(certificates.of("reader")), "/")[0] == 200
