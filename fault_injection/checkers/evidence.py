"""Compares a fault with its traces in the journal and in what the shims saw. Its own evidence is only a sentence that
anyone can write. A fault of an agent leaves no such trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.in_rank.causes import EXIT_CODE
from supervisor.shell.history.files import FaultDone, History

SIGNALLED = 128
"""Offset of the exit status of a process that a signal ended, as in a shell."""

ENDS_BY: Mapping[str, int] = {
    **dict.fromkeys(
        ("sigkill", "killed_for_memory", "failpoint", "heal_source_killed", "checkpoint_torn"),
        SIGNALLED + signal.SIGKILL,
    ),
    **dict.fromkeys(("sigsegv", "segfault"), SIGNALLED + signal.SIGSEGV),
    **dict.fromkeys(("sigabrt", "abort"), SIGNALLED + signal.SIGABRT),
    "sigterm": SIGNALLED + signal.SIGTERM,  # a rank that handles it may exit with it itself
    "exit_code": EXIT_CODE,
}
"""Maps a fault to its rank's end, if that is always the same and not by the supervisor's signal."""

LEADER_DIES = frozenset({"supervisor_killed", "failpoint"})
"""Faults after which another epoch leads."""

LIGHTHOUSE_DIES = frozenset({"lighthouse_killed", "gate_killed"})
"""Faults after which another lighthouse is opened."""


def contradicted(history: History, fault: FaultDone, others: Sequence[FaultDone]) -> Iterator[str]:
    """Yields what is impossible if the fault was made. `others`: faults at the same time."""
    made = fault.made if fault.made is not None else fault.began
    over = fault.over if fault.over is not None else float("inf")
    for at, how in _ends(history, fault, others):
        if not fault.began <= at <= over:
            yield f"its process ended {abs(at - fault.began):.1f} s {'before' if at < fault.began else 'after'} it"
        elif how != ENDS_BY[fault.name]:
            yield f"its process ended with {how}, not with {ENDS_BY[fault.name]}"
    if fault.name in LEADER_DIES and history.decisions:
        led = _led(history, fault)
        if late := [d.number for d in history.committed() if d.epoch <= led and d.t > made]:
            yield f"the epoch that led, {led}, made decision {late[0]} after it"
        elif history.setting is not None and history.setting.to_its_end and max(history.epochs, default=led) <= led:
            yield f"no epoch came after {led}, which led"
    if fault.name in LIGHTHOUSE_DIES and history.decisions:
        opened = [d.t for d in history.decisions if any(a["verb"] == "lighthouse" for a in d.actions)]
        if not any(fault.began <= at <= over for at in opened):
            yield "no lighthouse was opened again"


def not_told(history: History, fault: FaultDone, others: Sequence[FaultDone]) -> Iterator[str]:
    """Yields what the fault must have left and the history does not hold."""
    if _ends_alone(fault, others) and not list(_ends(history, fault, others)):
        yield "no shim saw how its process ended"
    if fault.name in LEADER_DIES and max(history.epochs, default=0) <= _led(history, fault):
        yield "nothing tells who led after it"
    if fault.name in LIGHTHOUSE_DIES and not history.decisions:
        yield "nothing tells which lighthouses were opened"


def _ends(history: History, fault: FaultDone, others: Sequence[FaultDone]) -> Iterator[tuple[float, int]]:
    """Yields when and how its process ended, as its shim saw it."""
    whom = (fault.group, fault.generation, fault.rank)
    for p in history.processes if _ends_alone(fault, others) else ():
        if (p.group, p.generation, p.rank) != whom:
            continue
        how = SIGNALLED + p.signal if p.signal is not None else p.exit_code
        if p.exited is not None and how is not None:
            yield p.exited, how


def _ends_alone(fault: FaultDone, others: Sequence[FaultDone]) -> bool:
    """Returns true if it ends a process, and no other fault breaks that group or keeps its node from noting how."""
    return fault.name in ENDS_BY and not any(o.group == fault.group and (o.kinds or o.mute) for o in others)


def _led(history: History, fault: FaultDone) -> int:
    """Returns the newest epoch that had decided something before it."""
    return max((d.epoch for d in history.decisions if d.t <= fault.began), default=0)
