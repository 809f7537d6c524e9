"""Model FLOPS utilisation, as TorchTitan computes it for its own log."""

from __future__ import annotations

from typing import Any


def mfu(device_type: str, tokens_per_s: float, about: Any, devices: int) -> float | None:
    """Returns the share, from 0 to 1, that the model's arithmetic takes of a device's bfloat16 peak. `about` is
    TorchTitan's metrics processor, which takes an unknown GPU for an A100; `devices` work on the same tokens.

    None without a GPU, and in lower precisions, which have another peak.
    """
    if device_type != "cuda" or about.has_quantization or about.num_flops_per_token <= 0:
        return None
    return float(about.num_flops_per_token * tokens_per_s / devices / about.gpu_peak_flops)
