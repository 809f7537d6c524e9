"""Colours of Grafana's palette that mean the same on every dashboard."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.goodput.causes import Cause

GREEN = "semi-dark-green"
"""Colour of what is good."""

GREY = "#8e8e8e"

_ALIKE: Mapping[str, tuple[Cause, ...]] = {
    # nothing runs yet
    "blue": (Cause.ALLOCATE, Cause.PLACE, Cause.ACT, Cause.START, Cause.ADMISSION),
    # something has failed
    "red": (Cause.HUNG, Cause.FAILED_STEP, Cause.LOST_STEP, Cause.DETECT, Cause.DECIDE),
    # waiting for others, or because of them
    "purple": (Cause.STRAGGLING, Cause.QUORUM, Cause.HEAL, Cause.RECOMPUTE),
    # a group's own work other than steps
    "yellow": (Cause.CHECKPOINT, Cause.DATA, Cause.EVALUATE, Cause.COMPILE, Cause.DIGEST),
}
_SHADES = ("dark-", "semi-dark-", "", "light-", "super-light-")

OF_CAUSE: Mapping[str, str] = {
    Cause.PRODUCTIVE.value: GREEN,
    Cause.STORE_AWAY.value: "dark-orange",
    Cause.END.value: GREY,
    Cause.OTHER.value: "#d8d8d8",
    **{
        cause.value: shade + hue
        for hue, causes in _ALIKE.items()
        for shade, cause in zip(_SHADES, causes, strict=False)
    },
}
"""Colours of the ledger's causes: only productive time is green."""
