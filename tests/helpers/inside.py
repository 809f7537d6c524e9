"""Runs a case by a pytest of its own inside a network's hub: a process cannot be in two networks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_injection.testbed import netns
from fault_injection.testbed.netns import Network


def passes_inside(net: Network, case: Callable[..., Any], tmp_path: Path, within_s: int) -> None:
    """Fails with the case's output unless it passes in `within_s` seconds. `case`: a test function of a module that pytest
    does not collect, which calls `netns.entered`."""
    module = sys.modules[case.__module__].__file__
    command = [sys.executable, "-m", "pytest", f"{module}::{case.__name__}", "-q", "-s", "--timeout", str(within_s)]
    command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
    inner = subprocess.Popen(
        netns.inside(net, command),
        env=netns.environment(net),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = inner.communicate(timeout=within_s + 20)
    finally:
        # its fixtures end what it started
        if inner.poll() is None:
            inner.terminate()
            inner.wait(60)
    print(output)
    assert inner.returncode == 0, output[-4000:]
