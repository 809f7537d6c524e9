"""`python -m titan_actor.check_device --ranks N`: checks that the devices are there and calculate. Prints a CheckResult
a line.

On a machine without NVIDIA devices, numpy checks only the processor's arithmetic. Torch takes seconds to import, and
all nodes of a machine would do so at once. With devices torch is checked, because the ranks use it.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.wire.checks import CheckResult, floored, to_line
from supervisor.wire.gpus import hidden

ON_CPU, ON_GPU = 512, 4096
"""Rows and columns of the factors."""
KNOWN = {ON_CPU: 0x57AC24B9, ON_GPU: 0xEECFBCDA}
"""CRC-32 of the product's float32 values. Factors are whole numbers from -8 to 8 and sums stay below 2^24. Every order
of adding, TF32 too, therefore gives the same bits."""
TRIES = 5
"""Products of one check: the fastest counts, and every one must be right."""

GPU_FLOOR = 1.0
"""TFLOP/s. An NVIDIA T4, the slowest card sold for this, makes 8.1 in FP32 (its data sheet)."""
GPU_MEMORY_BYTES = 256 << 20
GPU_MEMORY_FLOOR = 50.0
"""GB/s. A T4 has 320 (its data sheet)."""

DEVICES = Path("/dev")
THERE_BUT_NOT_OURS = (errno.EPERM, errno.EACCES)
"""Errors of a job's cgroup for devices that the job was not given."""


def factors(size: int) -> tuple[Any, Any]:
    """Returns two float32 matrices, the same everywhere."""
    i, j = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    a, b = (i * 131 + j * 197 + (i * j) % 251) % 17 - 8, (i * 29 + j * 83 + (i * j) % 241) % 17 - 8
    return a.astype(np.float32), b.astype(np.float32)


def product(name: str, size: int, multiply: Callable[[], Any]) -> CheckResult:
    """Checks that products of these factors are the known one, to the bit. The value is in TFLOP/s."""
    best = float("inf")
    for number in range(TRIES):
        began = time.monotonic()
        found = multiply()
        best = min(best, time.monotonic() - began)
        if zlib.crc32((found + np.float32(0.0)).tobytes()) != KNOWN[size]:
            said = f"a product of two {size} x {size} matrices is wrong (try {number + 1} of {TRIES})"
            return CheckResult(name=name, outcome="failed", evidence=said)
    rate = 2.0 * size**3 / best / 1e12
    said = f"{TRIES} products of {size} x {size} matrices are right to the bit, {rate:.4g} TFLOP/s"
    return CheckResult(name=name, outcome="passed", evidence=said, value=round(rate, 4), unit="TFLOP/s")


def devices(folder: Path = DEVICES) -> tuple[int, list[str]]:
    """Returns how many NVIDIA devices this process may open, and the faults of the others."""
    count, broken = 0, []
    for path in sorted(folder.glob("nvidia[0-9]*")):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            count += 1
        except OSError as error:
            if error.errno not in THERE_BUT_NOT_OURS:
                broken.append(f"{path}: {error.strerror}")
    return count, broken


def seen() -> tuple[int, list[str]]:
    """Returns `devices`, or none if all are hidden from us on purpose."""
    return (0, []) if hidden() else devices(DEVICES)


def on_cpu() -> Iterator[CheckResult]:
    """Yields the results of a machine without devices."""
    yield CheckResult(
        name="device", outcome="skipped", evidence="no NVIDIA device is visible here: ranks compute on CPUs"
    )
    a, b = factors(ON_CPU)
    yield product("matmul", ON_CPU, lambda: a @ b)


def on_gpu(ranks: int, there: int, broken: list[str]) -> Iterator[CheckResult]:
    """Yields what CUDA reports of the devices, and a check of each that ranks will use."""
    import torch

    if torch.version.cuda is None:
        said = f"{there} NVIDIA devices, but a torch without CUDA: ranks compute on CPUs"
        yield CheckResult(name="device", outcome="skipped", evidence=said)
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    said = f"CUDA has {count} devices" + "".join(f"; {trouble}" for trouble in broken)
    if broken or count < ranks:
        said += f"; {ranks} ranks may be placed here" if count < ranks else ""
        yield CheckResult(name="device", outcome="failed", evidence=said, value=count, unit="devices")
        return
    yield CheckResult(name="device", outcome="passed", evidence=said, value=count, unit="devices")
    torch.backends.cuda.matmul.allow_tf32 = True
    for number in range(ranks):
        try:
            yield from _one(torch, number)
        except torch.OutOfMemoryError as error:
            yield CheckResult(
                name=f"matmul {number}", outcome="unknown", evidence=f"its memory is in use: {_line(error)}"
            )
        except RuntimeError as error:  # torch reports CUDA's errors of a device so
            yield CheckResult(name=f"matmul {number}", outcome="failed", evidence=_line(error))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _one(torch: Any, number: int) -> Iterator[CheckResult]:
    a, b = (torch.from_numpy(factor).to(f"cuda:{number}") for factor in factors(ON_GPU))
    seconds = []

    def multiply() -> Any:
        torch.cuda.synchronize(number)
        began = time.monotonic()
        found = a @ b
        torch.cuda.synchronize(number)
        seconds.append(time.monotonic() - began)
        return found.cpu().numpy()

    result = product(f"matmul {number}", ON_GPU, multiply)
    rate = 2.0 * ON_GPU**3 / min(seconds) / 1e12
    right = result.outcome == "passed"
    yield floored(result.name, rate, GPU_FLOOR, "TFLOP/s", "right to the bit") if right else result
    source = torch.arange(GPU_MEMORY_BYTES // 4, dtype=torch.int32, device=a.device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(TRIES):
        torch.cuda.synchronize(number)
        began = time.monotonic()
        target.copy_(source)
        torch.cuda.synchronize(number)
        best = min(best, time.monotonic() - began)
    name = f"device memory {number}"
    if not bool(torch.equal(source, target)):
        yield CheckResult(name=name, outcome="failed", evidence="the copy differs from the original")
    else:
        yield floored(name, GPU_MEMORY_BYTES / best / 1e9, GPU_MEMORY_FLOOR, "GB/s", "copied")


def main() -> int:
    """Prints the results and returns the exit code."""
    parser = argparse.ArgumentParser(prog="titan_actor.check_device")
    parser.add_argument("--ranks", type=int, required=True)
    ranks = parser.parse_args().ranks
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # imports print warnings; stdout is only for the answer
    there, broken = seen()
    for result in on_gpu(ranks, there, broken) if there or broken else on_cpu():
        answer.write(to_line(result) + "\n")
        answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
