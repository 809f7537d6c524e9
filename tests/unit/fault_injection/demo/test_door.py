"""The demo's page for a browser outside its namespaces."""

from __future__ import annotations

import os
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fault_injection.demo import door


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"the page, for {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_browser_outside_reaches_the_page_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    with door.made() as outside, HTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name, value in door.environment(os.dup(outside.fileno())).items():
            monkeypatch.setenv(name, value)
        url = door.opened(f"http://127.0.0.1:{server.server_port}/")
        assert url == f"http://127.0.0.1:{outside.getsockname()[1]}/", "where it was made, whoever answers"
        for _ in range(2):
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.read().decode() == f"the page, for {url[7:-1]}"
        server.shutdown()
        assert door.VARIABLE not in os.environ, "nobody below is told"


def test_without_a_door_the_page_is_where_it_is() -> None:
    assert door.opened("http://127.0.0.1:1/") == "http://127.0.0.1:1/"
