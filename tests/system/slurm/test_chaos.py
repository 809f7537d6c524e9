"""`supervisor chaos run` against a live run on a real Slurm: it makes Slurm's own failures, reads them back from Slurm,
and undoes them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.checkers.consistency import check
from fault_injection.checkers.history_file import load as read
from fault_injection.checkers.recovery import ALL
from fault_injection.faults import engine
from fault_injection.testbed.own_slurm import available
from fault_injection.testbed.slurm_world import SlurmWorld, slurm_world
from fault_injection.testbed.stopping import states
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.spec import BudgetSpec, TitanSpec
from supervisor.shell.history.files import History
from supervisor.shell.history.incidents import incidents
from supervisor.wire.records import RunRecord
from tests.real_trainers.test_chaos import CHAOS

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(available()), reason=available() or "Slurm"),
    pytest.mark.timeout(600),
]

SOON_S = 60.0
CHAOS_S = 150.0
ALL_FOUR = ("job_cancelled", "node_drained", "replacement_pending", "controller_away")
QUICK = {"MessageTimeout": "3"}
"""Slurm settings by which a command gives up soon on a stopped slurmctld."""


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    """A Slurm in which a slurmctld that is away for some seconds takes no node for dead."""
    with slurm_world(tmp_path_factory.mktemp("slurm"), slurmd_timeout=300, options=QUICK) as made:
        yield made


@pytest.fixture(scope="module")
def record(w: SlurmWorld) -> RunRecord:
    """A run of two groups and a spare, on four hosts."""
    titan = TitanSpec(steps=10**6, digest_interval_steps=10, overrides={"toy.mode": "quorum", "toy.step_s": 0.1})
    # a spare that is taken is asked for again when it could have come; that and the groups' are paid for
    spec = w.spec("open", allocation_timeout_s=20.0, budget=BudgetSpec(reallocate=10))
    made = w.launch(replace(spec, chaos="allowed", titan=titan))
    eventually(lambda: w.all_run(made), SOON_S, "all groups train, and there is a spare")
    return made


def chaos(w: SlurmWorld, schedule: str, out: Path) -> subprocess.Popen[str]:
    """Starts the command against that run, with Slurm's commands on its path. It writes into `out`, where nothing may be
    left of an earlier one."""
    path = w.runs / "schedule.toml"
    path.write_text(schedule)
    command = ["run", str(path), "--run", "open", "--home", str(w.runs), "--etcd", w.etcd.endpoint, "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", CHAOS, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**w.environment, "PYTHONUNBUFFERED": "1"},
        text=True,
    )


def said(command: subprocess.Popen[str]) -> str:
    """The output up to the command's end; one that does not end is interrupted, and then cleans up."""
    try:
        return command.communicate(timeout=CHAOS_S)[0]
    except subprocess.TimeoutExpired:
        command.send_signal(signal.SIGINT)
        pytest.fail(f"it does not end: {command.communicate(timeout=SOON_S)[0]}")


def planned(*names: str) -> str:
    return "".join(f'[[fault]]\nname = "{name}"\nat_step = 5\ngroup = 1\n' for name in names)


def nothing_of_it_is_left(w: SlurmWorld, record: RunRecord) -> None:
    """True if only the run's own jobs are left, every host takes jobs, and slurmctld goes on."""
    eventually(lambda: w.all_run(record), SOON_S, "the run goes on, with its spare")
    assert {job["name"] for job in w.live_jobs("PENDING", "RUNNING", "CONFIGURING")} == {"supervisor-open"}
    state = w.status(record)
    used = {*(group.node for group in state.groups), *state.spares}
    idle = {node: ["allocated" if node in used else "idle"] for node in w.lab.nodes}
    eventually(lambda: w.lab.node_states() == idle, SOON_S, "every host takes jobs")
    assert "T" not in states(int((w.lab.folder / "slurmctld.pid").read_text()))


def without_a_node_s(history: History, group: int) -> float:
    """The longest time, in seconds, from a decision after which it has no node to one that places it."""
    longest, since = 0.0, None
    for decision in history.committed():
        about = decision.groups.get(str(group)) or decision.groups.get(group)  # type: ignore[call-overload]
        if about is None:
            continue
        if since is not None and about["node"]:
            longest, since = max(longest, decision.t - since), None
        elif since is None and not about["node"]:
            since = decision.t
    return longest


@pytest.mark.long
def test_what_slurm_does_is_made_read_back_and_undone(w: SlurmWorld, record: RunRecord) -> None:
    began = chaos(w, planned(*ALL_FOUR), w.runs / "all")
    text = said(began)
    history = read(w.runs / "all" / "history.jsonl")
    answers = {v.checker: v.answer for v in check(history, ALL)}
    assert answers.pop("digests_equal") == "unknown", "toys hash nothing"
    assert set(answers.values()) == {"pass"}, text
    assert began.returncode == 1, "for that reason alone"

    cancelled, drained, pending, away = history.faults
    assert [(i.kind, i.rung, i.group) for i in incidents(history)] == [
        (Kind.ALLOCATION_LOST, Rung.REALLOCATE, 1), (Kind.LEAVING, Rung.REPLACE, 1), (Kind.ALLOCATION_LOST, Rung.REALLOCATE, 1),
    ], "none of a slurmctld that is away"  # fmt: skip
    assert re.fullmatch(rf"scancel of job \d+ on {cancelled.node}: squeue says CANCELLED", cancelled.evidence)
    assert drained.evidence.startswith(f"sinfo said ALLOCATED+DRAIN of node {drained.node}; group 1 went to ")
    assert drained.evidence.endswith("it is resumed, and sinfo says IDLE")
    assert re.search(
        r"group 1 has no node, and open-a\d+ is pending: Resources; squeue says PENDING of its job \d+",
        pending.evidence,
    )
    assert re.search(r"job \d+ fills n\d, job \d+ queues for n\d, job \d+ queues for n\d; ", pending.evidence)
    assert pending.healed is not None
    assert pending.made is not None
    assert without_a_node_s(history, 1) > pending.healed - pending.made >= engine.PENDING_S
    assert away.evidence.endswith("`scontrol ping` says: Slurmctld(primary) at " + f"{socket.gethostname()} is DOWN")

    log = w.lab.log()
    assert f"update_node: node {drained.node} reason set to: supervisor chaos, run open" in log, "Slurm's own words"
    assert f"update_node: node {drained.node} state set to IDLE" in log
    nothing_of_it_is_left(w, record)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("replacement_pending", " is pending: Resources"),
        ("controller_away", "is DOWN"),
        ("node_drained", "until it is left"),
    ],
)
def test_an_interrupt_undoes_it(w: SlurmWorld, record: RunRecord, name: str, made: str) -> None:
    """The interrupt also undoes changes whose effect is still to come: a node that is drained is resumed."""
    began = chaos(w, planned(name), w.runs / name)
    assert began.stdout is not None
    lines = []
    for line in began.stdout:
        lines.append(line)
        if made in line:
            break
    if name == "node_drained":
        eventually(
            lambda: began.poll() is not None or any("drain" in words for words in w.lab.node_states().values()),
            SOON_S, "one is drained",
        )  # fmt: skip
    began.send_signal(signal.SIGINT)
    text = said(began)
    began.stdout.close()
    assert began.returncode == 1, "".join(lines) + text
    assert "interrupted: what was broken is healed" in text, "".join(lines)
    nothing_of_it_is_left(w, record)
