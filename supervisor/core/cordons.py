"""Hosts that are given no group any more (ADR 9): by an incident, for the run that had it; by a person's word, or where
incidents repeat, for every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from supervisor.core.kinds import Is, that_are
from supervisor.core.model import Observed, Suspicion

REPEATED_S = 86_400.0
"""Two incidents within a day bar a host for every run."""

OF_THE_PROGRAM = that_are(Is.OF_THE_PROGRAM)
"""What a program says of itself bars a host for its own run only: else a bug that is launched twice would cordon a cluster."""


TOGETHER_S = 60.0
"""Hosts that fall silent within this (the breaker's default window) are silent of one cause, as a switch is."""

OF_A_NETWORK = that_are(Is.OF_A_NETWORK)
"""What a switch or a power line does to hosts that are well."""


def together(every: Iterable[Suspicion]) -> frozenset[Suspicion]:
    """Of the incidents of all hosts, those that befell another host at the same time: no one host's own doing."""
    told = sorted((s for s in every if s.kind in OF_A_NETWORK), key=lambda s: s.at)
    found: set[Suspicion] = set()
    for ordered in (told, told[::-1]):
        last: Suspicion | None = None
        another: Suspicion | None = None  # the last of another host than that one
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
    """Of the suspicions that are older than a passed check, those that it frees the host from. Once: one within a day of
    another that a check has freed already shows that the checks do not see what is wrong there. Not so those that hosts `shared`."""
    before = [s.at for s in all_of_host if s.freed and s not in shared]
    return [
        s for s in answered if not s.freed and (s in shared or not any(0.0 <= s.at - at <= REPEATED_S for at in before))
    ]


def repeated(held: Iterable[Suspicion], shared: Set[Suspicion] = frozenset()) -> str:
    """Why a host's incidents bar it for every run; empty when they do not. It does not change as time passes. Two that were
    freed by one check bar nothing; one that came after a check still counts with the one before; those that hosts `shared` do not."""
    own = (s for s in held if s.kind not in OF_THE_PROGRAM and s not in shared)
    told = sorted(own, key=lambda s: (s.at, s.run, s.incident))
    for number, two in enumerate(told[1:]):
        one = told[number]
        if two.at - one.at <= REPEATED_S and not (one.freed and two.freed):
            return f"{_sentence(one)} and {_sentence(two)} within a day"
    return ""


SHARED = 0.2
"""As the breaker's default share: of the hosts that were ever checked, those whose checks fail at once by their own fault are
fewer. A host that is let in again is checked again before its first rank, so being wrong costs an allocation."""


def one_cause(failed: int, checked: int) -> bool:
    """Whether the checks of so many hosts have failed that it is not so many hosts' own fault."""
    return failed > 1 and failed > SHARED * checked


def barred(observed: Observed, own: Mapping[str, str]) -> dict[str, str]:
    """Host -> why it is given no group of a run whose own cordons are these."""
    return {**own, **{host: cordon.why for host, cordon in observed.cordons.items() if cordon.why}}


def freed(observed: Observed, own: Mapping[str, str]) -> list[str]:
    """Those of a run's own cordons that a person or a passed check has freed: nothing is held against them any more."""
    there = {host for host, cordon in observed.cordons.items() if cordon.ours}
    return sorted(own.keys() - there)


def _sentence(suspicion: Suspicion) -> str:
    return f"incident {suspicion.incident} of run {suspicion.run} ({suspicion.kind.value})"
