"""Fakes NVML at its Python module: the real one's names and exceptions, with GPUs from a dictionary."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.metadata import distribution
from types import ModuleType, SimpleNamespace
from typing import Any


def real() -> ModuleType:
    """Returns nvidia-ml-py's module, also where another takes its place on the path."""
    if "nvidia_ml_py" in sys.modules:
        return sys.modules["nvidia_ml_py"]
    path = distribution("nvidia-ml-py").locate_file("pynvml.py")
    spec = importlib.util.spec_from_file_location("nvidia_ml_py", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # it looks itself up there
    spec.loader.exec_module(module)
    return module


def gpu(number: int = 0, **about: Any) -> dict[str, Any]:
    """Returns a healthy GPU, changed by `about`. lost, reset: its calls fail so. absent: it is not counted. links,
    errors: for each NVLink."""
    healthy = {
        "uuid": f"GPU-{number:04x}", "bus": f"00000000:{16 + number:02X}:00.0", "lost": False, "reset": False, "absent": False,
        "recovery": 0, "ecc": [0, 0], "rows": [0, 0, 0, 0], "slow": 0, "links": [], "errors": [],
    }  # fmt: skip
    return {**healthy, **about}


class FakeNvml:
    """NVML with a state that `read` returns.

    The state holds `gpus` and `events` ([GPU's number, Xid], only ever appended to). It also holds what is wrong with
    NVML itself: `init` and `error` name its exceptions, and with `hangs` its calls wait until freed."""

    def __init__(self, read: Callable[[], dict[str, Any]], hurry: float = 100.0) -> None:
        """`hurry`: how many times shorter a wait for an event is than asked for."""
        self._read, self._hurry = read, hurry
        self._real = real()
        self._events_told = 0
        self._registered: list[int] = []
        self.freed = threading.Event()
        self.waits = 0
        self.before_timeout: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _raise(self, name: str) -> None:
        raise getattr(self._real, f"NVMLError_{name}")

    def _state(self) -> dict[str, Any]:
        state = self._read()
        while state.get("hangs") and not self.freed.wait(0.01):
            state = self._read()
        if state.get("error"):
            self._raise(state["error"])
        return state

    def _gpu(self, handle: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._state()["gpus"][self._number(handle)]
        if found["lost"]:
            self._raise("GpuIsLost")
        if found["reset"]:
            self._raise("ResetRequired")
        return found

    def _number(self, handle: Any) -> int:
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1

    def _handle(self, number: int) -> Any:
        return ctypes.cast(ctypes.c_void_p(number + 1), self._real.c_nvmlDevice_t)

    # --- as pynvml has them ---

    def nvmlInit(self) -> None:
        problem = self._read().get("init")
        if problem:
            self._raise(problem)
        self._state()

    def nvmlDeviceGetCount(self) -> int:
        return sum(not g["absent"] for g in self._state()["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        there = [number for number, g in enumerate(self._state()["gpus"]) if not g["absent"]]
        handle = self._handle(there[index])
        self._gpu(handle)
        return handle

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(self._gpu(handle)["uuid"])

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return SimpleNamespace(busId=self._gpu(handle)["bus"])

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any:
        assert fields == [self._real.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        action = self._gpu(handle)["recovery"]
        return [SimpleNamespace(nvmlReturn=0 if action is not None else 3, value=SimpleNamespace(uiVal=action))]

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        assert kind == self._real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        if self._gpu(handle)["ecc"] is None:
            self._raise("NotSupported")
        return int(self._gpu(handle)["ecc"][counter])

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, ...]:
        return tuple(self._gpu(handle)["rows"])

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return int(self._gpu(handle)["slow"])

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        links = self._gpu(handle)["links"]
        if link >= len(links):
            self._raise("InvalidArgument")
        return int(links[link])

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: int, counter: int) -> int:
        errors = self._gpu(handle)["errors"]
        if link >= len(errors):
            self._raise("NotSupported")
        return int(errors[link]) if counter == 0 else 0

    def nvmlEventSetCreate(self) -> Any:
        return SimpleNamespace()

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None:
        assert types == self._real.nvmlEventTypeXidCriticalError
        self._gpu(handle)
        self._registered.append(self._number(handle))

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        """Returns the next event."""
        self.waits += 1
        told = self._read().get("events", [])
        if len(told) <= self._events_told and not self.freed.wait(timeout_ms / 1000 / self._hurry):
            told = self._read().get("events", [])
        if len(told) <= self._events_told:
            self.before_timeout()
            self._raise("Timeout")
        number, xid = told[self._events_told]
        self._events_told += 1
        if number not in self._registered:
            self._raise("Timeout")
        return SimpleNamespace(device=self._handle(number), eventData=xid)
