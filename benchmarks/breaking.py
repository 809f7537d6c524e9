"""Runs `supervisor chaos run` for benchmarks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence


def chaos_run(arguments: Sequence[str]) -> int:
    """Returns its exit code. After a Ctrl-C it is waited for: it heals what is broken and judges what there is."""
    asked = [sys.executable, "-m", "supervisor.cli", "chaos", "run", *arguments]
    # in its own session, so that a Ctrl-C reaches it once, from here
    with subprocess.Popen(asked, start_new_session=True) as run:
        try:
            return run.wait()
        except KeyboardInterrupt:
            run.send_signal(signal.SIGINT)
            run.wait()
            raise
