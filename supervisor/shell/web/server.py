"""The one HTTP listener of a supervisor: the page, /metrics, and /targets for Prometheus."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry

from supervisor.shell.metrics.exposition import answer
from supervisor.shell.metrics.http_sd import listed, of_page
from supervisor.shell.web.feed import Feed
from supervisor.shell.web.watcher import Full, Page
from supervisor.wire.security import Security, common_name, is_loopback, server_context

log = logging.getLogger(__name__)

READ_BY = ("reader", "supervisor", "root")
"""Common names that may read all of etcd, and so the page; /metrics is open to any certificate of the authority."""

CONNECTIONS = 256
"""Most concurrent connections: each has a thread."""

PATIENCE_S = 30.0
"""Seconds for which an idle connection is kept: a browser that reads nothing is dropped, and reconnects."""

QUIET_S = 5.0
"""Seconds between keep-alives to a browser without news, to detect that it is gone."""

AGAIN_MS = 2000
"""Milliseconds until a browser reconnects."""

FIRST_S = 5.0
"""Seconds that the first snapshot may take."""

_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
}

_HEADERS: Mapping[str, str] = {
    # nothing from elsewhere, no script smuggled in an error text, no framing
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """HTTP server with a thread for each connection, at most CONNECTIONS."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: str, port: int, registry: CollectorRegistry, page: Page, security: Security) -> None:
        """Raises OSError if the port is taken, SecurityError for unusable certificates."""
        self.page, self.registry, self.security = page, registry, security
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address.strip("[]"), port), _Handler)
        if security.tls:
            # In each connection's own thread: a silent client would otherwise keep all others out.
            self.socket = server_context(security).wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a line, no traceback: failures here are the client's problem, and anyone may knock."""
        log.info("no answer for %s: %s", client_address, sys.exc_info()[1])


def serve(registry: CollectorRegistry, page: Page, address: str, port: int, security: Security) -> Server:
    """Serves in a thread. With certificates, only TLS clients with one. Raises OSError if the port is taken."""
    server = Server(address, port, registry, page, security)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def url_of(server: Server) -> str:
    """Returns the URL for a browser. For a listener on all addresses it has the machine's name."""
    address, port = server.server_address[:2]
    host = str(address)
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{'https' if server.security.tls else 'http'}://{name}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "supervisor", ""
    timeout = PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests are no news."""

    def do_GET(self) -> None:
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError) as error:
            log.debug("%s went away: %s", self.client_address, error)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _answer(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self._metrics(url.query)
        elif not self._may_read():
            who = ", ".join(READ_BY)
            self._say(HTTPStatus.FORBIDDEN, f"the page is for the certificates of {who} (docs/SECURITY.md)")
        elif self._misled():
            self._say(HTTPStatus.MISDIRECTED_REQUEST, f"this is for localhost, not for {self.headers['Host']}")
        elif url.path in _FILES:
            name, kind = _FILES[url.path]
            self._send(HTTPStatus.OK, _read(name), kind)
        elif url.path == "/targets":
            self._targets()
        elif url.path in ("/events", "/snapshot.json"):
            self._of_run(url.path, parse_qs(url.query).get("run", [""])[0])
        else:
            self._say(HTTPStatus.NOT_FOUND, "there is / (the page), /snapshot.json, /events, /metrics and /targets")

    def _metrics(self, query: str) -> None:
        if self.command == "HEAD":
            self._send(HTTPStatus.OK, b"", "text/plain; charset=utf-8")
            return
        asked = self.headers
        body, headers = answer(self.server.registry, asked.get("Accept", ""), asked.get("Accept-Encoding", ""), query)
        self.send_response(HTTPStatus.OK)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _targets(self) -> None:
        """Answers Prometheus's http_sd_config. Without an answer, Prometheus keeps its targets."""
        known, security = self.server.page.targets, self.server.security
        if known is None:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "etcd has not answered yet")
        else:
            own = of_page(url_of(self.server), security.insecure)
            self._send(HTTPStatus.OK, json.dumps(listed((own, *known), security.tls)).encode(), "application/json")

    def _may_read(self) -> bool:
        security = self.server.security
        return not security.tls or common_name(self.connection) in READ_BY

    def _misled(self) -> bool:
        """Returns true if a browser came by a foreign name for this loopback address, as from a hostile web site."""
        name = urlsplit(f"//{self.headers.get('Host') or 'localhost'}").hostname or ""
        return is_loopback(str(self.server.server_address[0])) and not is_loopback(name)

    def _of_run(self, path: str, run: str) -> None:
        try:
            with self.server.page.reading(run) as feed:
                if path == "/events":
                    self._events(feed)
                else:
                    self._once(feed)
        except KeyError:
            self._say(HTTPStatus.NOT_FOUND, f"there is no run {run!r}")
        except Full:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "too many browsers read the page: close some")

    def _once(self, feed: Feed) -> None:
        feed.after(0, FIRST_S)
        whole = feed.whole()
        if whole is None:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "etcd has not answered yet")
        else:
            self._send(HTTPStatus.OK, whole, "application/json")

    def _events(self, feed: Feed) -> None:
        self.send_response(HTTPStatus.OK)
        self._headers("text/event-stream")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(f"retry: {AGAIN_MS}\n\n".encode())
        version = 0
        while not self.server.page.stopped:
            version, events = feed.after(version, QUIET_S)
            self.wfile.write(events or b":\n\n")

    def _say(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, sentence.encode() + b"\n", "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self._headers(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)


def _read(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()
