"""Classifies how a rank ended: the kind of failure, and the evidence for it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.evidence import error_text
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import RankView
from supervisor.core.model.reason import Code, Reason

PEERS_GONE_EXIT = 75
"""Same as `supervisor.wire.records.PEERS_GONE`; a test holds the two equal (the core imports nothing)."""

QUIT = "BdbQuit"
"""Beginning of the error of a rank that a person has ended by the debugger's `quit`."""

MISCONFIGURED_EXIT = 78
"""Same as `supervisor.wire.records.MISCONFIGURED`."""

TERMINATED_EXIT = 143
"""Same as `supervisor.wire.records.TERMINATED`."""

SIGBUS = 7
"""Signal with which the kernel ends a process that reads a mapped file whose store is away, among other faults."""
SIGKILL = 9
SIGTERM = 15

SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", SIGBUS: "SIGBUS", 8: "SIGFPE",
    SIGKILL: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", SIGTERM: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
"""Linux's signal numbers, on x86 and ARM."""

OWN_FAULT = frozenset({4, SIGBUS, 8, 11})
"""Signals that the kernel sends a process for its own fault (SIGILL, SIGBUS, SIGFPE, SIGSEGV)."""

SIGABRT = 6
"""Signal that a process sends itself: for its own fault, or because it lost a peer and its library gave up."""


def clean(rank: RankView) -> bool:
    """Returns true if the rank reported that it finished, and ended with exit code 0."""
    return rank.state == "exited" and rank.exit_code == 0 and rank.phase == "finished"


def terminated(rank: RankView) -> bool:
    """Returns true if the rank was ended by SIGTERM, from any sender."""
    return rank.signal == SIGTERM or rank.exit_code == TERMINATED_EXIT


def taken(ranks: tuple[RankView, ...]) -> bool:
    """Returns true if SIGTERM ended ranks, maybe because an engine takes their node. Returns false if their own agent
    sent it, for one of them that had ended by itself."""
    told = [r for r in ranks if r.state == "exited" and terminated(r)]
    return any(not r.told for r in told) or (bool(told) and not any(_on_its_own(r) for r in ranks))


def _on_its_own(rank: RankView) -> bool:
    if rank.state != "exited" or clean(rank) or terminated(rank) or rank.told:
        return False
    return not error_text.of_a_lost_peer(rank.error)


def ended(ranks: tuple[RankView, ...], plain: bool = False) -> Failure | None:
    """Returns the failure of a group of which ranks have ended, judged by the first of them; None if none failed.
    `plain`: of a command that reports no steps, whose exit code and last words are all that it tells of an error."""
    bad = [r for r in ranks if r.state == "exited" and not clean(r)]
    if not bad:
        return None
    if (debugged := _debugged(ranks)) is not None:
        return Failure(Kind.DEBUGGER, (Reason.of(Code.DEBUGGED, rank=debugged),), rank=debugged)
    first = min(bad, key=_order)
    failure = replace(_judged(first), rank=first.rank)
    if plain and failure.kind == Kind.ERROR and not failure.same:
        failure = replace(failure, same=error_text.normal(f"exit code {first.exit_code}: {first.last_words}"))
    if not first.disk:
        return failure
    return replace(failure, evidence=(*failure.evidence, Reason.of(Code.ON_ITS_NODE, fact=first.disk)))


def _debugged(ranks: tuple[RankView, ...]) -> int | None:
    """Returns the rank that a person has, or had, in the debugger when its group ended; None if there is none. Its peers
    give up a collective after their own time, and so end first. A generation that has committed nothing is judged as any
    other, unless a person has ended it: one that ends so again and again by itself must come to its budget's end."""
    return next((r.rank for r in ranks if r.debugging and (r.commits > 0 or r.error.startswith(QUIT))), None)


def echoes(ranks: tuple[RankView, ...]) -> bool:
    """Returns true if ranks have failed, and each of them because it lost a peer, or was ended by its node after that."""
    bad = [r for r in ranks if r.state == "exited" and not clean(r) and not r.told]
    return bool(bad) and all(error_text.of_a_lost_peer(r.error) for r in bad)


