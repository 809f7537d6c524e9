"""A trainer's answers to commands, its ends, and its wait for the gate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.wire.address import free_port
from supervisor.wire.records import TERMINATED
from tests.real_trainers.titan.groups import Gate, Groups, Lighthouse, Rank, Warm

pytestmark = pytest.mark.trainers


def test_answers_on_its_socket(groups: Groups) -> None:
    rank = groups.start(0, groups=1)
    rank.reached(2)
    progress = rank.progress
    assert progress is not None
    assert progress.seconds["productive"] > 0
    assert progress.gradient_norm > 0
    assert progress.mfu is None, "there is no GPU"
    assert rank.ask("fly") == {"error": "unknown command 'fly'"}
    assert "at_step" in rank.ask("drain", at_step="soon")["error"]
    assert "writer" in rank.ask("writer", writer="yes")["error"]
    assert "true or false" in rank.ask("wait", wait=1)["error"]
    rank.ask("wait", wait=True)
    eventually(lambda: rank.progress and rank.progress.phase == "waiting", 30, "it waits after its step")
    stood = rank.step
    rank.ask("wait", wait=False)
    eventually(lambda: rank.step > stood, 30, "it goes on")
    rank.signal(signal.SIGUSR1)
    eventually(lambda: "replica.py" in (rank.folder / "stacks.txt").read_text(), 10, "stacks on SIGUSR1")
    # far enough ahead that the answer is read before the process that gave it has ended
    assert rank.ask("drain", at_step=rank.step + 25) == {"ok": True}
    assert rank.exit_code() == 0
    assert not (rank.folder / "command.sock").exists()


def test_drain_at_a_step_ends_there(groups: Groups) -> None:
    # no step without the other: on a busy machine one would have trained its five alone
    ranks = [groups.start(group, min_groups=2) for group in (0, 1)]
    for rank in ranks:
        rank.ask_when_there("drain", at_step=5)
    assert [rank.exit_code() for rank in ranks] == [0, 0]
    for rank in ranks:
        progress = rank.progress
        assert progress is not None
        assert (progress.phase, progress.step) == ("finished", 5)
        assert progress.digest is not None
    assert ranks[0].digests()[5] == ranks[1].digests()[5]


def test_drain_past_its_step_ends_after_the_current_one(groups: Groups) -> None:
    rank = groups.start(0, groups=1)
    rank.reached(3)
    before = rank.step
    rank.ask("drain", at_step=1)
    asked = rank.step
    assert rank.exit_code() == 0
    assert before <= rank.step <= asked + 2


def test_sigterm_ends_cleanly_while_training(groups: Groups) -> None:
    rank = groups.start(0, groups=1, writer=True)
    rank.reached(2)
    rank.signal(signal.SIGTERM)
    assert rank.exit_code() == TERMINATED
    assert rank.progress is not None
    assert rank.progress.phase == "failed"


def test_sigterm_ends_a_rank_that_waits_for_a_quorum(groups: Groups) -> None:
    waiting = groups.start(0, min_groups=2, lighthouse="127.0.0.1:9", environment={"SUPERVISOR_NO_GATE": "0"})
    eventually(lambda: waiting.progress and waiting.progress.phase in ("built", "starting"), 30)
    waiting.signal(signal.SIGTERM)
    assert waiting.exit_code() == TERMINATED


STUCK = """
import ctypes, sys, threading
from pathlib import Path
from supervisor.wire.records import TrainerLaunch
from titan_actor import process
from titan_actor.commands import Commands
from titan_actor.control import Control
from titan_actor.ledger import Ledger
from titan_actor.report import Report

