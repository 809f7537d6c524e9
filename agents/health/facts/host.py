"""Reads facts about the machine from Linux's own files: memory, clock, network links. A file that this kernel lacks
yields no fact."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agents.health import oom_kills
from supervisor.wire.kernel_clock import kernel_clock, synchronised
from supervisor.wire.records import Fact

PRESSURE_PERCENT = 20.0
"""Percent of the last 10 s in which every process waited for memory: a trainer that swaps is slower than a restart."""

PRESSURE = Path("/proc/pressure/memory")


def memory(path: Path = PRESSURE, pid: int = 0) -> Sequence[Fact]:
    """Reads the kernel's pressure stall information (`full avg10`) of the machine and of process `pid`'s cgroup (0:
    this process). A job whose memory is limited may wait while the rest of the machine does not."""
    own = oom_kills.pressure(oom_kills.cgroup_of(pid or os.getpid()))
    for file, whose in ((path, "every process"), (own, "every process of this job's cgroup")):
        percent = _pressure(file) if file is not None else 0.0
        if percent >= PRESSURE_PERCENT:
            sentence = f"{whose} waited for memory during {percent:g} % of the last 10 s"
            return (Fact(kind="memory_pressure", subject="memory", evidence=sentence),)
    return ()


def _pressure(path: Path) -> float:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # the kernel lacks it, or it is switched off
        return 0.0
    full = next((pairs for kind, *pairs in map(str.split, lines) if kind == "full"), [])
    return float(dict(pair.split("=") for pair in full).get("avg10", "0"))


def clock(answer: tuple[int, int] | None = None) -> Sequence[Fact]:
    """Returns a fact if nothing synchronises the clock. Everstep compares no clocks, but people compare logs."""
    if synchronised(*(kernel_clock() if answer is None else answer)):
        return ()
    sentence = "the kernel's clock is not synchronised (adjtimex): start chronyd, ntpd or timesyncd"
    return (Fact(kind="clock_unsynchronised", subject="clock", evidence=sentence),)


class Links:
    """Reports network interfaces that were up and are down or gone. Only those with a device behind them (PCI, USB,
    virtio) count, and bonds of such. Virtual ones (a container bridge, veth, tun) go down whenever they are unused."""

    def __init__(self, folder: Path = Path("/sys/class/net")) -> None:
        self._folder = folder
        self._were_up: set[str] = set()

    def read(self) -> Sequence[Fact]:
        states = {path.name: _text(path / "operstate") for path in self._folder.iterdir()}
        up = {name for name, state in states.items() if state == "up"}
        self._were_up |= {name for name in up - self._were_up if self._is_of_the_machine(name)}
        return tuple(
            Fact(kind="link_down", subject=name, evidence=f"interface {name} was up and is {states.get(name, 'gone')}")
            for name in sorted(self._were_up)
            if states.get(name, "gone") in ("down", "lowerlayerdown", "dormant", "notpresent", "gone")
        )

    def _is_of_the_machine(self, name: str) -> bool:
        return any((self._folder / name / kind).exists() for kind in ("device", "bonding"))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
