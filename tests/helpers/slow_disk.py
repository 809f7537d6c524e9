"""A slow disk for one process: strace holds each of its fsyncs back."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.waiting import eventually


@contextlib.contextmanager
def slow_disk(pid: int, delay_s: float, log: Path) -> Iterator[None]:
    """Every fsync and fdatasync of the process takes `delay_s` longer. Skips the test where strace may not do that."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NO SLOW DISK WAS TESTED: strace is missing (Debian: apt-get install strace)")
    calls = "fdatasync,fsync"
    argv = [strace, "-f", "-p", str(pid), "-e", f"trace={calls}", "-o", str(log)]
    argv += ["-e", f"inject={calls}:delay_enter={delay_s * 1e6:.0f}"]
    said = log.with_suffix(".said")
    with said.open("wb") as err:
        tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
    try:
        eventually(lambda: tracer.poll() is not None or b"attached" in said.read_bytes(), 10, "strace attaches")
        if tracer.poll() is not None:
            pytest.skip(f"NO SLOW DISK WAS TESTED: strace may not trace here: {said.read_text().strip()}")
        yield
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGTERM)  # it lets go of etcd, which a KILL would leave stopped
        tracer.wait(10)
