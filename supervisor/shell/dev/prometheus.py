"""Starts a Prometheus beside `supervisor up`, where one is installed. A cluster uses deploy/monitoring.sh."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from supervisor.ports.errors import Fatal
from supervisor.shell.processes import dies_with_us
from supervisor.wire import environment
from supervisor.wire.address import free_port, taken
from supervisor.wire.security import Security

BINARY = "prometheus"

PORT = 9090
"""Prometheus's default, used if it is free."""

EVERY_S = 5
"""Seconds between scrapes: a demo lasts minutes. A cluster's take 15 s (deploy/monitoring/prometheus.yml)."""

READY_WITHIN_S = 15.0
"""Measured: 0.1 to 0.4 s; after a kill it reads its log first."""

TARGETS = "/targets"
"""Path at which a supervisor lists itself, the leader and all agents (http_sd)."""

JOB = "pretraining"

MISSING = (
    "prometheus is not installed (Debian: as root: apt-get install prometheus): no metrics are kept. Everything else is up; "
    "/metrics is there for a Prometheus elsewhere"
)


@dataclass(slots=True)
class Prometheus:
    """A running Prometheus, which ends with the thread that started it."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]


def config(supervisor: str, security: Security) -> dict[str, Any]:
    """Returns Prometheus's configuration: the targets that this supervisor (HOST:PORT) lists, and our rules."""
    tls: dict[str, Any] = {}
    if security.tls:
        tls["tls_config"] = {"ca_file": security.ca, "cert_file": security.cert, "key_file": security.key}
    url = f"{'https' if security.tls else 'http'}://{supervisor}{TARGETS}"
    return {
        "global": {"scrape_interval": f"{EVERY_S}s", "evaluation_interval": f"{EVERY_S}s"},
        # by name: dashboards imports us
        "rule_files": [str(files("dashboards") / "rules.yml")],
        "scrape_configs": [
            {"job_name": JOB, "http_sd_configs": [{"url": url, "refresh_interval": f"{EVERY_S}s", **tls}], **tls}
        ],
    }


def start(folder: Path, supervisor: str, security: Security) -> Prometheus:
    """Starts it on loopback, with its data below `folder`. Raises Fatal if it is missing or does not come up."""
    binary = shutil.which(BINARY)
    if binary is None:
        raise Fatal(MISSING)
    folder.mkdir(parents=True, exist_ok=True)
    # JSON is YAML too
    (folder / "prometheus.yml").write_text(json.dumps(config(supervisor, security), indent=1))
    port = free_port() if taken("127.0.0.1", PORT) else PORT
    log = folder / "prometheus.log"
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        # an exemplar carries the incident's id
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with log.open("ab") as out:
        process = subprocess.Popen(
            dies_with_us([binary, *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=environment.decided(os.environ, (supervisor.rpartition(":")[0].strip("[]"),)),
        )
    started = Prometheus(f"http://127.0.0.1:{port}", log, process)
    _wait_ready(started)
    return started


def _wait_ready(started: Prometheus) -> None:
    end = time.monotonic() + READY_WITHIN_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while started.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), direct.open(f"{started.url}/-/ready", timeout=1.0):
            return
        time.sleep(0.05)
    started.process.kill()
    started.process.wait()
    lines = started.log.read_text(errors="replace").splitlines()[-2:]
    raise Fatal("\n  ".join([f"prometheus did not come up; everything else is. The end of {started.log}:", *lines]))
