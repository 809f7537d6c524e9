"""`supervisor up` with certificates: the processes that it starts have their own, and the other commands find the file
by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.shell.etcd import connect
from supervisor.wire import keys
from tests.helpers.tls import TlsEtcd

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(540)]


def test_up_hands_the_files_on(authed: TlsEtcd, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
    command = [sys.executable, "-m", "supervisor.cli"]
    ours = str(authed.certificates.file("supervisor"))
    started = [*command, "up", "--nodes", "1", "--cold", "--home", str(tmp_path), "--etcd", authed.endpoint]
    output = tmp_path / "up.out"
    with output.open("wb") as file:
        up = subprocess.Popen([*started, "--security", ours], stdout=file, stderr=file, env=environment)
    try:
        eventually(lambda: b"Now: supervisor launch" in output.read_bytes() or up.poll() is not None, 60, "up is up")
        assert up.poll() is None, output.read_text()
        asked = [*command, "nodes", "--json", "--home", str(tmp_path)]
        nodes = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=240, env=environment)
        assert nodes.returncode == 0, nodes.stderr
        assert "host" in [node["node"] for node in json.loads(nodes.stdout) if node["alive"]]
        with connect([authed.endpoint], security=authed.certificates.of("supervisor")) as store:
            assert store.get(keys.LEADER) is not None
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) in (0, 1), output.read_text()
