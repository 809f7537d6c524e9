"""The HTTP listener of every process of ours: bounded connections, TLS with certificates, and /metrics."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from supervisor.shell.metrics.exposition import answer
from supervisor.wire.deny_list import Serial
from supervisor.wire.listener_files import LOOKED_AT_S, ListenerFiles, server_context, shown
from supervisor.wire.local_peer import is_ours
from supervisor.wire.security import Security, common_name, is_loopback

log = logging.getLogger(__name__)

CONNECTIONS = 256
"""Most concurrent connections: each has a thread."""

SPEAKS_WITHIN_S = 5.0
"""Seconds for the handshake and the request: a client that says nothing soon leaves its place to a scrape."""

LOOK_S = 0.1
"""Seconds between two looks for connections that are silent for too long; so long may a stop take."""

MAKES_PLACE_S = 0.2
"""Seconds for the thread of an ended connection to give its place back."""

PATIENCE_S = 30.0
"""Seconds for which a client that reads nothing is kept; a browser then reconnects."""


class Listener(ThreadingHTTPServer):
    """An HTTP server with a thread for each connection, at most CONNECTIONS."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: str, port: int, registry: CollectorRegistry, security: Security, handler: type[Handler]
    ) -> None:
        """Raises OSError if the port is taken, SecurityError for unusable certificates."""
        self.registry, self.security = registry, security
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self.unheard: dict[Any, float] = {}
        """Until when each connection without a whole request may stay, by time.monotonic()."""
        self.open: dict[Any, str] = {}
        """The address of each connection that has a place, the first one first."""
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address.strip("[]"), port), handler)
        self.shown: dict[Any, Serial] = {}
        """The certificate of each connection that has made its request."""
        self._files: ListenerFiles | None = None
        self._looked = time.monotonic()
        if security.tls:
            self._files = ListenerFiles(security)
            # In each connection's own thread: a silent client would otherwise keep all others out.
            self.socket = self.tls(self._files).wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def tls(self, files: ListenerFiles) -> ssl.SSLContext:
        """Returns the context of its connections: a client shows a certificate of the authority."""
        return server_context(files)

    def serve(self) -> None:
        """Serves in a thread."""
        threading.Thread(target=self.serve_forever, args=(LOOK_S,), name="http", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._make_place()
            if not self._free.acquire(timeout=MAKES_PLACE_S):
                self.shutdown_request(request)
                return
        self.open[request], self.unheard[request] = str(client_address[0]), time.monotonic() + SPEAKS_WITHIN_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._gave_back(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._gave_back(request)

    def heard(self, request: Any) -> None:
        """Notes that a connection has made its whole request, with which certificate. For its own thread."""
        certificate = shown(request) if self._files is not None else None
        if certificate is not None:
            self.shown[request] = certificate
        self.unheard.pop(request, None)

    def _gave_back(self, request: Any) -> None:
        self.shown.pop(request, None)
        self.unheard.pop(request, None)
        self.open.pop(request, None)
        self._free.release()

    def service_actions(self) -> None:
        """Ends what has not made its request in time, whole: one byte now and then is no request. Ends what a deny list
        names that is newer than the connection."""
        now = time.monotonic()
        if self._files is not None and now - self._looked > LOOKED_AT_S:
            self._looked = now
            self._files.stamp()
            for request, certificate in list(self.shown.items()):
                if certificate in self._files.denied:
                    log.warning("ended a connection of %s: its certificate was revoked", common_name(request))
                    self._end(request)
        for request, until in list(self.unheard.items()):
            if now > until:
                self._end(request)

    def _make_place(self) -> None:
        """Ends a connection of the address that has most: one that has asked nothing before one that does not take its
        answer, and the oldest of these. A scrape asks at once, and is answered at once."""
        of: dict[str, list[Any]] = {}
        for request, address in list(self.open.items()):
            of.setdefault(address, []).append(request)
        silent = {address: [r for r in requests if r in self.unheard] for address, requests in of.items()}
        most = max(of, key=lambda address: (len(of[address]), len(silent[address])), default="")
        for request in (silent.get(most) or of.get(most, []))[:1]:
            self._end(request)

    def _end(self, request: Any) -> None:
        self.unheard.pop(request, None)
        self.open.pop(request, None)
        self.shown.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a line, no traceback: failures here are the client's problem, and anyone may knock."""
        log.info("no answer for %s: %s", client_address, sys.exc_info()[1])


class Handler(BaseHTTPRequestHandler):
    """Answers /metrics, for any certificate of the authority; in plain for any user, since a Prometheus of the machine has
    a user of its own."""

    server: Listener
    server_version, sys_version = "supervisor", ""
    timeout = PATIENCE_S
    paths = "there is /metrics"

    def is_for_us(self) -> bool:
        """Returns false for another user of this machine, where no certificate tells: in plain on a loopback address."""
        if self.server.security.tls or not is_loopback(str(self.server.server_address[0])):
            return True
        try:
            return is_ours(self.connection)
        except OSError:
            return False

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests are no news."""

    def parse_request(self) -> bool:
        """Returns false for a request that is answered already, whatever its method: a malformed one, or one that a browser
        makes for another web site."""
        if not super().parse_request():
            return False
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin", "")
        if is_loopback(str(self.server.server_address[0])) and not is_loopback(_name(host) or "localhost"):
            self._say(HTTPStatus.MISDIRECTED_REQUEST, f"this is for localhost, not for {host}")
        elif origin and origin.partition("://")[2] != host:
            self._say(HTTPStatus.FORBIDDEN, f"this is not for pages of {origin}")
        else:
            return True
        return False

    def do_GET(self) -> None:
        self.server.heard(self.connection)
        url = urlsplit(self.path)
        try:
            if url.path == "/metrics":
                self._metrics(url.query)
            else:
                self._answer(url.path, url.query)
        except (BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError) as error:
            log.debug("%s went away: %s", self.client_address, error)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _answer(self, path: str, query: str) -> None:
        """Answers any other path."""
        self._say(HTTPStatus.NOT_FOUND, self.paths)

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


def _name(host: str) -> str:
    """Returns the name in a Host header, without its port; empty if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return "?"
