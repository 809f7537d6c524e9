"""deploy/monitoring.sh: one command brings up the installed parts, with files that Prometheus and Alertmanager take."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dashboards import rules
from fault_injection.testbed.waiting import eventually
from supervisor.shell.dev import prometheus
from supervisor.wire.address import free_port
from supervisor.wire.security import Security

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "monitoring.sh"
SUPERVISORS = ("10.0.0.5:9400", "sup-2.lan:9400")


@contextmanager
def running(folder: Path, *, path: str = "", **settings: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Runs the script until the block ends; yields it and its folder."""
    ports = {f"{name}_PORT": str(free_port()) for name in ("PROMETHEUS", "ALERTMANAGER", "GRAFANA")}
    environment = {**os.environ, **ports, **settings, "FOLDER": str(folder / "m")}
    if path:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(
        # a process that was started in the background ignores Ctrl-C, and a shell cannot trap a signal that it was born
        # to ignore
        ["env", "--default-signal=INT", "sh", str(SCRIPT), *SUPERVISORS],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, folder / "m"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise


def test_it_does_not_write_over_its_own_templates(tmp_path: Path) -> None:
    for name in ("deploy", "dashboards"):
        shutil.copytree(ROOT / name, tmp_path / name)
    kept = {file: file.read_bytes() for file in (tmp_path / "deploy" / "monitoring").rglob("*") if file.is_file()}
    environment = {key: value for key, value in os.environ.items() if key != "FOLDER"}
    command = ["sh", "monitoring.sh", *SUPERVISORS]
    said = subprocess.run(command, cwd=tmp_path / "deploy", env=environment, capture_output=True, text=True, timeout=30)
    assert said.returncode == 2
    assert "holds its templates: give another FOLDER" in said.stderr
    assert {file: file.read_bytes() for file in kept} == kept


def line(process: subprocess.Popen[str], start: str) -> str:
    """The next line of its output that begins with `start`."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(start):
            return text.strip()
    raise AssertionError(f"it did not say {start!r}: {process.stderr.read() if process.stderr else ''}")


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
            return True
    except OSError:
        return False


def test_it_brings_up_prometheus_and_alertmanager_and_ends_them(tmp_path: Path) -> None:
    with running(tmp_path, ALERTS="http://127.0.0.1:1/a&b", HEARTBEAT="http://127.0.0.1:1/beat") as (process, folder):
        urls = [line(process, f"{name}: ").split()[1] for name in ("prometheus", "alertmanager")]
        for url in urls:
            eventually(lambda url=url: ready(url), 30, f"{url} is ready")  # type: ignore[misc]
        for program, file in (("promtool", "prometheus"), ("amtool", "alertmanager")):
            check = ["check", "config"] if program == "promtool" else ["check-config"]
            found = subprocess.run(
                [program, *check, str(folder / f"{file}.yml")], capture_output=True, text=True, check=False
            )
            assert found.returncode == 0, found.stdout + found.stderr
        told = yaml.safe_load((folder / "alertmanager.yml").read_text())
        hooks = {r["name"]: r["webhook_configs"][0]["url"] for r in told["receivers"]}
        assert hooks == {
            "person": "http://127.0.0.1:1/a&b",
            "morning": "http://127.0.0.1:1/a&b",
            "heartbeat": "http://127.0.0.1:1/beat",
        }
    assert not any(ready(url) for url in urls)


@pytest.fixture
def stand_ins(tmp_path: Path) -> str:
    """A folder of programs that do nothing, for tests of the written files alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("prometheus", "alertmanager"):
        (folder / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_tickets_go_where_nobody_is_woken(tmp_path: Path, stand_ins: str) -> None:
    urls = {"ALERTS": "http://127.0.0.1:1/pager", "TICKETS": "http://127.0.0.1:1/chat"}
    with running(tmp_path, path=stand_ins, **urls) as (process, folder):
        line(process, "alertmanager: ")
        told = yaml.safe_load((folder / "alertmanager.yml").read_text())
    hooks = {r["name"]: r["webhook_configs"][0]["url"] for r in told["receivers"] if "webhook_configs" in r}
    by_severity = {r["matchers"][0]: hooks.get(r["receiver"]) for r in told["route"]["routes"]}
    assert by_severity == {
        'alertname="Watchdog"': None,
        'severity="page"': urls["ALERTS"],
        'severity="ticket"': urls["TICKETS"],
    }


@pytest.mark.parametrize("base", ["https://git.example/r/blob/main/docs/runbooks", "https://wiki.example/a&b/"])
def test_each_alert_has_its_page_where_a_telephone_can_open_it(tmp_path: Path, stand_ins: str, base: str) -> None:
    with running(tmp_path, path=stand_ins, RUNBOOKS=base) as (process, folder):
        line(process, "prometheus: ")
        (file,) = yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"]
        written = yaml.safe_load(Path(file).read_text())
    alerts = written["groups"][0]["rules"]
    for alert in alerts:
        page = Path(alert["annotations"]["runbook"])
        assert alert["annotations"].pop("runbook_url") == f"{base.rstrip('/')}/{page.name}"
        assert (ROOT / page).is_file()
    assert written == rules.build()


def test_it_asks_every_supervisor_as_up_does(tmp_path: Path) -> None:
    """The same job, path and rules as beside `supervisor up`."""
    with running(tmp_path) as (process, folder):
        line(process, "prometheus: ")
        written = yaml.safe_load((folder / "prometheus.yml").read_text())
    (job,) = written["scrape_configs"]
    ours = [prometheus.config(supervisor, Security()) for supervisor in SUPERVISORS]
    assert [c["url"] for c in job["http_sd_configs"]] == [
        c["scrape_configs"][0]["http_sd_configs"][0]["url"] for c in ours
    ]
    assert job["job_name"] == prometheus.JOB
    assert [Path(p).resolve() for p in written["rule_files"]] == [Path(p).resolve() for p in ours[0]["rule_files"]]


def test_it_shows_the_certificate_of_a_security_file(tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir()
    file = tmp_path / "certs" / "reader.toml"
    file.write_text(f'ca = "ca.pem"  # whom we believe\ncert="reader.pem"\nkey = "{tmp_path}/reader.key"\n')
    with running(tmp_path, SECURITY=str(file)) as (process, folder):
        line(process, "prometheus: ")
        (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    files = {
        "ca_file": f"{tmp_path}/certs/ca.pem",
        "cert_file": f"{tmp_path}/certs/reader.pem",
        "key_file": f"{tmp_path}/reader.key",
    }
    assert job["tls_config"] == files
    assert [(c["url"], c["tls_config"]) for c in job["http_sd_configs"]] == [
        (f"https://{supervisor}/targets", files) for supervisor in SUPERVISORS
    ]


def test_grafana_is_given_the_dashboards_and_prometheus(tmp_path: Path) -> None:
    """A stand-in takes Grafana's place: no Grafana server is available here."""
    (tmp_path / "bin").mkdir()
    grafana = tmp_path / "bin" / "grafana"
    grafana.write_text(
        f"#!{sys.executable}\nimport json, os, sys, signal\n"
        f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))\nsignal.pause()\n"
    )
    grafana.chmod(0o755)
    with running(tmp_path, path=str(tmp_path / "bin")) as (process, _):
        line(process, "grafana: ")
        arguments, environment = eventually(lambda: yaml.safe_load(_text(tmp_path / "told")), 10, "it was started")
    assert arguments[0] == "server"
    provisioning = Path(environment["GF_PATHS_PROVISIONING"])
    (source,) = _provisioned(provisioning / "datasources", environment)["datasources"]
    assert source["url"] == f"http://{environment['PROMETHEUS']}"
    (provider,) = _provisioned(provisioning / "dashboards", environment)["providers"]
    found = sorted(path.name for path in Path(provider["options"]["path"]).glob("*.json"))
    assert found == ["control-plane.json", "fleet.json", "recovery.json", "run.json"]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _provisioned(folder: Path, environment: dict[str, str]) -> dict[str, list[dict[str, object]]]:
    """The files as Grafana reads them: with variables filled in."""
    (file,) = folder.glob("*.yml")
    text = file.read_text()
    for name in ("PROMETHEUS", "DASHBOARDS"):
        text = text.replace(f"${name}", environment[name])
    found: dict[str, list[dict[str, object]]] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("wrong", [[], ["10.0.0.5"], ["10.0.0.5:"], [":9400"], ["http://10.0.0.5:9400"], ["a:1 b:2"]])
def test_what_is_no_address_is_refused(wrong: list[str], tmp_path: Path) -> None:
    found = subprocess.run(["sh", str(SCRIPT), *wrong], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 2
    assert "HOST:PORT" in found.stderr
    assert list(tmp_path.iterdir()) == []
