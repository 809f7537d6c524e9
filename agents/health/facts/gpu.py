"""Reads facts about NVIDIA's GPUs through NVML. A machine without the library or without a GPU has none."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from agents.health import kernel_log
from agents.health.facts import LOOK_S
from agents.health.facts.gpu_devices import Devices, Gpu
from agents.health.facts.gpu_xids import Xids, in_line
from supervisor.wire.records import Fact

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""Seconds until NVML is overdue. Without a persistence daemon its first call initialises each GPU for seconds."""
AGAIN_S = 60.0
"""Seconds until a missing driver is looked for again: it may be loaded later."""
WAIT_MS = 1000
"""Milliseconds of one wait for an event. The known set of running generations may be that old."""


class Gpus:
    """Asks NVML in threads of its own: a call that hangs holds only those, and is itself reported as a fact."""

    def __init__(
        self,
        nvml: Any = pynvml,
        visible: str | None = os.environ.get("CUDA_VISIBLE_DEVICES"),
        log_lines: Callable[[], list[str]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        every_s: float = LOOK_S,
    ) -> None:
        """`visible` is CUDA_VISIBLE_DEVICES, which trainers inherit from the same environment."""
        self._nvml, self._monotonic, self._every_s = nvml, monotonic, every_s
        self._devices = Devices(nvml, visible)
        self._xids = Xids(monotonic)
        self._log_lines = log_lines if log_lines is not None else kernel_log.Follower().new
        self._news: Callable[[], None] = lambda: None
        self._ways: frozenset[str] = frozenset()
        self._ways_at_read: frozenset[str] = frozenset()
        self._conditions: tuple[Fact, ...] = ()
        self._began: float | None = None
        self._last_read: tuple[float | None, float] = (None, 0.0)
        self._waited_s = 0.0
        self._soon = threading.Event()
        self._stopped = False

    def start(self, news: Callable[[], None]) -> None:
        """Starts the threads. `news` is called, in another thread, when there is something new to read."""
        self._news = news
        threading.Thread(target=self._look, name="gpus", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._soon.set()

    def running(self, ways: frozenset[str]) -> None:
        """Sets the generations (RUN.GROUP.GENERATION) that have processes or have just ended. From any thread."""
        self._ways = ways

    def read(self) -> Sequence[Fact]:
        """Returns the facts that are known now, without waiting for NVML."""
        # new lines in the log were written after it was last read
        during, self._ways_at_read = self._ways_at_read, self._ways
        for line in self._log_lines() if self._devices.handles else ():
            found = in_line(line)
            gpu = self._devices.at_bus(found[0]) if found is not None else None
            if found is not None and gpu is not None:
                log.warning("kernel: %s", line)
                self._xids.saw(gpu, found[1], during)
        return (*self._stalled(), *self._conditions, *self._xids.facts())

    def _stalled(self) -> Sequence[Fact]:
        now, began = self._monotonic(), self._began
        before, at = self._last_read
        self._last_read = (began, now)
        # the agent itself may have been frozen, so the time between two reads counts only up to this
        self._waited_s = self._waited_s + min(now - at, 2 * LOOK_S) if began is not None and began == before else 0.0
        if self._waited_s <= DEADLINE_S:
            return ()
        return (Fact(kind="nvml_stalled", subject="nvml", evidence=f"NVML has not answered for {DEADLINE_S:g} s"),)

    # --- the thread that looks ---

    def _look(self) -> None:
        began_events = False
        ready = False
        while True:
            self._soon.clear()
            if self._stopped:
                return
            self._began = self._monotonic()
            try:
                if not ready:
                    self._nvml.nvmlInit()
                    ready = True
                found = tuple(self._devices.look())
            except self._nvml.NVMLError_LibraryNotFound:
                return
            except self._nvml.NVMLError as error:
                says = f"NVML no longer works: {error}"
                found = (Fact(kind="nvml_failed", subject="nvml", evidence=says),) if self._devices.handles else ()
            finally:
                self._began = None
            if found != self._conditions:
                self._conditions = found
                self._news()
            if self._devices.handles and not began_events:
                began_events = True
                threading.Thread(target=self._events, name="gpu-events", daemon=True).start()
            self._soon.wait(self._every_s if self._devices.handles else AGAIN_S)

    # --- the thread that waits for events ---

    def _events(self) -> None:
        sure = self._ways
        gpus: dict[Any, Gpu] = {}
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            log.info("NVML reports no events: %s", error)
            return
        for gpu, handle in self._devices.handles.items():
            try:
                self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
                gpus[_address(handle)] = gpu
            except self._nvml.NVMLError as error:
                log.info("%s reports no events: %s", gpu, error)
        while not self._stopped:
            ways = self._ways
            try:
                event = self._nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except self._nvml.NVMLError_Timeout:
                sure = ways  # no older event is left: what ran at the start of this wait began before any later event
                continue
            except self._nvml.NVMLError:
                time.sleep(WAIT_MS / 1000)  # as when a GPU is lost
                continue
            gpu_of = gpus.get(_address(event.device))
            if gpu_of is not None and self._xids.saw(gpu_of, int(event.eventData), sure):
                self._news()
                self._soon.set()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
