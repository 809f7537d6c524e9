"""The demo as a user runs it, with real trainers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.shim import process
from supervisor.shell.history.account import of_run
from tests.helpers import site

TIMEOUT_S = 1200
"""Timeout for a slow machine on which other tests run: alone the demo takes a minute and a half."""


def _demo(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    command = [sys.executable, "-m", "supervisor.cli", "demo", "--home", str(folder / "runs"), *options]
    pipe = subprocess.PIPE
    # a site's shell: trainers must neither heal through the proxy nor believe to be ranks of another job
    shell = {**os.environ, **site.PROXY, **site.OUTER_JOB}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=shell) as started:
        try:
            output, errors = started.communicate(timeout=TIMEOUT_S)
        finally:
            started.send_signal(signal.SIGINT)  # which has it clean up
    result = subprocess.CompletedProcess(command, started.returncode, output, errors)
    if shutil.which("ip"):
        namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        assert f"sv{started.pid}-" not in namespaces
    path = folder / "runs" / "demo" / "report.json"
    assert path.exists(), result.stdout + result.stderr
    return result, json.loads(path.read_text())


@pytest.mark.trainers
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_three_faults_and_training_never_stops(tmp_path: Path) -> None:
    silent = os.geteuid() == 0 and shutil.which("ip") is not None
    result, report = _demo(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert report["node_lost_by"] == ("silent link" if silent else "killed processes (the easier case)")
    assert [i["rung"] for i in report["incidents"]] == [1, 2, 3]  # type: ignore[attr-defined,index]
    assert report["digests_equal"] is True
    assert report["memory_peak_bytes"] < 6e9  # type: ignore[operator]
    assert report["badput_wrong"] == []
    account = of_run(tmp_path / "runs" / "demo")
    assert account["wrong"] == []
    assert account["ettr"] == pytest.approx(report["ettr"], abs=0.02), "as `supervisor ledger` reads it afterwards"
    assert [i["id"] for i in account["incidents"]] == [i["id"] for i in report["incidents"]]  # type: ignore[attr-defined]
    for incident in report["incidents"]:  # type: ignore[attr-defined]
        assert incident["generation_after"] == incident["generation_before"] + 1
        assert 0 <= incident["detected_s"] <= incident["decided_s"] <= incident["acted_s"] <= incident["recovered_s"]
    assert [c["answer"] for c in report["checkers"].values()] == ["pass"] * len(report["checkers"])  # type: ignore[attr-defined]
    lines = [path.read_text().splitlines()[0] for path in tmp_path.glob("runs/**/steps.jsonl")]
    starts = sorted((line["generation"], line["standby"]) for line in map(json.loads, lines))
    assert starts[:4] == [(1, False), (1, False), (2, True), (3, True)], "built ahead in place, and on the spare"
    assert _left(tmp_path) == []


def _left(folder: Path) -> list[int]:
    """Processes that were started for a node below this folder and still run."""
    return [
        stat.pid
        for node in (folder / "runs" / "demo" / ".supervisor" / "nodes").iterdir()
        for stat in process.marked(str(node))
    ]
