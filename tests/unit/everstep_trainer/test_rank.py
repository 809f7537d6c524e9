"""A script's rank leaves its records, obeys its node and ends by the right exit code: real processes, without torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.wire import checkpoints, environment
from supervisor.wire.records import (
    MISCONFIGURED,
    PEERS_GONE,
    TERMINATED,
    CheckpointMark,
    Progress,
    TrainerLaunch,
    decode,
    encode,
)

STEPS = """
import sys, time
import everstep_trainer
with everstep_trainer.start() as rank:
    assert "torch" not in sys.modules
    rank.admit()
    step = 0
    while rank.goes_on(step):
        step += 1
        with rank.during("data"):
            time.sleep(0.01)
        rank.step(step, loss=1.0 / step, note="mine")
        if rank.checkpoint_due(step):
            with rank.checkpoint(step) as folder:
                (folder / "state").write_text(str(step))
"""

FAILS = """
import everstep_trainer
from titan_actor.peers import PeersGone
with everstep_trainer.start() as rank:
    rank.step(1)
    raise {error}
"""


class Script:
    """A script with a launch file of its own."""

    def __init__(self, folder: Path, text: str, steps: int = 12) -> None:
        self.folder, self.run_dir = folder / "rank", folder / "run"
        self.folder.mkdir()
        launch = TrainerLaunch(
            run="r", group=0, generation=3, rank=0, world_size=1, groups=1, min_groups=1, node="n",
            node_address="127.0.0.1", master_port=1, lighthouse="127.0.0.1:1", run_dir=str(self.run_dir),
            rank_dir=str(self.folder), titan=TitanSpec(steps=steps, checkpoint_interval_steps=5), torchft=TorchFTSpec(),
            writer=True,
        )  # fmt: skip
        (self.folder / "launch.json").write_bytes(encode(launch))
        named = {**os.environ, environment.LAUNCH: str(self.folder / "launch.json")}
        # an import of agents.cli in this process holds the signal back, also for its children
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        self.process = subprocess.Popen([sys.executable, "-c", text], env=named, stderr=subprocess.PIPE, text=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def exit_code(self) -> int:
        self.errors = self.process.communicate(timeout=120)[1]
        return self.process.returncode

    @property
    def progress(self) -> Progress:
        return decode((self.folder / "progress.json").read_bytes(), Progress)

    def reached(self, step: int) -> None:
        eventually(lambda: (self.folder / "progress.json").exists() and self.progress.step >= step, 30, f"step {step}")

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (self.folder / "steps.jsonl").read_text().splitlines()]
        return [line for line in found if line["event"] == event]

    def ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.folder / "command.sock"))
            with asking.makefile("rwb") as lines:
                lines.write(json.dumps(request).encode() + b"\n")
                lines.flush()
                answer: dict[str, Any] = json.loads(lines.readline())
                return answer


Start = Callable[..., Script]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Start]:
    """Starts a script in a folder of its own, and ends it with the test."""
    started: list[Script] = []

    def start(text: str, steps: int = 12) -> Script:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Script(folder, text, steps))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_it_reports_each_step_and_its_checkpoints_and_finishes(script: Start) -> None:
    ran = script(STEPS)
    assert ran.exit_code() == 0, ran.errors
    found = ran.progress
    assert (found.phase, found.step, found.commits, found.generation) == ("finished", 12, 12, 3)
    assert found.loss == pytest.approx(1 / 12)
    assert found.data_s > 0
    steps = ran.lines("step")
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert all(line["committed"] and line["note"] == "mine" for line in steps)
    marks = [mark for _, _, mark in checkpoints.listed(str(ran.run_dir))]
    assert [mark.step for mark in marks if mark is not None] == [12, 10, 5]
    assert found.checkpoint == marks[0] == CheckpointMark(
        step=12, path=str(ran.run_dir / "checkpoints" / "step-12.g0.gen3"), group=0, generation=3
    )  # fmt: skip


def test_a_drain_ends_it_after_that_step_and_sigterm_after_the_one_in_progress(script: Start) -> None:
    drained, ended = script(STEPS, steps=10**6), script(STEPS, steps=10**6)
    for each in (drained, ended):
        each.reached(2)
    ended.ask(do="wait", wait=True)
    eventually(lambda: ended.progress.phase == "waiting", 30, "it waits after its step")
    stood = ended.progress.step
    ended.ask(do="wait", wait=False)
    eventually(lambda: ended.progress.step > stood, 30, "it goes on")
    ended.ask(do="wait", wait=True)
    last = drained.progress.step + 40
    assert drained.ask(do="drain", at_step=last) == {"ok": True}
    drained.process.send_signal(signal.SIGUSR1)
    eventually(lambda: "most recent call" in (drained.folder / "stacks.txt").read_text(), 30, "its stacks are there")
    ended.process.terminate()
    assert (drained.exit_code(), ended.exit_code()) == (0, TERMINATED)
    assert (drained.progress.phase, drained.progress.step) == ("finished", last)
    assert ended.progress.phase == "failed"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ValueError('a bug')", 1),
        ("everstep_trainer.Misconfigured('no such file')", MISCONFIGURED),
        ("PeersGone('at step 0')", PEERS_GONE),
        ("SystemExit(7)", 7),
    ],
)
def test_its_exit_code_tells_how_it_ended(script: Start, error: str, code: int) -> None:
    ran = script(FAILS.replace("{error}", error))
    assert ran.exit_code() == code
    if code in (1, MISCONFIGURED):
        message = json.loads((ran.folder / "error.json").read_text())["message"]["message"]
        assert message == ran.progress.error
        assert ran.progress.phase == "failed"


def test_a_script_that_no_supervisor_started_says_what_to_do() -> None:
    alone = {name: value for name, value in os.environ.items() if name != environment.LAUNCH}
    command = [sys.executable, "-c", "import everstep_trainer; everstep_trainer.start()"]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Name it in [trainer] command of a run file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_library_can_be_read_before_it_is_trusted() -> None:
    import everstep_trainer

    folder = Path(everstep_trainer.__file__).parent
    assert 100 < sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py")) <= 200
