"""`supervisor top` on a real etcd that goes away and comes back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from supervisor.shell.etcd import connect
from supervisor.wire import keys
from tests.helpers.etcd import kill, running
from tests.helpers.terminal import terminal
from tests.helpers.told import ToldWorld

ROOT = str(Path(__file__).parents[3])


def test_it_says_how_old_the_picture_is(tmp_path: Path, any_binary: Path) -> None:
    world = ToldWorld(groups=3, ranks=2)
    world.lead()
    world.bring_up()
    world.train(5)
    with running(tmp_path / "etcd", binary=any_binary) as server:
        with connect([server.endpoint]) as store:
            for item in world.store.list(keys.PREFIX).items:
                store.put(item.key, item.value)
        top = [sys.executable, "-m", "supervisor.cli", "top", "--etcd", server.endpoint]
        once = subprocess.run(
            top,
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ROOT, "NO_COLOR": "1"},
        )
        assert "Training: all 3 groups step.\nNo one needs to act.\n" in once.stdout
        with terminal(top, PYTHONPATH=ROOT) as shown:
            shown.shows("live ")
            with frozen(server.pid):
                screen = shown.shows("! etcd has not answered since ")
                assert any(re.search(r"\(\d+(\.\d)? s\): this is the state of that time", row) for row in screen)
                shown.shows("step 5 ")  # the rest of the picture may come after its first line
            eventually(lambda: "etcd has not" not in "\n".join(shown.screen()), 20.0, "it is there again")
            kill(server)
            shown.shows("! etcd has not answered since ")
            assert shown.ended(signal.SIGINT) == 0
        gone = subprocess.run(
            top, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ROOT}
        )
        assert gone.returncode == 1
        assert "supervisor: no etcd answers at " in gone.stderr
