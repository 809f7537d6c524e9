"""Reads failure rates and durations from data files that name their sources."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

Look = Literal["process", "gpu", "node", "allocation", "numerics"]
LOOKS: tuple[str, ...] = get_args(Look)

GPUS_A_NODE = 8

DAY_S = 86_400.0
LONGEST_S = 3650 * DAY_S
"""Longest time that is played: no model is trained for ten years, and each month of many GPUs takes seconds."""


@dataclass(frozen=True)
class Rates:
    """Failure rates, by size of the run and by cause."""

    title: str
    source: str
    mttf: tuple[tuple[int, float], ...]
    """(GPUs, mean hours between two failures of a run of that size), by size."""
    causes: tuple[tuple[str, int, Look], ...]
    """(name, how often it was counted, what it looks like)."""

    def mttf_s(self, gpus: int) -> float:
        """Returns the mean time between failures of a run, in seconds. It interpolates the logarithms of two published
        sizes, and beyond them assumes that each GPU fails by itself."""
        (low, low_h), (high, high_h) = self.mttf[0], self.mttf[-1]
        if not low < gpus < high:
            size, hours = (low, low_h) if gpus <= low else (high, high_h)
            return 3600 * hours * size / gpus
        share = math.log(gpus / low) / math.log(high / low)
        return 3600 * low_h * math.exp(share * math.log(high_h / low_h))


@dataclass(frozen=True)
class Times:
    """The durations of data/times.toml, in seconds."""

    step_s: float
    seen_s: float
    dropped_s: float
    silent_s: float
    taken_s: float
    act_s: float
    start_s: float
    heal_s: float
    queue_s: float
    person_s: float
    whole_restart_s: float
    whole_interval_s: float
    """0: nothing is trained a second time."""


def known() -> list[str]:
    """Returns the names of the shipped rates."""
    return sorted(
        f.name[: -len(".toml")] for f in _folder().iterdir() if f.name.endswith(".toml") and f.name != "times.toml"
    )


def rates(name: str) -> Rates:
    """Returns the shipped rates of this name. Raises ValueError for an unknown one."""
    if name not in known():
        raise ValueError(f"there are no rates {name!r}; known: {', '.join(known())}")
    body = _read(name)
    causes = tuple((str(c["name"]), int(c["count"]), c["looks_like"]) for c in body["cause"])
    assert all(look in LOOKS for _, _, look in causes), causes
    mttf = tuple(sorted((int(m["gpus"]), float(m["hours"])) for m in body["mttf"]))
    return Rates(body["title"], body["source"], mttf, causes)


@cache
def times() -> Times:
    """Returns the shipped durations."""
    return Times(**_read("times"))


def _folder() -> Any:
    return resources.files("fault_injection.whatif") / "data"


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text())
