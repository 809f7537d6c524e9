"""Finds what our processes leave behind when they end: all that they started, wherever it moved.

An orphan becomes a child of the shim, which is a subreaper. Whatever its session and environment, it is below the shim
and below none of the processes that the shim knows. Standard library only: the shim imports it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection

from agents.shim import process
from supervisor.wire import marks


def left_behind(known: Collection[int], alive: Collection[str], unmarked: bool) -> list[process.Stat]:
    """Returns running descendants of ours that are below none of the processes `known`, and that none of those named
    `alive` started. `unmarked`: also those that carry no mark of who started them."""
    return [stat for stat in _strangers(known) if _is_left(marks.of(stat.pid), alive, unmarked)]


def _is_left(started_by: str, alive: Collection[str], unmarked: bool) -> bool:
    return started_by not in alive if started_by else unmarked


def _strangers(known: Collection[int]) -> list[process.Stat]:
    children: dict[int, list[process.Stat]] = defaultdict(list)
    for stat in process.all_processes():
        children[stat.parent].append(stat)
    found, look = [], [stat for stat in children[os.getpid()] if stat.pid not in known]
    while look:
        stat = look.pop()
        look += children[stat.pid]
        found.append(stat)
    return [stat for stat in found if stat.running]
