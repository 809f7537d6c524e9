"""Checks that a run on a token store used each sample of the stream once."""

from __future__ import annotations

from supervisor.shell.history.files import History, Unknown
from supervisor.shell.history.samples import Unnoted, audit


def each_sample_once(history: History) -> list[str]:
    """Checks that no sample of a token store was used twice or skipped, up to the last committed step. Other sources have
    no such order, and nothing is checked.

    Unknown where records are missing, unless a fault kept a group from writing them."""
    found = audit(history)
    if found is None:
        return []
    lacks = [each.sentence for each in found.unnoted if each.missing > _mute(history, each)]
    if lacks and not found.wrong:
        raise Unknown("; ".join(lacks))
    return found.wrong


def _mute(history: History, unnoted: Unnoted) -> int:
    """Returns how many groups had no room for their records then."""
    faults = (f for f in history.faults if f.mute and f.began <= unnoted.t and (f.over is None or unnoted.t <= f.over))
    return len({fault.group for fault in faults})
