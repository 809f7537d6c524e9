"""A real Prometheus for tests, which gets its targets from supervisors."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fault_injection.testbed.waiting import eventually
from supervisor.wire.address import free_ports

BINARY = shutil.which("prometheus")


class Prometheus:
    """A Prometheus that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **parameters: str) -> Any:
        """The answer's data; None while there is none."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}{path}?{query}", timeout=10.0) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return None
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def value(self, expression: str) -> float | None:
        """The value of an expression; None: it has none now."""
        found = (self.ask("query", query=expression) or {"result": []})["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def up(self) -> set[str]:
        """Instances that are scraped and answer, by what can be queried. A target's health runs ahead of that: it is
        set before the samples of its scrape are committed."""
        found = (self.ask("query", query="up == 1") or {"result": []})["result"]
        return {sample["metric"]["instance"] for sample in found}

    def names(self) -> set[str]:
        """Names of all series that ever existed."""
        return set(self.ask("label/__name__/values") or ())


@contextlib.contextmanager
def prometheus(folder: Path, supervisors: Sequence[str], tls: dict[str, str] | None = None) -> Iterator[Prometheus]:
    """`supervisors`: the addresses of their pages. `tls`: a tls_config, for them and for all that they name."""
    assert BINARY is not None
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    with_tls = {"tls_config": tls} if tls else {}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": "supervisor",
                "http_sd_configs": [
                    {"url": f"{page}targets", "refresh_interval": "1s", **with_tls} for page in supervisors
                ],
                **with_tls,
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    arguments = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
        "enable-feature": "exemplar-storage",
    }
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [BINARY, *(f"--{name}={value}" for name, value in arguments.items())], stdout=log, stderr=log
        )
    try:
        made = Prometheus(port)
        eventually(lambda: made.ask("status/buildinfo"), 30, "Prometheus answers")
        yield made
    finally:
        process.terminate()
        process.wait(20)
