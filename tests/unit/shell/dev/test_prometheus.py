"""A Prometheus beside `up`: its configuration, and the message when there is none."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
import yaml

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal
from supervisor.shell.control.leader import keep_port
from supervisor.shell.dev import prometheus
from supervisor.shell.dev.prometheus import config, start
from supervisor.shell.dev.up_parts import Up
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire.address import free_port
from supervisor.wire.security import Security
from tests.helpers import site

PLAIN = Security()
TLS = Security(ca="/c/ca.pem", cert="/c/reader.pem", key="/c/reader.key")


def program(folder: Path, body: str) -> None:
    """Makes a `prometheus` that runs this body."""
    path = folder / "prometheus"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)


READY = """
import http.server, sys
port = int(next(a for a in sys.argv if a.startswith("--web.listen")).rpartition(":")[2])
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/-/ready" else 404); self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), H).serve_forever()
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH and a port of its own, behind a proxy that answers no one: other tests may be about to take the usual
    port."""
    for name, value in site.PROXY.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(prometheus, "PORT", free_port())
    return folder


def test_it_asks_the_supervisor_whom_to_scrape() -> None:
    (job,) = config("127.0.0.1:9000", PLAIN)["scrape_configs"]
    (found,) = job["http_sd_configs"]
    assert found["url"] == "http://127.0.0.1:9000/targets"
    assert "tls_config" not in job


def test_it_shows_a_certificate_to_whom_wants_one() -> None:
    (job,) = config("127.0.0.1:9000", TLS)["scrape_configs"]
    (found,) = job["http_sd_configs"]
    assert found["url"] == "https://127.0.0.1:9000/targets"
    files = {"ca_file": "/c/ca.pem", "cert_file": "/c/reader.pem", "key_file": "/c/reader.key"}
    assert (found["tls_config"], job["tls_config"]) == (files, files)


def test_it_has_our_rules() -> None:
    (file,) = config("127.0.0.1:9000", PLAIN)["rule_files"]
    assert yaml.safe_load(Path(file).read_text())["groups"]


def test_it_is_said_plainly_when_there_is_none(path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    keep_port(tmp_path, 9000)
    up = Up(home=tmp_path, address="")
    up.start_prometheus(said.append)
    assert said == [prometheus.MISSING]
    assert "apt-get install prometheus" in said[0]
    assert up.prometheus is None
    assert up.miss_prometheus() == []


def test_it_is_said_why_it_does_not_come_up(path: Path, tmp_path: Path) -> None:
    program(path, "import sys; sys.exit('the disk is full')")
    with pytest.raises(Fatal, match=r"(?s)did not come up.*the disk is full"):
        start(tmp_path / "p", "127.0.0.1:9000", PLAIN)


def test_it_is_ended_with_up_and_missed_when_it_ends_by_itself(path: Path, tmp_path: Path) -> None:
    program(path, READY)
    keep_port(tmp_path, 9000)
    up = Up(home=tmp_path, address="")
    up.start_prometheus(pytest.fail)
    assert up.prometheus is not None
    assert up.miss_prometheus() == []
    written = json.loads((tmp_path / "prometheus" / "prometheus.yml").read_text())
    assert written == config("127.0.0.1:9000", PLAIN)
    process = up.prometheus.process
    process.kill()
    (sentence,) = eventually(up.miss_prometheus, 10, "it is missed")
    assert "prometheus ended with code -9" in sentence
    assert up.miss_prometheus() == []

    up.start_prometheus(pytest.fail)
    assert up.prometheus is not None
    pid = up.prometheus.process.pid
    ticks = start_ticks(pid)
    assert ticks is not None
    assert up.stop() == []
    assert not is_running(pid, ticks)


@pytest.mark.parametrize(("address", "asks"), [("127.0.0.2", "127.0.0.2:9000"), ("::1", "[::1]:9000")])
def test_without_a_pool_it_asks_the_supervisor_at_its_address(
    path: Path, tmp_path: Path, address: str, asks: str
) -> None:
    up = Up(home=tmp_path, address=address, pool=False)
    keep_port(tmp_path, 9000)
    program(path, READY)
    try:
        up.start_prometheus(pytest.fail)
        assert json.loads((tmp_path / "prometheus" / "prometheus.yml").read_text()) == config(asks, PLAIN)
    finally:
        up.stop()


def test_a_port_that_is_taken_is_left_alone(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, READY)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(prometheus, "PORT", port)
        started = start(tmp_path / "p", "127.0.0.1:9000", PLAIN)
        try:
            assert not started.url.endswith(f":{port}")
        finally:
            started.process.kill()
            started.process.wait()
