"""`python -m titan_actor.mesh_worker URL READY`: serves this node to Monarch at URL, until its standard input ends.

The agent starts it on request (docs/MONARCH.md). Exit code MISCONFIGURED: Monarch is not installed. Who may connect is decided by the certificates in its environment:
Monarch's own argument `ca` takes no other value yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from supervisor.wire.records import MISCONFIGURED

EVERY_PEER = "trust_all_connections"


def main(url: str, ready: str) -> None:
    """Serves until the agent's end of the pipe closes. Writes Monarch's release to `ready` once it listens."""
    threading.Thread(target=_end_with_agent, name="agent", daemon=True).start()
    try:
        release = version("torchmonarch")
    except PackageNotFoundError:
        sys.exit(MISCONFIGURED)
    from monarch.actor import start_worker_loop_forever

    serving = start_worker_loop_forever(ca=EVERY_PEER, address=url)
    written = Path(f"{ready}.tmp")
    written.write_text(release)
    written.replace(ready)
    serving.get()


def _end_with_agent() -> None:
    """Waits for the end of the standard input. The kernel ends the mesh's processes with this one."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
