"""`supervisor chaos` as a user runs it: a real run is broken, mended and certified; a live run only if it allows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.shim import process
from fault_injection.chaos.schedule import load
from fault_injection.checkers.consistency import check
from fault_injection.checkers.history_file import load as read
from fault_injection.checkers.recovery import ALL
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.shell.processes import start_ticks

TIMEOUT_S = 900

CHAOS = "import sys; from fault_injection.chaos.command import chaos; chaos(sys.argv[1:])"
"""The entry point's call, for any place of the packages."""

SCHEDULE = """
seed = 7
[[fault]]
name = "sigkill"
at_step = 10
group = 1
[[fault]]
name = "supervisor_killed"
at_step = 10
together = "during"
[[fault]]
name = "exception"
at_step = 20
group = 0
"""


def chaos(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHAOS, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)


def said(process_: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> str:
    try:
        return process_.communicate(timeout=timeout_s)[0]
    finally:
        process_.send_signal(signal.SIGINT)  # which has it clean up


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_a_run_is_broken_mended_and_certified(tmp_path: Path) -> None:
    (tmp_path / "schedule.toml").write_text(SCHEDULE)
    started = chaos(tmp_path, "run", "schedule.toml", "--home", str(tmp_path / "runs"))
    text = said(started)
    assert started.returncode == 0, text
    folder = tmp_path / "runs" / "chaos"
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["green"] is True
    assert {c["answer"] for c in report["checkers"].values()} == {"pass"}
    assert set(report["checkers"]) == set(ALL)
    kill, leader, raised = report["faults"]
    assert [(f["name"], f["kind"], f["rung"]) for f in report["faults"]] == [
        ("sigkill", "crash", 1), ("supervisor_killed", None, None), ("exception", "error", 1),
    ]  # fmt: skip
    for f in (kill, raised):
        assert 0 < f["detected_s"] <= f["decided_s"] <= f["acted_s"] <= f["rejoined_s"] <= f["over_s"] <= f["within_s"]
    assert leader["over_s"] < leader["within_s"]
    assert 0 < report["ettr"] < 1
    samples = report["samples"]
    # four a step, whoever takes part
    assert (samples["once"], samples["twice"], samples["never"]) == (4 * report["steps_committed"], 0, 0)
    parity = report["loss_parity"]
    assert (parity["answer"], parity["steps"]) == ("pass", report["steps_committed"]), parity["why"]
    assert parity["states"]["equal"] == parity["states"]["of"] > 0, "to the last bit"
    assert [v.answer for v in check(read(folder / "history.jsonl"), ALL)] == ["pass"] * len(ALL)
    plan = load(folder / "plan.toml")
    assert [(f.name, f.group, f.together) for f in plan.fault][:2] == [
        ("sigkill", 1, ""),
        ("supervisor_killed", leader["group"], "during"),
    ]
    assert left(folder, started.pid) == []


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_an_interrupt_heals_what_is_broken_and_ends_what_was_started(tmp_path: Path) -> None:
    (tmp_path / "schedule.toml").write_text('[[fault]]\nname = "agent_stopped"\nat_step = 5\n')
    started = chaos(tmp_path, "run", "schedule.toml", "--home", str(tmp_path / "runs"))
    assert started.stdout is not None
    lines = []
    for line in started.stdout:
        lines.append(line)
        if "which the kernel shows as stopped" in line:
            break
    pid = int(lines[-1].split()[3].rstrip(","))
    assert start_ticks(pid) is not None, lines
    started.send_signal(signal.SIGINT)
    text = started.stdout.read()  # to its end
    started.stdout.close()
    assert started.wait(30) == 1, text
    assert "interrupted: what was broken is healed" in text
    report = json.loads((tmp_path / "runs" / "chaos" / "report.json").read_text())
    assert report["green"] is False
    assert start_ticks(pid) is None
    assert left(tmp_path / "runs" / "chaos", started.pid) == []


@pytest.mark.timeout(540)
@pytest.mark.long
def test_a_live_run_is_broken_only_if_it_allows_it_and_goes_on(empty: World) -> None:
    schedule = empty.runs / "schedule.toml"
    schedule.write_text(
        '[[fault]]\nname = "sigkill"\nat_step = 5\ngroup = 1\n[[fault]]\nname = "hiccup"\nat_step = 5\n'
    )
    made = replace(
        toy_spec("live", spares=0), titan=TitanSpec(steps=10**6, overrides={"toy.mode": "quorum", "toy.step_s": 0.1}),
        torchft=TorchFTSpec(quorum_timeout_ms=30_000, quorum_retries=60),
    )  # fmt: skip
    record = empty.launch(made)
    eventually(empty.running(record, 1, 1), 60, "both groups run")
    to = ["run", str(schedule), "--run", "live", "--home", str(empty.runs), "--etcd", empty.etcd.endpoint]
    refused = chaos(empty.runs, *to)
    text = said(refused, 60)
    assert refused.returncode == 1
    assert 'its run file does not say chaos = "allowed"' in text
    assert "Traceback" not in text
    record = empty.launch(replace(made, name="open", chaos="allowed"))
    eventually(empty.running(record, 1, 1), 60, "both groups of the other run")
    to[3] = "open"
    broken = chaos(empty.runs, *to)
    text = said(broken, 150)
    history = read(Path(record.run_dir) / "history.jsonl")
    answers = {v.checker: v.answer for v in check(history, ALL)}
    assert answers.pop("digests_equal") == "unknown", "toys hash nothing"
    assert broken.returncode == 1
    assert set(answers.values()) == {"pass"}, text
    assert empty.running(record, 1, 2)(), "it goes on"


def left(run: Path, command: int) -> list[int | str]:
    """Processes of nodes below this folder that still run, and networks of the command with this pid."""
    nodes = run / ".supervisor" / "nodes"
    assert os.path.isdir(nodes)
    networks = [path.name for path in Path("/run/netns").glob(f"sv{command}-*")]
    return [*networks, *(stat.pid for node in nodes.iterdir() for stat in process.marked(str(node)))]
