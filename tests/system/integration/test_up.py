"""`supervisor up` as a part like any other: its supports are taken away, and only a person's wish ends anything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.shell.dev.home import system_folder
from tests.nightly.ground import Cell, Ground, played


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(Cell("up", "KILL", "training"), marks=pytest.mark.long),
        pytest.param(Cell("up", "TERM", "recovery"), marks=pytest.mark.long),
        pytest.param(Cell("up", "TWICE", "training"), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_cell_of_the_matrix(cell: Cell, tmp_path: Path) -> None:
    """The other cells are in `make ground`."""
    played(cell, tmp_path)


def cli(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli", *arguments, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.long
def test_a_closed_terminal_ends_nothing_and_down_does(ground: Ground) -> None:
    second = cli("up", home=ground.runs)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"another `supervisor up` or `demo` (pid {ground.up.pid}) runs" in second.stderr
    more = cli("up", "--nodes", "5", home=ground.runs)
    assert (more.returncode, more.stderr) == (0, "")
    assert "has 5 nodes now, 4 before" in more.stdout
    assert cli("doctor", home=ground.runs).returncode == 0

    ground.up.send_signal(signal.SIGHUP)
    log = system_folder(ground.runs) / "up.log"
    eventually(lambda: log.exists() and "`supervisor down` ends it" in log.read_text(), 30, "it goes on without it")
    assert ground.up.poll() is None

    done = cli("down", home=ground.runs)
    assert done.returncode == 0, done.stderr
    assert ground.up.wait(30) == 0
    assert ground.all() == []
    again = cli("down", home=ground.runs)
    assert (again.returncode, again.stderr) == (1, f"supervisor: nothing of a `supervisor up` runs in {ground.runs}\n")


@pytest.mark.long
def test_what_a_killed_up_has_left_is_ended_by_down(ground: Ground) -> None:
    ground.launch()
    ground.wait_until_it_trains(0.0)
    ground.up.kill()
    ground.up.wait(30)
    done = cli("down", home=ground.runs)
    assert done.returncode == 0, done.stderr
    assert "run ground is stopped" in done.stderr
    eventually(lambda: not ground.all(), 30, "nothing is left")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs root to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.root
def test_a_full_disk_and_no_etcd_end_nothing(small: Path) -> None:
    """Neither etcd nor, without it, a supervisor can start: training goes on, and all comes back with the room."""
    ground = Ground(small)
    try:
        ground.launch()
        ground.wait_until_it_trains(0.0)
        before = ground.generations()
        (supervisor,) = ground.victims(Cell("supervisor", "KILL", "training"))
        (etcd,) = ground.victims(Cell("etcd", "KILL", "training"))
        with (small / "filler").open("wb") as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * (1 << 20))
        for part in (etcd, supervisor):
            os.kill(part.pid, signal.SIGKILL)
        # to the terminal, which is on another disk for a person
        eventually(lambda: not ground.victims(Cell("etcd", "KILL", "idle"))[0].alive, 30, "etcd is gone")
        eventually(lambda: ground.victims(Cell("supervisor", "KILL", "idle")), 60, "a supervisor waits for etcd")
        since = time.time()
        assert ground.up.poll() is None
        (small / "filler").unlink()
        ground.wait_until_it_trains(since)
        eventually(lambda: ground.memory().phase == "running", 90, "etcd answers")
        assert ground.generations() == before
        ground.end()
    finally:
        ground.close()


def test_a_supervisor_waits_for_etcd_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    command = [sys.executable, "-m", "supervisor.cli", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "waiting" in line)
        assert "waiting for etcd: no etcd answers at 127.0.0.1:1" in line
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0


def test_another_users_home_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a folder another user's")
    folder = system_folder(tmp_path)
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    refused = cli("up", home=tmp_path)
    assert refused.returncode == 1
    assert "belongs to the user with uid 12345: give another --home, or run as that user" in refused.stderr
    assert json.dumps([p.name for p in folder.iterdir()]) == "[]", "nothing was written there"
