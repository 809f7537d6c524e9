"""The share of its device's peak that a rank uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from titan_actor.mfu import mfu


def of(device: str = "cuda", devices: int = 1, **about: Any) -> float | None:
    known = {"has_quantization": False, "num_flops_per_token": 48_000_000_000, "gpu_peak_flops": 960e12, **about}
    return mfu(device, 8000.0, SimpleNamespace(**known), devices)


def test_it_is_a_share_of_the_devices_peak() -> None:
    assert of() == pytest.approx(0.4)
    assert of(devices=2) == pytest.approx(0.2), "two devices work on these tokens"


def test_where_it_means_nothing_there_is_none() -> None:
    assert of(device="cpu") is None
    assert of(has_quantization=True) is None
    assert of(num_flops_per_token=-1) is None
