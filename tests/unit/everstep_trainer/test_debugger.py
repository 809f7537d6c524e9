"""A rank that stops at a breakpoint: it says where, obeys pdb's commands, goes on, or is ended: real processes."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.requests import debugger as of_agent
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.observed import DebugView
from supervisor.shell.etcd.inbox import CannotDo, Job
from supervisor.wire.node_requests import NodeRequest
from supervisor.wire.records import TERMINATED, ProcessRecord
from tests.unit.everstep_trainer.test_rank import Script, Start, script

__all__ = ["script"]

STOPS = """
import everstep_trainer
def works(step):
    secret = step * 11
    {stop}
    return secret
with everstep_trainer.start() as rank:
    rank.admit()
    step = 0
    while rank.goes_on(step):
        step += 1
        if step == 2:
            works(step)
        {then}
        rank.step(step, loss=1.0)
"""


def stops(script: Start, stop: str = "breakpoint()", then: str = "pass") -> Script:
    ran = script(STOPS.format(stop=stop, then=then), steps=4)
    eventually(lambda: (ran.folder / "progress.json").exists() and ran.progress.debugging, 30, "it is stopped")
    return ran


def tell(ran: Script, line: str | None = None) -> tuple[str, dict[str, Any]]:
    """Gives it a line by the way of its node's agent; returns its output and its state."""
    request = NodeRequest(node="n", what="debug", by="", limit_s=20.0, text=line)
    record = ProcessRecord(name="r.0.3.0", pid=ran.process.pid, start_ticks=1, folder=str(ran.folder))
    items = [i for i in of_agent.converse(record, request, Job("i", request, time.monotonic() + 20.0)) if i]
    return "".join(item.get("output", "") for item in items), items[-1]


@pytest.mark.parametrize(
    "stop", ["breakpoint()", "import pdb; pdb.set_trace()", "from pdb import set_trace; set_trace()"]
)
def test_it_says_where_it_stands_and_goes_on(script: Start, stop: str) -> None:
    ran = stops(script, stop)
    at = ran.progress.debugging
    assert isinstance(at, DebugView)
    assert (at.function, at.line) == ("works", 6)
    assert abs(at.since_unix_s - time.time()) < 60
    shown, state = tell(ran)
    assert "works()" in shown
    assert state == {"stopped": True, "waits": True}
    assert tell(ran, "p secret, step")[0] == "(22, 2)\n"
    assert tell(ran, "!print('printed')")[0] == "printed\n"
    assert tell(ran, "no_such")[0].startswith("*** NameError")
    assert tell(ran, "c")[1] == {"stopped": False, "waits": False}
    assert ran.exit_code() == 0, ran.errors
    assert ran.progress.debugging is None
    assert [line["at"].rpartition(":")[2] for line in ran.lines("debugging")] == ["6", ""]
    with pytest.raises(CannotDo, match="does not answer"):
        tell(ran, "p 1")


def test_it_steps_line_by_line_and_into_its_callers(script: Start) -> None:
    ran = stops(script)
    since = ran.progress.debugging
    assert since is not None
    assert tell(ran, "n")[1]["waits"]
    shown, state = tell(ran, "r")
    assert state["waits"]
    assert "<module>()" in shown
    now = ran.progress.debugging
    assert now is not None
    assert (now.function, now.since_unix_s) == ("<module>", since.since_unix_s), "since when is from its first stop"
    assert tell(ran, "p step")[0] == "2\n"
    assert not tell(ran, "c")[1]["stopped"]
    assert ran.exit_code() == 0


def test_it_is_stopped_again(script: Start) -> None:
    ran = stops(script, then="breakpoint()")
    lines = {ran.progress.debugging.line if ran.progress.debugging else 0}
    for _ in range(2):
        tell(ran, "c")
        eventually(lambda: (at := ran.progress.debugging) and lines.add(at.line) is None, 30, "at the next breakpoint")
    assert len(lines) == 2
    assert ran.process.poll() is None


def test_one_that_goes_on_takes_no_line(script: Start) -> None:
    ran = stops(script, then="import time; time.sleep(30 if step == 2 else 0)")
    assert not tell(ran, "c")[1]["stopped"]
    with pytest.raises(CannotDo, match="it is not stopped: it goes on"):
        tell(ran, "p 1")


def test_quit_ends_it_and_its_record_says_how(script: Start) -> None:
    ran = stops(script)
    assert not tell(ran, "q")[1]["stopped"]
    assert ran.exit_code() == 1
    assert "BdbQuit" in ran.progress.error
    assert ran.progress.debugging is not None


LATE = """
import time
from titan_actor.debugger import Debugger
command = Debugger.command
def late(self, line, wait_s):
    answer = command(self, line, wait_s)
    time.sleep(0.3)
    return answer
Debugger.command = late
"""


