"""A real Prometheus and Alertmanager for tests, and the queries to them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dashboards.boards import BOARDS
from fault_injection.testbed.waiting import eventually
from supervisor.shell.dev import prometheus
from supervisor.wire.address import free_port
from supervisor.wire.security import Security

EVERY = "1s"
"""A busy machine may not answer within less."""

CONFIGURATION = Path(__file__).parents[3] / "deploy" / "monitoring"


def ask(url: str, what: str, **parameters: object) -> Any:
    """The data of an answer of Prometheus. Raises AssertionError with its message on a wrong query."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=180) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def filled(expression: str, run: str, since_s: float) -> str:
    """The expression as Grafana fills it in for this run and this time."""
    values = {
        "run": run,
        "group": ".*",
        "node": ".*",
        "__rate_interval": "20s",
        "__range": f"{max(1, round(since_s))}s",
        "__range_s": f"{max(1, round(since_s))}",
    }
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


def queries() -> Iterator[tuple[str, str]]:
    """Every expression of every dashboard, with its place."""
    for board in BOARDS:
        for panel in board.panels:
            for expression, _ in panel.queries:
                yield f"{board.title}: {panel.title}", expression
        for mark in board.annotations:
            yield f"{board.title}: {mark.name} (marked)", mark.expression


def answered(url: str, run: str, began: float) -> dict[str, bool]:
    """By place, true if each of its expressions finds a number since `began` (Unix). Prometheus must understand all."""
    found: dict[str, bool] = {}
    now = time.time()
    for where, expression in queries():
        text = filled(expression, run, now - began)
        series = ask(url, "query_range", query=text, start=began, end=now, step="1s")["result"]
        numbers = (value for each in series for _, value in each["values"] if value != "NaN")
        found[where] = found.get(where, True) and any(True for _ in numbers)
    return found


INHIBITED = {"NoLeader"}
"""Alerts that are not sent where StoreAway is their cause, as in these tests, and fires first."""


class Hook:
    """The receiver of Alertmanager's notifications."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, Mapping[str, str]]] = []
        """(alert, firing or resolved, its labels), as they came."""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.heard += [(a["labels"]["alertname"], a["status"], a["labels"]) for a in body["alerts"]]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def of(self, status: str) -> set[str]:
        return {name for name, said, _ in self.heard if said == status}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Asked:
    """A Prometheus with our rules, and an Alertmanager as it is deployed, but quicker."""

    def __init__(self, folder: Path, rules: Mapping[str, str]) -> None:
        """`rules`: files by name."""
        folder.mkdir(parents=True)
        self.folder, self._rules = folder, rules
        self.person, self.heartbeat = Hook(), Hook()
        for name, text in rules.items():
            (folder / name).write_text(text)
        self.alertmanager = f"127.0.0.1:{free_port()}"
        (folder / "alertmanager.yml").write_text(self._alertmanager())
        self._processes = [
            self._start(
                "prometheus-alertmanager",
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager",
                f"--web.listen-address={self.alertmanager}",
                "--cluster.listen-address=",
            )
        ]
        self.url = ""

    def _alertmanager(self) -> str:
        text = (CONFIGURATION / "alertmanager.yml").read_text()
        text = re.sub(r"(group_wait|group_interval|repeat_interval): \w+", r"\1: 1s", text)
        urls = {"alerts": self.person.url, "tickets": self.person.url, "heartbeat": self.heartbeat.url}
        for name, url in urls.items():
            text = text.replace(f"#{name} ", "").replace(f"@{name.upper()}@", url)
        return text

    def follow(self, *supervisors: int) -> None:
        """Scrapes the targets that the supervisors on these ports name, from now on."""
        config = prometheus.config("127.0.0.1:1", Security())
        config["global"] = {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY}
        config["rule_files"] = [str(self.folder / name) for name in self._rules]
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager]}]}]}
        config["scrape_configs"][0]["http_sd_configs"] = [
            {"url": f"http://127.0.0.1:{port}{prometheus.TARGETS}", "refresh_interval": "1s"} for port in supervisors
        ]
        (self.folder / "prometheus.yml").write_text(json.dumps(config))
        if self.url:
            self._processes[-1].send_signal(signal.SIGHUP)
            return
        port = free_port()
        self._processes.append(
            self._start(
                "prometheus",
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--rules.alert.resend-delay=1s",
            )
        )
        self.url = f"http://127.0.0.1:{port}"
        eventually(self._ready, 30, "Prometheus is ready")

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
            return True
        return False

    def value(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        found = ask(self.url, "query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def firing(self) -> set[str]:
        """Alerts that fire now: each by its name, and by its name with its run or node."""
        return _names([a["labels"] for a in ask(self.url, "alerts")["alerts"] if a["state"] == "firing"])

    def has_fired(self, since: float) -> set[str]:
        """Alerts that have fired since then (Unix), named as by `firing`, whether they still do or not."""
        within = max(1, round(time.time() - since))
        return _names(
            [labels for labels, _ in self.value(f'count_over_time(ALERTS{{alertstate="firing"}}[{within}s])')]
        )

    def fire(self, names: Sequence[str], deadline_s: float, since: float) -> None:
        """Waits until these alerts have fired since then (Unix), and a person was notified of each that nothing
        inhibits. An alert that is over before it is sent causes no notification."""
        wanted = set(names)
        eventually(lambda: wanted <= self.has_fired(since), deadline_s, f"{sorted(wanted)} fire")
        alerts = {name.partition(" ")[0] for name in wanted} - INHIBITED
        eventually(lambda: alerts <= self.person.of("firing"), deadline_s, f"a person is told of {sorted(alerts)}")

    def clear(self, names: Sequence[str], deadline_s: float) -> None:
        still = set(names)

        def over() -> bool:
            nonlocal still
            still = self.firing() & set(names)
            return not still

        try:
            eventually(over, deadline_s)
        except AssertionError:
            raise AssertionError(f"after {deadline_s:g} s there still fire: {sorted(still)}") from None

    def told_over(self, names: Sequence[str], deadline_s: float) -> None:
        """Waits until a person was notified of each one's end at least once. An inhibited alert's end causes no
        notification."""
        eventually(
            lambda: set(names) <= self.person.of("resolved"),
            deadline_s,
            f"a person is told of the end of {sorted(names)}",
        )

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.person.close()
        self.heartbeat.close()


def _names(alerts: Sequence[Mapping[str, str]]) -> set[str]:
    about = {f"{labels['alertname']} {labels.get('run', labels.get('node', ''))}".strip() for labels in alerts}
    return about | {labels["alertname"] for labels in alerts}


@contextlib.contextmanager
def asked(folder: Path, rules: Mapping[str, str]) -> Iterator[Asked]:
    made = Asked(folder, rules)
    try:
        yield made
    finally:
        made.close()
