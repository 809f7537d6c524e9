"""The memory of a node's hot standbys, as its agent reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agents.health import machine
from supervisor.wire import standbys

CALLED = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'standby ready', 0, 0, 0); print('x', flush=True); time.sleep(60)"


def test_only_standbys_that_live_count(tmp_path: Path) -> None:
    assert standbys.memory(tmp_path) == ()
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    with subprocess.Popen([sys.executable, "-c", CALLED], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        standbys.write(ranks, [one.pid, os.getpid(), 2**22 + 1])
        (size,) = standbys.memory(ranks)
        assert size > 2**20
        health = machine.read("n1", tmp_path, 1, "ready", (), ())
        assert (health.standbys, health.warm) == (1, "ready")
        assert health.standby_bytes > 2**20
        one.kill()
    assert standbys.memory(ranks) == ()
    (ranks / standbys.FILE).write_text("{")
    assert standbys.memory(ranks) == (), "a torn file"
