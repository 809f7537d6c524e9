"""Rules for cordoned hosts, which get no group any more (ADR 9). An incident bars its host for the run that had it; a
person's word, or repeated incidents, for every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from supervisor.core.model.incident import Incident, Suspicion
from supervisor.core.model.kinds import PLANNED, Is, Kind, that_are
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Reason

REPEATED_S = 86_400.0
"""Seconds within which two incidents bar a host for every run: a day."""

OF_THE_PROGRAM = that_are(Is.OF_THE_PROGRAM)
"""Kinds that a program reports of itself. They bar a host for its own run only, or a bug would cordon a cluster."""

_ACCUSES_NONE = PLANNED | OF_THE_PROGRAM | {Kind.ALLOCATION_LOST}


def accuses(incident: Incident) -> bool:
    """Returns true if an incident is held against its node: not what was planned, nor what the program, its engine or
    someone outside did."""
    from_outside = incident.outside or incident.followed
    return bool(incident.node) and incident.kind not in _ACCUSES_NONE and not from_outside


TOGETHER_S = 60.0
"""Seconds within which silent hosts have one cause, such as a switch (the breaker's default window)."""

OF_A_NETWORK = that_are(Is.OF_A_NETWORK)
"""Kinds that a switch or a power line may cause on healthy hosts."""


def together(every: Iterable[Suspicion]) -> frozenset[Suspicion]:
    """Returns the incidents that befell another host at the same time, so that no single host caused them."""
    told = sorted((s for s in every if s.kind in OF_A_NETWORK), key=lambda s: s.at)
    found: set[Suspicion] = set()
    for ordered in (told, told[::-1]):
        last: Suspicion | None = None
        another: Suspicion | None = None  # the last one of a host other than that of `last`
        for one in ordered:
            if last is not None and last.host != one.host:
                another = last
            if another is not None and another.host != one.host and abs(one.at - another.at) <= TOGETHER_S:
                found.add(one)
            last = one
    return frozenset(found)


def freeable(
    answered: Iterable[Suspicion], all_of_host: Iterable[Suspicion], shared: Set[Suspicion] = frozenset()
) -> list[Suspicion]:
    """Returns the suspicions of which a passed check frees the host; `answered` are those older than the check. One
    within a day of another that a check freed stays: the checks do not see what is wrong. Those that hosts share are
    always freed."""
    before = [s.at for s in all_of_host if s.freed and s not in shared]
    return [
        s for s in answered if not s.freed and (s in shared or not any(0.0 <= s.at - at <= REPEATED_S for at in before))
    ]


def repeated(held: Iterable[Suspicion], shared: Set[Suspicion] = frozenset()) -> tuple[Suspicion, ...]:
    """Returns the two incidents of a host that bar it for every run; none if they do not. The answer does not change as
    time passes. Two that were freed by one check bar nothing; one that came after a check counts with the one before. Those
    that hosts share (`shared`) do not count."""
    own = (s for s in held if s.kind not in OF_THE_PROGRAM and s not in shared)
    told = sorted(own, key=lambda s: (s.at, s.run, s.incident))
    for number, two in enumerate(told[1:]):
        one = told[number]
        if two.at - one.at <= REPEATED_S and not (one.freed and two.freed):
            return one, two
    return ()


SHARED = 0.2
"""Share of the hosts ever checked, as the breaker's default: if more fail at once, it is not their own fault. A host
that is let in again is checked again before its first rank, so an error costs an allocation."""


def one_cause(failed: int, checked: int) -> bool:
    """Returns true if too many hosts have failed their checks for each to be at fault itself."""
    return failed > 1 and failed > SHARED * checked


def barred(observed: Observed, own: Mapping[str, str]) -> dict[str, str]:
    """Host -> why it gets no group of a run. `own`: the run's own cordons."""
    return {**own, **{host: cordon.why for host, cordon in observed.cordons.items() if cordon.why}}


def freed(observed: Observed, own: Mapping[str, Reason]) -> list[str]:
    """The run's own cordons that a person or a passed check has freed: nothing is held against the hosts any more."""
    there = {host for host, cordon in observed.cordons.items() if cordon.ours}
    return sorted(own.keys() - there)
