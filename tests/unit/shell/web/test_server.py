"""The page over HTTP: its answers, the stream, and clients that misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from fault_injection.testbed.waiting import eventually
from supervisor.shell.metrics import listener
from supervisor.shell.web import server as server_module
from supervisor.shell.web import watcher
from supervisor.shell.web.server import Server, serve, url_of
from supervisor.shell.web.watcher import Page
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, encode
from supervisor.wire.security import Security
from tests.helpers.authority import authority
from tests.helpers.tls_client import client_context, metrics
from tests.helpers.told import ToldWorld

SOON_S = 20.0


class Site:
    """A served run."""

    def __init__(self, world: ToldWorld, page: Page, server: Server) -> None:
        self.world, self.page, self.server = world, page, server
        self.port = server.server_port

    def ask(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        connection.request(method, path, headers=headers)
        return connection.getresponse()

    def snapshot(self) -> dict[str, Any]:
        with self.ask("/snapshot.json") as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def events(self, path: str = "/events") -> Stream:
        return Stream(self.ask(path))


class Stream:
    """The events of one reader."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"

    def next(self) -> tuple[str, dict[str, Any]]:
        """Name and body of the next event; comments are passed over."""
        name = ""
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                return name, json.loads(line[6:])

    def until(self, key: str) -> dict[str, Any]:
        """The first change that has this."""
        for _ in range(200):
            name, body = self.next()
            if name == "change" and key in body:
                return body
        raise AssertionError(f"no change of {key}")

    def close(self) -> None:
        self.answer.close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(watcher, "EVERY_S", 0.05)
    monkeypatch.setattr(watcher, "UNREAD_EVERY_S", 0.1)
    monkeypatch.setattr(watcher, "POLL_S", 0.05)
    monkeypatch.setattr(watcher, "AGAIN_S", 0.05)
    monkeypatch.setattr(server_module, "QUIET_S", 0.2)
    world = ToldWorld(groups=2, ranks=1)
    world.lead()
    world.bring_up()
    world.train(3)
    with served(world) as made:
        yield made


@contextlib.contextmanager
def served(world: ToldWorld) -> Iterator[Site]:
    registry = CollectorRegistry()
    Gauge("supervisor_leader", "1 while it leads", registry=registry).set(1)
    page = Page(world.store)
    server = serve(registry, page, "127.0.0.1", 0, Security())
    page.start()
    try:
        yield Site(world, page, server)
    finally:
        page.stop()
        server.shutdown()
        server.server_close()
        eventually(lambda: not any("process_request" in t.name for t in threading.enumerate()), SOON_S, "no one reads")


def test_the_page_and_its_parts_need_nothing_from_elsewhere(site: Site) -> None:
    kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript", "/chart.js": "text/javascript"}
    for path, kind in kinds.items():
        with site.ask(path) as answer:
            body = answer.read().decode()
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith(kind)
            assert int(answer.headers["Content-Length"]) == len(body.encode())
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Python" not in answer.headers["Server"]
            assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in body
            assert "innerHTML" not in body
    assert url_of(site.server) == f"http://127.0.0.1:{site.port}/"


def test_what_is_not_there_and_what_may_not_be_done(site: Site) -> None:
    for path in ("/nothing", "/../page.css", "/page.html/", "/snapshot.json?run=nobody", "/events?run=nobody"):
        with site.ask(path) as answer:
            assert answer.status == 404, path
            assert answer.read()
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        with site.ask("/", method) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD"), method
    assert site.world.store.get(keys.control("run")) is not None


def test_head_says_what_get_would_and_no_body(site: Site) -> None:
    for path in ("/", "/snapshot.json", "/events", "/metrics", "/nothing"):
        with site.ask(path, "HEAD") as head:
            assert head.read() == b""
        with site.ask(path) as get:
            assert (head.status, head.headers["Content-Type"].split(";")[0]) == (
                get.status,
                get.headers["Content-Type"].split(";")[0],
            ), path


def test_prometheus_is_told_whom_to_scrape(site: Site) -> None:
    eventually(lambda: site.page.targets is not None, SOON_S, "the page has seen etcd")
    with site.ask("/targets") as answer:
        assert answer.headers["Content-Type"] == "application/json"
        found = json.loads(answer.read())
    own = f"127.0.0.1:{site.port}"
    assert {"targets": [own], "labels": {"instance": own, "__scheme__": "http"}} in found


def test_before_etcd_has_answered_prometheus_keeps_what_it_has(site: Site) -> None:
    page = Page(site.world.store)
    server = serve(CollectorRegistry(), page, "127.0.0.1", 0, Security())
    try:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10.0)
        ) as connection:
            connection.request("GET", "/targets")
            assert connection.getresponse().status == 503
    finally:
        server.shutdown()
        server.server_close()


