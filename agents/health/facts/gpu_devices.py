"""Reads through NVML what holds for each GPU now. Calls may hang on a sick GPU, so it needs its own thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from supervisor.wire.records import Fact

LINKS_EVERY = 6
"""NVLinks are read at every sixth look: 18 links of 8 GPUs are hundreds of calls."""
TWICE = 2
"""Looks at which something must be missing before it is reported: a single one may fall into a reset."""
THROTTLED_LOOKS = 12
"""Looks for which a throttle reason is reported after it was seen: it comes and goes many times a minute."""

_ACTIONS = {
    1: "a reset",
    2: "a restart of its machine",
    3: "traffic between GPUs to be stopped, then a reset",
    4: "a reset, once what runs on it has ended",
    5: "a recovery of its IMEX domain",
    6: "a reset of its bus",
    7: "a restart of its machine",
}
"""NVML_GPU_RECOVERY_ACTION_*; an older driver does not report it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the trainers here may use."""

    index: int
    bus: str
    """PCI address, as 0000:18:00.0."""
    uuid: str
    rank: int | None
    """Local rank that uses it, as CUDA counts them; None if unknown."""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.bus}, {self.uuid})"

    def fact(self, kind: str, says: str) -> Fact:
        return Fact(kind=kind, subject=str(self), evidence=f"{self} {says}", rank=self.rank)


@dataclass(slots=True)
class _Seen:
    """Earlier readings of one GPU."""

    absent: int = 0
    links_up: set[int] = field(default_factory=set)
    links_down: dict[int, int] = field(default_factory=dict)
    link_errors: dict[int, int] = field(default_factory=dict)
    grown: set[int] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    slow_looks: int = 0


def local_rank(index: int, uuid: str, visible: str | None) -> int | None:
    """Returns the local rank that CUDA_VISIBLE_DEVICES gives a device; -1 if CUDA hides it, None if unknown."""
    if visible is None:
        return index
    names = [name.strip() for name in visible.split(",")] if visible.strip() else []
    if any(name.startswith("MIG") for name in names):
        return None
    for place, name in enumerate(names):
        if name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)):
            return place
    return -1


class Devices:
    """The GPUs that are or were present. Raises NVMLError when NVML itself does not work."""

    def __init__(self, nvml: Any, visible: str | None) -> None:
        self._nvml, self._visible = nvml, visible
        self._seen: dict[Gpu, _Seen] = {}
        self.handles: dict[Gpu, Any] = {}
        self._looks = 0

    def at_bus(self, bus: str) -> Gpu | None:
        """Finds a GPU by its PCI address without the function, as the kernel's log writes it."""
        return next((gpu for gpu in list(self._seen) if gpu.bus.rpartition(".")[0] == bus.lower()), None)

    def look(self) -> list[Fact]:
        """Returns all facts that hold for the GPUs now."""
        found: list[Fact] = []
        there: set[Gpu] = set()
        for index in range(self._nvml.nvmlDeviceGetCount()):
            known = next((gpu for gpu in self._seen if gpu.index == index), None)
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = self._identified(index, handle)
                if gpu is None:
                    continue
                there.add(gpu)
                self.handles.setdefault(gpu, handle)
                self._seen.setdefault(gpu, _Seen())
                found += self._holds(gpu, handle)
            except self._nvml.NVMLError_GpuIsLost:
                # a GPU that never gave its identity may be hidden from the trainers
                if known is not None:
                    there.add(known)
                    found.append(known.fact("gpu_lost", "is lost: the driver does not reach it any more"))
            except self._nvml.NVMLError_ResetRequired:
                if known is not None:
                    there.add(known)
                    found.append(known.fact("gpu_reset_required", "needs a reset, says the driver"))
        self._looks += 1
        return found + list(self._gone(there))

    def _identified(self, index: int, handle: Any) -> Gpu | None:
        uuid = str(self._nvml.nvmlDeviceGetUUID(handle))
        rank = local_rank(index, uuid, self._visible)
        if rank == -1:
            return None
        domain, _, rest = str(self._nvml.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
        known = next((gpu for gpu in self._seen if gpu.uuid == uuid), None)
        # the numbers of the others change when one is gone: each keeps the number under which it was first reported
        return known or Gpu(index, f"{domain[-4:]}:{rest}", uuid, rank)

    def _gone(self, there: set[Gpu]) -> Iterator[Fact]:
        for gpu, seen in self._seen.items():
            seen.absent = 0 if gpu in there else seen.absent + 1
            if seen.absent >= TWICE:
                yield gpu.fact("gpu_lost", "has disappeared")

    def _holds(self, gpu: Gpu, handle: Any) -> Iterator[Fact]:
        seen = self._seen[gpu]
        yield from self._recovery(gpu, handle)
        yield from self._memory(gpu, handle)
        yield from self._throttled(gpu, handle, seen)
        if self._looks % LINKS_EVERY == 0:
            self._ask_links(handle, seen)
        down = sorted(link for link, times in seen.links_down.items() if times >= TWICE)
        if down:
            yield gpu.fact("gpu_nvlink_down", f"has lost NVLink {_listed(down)}, which was up")
        if seen.grown:
            yield gpu.fact("gpu_nvlink_errors", f"has counted new errors on NVLink {_listed(sorted(seen.grown))}")

    def _recovery(self, gpu: Gpu, handle: Any) -> Iterator[Fact]:
        values = self._ask("nvmlDeviceGetFieldValues", handle, [self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return
        action = values[0].value.uiVal
        if action in _ACTIONS:
            yield gpu.fact("gpu_reset_required", f"needs {_ACTIONS[action]}, says the driver")

    def _memory(self, gpu: Gpu, handle: Any) -> Iterator[Fact]:
        nvml = self._nvml
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        now = self._ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, nvml.NVML_VOLATILE_ECC) or 0
        ever = self._ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, nvml.NVML_AGGREGATE_ECC) or 0
        if now:
            says = (
                f"has had {now} memory errors that ECC cannot correct since the driver was loaded, {ever} in its life"
            )
            yield gpu.fact("gpu_ecc", says)
        elif ever:
            yield gpu.fact("gpu_ecc_lifetime", f"has had {ever} memory errors that ECC cannot correct in its life")
        _, _, pending, failed = self._ask("nvmlDeviceGetRemappedRows", handle) or (0, 0, 0, 0)
        if failed:
            yield gpu.fact("gpu_rows_failed", "could not remap a row of its memory: NVIDIA advises to replace it")
        if pending:
            yield gpu.fact("gpu_rows_pending", "will remap rows of its memory at its next reset")

    def _throttled(self, gpu: Gpu, handle: Any, seen: _Seen) -> Iterator[Fact]:
        nvml = self._nvml
        # every GPU that works hard reaches the power cap (SwPowerCap), so that one is no fact
        names = {
            nvml.nvmlClocksEventReasonHwSlowdown: "a slowdown by its hardware",
            nvml.nvmlClocksEventReasonHwThermalSlowdown: "its temperature (hardware)",
            nvml.nvmlClocksEventReasonSwThermalSlowdown: "its temperature",
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "a power brake",
        }
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
        reasons = {name for reason, name in names.items() if mask & reason}
        seen.slow_looks = THROTTLED_LOOKS if reasons else seen.slow_looks - 1
        seen.slow = seen.slow | reasons if seen.slow_looks > 0 else set()
        if seen.slow:
            yield gpu.fact("gpu_throttled", f"runs slower for {', '.join(sorted(seen.slow))}")

    def _ask_links(self, handle: Any, seen: _Seen) -> None:
        nvml = self._nvml
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break  # it has no more links
            if state == nvml.NVML_FEATURE_ENABLED:
                seen.links_up.add(link)
                seen.links_down.pop(link, None)
            elif link in seen.links_up:
                seen.links_down[link] = seen.links_down.get(link, 0) + 1
            counts = [self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, c) for c in range(_COUNTERS)]
            errors = sum(count for count in counts if count is not None)
            if errors > seen.link_errors.setdefault(link, errors):
                seen.grown.add(link)
            seen.link_errors[link] = errors

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Returns NVML's answer, or None where this GPU or its driver does not support the call."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_ResetRequired):
            raise
        except self._nvml.NVMLError:
            return None


_COUNTERS = 4
"""NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA."""


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
