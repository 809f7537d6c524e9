"""The one HTTP listener of a supervisor: the page, /metrics, and /targets for Prometheus."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Mapping
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from supervisor.shell.code.answers import Code
from supervisor.shell.code.store import CodeStore
from supervisor.shell.metrics.http_sd import listed, of_page
from supervisor.shell.metrics.listener import Handler, Listener
from supervisor.shell.web.feed import Feed
from supervisor.shell.web.watcher import Full, Page
from supervisor.wire.security import Security, common_name

log = logging.getLogger(__name__)

READ_BY = ("reader", "supervisor", "root")
"""Common names that may read all of etcd, and so the page; /metrics is open to any certificate of the authority."""

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


class Server(Listener):
    """The listener, with a page."""

    def __init__(
        self,
        address: str,
        port: int,
        registry: CollectorRegistry,
        page: Page,
        security: Security,
        system: Path | None = None,
    ) -> None:
        """`system`: the folder below which code is kept; None: none is. Raises OSError if the port is taken, SecurityError
        for unusable certificates."""
        self.page = page
        store = CodeStore(system / "code", lambda: page.codes) if system is not None else None
        self.code = Code(store, lambda: page.granted) if store is not None else None
        super().__init__(address, port, registry, security, _Handler)


def serve(
    registry: CollectorRegistry, page: Page, address: str, port: int, security: Security, system: Path | None = None
) -> Server:
    """Serves in a thread. With certificates, only TLS clients with one. Raises OSError if the port is taken."""
    server = Server(address, port, registry, page, security, system)
    server.serve()
    return server


def url_of(server: Server) -> str:
    """Returns the URL for a browser. For a listener on all addresses it has the machine's name."""
    address, port = server.server_address[:2]
    host = str(address)
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{'https' if server.security.tls else 'http'}://{name}:{port}/"


class _Handler(Handler):
    server: Server
    paths = "there is / (the page), /snapshot.json, /events, /metrics and /targets"

    def _answer(self, path: str, query: str) -> None:
        if not self._may_read():
            who = ", ".join(READ_BY)
            self._say(HTTPStatus.FORBIDDEN, f"the page is for the certificates of {who} (docs/SECURITY.md)")
        elif path == "/targets":  # like /metrics, for a Prometheus that has a user of its own
            self._targets()
        elif not self.is_for_us():
            self._say(HTTPStatus.FORBIDDEN, "the page is for the user who runs this supervisor (docs/SECURITY.md)")
        elif path in _FILES:
            name, kind = _FILES[path]
            self._send(HTTPStatus.OK, _read(name), kind)
        elif path in ("/events", "/snapshot.json"):
            self._of_run(path, parse_qs(query).get("run", [""])[0])
        else:
            super()._answer(path, query)

    def do_POST(self) -> None:
        if self.server.code is None or not self.path.startswith("/code/"):
            super().do_POST()
            return
        self.server.heard(self.connection)
        self.server.code.answer(self)

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

    def _headers(self, kind: str) -> None:
        super()._headers(kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)


def _read(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()