def test_metrics_are_beside_it(site: Site) -> None:
    with site.ask("/metrics") as answer:
        assert b"supervisor_leader 1.0" in answer.read()
    with site.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0") as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    for name, found in (("supervisor_leader", ["supervisor_leader"]), ("supervisor_none", [])):
        with site.ask(f"/metrics?name[]={name}") as answer:
            lines = answer.read().decode().splitlines()
        assert [line.split()[0] for line in lines if not line.startswith("#")] == found


def test_a_web_site_that_names_this_machine_its_own_reads_nothing(site: Site) -> None:
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1.evil.example"):
        for path in ("/snapshot.json", "/metrics", "/targets", "/", "/events"):
            with site.ask(path, Host=host) as answer:
                assert answer.status == 421, host
                assert len(answer.read()) < 100
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
        with site.ask("/snapshot.json", Host="127.0.0.1:80", Origin=origin) as answer:
            assert answer.status == 403, origin
    with site.ask("/snapshot.json", Host="127.0.0.1:80", Origin="http://127.0.0.1:80") as answer:
        assert answer.status == 200
    for host in (f"localhost:{site.port}", "127.0.0.1", "[::1]:80"):
        with site.ask("/snapshot.json", Host=host) as answer:
            assert answer.status == 200, host


def test_the_stream_begins_with_the_whole_and_goes_on_with_changes(site: Site) -> None:
    stream = site.events()
    name, whole = stream.next()
    assert (name, whole["run"], whole["numbers"]["step"]) == ("whole", "run", 3)
    site.world.crash(1)
    site.world.round(0.1)
    change = stream.until("incidents")
    assert change["incidents"]["i1"]["open"]
    assert "0" not in change.get("groups", {}), "only what has changed"
    assert site.snapshot()["incidents"]["i1"]["kind"] == "crash"
    assert "opened" in site.snapshot()["incidents"]["i1"], "the watch has shown what the run's clock shows"
    stream.close()


def test_a_named_run_and_a_newer_one(site: Site) -> None:
    newest, named = site.events(), site.events("/events?run=run")
    assert (newest.next()[1]["run"], named.next()[1]["run"]) == ("run", "run")
    later = RunRecord(spec=replace(site.world.spec, name="later"), run_dir="/nowhere", launched_unix_s=2.0)
    site.world.store.put(keys.spec("later"), encode(later))
    assert newest.until("run")["run"] == "later"
    assert "later" in named.until("runs")["runs"]
    assert json.loads(site.ask("/snapshot.json?run=run").read())["run"] == "run"
    newest.close()
    named.close()


def test_one_who_says_nothing_and_one_who_reads_nothing_keep_nobody_out(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)), socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", site.port))
        deaf.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        stream = site.events()
        assert stream.next()[0] == "whole"
        for _ in range(20):
            assert stream.next()[0] == "change"
        assert site.snapshot()["run"] == "run"
        stream.close()


