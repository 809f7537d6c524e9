"""Stands in for `titan_actor.mesh_worker`: has a process of its own in another session, and ends with its standard input.

At port 1 it fails, and at port 2 it finds no Monarch. With TOY_MESH_STAYS it ignores TERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from supervisor.wire import monarch
from supervisor.wire.records import MISCONFIGURED


def main(url: str, ready: str) -> None:
    if url.endswith((":1", ":2")):
        sys.exit({"1": 3, "2": MISCONFIGURED}[url[-1]])
    if "TOY_MESH_STAYS" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(ready).with_name("child").write_text(str(child.pid))
    Path(ready).with_name("environment").write_text("\n".join(f"{k}={v}" for k, v in os.environ.items()))
    Path(ready).write_text(monarch.RELEASE)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