folder = sys.argv[1]
launch = TrainerLaunch(
    run="r", group=0, generation=1, rank=0, world_size=1, groups=1, min_groups=1, node="n", node_address="127.0.0.1",
    master_port=1, lighthouse="", run_dir=folder, rank_dir=folder,
)
report, control = Report(launch), Control(False)
report.update()
ledger = Ledger(Path(folder) / "steps.jsonl", 0.0, generation=1, group=0, rank=0)
process.end_on_term(control, report, ledger, Commands(launch, control))
threading.Timer(1.0, print, ["ready"], {"flush": True}).start()  # by then the main thread is where it stays
mutex = ctypes.create_string_buffer(64)
for _ in range(2):  # a lock that is taken twice: no signal ends that wait
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_sigterm_ends_a_rank_whose_main_thread_is_inside_a_native_call(tmp_path: Path) -> None:
    stuck = subprocess.Popen([sys.executable, "-c", STUCK, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == "ready\n"
        stuck.terminate()
        assert stuck.wait(30) == TERMINATED
    finally:
        stuck.kill()
        stuck.communicate()


def test_failure_of_a_step_is_told(groups: Groups) -> None:
    """A rank of a group dies: the other one cannot go on, reports why, and exits 1."""
    ranks = groups.start_group(0, 2, groups=1)
    for rank in ranks:
        rank.reached(2)
    ranks[1].kill()
    assert ranks[0].exit_code() == 1
    progress = ranks[0].progress
    assert progress is not None
    assert progress.phase == "failed"
    message = json.loads((ranks[0].folder / "error.json").read_text())["message"]["message"]
    assert progress.error == message[:2000]


@pytest.mark.long
def test_cold_start_trains_too(groups: Groups) -> None:
    rank = groups.start_cold(0, groups=1, steps=2)
    assert rank.exit_code() == 0
    assert rank.step == 2
    assert [line["warm"] for line in rank.lines("start")] == [False]


def test_builds_while_the_gate_holds_and_asks_for_no_quorum(groups: Groups, gate: Gate) -> None:
    rank = groups.start(0, groups=1, steps=3, lighthouse=gate.address, environment={"SUPERVISOR_NO_GATE": "0"})
    eventually(lambda: len(gate.built) >= 2, 30, "BUILT is said again after a connection without an answer")
    progress = rank.progress
    assert progress is not None
    assert progress.phase == "built"
    assert gate.built[1] == f"BUILT {json.dumps({'replica_id': progress.replica_id})}\n"
    assert gate.held >= 1, "its manager's heartbeats are held meanwhile"
    assert not rank.lines("quorum", "step")
    gate.open.set()
    assert rank.exit_code() == 0
    assert [line["said"] for line in rank.lines("admitted")] == [2]


def test_retries_while_nobody_listens(groups: Groups, lighthouse: Lighthouse) -> None:
    """The forwarder may come later than the trainer."""
    port = free_port()
    rank = groups.start(0, groups=1, steps=2, lighthouse=f"127.0.0.1:{port}", environment={"SUPERVISOR_NO_GATE": "0"})
    eventually(lambda: rank.lines("imported"), 20)
    gate = Gate(lighthouse, port)
    gate.open.set()
    assert rank.exit_code() == 0, rank.log()[-2000:]
    gate.close()


def test_warm_process_is_fit_to_fork(warm: Warm) -> None:
    assert warm.hello["ready"] is True
    assert warm.hello["threads"] == 1
    assert warm.hello["rng_untouched"] is True
    assert warm.hello["cuda"] is False
    assert len(os.listdir(f"/proc/{warm.process.pid}/task")) == 1


def test_warm_process_tells_what_it_cannot_start(warm: Warm) -> None:
    assert "FileNotFoundError" in warm.ask(launch="/none", log="/no/such/folder/log", env={})["error"]
    assert "error" in warm.ask(nonsense=1)


def test_forked_trainer_is_a_session_of_its_own_with_clean_descriptors(groups: Groups) -> None:
    rank = groups.start(0, groups=1, environment={"MARKED": "yes"})
    rank.reached(1)
    assert os.getsid(rank.pid) == rank.pid
    assert [line["warm"] for line in rank.lines("start")] == [True]
    assert os.readlink(f"/proc/{rank.pid}/fd/0") == "/dev/null"
    for descriptor in ("1", "2"):
        assert os.readlink(f"/proc/{rank.pid}/fd/{descriptor}") == str(rank.folder / "output.log")
    inherited = f"/proc/{groups.warm.process.pid}/fd"
    channel = {os.readlink(f"{inherited}/{name}") for name in os.listdir(inherited)}
    own = f"/proc/{rank.pid}/fd"
    mine = {os.readlink(f"{own}/{name}") for name in os.listdir(own) if os.path.lexists(f"{own}/{name}")}
    assert not {target for target in channel & mine if target.startswith(("socket:", "pipe:"))}
    assert Path(f"/proc/{rank.pid}/comm").read_text().strip() == "trainer"


def test_forked_trainer_exits_with_its_own_code(groups: Groups, warm: Warm) -> None:
    rank = groups.start(0, recipe="no-such-recipe")
    assert rank.exit_code() == 1
    broken = groups.launch(1)
    (groups.top / "run.1.1.0" / "launch.json").write_text("{")
    log = groups.top / "broken.log"
    answer = warm.ask(launch=str(groups.top / "run.1.1.0" / "launch.json"), log=str(log), env={})
    assert Rank(broken, answer["pid"]).exit_code() == 1
    assert "RecordError" in log.read_text()