def test_clients_that_make_no_request_leave_their_places_to_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones, and those that send a byte now and then."""
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    monkeypatch.setattr(listener, "SPEAKS_WITHIN_S", 0.3)
    with served(ToldWorld()) as site:
        clients = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(4)]
        for slow in clients[:2]:
            slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

        def scraped() -> bool:
            for slow in clients[:2]:
                with contextlib.suppress(OSError):
                    slow.sendall(b"x")
            with contextlib.suppress(OSError), site.ask("/metrics") as answer:
                return answer.status == 200
            return False

        eventually(scraped, SOON_S, "they are let go, though they stay")
        for one in clients:
            one.close()


def test_a_scrape_takes_the_place_of_the_client_that_was_silent_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    with served(ToldWorld()) as site:
        held = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(100)]
        began = time.monotonic()
        with site.ask("/metrics") as answer:
            assert answer.status == 200
        assert time.monotonic() - began < listener.SPEAKS_WITHIN_S
        for one in held:
            one.close()


def from_address(address: str, port: int, receives: int = 0) -> socket.socket:
    """A connection from another address of this machine. `receives`: bytes that it takes without being read."""
    made = socket.socket()
    if receives:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    return made


def full_of_readers(site: Site, address: str, count: int = 4) -> list[socket.socket]:
    """Connections that ask for more than the sockets hold, and read nothing of it."""
    registry = site.server.registry
    Gauge("filler", "much", ["of"], registry=registry).labels("x" * 8_000_000).set(1)
    made = [from_address(address, site.port, 1024) for _ in range(count)]
    for one in made:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    eventually(lambda: len(site.server.open) == count and not site.server.unheard, SOON_S, "all have asked")
    return made


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
def test_a_scrape_takes_the_place_of_the_oldest_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """With whole requests on all places, from one address, and be it that of the scrape."""
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    with served(ToldWorld()) as site:
        deaf = full_of_readers(site, address)
        with site.ask("/metrics?name[]=supervisor_leader") as answer:
            assert (answer.status, b"supervisor_leader 1.0" in answer.read()) == (200, True)
        for one in deaf:
            one.close()


def test_a_scrape_with_a_certificate_is_answered_while_others_with_one_hold_all_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    made = authority(tmp_path, "supervisor", "reader", "node-n1")
    registry = CollectorRegistry()
    Gauge("filler", "much", ["of"], registry=registry).labels("x" * 8_000_000).set(1)
    server = listener.Listener("127.0.0.1", 0, registry, made.security(), listener.Handler)
    server.serve()
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        theirs, reader = (client_context(made.security(name)) for name in ("node-n1", "reader"))
        for _ in range(4):
            deaf = from_address("127.0.0.2", server.server_port, 1024)
            deaf = stack.enter_context(theirs.wrap_socket(deaf))
            deaf.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        eventually(lambda: len(server.open) == 4 and not server.unheard, SOON_S, "all have asked")
        for _ in range(20):
            stack.enter_context(from_address("127.0.0.3", server.server_port))  # shakes no hands
        assert "filler" in metrics(server.server_port, reader)


def test_who_fills_all_places_takes_none_of_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    with served(ToldWorld()) as site:
        scrape = from_address("127.0.0.3", site.port)  # it has not asked yet, and was there first
        eventually(lambda: len(site.server.unheard) == 1, SOON_S)
        held = [from_address("127.0.0.2", site.port) for _ in range(100)]
        eventually(lambda: len(site.server.unheard) == 4, SOON_S)
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert scrape.recv(12) == b"HTTP/1.0 200"
        for one in (scrape, *held):
            one.close()


def test_a_reader_that_is_too_slow_is_let_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener.Handler, "timeout", 0.3)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", site.port))
        deaf.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        feed = site.page._feeds[""]
        eventually(lambda: feed.readers == 1, SOON_S)
        # more than the sockets between the two hold
        big = {"run": "run", "filler": "x" * 8_000_000}
        eventually(lambda: feed.publish({**big, "now": feed._version}) or feed.readers == 0, SOON_S)


def test_so_many_readers_and_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "READERS", 3)
    streams = [site.events() for _ in range(3)]
    with site.ask("/events") as refused:
        assert refused.status == 503
        assert b"too many" in refused.read()
    with site.ask("/") as answer:
        assert answer.status == 200
    with site.ask("/metrics") as answer:
        assert answer.status == 200
    assert all(stream.next()[0] == "whole" for stream in streams)
    streams.pop().close()

    def again() -> bool:
        with contextlib.closing(site.ask("/events")) as answer:
            return answer.status == 200

    eventually(again, SOON_S, "a place is free when a reader has gone")
    for stream in streams:
        stream.close()


def test_so_many_connections_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 4)
    monkeypatch.setattr(listener, "MAKES_PLACE_S", SOON_S)  # a busy machine is slow to end a thread
    world = ToldWorld()
    before = threading.active_count()
    with served(world) as site:
        held = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(12)]
        eventually(lambda: threading.active_count() >= before + 4, SOON_S)
        # a page thread and that of the listener are the other two
        assert threading.active_count() <= before + 4 + 2
        for one in held:
            one.close()

        def answers() -> bool:
            try:
                with site.ask("/metrics") as answer:
                    return answer.status == 200
            except OSError:
                return False

        eventually(answers, SOON_S, "places are free again")


def test_while_etcd_is_away_what_held_is_shown_and_since_when(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SILENCE_S", 0.2)
    stream = site.events()
    assert stream.next()[1]["store_since"] == 0
    site.world.store.away = True
    assert stream.until("store_since")["store_since"] > 0
    assert site.snapshot()["numbers"]["step"] == 3
    site.world.store.away = False
    assert stream.until("store_since")["store_since"] == 0
    stream.close()


def test_no_run_and_then_one(site: Site) -> None:
    world = ToldWorld(groups=2)
    with served(world) as empty:
        stream = empty.events()
        assert stream.next()[1]["run"] == ""
        world.lead()
        assert stream.until("run")["run"] == "run"
        stream.close()


def test_a_port_that_is_taken(site: Site) -> None:
    with pytest.raises(OSError, match="in use"):
        serve(CollectorRegistry(), site.page, "127.0.0.1", site.port, Security())