@pytest.mark.parametrize("line", ["q", "c"])
def test_the_line_that_ends_a_rank_is_answered(script: Start, line: str) -> None:
    ran = script(LATE + STOPS.format(stop="breakpoint()", then="pass"), steps=2)
    eventually(lambda: (ran.folder / "progress.json").exists() and ran.progress.debugging, 30, "it is stopped")
    assert tell(ran, line)[1] == {"stopped": False, "waits": False}
    assert ran.exit_code() == (1 if line == "q" else 0)


def test_a_failure_in_the_step_of_a_stop_is_the_debuggers_and_a_later_one_is_not(script: Start) -> None:
    at_once = stops(script, then="if step == 2: raise RuntimeError('peers have gone on')")
    tell(at_once, "c")
    assert at_once.exit_code() == 1
    assert at_once.progress.debugging is not None
    later = stops(script, then="if step == 4: raise RuntimeError('its own')")
    tell(later, "c")
    assert later.exit_code() == 1
    assert later.progress.debugging is None


def test_term_ends_it_at_once(script: Start) -> None:
    ran = stops(script)
    ran.process.send_signal(signal.SIGTERM)
    assert ran.exit_code() == TERMINATED


def test_output_that_no_one_reads_is_bounded(script: Start) -> None:
    ran = stops(script)
    shown, _ = tell(ran, "p 'x' * 10_000_000")
    assert 200_000 < len(shown) < 300_000
    assert shown.endswith("the rest of this output is dropped\n")


def test_a_command_that_takes_long_is_waited_for(script: Start) -> None:
    ran = stops(script)
    tell(ran)
    shown, state = tell(ran, "!import time; print('begun'); time.sleep(1.5); print('done')")
    assert shown == "begun\ndone\n"
    assert state["waits"]


def test_another_process_passes_over_and_a_users_own_debugger_stays(
    script: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = (
        "pid = os.fork()\n    if not pid: breakpoint(); os._exit(0)\n    print(os.waitpid(pid, 0)[1], file=sys.stderr)"
    )
    ran = script(STOPS.format(stop=f"import os, sys; {child}", then="pass"), steps=4)
    assert ran.exit_code() == 0
    assert "a breakpoint in a process that a rank has started is passed over\n0\n" in ran.errors
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert script(STOPS.format(stop="breakpoint()", then="pass"), steps=4).exit_code() == 0


def test_a_second_thread_waits_until_the_first_goes_on(script: Start) -> None:
    both = "import threading; t = [threading.Thread(target=g) for _ in 'ab']; [x.start() for x in t]; [x.join() for x in t]"
    text = STOPS.replace(
        "import everstep_trainer", "import everstep_trainer\ndef g():\n    breakpoint()\n    return 1", 1
    )
    # it must not end before it has answered
    ran = script(text.format(stop=both, then="import time; time.sleep(0.5)"), steps=4)
    eventually(lambda: (ran.folder / "progress.json").exists() and ran.progress.debugging, 30, "one is stopped")
    tell(ran, "c")
    eventually(lambda: ran.progress.debugging and len(ran.lines("debugging")) >= 3, 30, "the other is stopped")
    assert not tell(ran, "c")[1]["stopped"]
    assert ran.exit_code() == 0
    assert len(ran.lines("debugging")) == 4


def test_it_goes_on_past_the_outermost_call_of_a_thread(script: Start) -> None:
    """As in a backward hook, which autograd calls in a thread of its own."""
    alone = "import _thread, time; done = []; _thread.start_new_thread(g, (done,)); [time.sleep(0.05) for _ in iter(lambda: not done, False)]"
    text = STOPS.replace(
        "import everstep_trainer", "import everstep_trainer\ndef g(done):\n    breakpoint()\n    done.append(1)", 1
    )
    ran = script(text.format(stop=alone, then="pass"), steps=4)
    eventually(lambda: (ran.folder / "progress.json").exists() and ran.progress.debugging, 30, "it is stopped")
    for _ in range(4):
        if not tell(ran, "n")[1]["stopped"]:
            break
    eventually(lambda: not ran.progress.debugging, 10, "it goes on")
    assert ran.exit_code() == 0


@pytest.mark.parametrize("line", ["x" * 50_000, "p 1\np 2"])
def test_what_is_no_line_is_refused(tmp_path: Path, line: str) -> None:
    request = NodeRequest(node="n", what="debug", by="", limit_s=1.0, text=line)
    record = ProcessRecord(name="r.0.1.0", pid=0, start_ticks=1, folder=str(tmp_path))
    with pytest.raises(CannotDo, match="has 49152 bytes at most, and no line end"):
        list(of_agent.converse(record, request, Job("i", request, sys.float_info.max)))
