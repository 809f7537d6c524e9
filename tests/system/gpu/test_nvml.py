"""The real NVML, on a machine with an NVIDIA GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from agents.health.facts.gpu import Gpus
from agents.health.facts.gpu_devices import Devices
from fault_injection.testbed.waiting import eventually
from supervisor.core.evidence import gpu_faults as core

pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")


def test_every_gpu_is_known_by_its_number_address_and_uuid() -> None:
    pynvml.nvmlInit()
    devices = Devices(pynvml, None)
    told = [*devices.look(), *devices.look()]
    assert len(devices.handles) == pynvml.nvmlDeviceGetCount() > 0
    for found, handle in devices.handles.items():
        assert found.uuid == pynvml.nvmlDeviceGetUUID(handle)
        assert devices.at_bus(found.bus.rpartition(".")[0]) == found
        assert len(found.bus) == len("0000:00:00.0")
        assert ctypes.cast(handle, ctypes.c_void_p).value
    assert {fact.kind for fact in told} <= set(core.CONDITIONS)
    assert "gpu_lost" not in {fact.kind for fact in told}


def test_the_source_waits_for_events_and_reads_at_once() -> None:
    gpus = Gpus(visible=None, every_s=0.1)
    gpus.start(lambda: None)
    try:
        eventually(lambda: gpus._devices.handles, 60, "NVML has answered")
        assert not {fact.kind for fact in gpus.read()} & {"nvml_stalled", "nvml_failed", "gpu_lost"}
    finally:
        gpus.stop()
