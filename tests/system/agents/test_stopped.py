"""Ranks that are stopped, as the kernel shows them: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agents.agent.node_view import View
from agents.health.stopped_ranks import BY_A_SIGNAL, MAIN_THREAD_ENDED, Stopped, state
from agents.shim.settings import Settings
from fault_injection.testbed.nodes import Nodes, desire, rank, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import HangSpec
from supervisor.ports.store import Store
from supervisor.wire.records import ProcessRecord

WITHOUT_MAIN_THREAD = """import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)"""
"""exit(2) of the main thread alone."""
TRACES = """import ctypes, sys, time
assert ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None) == 0
time.sleep(600)"""
LIMITS = {"toy.0.1": HangSpec(stopped_s=1.5)}


@pytest.fixture
def begun() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def child(stack: ExitStack, *command: str) -> int:
    running_one = subprocess.Popen(command)
    stack.callback(running_one.wait)
    stack.callback(running_one.kill)
    return running_one.pid


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state(pid)[0] == BY_A_SIGNAL, 10, "it is stopped")


def test_a_stopped_process_is_told_for_how_long(begun: ExitStack) -> None:
    pid, stopped = child(begun, "sleep", "600"), Stopped()
    stopped.look(pid, 1.0)
    assert (stopped.why, stopped.for_s) == ("", 0.0)
    stop(pid)
    stopped.look(pid, 2.0)
    stopped.look(pid, 3.5)
    assert (stopped.why, stopped.for_s) == (BY_A_SIGNAL, 1.5)


def test_one_that_ran_between_two_looks_begins_again(begun: ExitStack) -> None:
    """A throttle stops it ten times a second, so each look may find it stopped."""
    pid, stopped = child(begun, sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)"), Stopped()
    stop(pid)
    stopped.look(pid, 1.0)
    before = state(pid)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: state(pid)[0] == "", 10, "it runs")
    stop(pid)
    assert state(pid) != before
    stopped.look(pid, 5.0)
    assert (stopped.why, stopped.for_s) == (BY_A_SIGNAL, 0.0)


def test_one_that_is_traced_names_who_traces_it(begun: ExitStack) -> None:
    pid = child(begun, "sleep", "600")
    tracer = child(begun, sys.executable, "-c", TRACES, str(pid))
    why = eventually(lambda: state(pid)[0], 10, "it is traced")
    assert why == f"is held by process {tracer}, which traces it"


def test_one_whose_main_thread_has_ended_is_one_and_one_that_has_ended_is_none(begun: ExitStack) -> None:
    pid = child(begun, sys.executable, "-c", WITHOUT_MAIN_THREAD)
    eventually(lambda: state(pid)[0] == MAIN_THREAD_ENDED, 10, "its main thread has ended")
    ended = child(begun, "true")
    eventually(lambda: "Z" in Path(f"/proc/{ended}/stat").read_text().rpartition(")")[2][:3], 10, "it has ended")
    assert state(ended)[0] == ""
    assert state(2**22 + 1)[0] == ""


def test_it_is_told_at_once_and_again_when_it_counts_and_when_it_is_over(begun: ExitStack, tmp_path: Path) -> None:
    """The leader hears of a stop that does not count yet: where all groups have one, they have one cause."""
    pid, view = child(begun, "sleep", "600"), View(Settings(node="n1", home=tmp_path, etcd=("h:1",)))
    for number in range(2):
        name = f"toy.0.1.{number}"
        view.put(ProcessRecord(name=name, pid=pid if number else os.getpid(), start_ticks=1, folder=str(tmp_path)))
    seen = [view.milestones()]

    def look(awake: float) -> tuple[str, float, bool]:
        view.look_for_stops(LIMITS, awake)
        seen.append(view.milestones())
        told = view.observed().trainers[1]
        return told.stopped, told.stopped_s, seen[-1] != seen[-2]

    assert look(1.0) == ("", 0.0, False)
    stop(pid)
    assert look(2.0) == (BY_A_SIGNAL, 0.0, True)
    assert look(3.4) == (BY_A_SIGNAL, 1.4, False)
    assert view.beyond_term("toy.0.1.1") == ""
    assert look(3.5) == (BY_A_SIGNAL, 1.5, True)
    assert view.beyond_term("toy.0.1.0") == view.beyond_term("toy.0.1.1") == f"toy.0.1.1 {BY_A_SIGNAL}"
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: not state(pid)[0], 10, "it goes on")
    assert look(3.6) == ("", 0.0, True)
    assert view.beyond_term("toy.0.1.0") == ""


def test_no_grace_is_given_to_a_generation_with_a_stopped_rank(nodes: Nodes, store: Store) -> None:
    """Its other rank ignores TERM, like one inside a collective: the node does not wait for it either."""
    node = nodes.cold()
    patient = trainer(world_size=2, toy_ignore_term=True, term_grace_s=600.0)
    desire(store, "n0", patient)
    running(store, node, 1)
    os.kill(node.pid("toy.0.1.1"), signal.SIGSTOP)

    def told() -> float:
        found = rank(store, "n0", 1, rank=1)
        return found.stopped_s if found is not None and found.stopped == BY_A_SIGNAL else 0.0

    eventually(lambda: told() >= HangSpec().stopped_s, 15, "it is told that it counts")
    desire(store, "n0", trainer(generation=2))
    running(store, node, 2)
    sent = [x for x in node.history() if x["event"] == "signalled"]
    assert [(x["name"], x["signal"]) for x in sent] == [("toy.0.1.0", 9), ("toy.0.1.1", 9)]
    assert {x["why"] for x in sent} == {f"generation 2 replaces it; toy.0.1.1 {BY_A_SIGNAL}"}
