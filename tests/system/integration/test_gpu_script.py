"""`make gpu` without a device: its script does all its parts on a processor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_dry_run_does_every_part(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(results.read_text())
    assert found["kill"]["warm_start"]
    assert found["kill"]["digests"]["equal"] == found["kill"]["digests"]["compared"] > 0
    assert len(found["step_time"]["ratios"]) == 3


@pytest.mark.long
def test_it_says_that_there_is_no_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--results", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "no CUDA device" not in done.stderr:
        pytest.skip("there is one")
    assert done.returncode == 2
    assert not (tmp_path / "gpu.json").exists()
