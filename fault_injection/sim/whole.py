"""A run without replica groups: every failure stops everybody, who then resume from the newest checkpoint.

What our program is compared with, and the way in which most published runs trained."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Whole:
    """All in seconds."""

    mttf_s: float
    recovery_s: float
    """From a failure until everybody trains again, but for what is trained a second time. A failure that comes meanwhile costs as
    much again, after it."""
    interval_s: float = 0.0
    """Of training, from one checkpoint to the next; 0: nothing is trained a second time."""
    pause_s: float = 0.0
    """How long a checkpoint stops everybody."""


def ettr(run: Whole, seconds: float, seed: int) -> float:
    """The share of `seconds` that was trained and kept, with failures at chance by wall-clock (a Poisson process)."""
    dice = random.Random(seed)
    kept = now = 0.0
    while now < seconds:
        fails = now + dice.expovariate(1 / run.mttf_s)
        trained = min(fails, seconds) - now
        if run.interval_s:
            cycle_s = run.interval_s + run.pause_s
            cycles, rest = divmod(trained, cycle_s)
            saved = cycles * run.interval_s
            kept += saved if fails < seconds else saved + min(rest, run.interval_s)
        else:
            kept += trained
        now = fails
        down_until = now + run.recovery_s
        while (again := now + dice.expovariate(1 / run.mttf_s)) < down_until and now < seconds:
            now = again
            down_until += run.recovery_s
        now = down_until
    return kept / seconds


def estimate(run: Whole) -> float:
    """The same by the expression of Kokolis and others (arXiv 2410.21680) for failures that are rare: 1 - (recovery + half an
    interval) / MTTF, over 1 + pause / interval."""
    lost_s = run.recovery_s + run.interval_s / 2
    return (1 - lost_s / run.mttf_s) / (1 + (run.pause_s / run.interval_s if run.interval_s else 0.0))
