"""`make gpu` without a device: its script does all its parts on a processor."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu


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
    assert {"aten::_scaled_dot_product_flash_attention_for_cpu"} < found["flash"]["kernels"].keys(), (
        "forward and backward"
    )
    assert found["flash"]["digests"]["equal"] == found["flash"]["digests"]["compared"] > 0
    assert len(found["step_time"]["ratios"]) == 3


@pytest.mark.parametrize("names", [[], ["aten::bmm"], ["void flash_fwd_kernel<x>"], ["flash_bwd_kernel"]])
def test_a_trace_without_flash_attention_both_ways_fails(names: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "titan" / "group-0" / "profiling" / "traces" / "iteration_40"
    folder.mkdir(parents=True)
    events = [{"ph": "M", "name": "process_name"}, *({"cat": "kernel", "name": name} for name in names)]
    with gzip.open(folder / "rank0_trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    with pytest.raises(gpu.Failed, match="no flash attention"):
        gpu.flash_kernels(tmp_path)


def test_the_kernels_of_a_trace_are_counted(tmp_path: Path) -> None:
    names = ["void pytorch_flash::flash_fwd_kernel<half>", "flash::FlashAttnBwdSm90", "flash::FlashAttnBwdSm90", "gemm"]
    folder = tmp_path / "titan" / "group-1" / "profiling" / "traces" / "iteration_40"
    folder.mkdir(parents=True)
    (folder / "rank0_trace.json").write_text(
        json.dumps({"traceEvents": [{"cat": "kernel", "name": name} for name in names]})
    )
    assert gpu.flash_kernels(tmp_path) == {names[0]: 1, names[1]: 2}


@pytest.mark.long
def test_it_says_that_there_is_no_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--results", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "no CUDA device" not in done.stderr:
        pytest.skip("there is one")
    assert done.returncode == 2
    assert not (tmp_path / "gpu.json").exists()