def _judged(first: RankView) -> Failure:
    if first.signal is not None or terminated(first):
        return _by_signal(first)
    if first.exit_code == PEERS_GONE_EXIT:
        failed = Reason.of(Code.HEAL_FAILED, rank=first.rank, why=first.heal_failed) if first.heal_failed else None
        return Failure(Kind.PEERS_GONE, (failed or Reason.of(Code.NO_PEERS, rank=first.rank),))
    return replace(_by_itself(first), misconfigured=first.exit_code == MISCONFIGURED_EXIT)


def _order(rank: RankView) -> tuple[int, bool, bool, float, int]:
    """Sort key: the cause before its echoes. An exception or an abort may be an echo of a peer's loss, and is one if it
    reports that. Ranks that were asked to end come last."""
    told = terminated(rank) or bool(rank.told)
    cause = rank.signal is not None and rank.signal != SIGABRT
    echo = error_text.of_a_lost_peer(rank.error)
    return (2 if told else 0 if cause else 1, echo, rank.error == "", rank.ended_s, rank.rank)


def _by_signal(rank: RankView) -> Failure:
    name = SIGNALS.get(rank.signal or SIGTERM, "a signal")
    if rank.told:
        by_its_node = Reason.of(Code.ENDED_BY_ITS_NODE, rank=rank.rank, signal=name, why=rank.told)
        return Failure(Kind.CRASH, (by_its_node,), rank.error)
    if terminated(rank):
        said = (Reason.of(Code.TERMINATED, rank=rank.rank),)
        return Failure(Kind.CRASH, said, rank.error, outside=rank.told is not None)
    if rank.signal == SIGKILL and rank.oom:
        for_memory = Reason.of(Code.KILLED_FOR_MEMORY, rank=rank.rank, kernel=rank.kernel)
        return Failure(
            Kind.OOM, (for_memory, *_log(rank)), rank.error, rank.trace, same="killed for memory",
            confidence=Confidence.CERTAIN if rank.kernel else Confidence.LIKELY,
        )  # fmt: skip
    by_signal = Reason.of(Code.ENDED_BY_SIGNAL, rank=rank.rank, name=name, signal=rank.signal)
    evidence = (_killed(rank) if rank.signal == SIGKILL else by_signal,)
    same = f"ended by {name}" if rank.signal in OWN_FAULT | {SIGABRT} else ""
    unseen = rank.signal == SIGKILL and (rank.told is None or rank.oom is None)
    confidence = Confidence.LIKELY if unseen else Confidence.CERTAIN  # of it and a kill for memory
    return Failure(
        Kind.CRASH, (*evidence, *_log(rank)), rank.error, rank.trace, same, confidence=confidence,
        outside=rank.signal == SIGKILL and not unseen,
    )  # fmt: skip


def _killed(rank: RankView) -> Reason:
    if rank.told is None:
        return Reason.of(Code.KILLED_BY_UNKNOWN, rank=rank.rank)
    return Reason.of(Code.KILLED_NOT_BY_US if rank.oom is None else Code.KILLED_BY_NEITHER, rank=rank.rank)


def _by_itself(rank: RankView) -> Failure:
    evidence = [Reason.of(Code.EXITED, rank=rank.rank, exit_code=rank.exit_code, error=rank.error)]
    place = error_text.where(rank.trace)
    if place:
        evidence.append(Reason.of(Code.RAISED_IN, place=place))
    if rank.oom:
        evidence.append(Reason.of(Code.KILLED_BEFORE))
    if not rank.error:
        evidence += _log(rank)
    same = error_text.signature(rank.error, rank.trace)
    return Failure(Kind.ERROR, tuple(evidence), rank.error, rank.trace, same)


def _log(rank: RankView) -> tuple[Reason, ...]:
    return (Reason.of(Code.LOG_ENDS, words=rank.last_words),) if rank.last_words else ()
