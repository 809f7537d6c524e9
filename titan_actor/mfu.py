"""Model FLOPS utilisation, as TorchTitan computes it for its own log."""

from __future__ import annotations

from typing import Any


def mfu(device_type: str, tokens_per_s: float, about: Any, devices: int) -> float | None:
    """What the model's arithmetic takes of a device's peak in bfloat16, from 0 to 1. `about` is TorchTitan's metrics processor, which
    takes a GPU that it does not know for an A100; `devices` work on the same tokens.

    None without a GPU, and in lower precisions, whose peak is another."""
    if device_type != "cuda" or about.has_quantization or about.num_flops_per_token <= 0:
        return None
    return float(about.num_flops_per_token * tokens_per_s / devices / about.gpu_peak_flops)
