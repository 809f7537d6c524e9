"""The pre-flight check of a device, on a machine with an NVIDIA GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.wire.checks import from_line

pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")


def test_a_gpu_calculates_to_the_bit() -> None:
    command = [sys.executable, "-m", "titan_actor.check_device", "--ranks", "1"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = [result for line in said.splitlines() if (result := from_line(line)) is not None]
    assert {"device", "matmul 0"} <= {result.name for result in found}
    assert {result.outcome for result in found} == {"passed"}, said
