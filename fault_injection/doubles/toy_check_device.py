"""A stand-in for titan_actor.check_device, without numpy: it fails on a node if the file `broken` names exists."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.wire.checks import CheckResult, to_line


def broken(home: Path, node: str) -> Path:
    """Returns the file beside a home that says why the node's device is broken."""
    return home / f"broken-{node}"


if __name__ == "__main__":
    own = Path(os.environ.get("SUPERVISOR_NODE_DIR", "/nonexistent/nodes/none"))
    why = broken(own.parent.parent, own.name)
    wrong = why.exists()
    words = why.read_text() if wrong else "a toy is there"
    print(to_line(CheckResult(name="device", outcome="failed" if wrong else "passed", evidence=words)))
    sys.exit(0)
