"""The kernel's kills for memory, distinguished from other SIGKILLs by the cgroup's count and the kernel's log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agents.health import exit_decoder, kernel_log, oom_kills
from agents.health.oom_kills import KEPT_S, Ooms, counter
from agents.shim import process
from fault_injection.testbed.nodes import Nodes, desire, kill, rank, running, trainer
from fault_injection.testbed.waiting import eventually
from supervisor.ports.store import Store
from supervisor.wire.records import ProcessRecord
from tests.helpers.memory_cgroup import memory_cgroup

FIRST = "toy.0.1.0"


class FakeProc:
    """The parts of /proc and of a cgroup tree that are read."""

    def __init__(self, folder: Path, mount: str = "rw - cgroup cgroup rw,memory", root: str = "/") -> None:
        self.folder = folder / "proc"
        self.tree = folder / "my tree"
        self.mount(mount, root)

    def mount(self, system: str, root: str = "/") -> None:
        (self.folder / "self").mkdir(parents=True, exist_ok=True)
        point = str(self.tree).replace(" ", "\\040")
        lines = ["21 1 8:1 / / rw - ext4 /dev/sda rw", f"30 21 0:27 {root} {point} {system}"]
        (self.folder / "self" / "mountinfo").write_text("\n".join(lines) + "\n")

    def process(self, pid: int, cgroup: str, state: str = "R", flags: int = 0) -> None:
        (self.folder / str(pid)).mkdir(exist_ok=True)
        (self.folder / str(pid) / "cgroup").write_text(cgroup)
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a ) b) {state} 1 1 1 0 -1 {flags} 0 0\n")

    def count(self, cgroup: str, kills: int, name: str = oom_kills.LEGACY) -> Path:
        file = self.tree / cgroup.lstrip("/") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = {
            oom_kills.LEGACY: "oom_kill_disable 0\nunder_oom 0\n",
            oom_kills.UNIFIED: "low 0\noom 7\noom_group_kill 9\n",
        }[name]
        file.write_text(f"{lines}oom_kill {kills}\n")
        return file


LEGACY = "4:cpu,memory:/job\n0::/\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


# --- where the kernel counts ---


def test_the_counter_under_version_1(proc: FakeProc) -> None:
    file = proc.count("/job", 3)
    assert counter(LEGACY, proc.folder) == file
    assert oom_kills.read_count(file) == 3


def test_the_counter_under_version_2(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path, "rw - cgroup2 cgroup2 rw,nsdelegate")
    file = proc.count("/system.slice/job", 2, oom_kills.UNIFIED)
    assert counter("0::/system.slice/job\n", proc.folder) == file
    assert oom_kills.read_count(file) == 2


def test_the_counter_in_a_container_that_sees_its_own_part_alone(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path, root="/docker/abc")
    file = proc.count("/job", 0)
    assert counter("4:memory:/docker/abc/job\n", proc.folder) == file


@pytest.mark.parametrize(
    ("cgroup", "mount"),
    [
        ("0::/\n", "rw - cgroup2 cgroup2 rw"),  # the root has no count
        ("4:memory:/job\n", "rw - cgroup cgroup rw,cpu"),  # not mounted
        ("3:cpu:/job\n", "rw - cgroup cgroup rw,memory"),  # no memory controller
        ("", "rw - cgroup cgroup rw,memory"),
    ],
)
def test_where_nothing_counts(tmp_path: Path, cgroup: str, mount: str) -> None:
    proc = FakeProc(tmp_path, mount)
    proc.count("/job", 0)
    assert counter(cgroup, proc.folder) is None


def test_this_machines_own_counter_can_be_read() -> None:
    """The counter is a number, or missing."""
    file = counter(oom_kills.cgroup_of(os.getpid()))
    assert file is None or oom_kills.read_count(file) is not None


# --- before and after ---


def test_a_kill_counted_since_it_started_is_its_own(proc: FakeProc) -> None:
    proc.count("/job", 5)
    proc.process(7, LEGACY)
    watch = Ooms(proc.folder)
    watch.look([7], 0.0)
    proc.count("/job", 6)
    assert watch.ended(7, 1.0, by_sigkill=True) is True


def test_kills_of_before_are_not(proc: FakeProc) -> None:
    proc.count("/job", 5)
    proc.process(7, LEGACY)
    watch = Ooms(proc.folder)
    watch.look([7], 0.0)
    assert watch.ended(7, 1.0, by_sigkill=True) is False


def test_a_kill_that_was_counted_before_the_process_had_ended(proc: FakeProc) -> None:
    """Freeing its memory takes a while; when the agent looks meanwhile, the process is in the root cgroup."""
    proc.count("/job", 0)
    proc.process(7, LEGACY)
    watch = Ooms(proc.folder)
    watch.look([7], 0.0)
    proc.count("/job", 1)
    proc.count("/", 0)
    for state, flags in (("R", 0x4), ("Z", 0)):
        proc.process(7, "4:memory:/\n", state, flags)
        watch.look([7], 1.0)
    assert watch.ended(7, KEPT_S, by_sigkill=True) is True


def test_a_kill_of_long_ago_is_stale(proc: FakeProc) -> None:
    """Another process in the cgroup was killed, and this one lived on."""
    proc.count("/job", 0)
    proc.process(7, LEGACY)
    watch = Ooms(proc.folder)
    watch.look([7], 0.0)
    proc.count("/job", 1)
    watch.look([7], 1.0)
    assert watch.ended(7, 1.0 + KEPT_S, by_sigkill=True) is False


def test_one_kill_explains_one_end(proc: FakeProc) -> None:
    proc.count("/job", 0)
    watch = Ooms(proc.folder)
    for pid in (7, 8, 9):
        proc.process(pid, LEGACY)
    watch.look([7, 8, 9], 0.0)
    proc.count("/job", 1)
    assert watch.ended(9, 1.0, by_sigkill=False) is True, "an error that follows from it does not use it up"
    assert watch.ended(7, 1.0, by_sigkill=True) is True
    assert watch.ended(8, 1.0, by_sigkill=True) is False


def test_another_cgroups_kills_are_not_ours(proc: FakeProc) -> None:
    watch = Ooms(proc.folder)
    for pid, cgroup in ((7, "/job"), (8, "/other")):
        proc.count(cgroup, 0)
        proc.process(pid, f"4:memory:{cgroup}\n")
    watch.look([7, 8], 0.0)
    proc.count("/other", 1)
    assert watch.ended(7, 1.0, by_sigkill=True) is False
    assert watch.ended(8, 1.0, by_sigkill=True) is True


def test_a_process_that_was_moved_is_looked_for_where_it_is(proc: FakeProc) -> None:
    proc.count("/job", 0)
    proc.count("/small", 0)
    proc.process(7, LEGACY)
    watch = Ooms(proc.folder)
    watch.look([7], 0.0)
    proc.process(7, "4:memory:/small\n")
    watch.look([7], 1.0)
    proc.count("/small", 1)
    assert watch.ended(7, 2.0, by_sigkill=True) is True


def test_what_was_never_seen_or_cannot_be_read_is_not_known(proc: FakeProc) -> None:
    watch = Ooms(proc.folder)
    assert watch.ended(7, 0.0, by_sigkill=True) is None
    file = proc.count("/job", 0)
    proc.process(7, LEGACY)
    watch.look([7], 0.0)
    file.unlink()
    assert watch.ended(7, 1.0, by_sigkill=True) is None


# --- the kernel's log ---

LOG = """<6>[  100.000001] Memory cgroup out of memory: Killed process 41 (python) total-vm:1kB, UID:0
<3>[  200.000001] Memory cgroup out of memory: Killed process 42 (python) total-vm:2kB, UID:0
<6>[  200.5] oom_reaper: reaped process 42 (python), now anon-rss:0kB
<4>[  300.000001][ T1234] oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job,task=python,pid=43,uid=0
no line of the log
"""


@pytest.mark.parametrize(
    ("pid", "since_s", "found"),
    [
        (42, 150.0, "Memory cgroup out of memory: Killed process 42 (python) total-vm:2kB, UID:0"),
        (42, 201.0, "Memory cgroup out of memory: Killed process 42 (python) total-vm:2kB, UID:0"),
        (42, 210.0, ""),  # a process of the same number, long before
        (4, 0.0, ""),
        (43, 250.0, "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job,task=python,pid=43,uid=0"),
        (44, 0.0, ""),
    ],
)
def test_a_line_of_the_log_names_the_process(pid: int, since_s: float, found: str) -> None:
    assert kernel_log.find_kill(LOG, pid, since_s) == found


def test_the_log_is_read_or_not_and_never_waited_for() -> None:
    assert isinstance(kernel_log.tail(4096), str)
    assert len(kernel_log.tail(4096).encode()) <= 3 * 4096


def test_in_a_namespace_of_its_own_numbers_the_log_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "tail", lambda: LOG)
    monkeypatch.setattr(kernel_log, "_INITIAL_PID_NAMESPACE", 1)
    assert kernel_log.killed_for_memory(42, 0) == ""
    monkeypatch.setattr(kernel_log, "_numbers_are_ours", lambda: True)
    assert kernel_log.killed_for_memory(42, 0) != ""


def killed(folder: Path, **about: object) -> ProcessRecord:
    record = ProcessRecord(name=FIRST, pid=42, start_ticks=0, folder=str(folder), exited=True, signal=9, told="")
    return replace(record, **about)


@pytest.mark.parametrize("counted", [None, False, True])
def test_the_log_is_believed_over_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool | None
) -> None:
    """A process may have been moved to another cgroup since the last look."""
    monkeypatch.setattr(kernel_log, "killed_for_memory", lambda pid, ticks: f"Killed process {pid}")
    found = exit_decoder.decode(killed(tmp_path, oom=counted))
    assert (found.oom, found.kernel) == (True, "Killed process 42")


@pytest.mark.parametrize("counted", [None, False, True])
def test_without_the_log_the_count_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool | None
) -> None:
    monkeypatch.setattr(kernel_log, "killed_for_memory", lambda pid, ticks: "")
    assert exit_decoder.decode(killed(tmp_path, oom=counted)).oom is counted


@pytest.mark.parametrize("about", [{"told": "cut off"}, {"signal": 11}, {"signal": None, "exit_code": 1}])
def test_the_log_is_asked_of_a_sigkill_that_is_not_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: dict[str, object]
) -> None:
    monkeypatch.setattr(kernel_log, "killed_for_memory", lambda pid, ticks: "Killed process")
    assert exit_decoder.decode(killed(tmp_path, oom=False, **about)).kernel == ""


# --- for real ---

HOG = "taken = [bytearray(b'x' * (1 << 20)) for _ in range(256)]"


def test_the_kernel_counts_a_process_that_takes_more_than_its_cgroup_has(tmp_path: Path) -> None:
    """A process that a test kills in the cgroup is not counted."""
    waits = "import sys; print(flush=True); sys.stdin.readline(); "
    with memory_cgroup("hog") as cgroup:
        watch, ends = Ooms(), {}
        for what, code in (("hog", HOG), ("victim", "sys.stdin.readline()")):
            child = subprocess.Popen(
                [sys.executable, "-c", waits + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            try:
                assert child.stdout is not None
                assert child.stdin is not None
                child.stdout.readline()
                cgroup.add(child.pid)
                cgroup.limit(64 << 20)
                watch.look([child.pid], 0.0)
                stat = process.stat_of(child.pid)
                if what == "victim":
                    kill(child.pid)
                else:
                    child.stdin.write("\n")
                    child.stdin.flush()
                assert child.wait(20) == -signal.SIGKILL
                ends[what] = watch.ended(child.pid, 1.0, by_sigkill=True)
                if kernel_log.tail() and kernel_log._numbers_are_ours():
                    assert bool(kernel_log.killed_for_memory(child.pid, stat.start_ticks)) is (what == "hog")
            finally:
                child.kill()
                child.wait()
                child.stdin.close()
                child.stdout.close()
        assert ends == {"hog": True, "victim": False}
        assert cgroup.kills() == 1


def test_a_node_says_which_of_its_ranks_the_kernel_killed_for_memory(
    nodes: Nodes, store: Store, tmp_path: Path
) -> None:
    with memory_cgroup("node") as cgroup:
        node = nodes.cold()
        try:
            cgroup.add(node.shim.pid)
            desire(store, "n0", trainer(0, toy_hog=str(tmp_path / "hog")), trainer(1))
            running(store, node, 1)
            other = running(store, node, 1, group=1)
            cgroup.limit(cgroup.used() + (96 << 20))
            (tmp_path / "hog").touch()
            hog = eventually(lambda: (r := rank(store, "n0", 1)) and r.exit and r, 20, "the hog ends")
            kill(other)
            victim = eventually(lambda: (r := rank(store, "n0", 1, group=1)) and r.exit and r, 20, "the other ends")
            assert hog.exit is not None
            assert (hog.exit.signal, hog.exit.oom, hog.exit.told) == (9, True, "")
            assert victim.exit is not None
            assert (victim.exit.signal, victim.exit.oom, victim.exit.told) == (9, False, "")
            assert 0 < hog.exit.ended_s < victim.exit.ended_s
            (line,) = [x for x in node.history() if x["event"] == "exited" and x["name"] == FIRST]
            assert line["oom"] is True
        finally:
            node.end()


def test_a_node_says_which_ends_were_its_own_doing(nodes: Nodes, store: Store) -> None:
    node = nodes.cold("n0", "--grace-s=1")
    desire(store, "n0", trainer(0), trainer(1, toy_ignore_term=True), trainer(2))
    running(store, node, 1)
    running(store, node, 1, group=1)
    kill(running(store, node, 1, group=2))
    eventually(lambda: (r := rank(store, "n0", 1, group=2)) and r.exit, 10)
    os.kill(node.shim.pid, signal.SIGTERM)
    assert node.shim.wait(20) == 0
    told = {}
    for group in range(3):
        found = rank(store, "n0", 1, group)
        assert found is not None
        assert found.exit is not None
        told[group] = (found.exit.signal, found.exit.told)
    assert told == {
        0: (15, "the node is stopped"),
        1: (9, "the node is stopped, and its grace is over"),
        2: (9, ""),
    }
    exits_ = {x["name"]: x for x in node.history() if x["event"] == "exited"}
    assert exits_[FIRST]["told"] == "the node is stopped"
    assert "told" not in exits_["toy.2.1.0"]
    assert json.loads((node.folder / "processes" / f"{FIRST}.json").read_text())["told"] == "the node is stopped"
