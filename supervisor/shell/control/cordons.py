"""Collects what keeps groups away from hosts, read from etcd (ADR 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.model.incident import Suspicion
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import CordonView
from supervisor.core.policy.cordons import freeable, one_cause, repeated, together
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import say
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Cordon, NodeCheck

UNREADABLE = "a person's cordon that cannot be read: run `supervisor uncordon`, then cordon it again"


@dataclass(kw_only=True)
class HostCordons:
    """Everything held against one host."""

    person: Cordon | None = None
    unreadable: bool = False
    """True if a person has cordoned it, and the record cannot be read."""
    suspicions: list[Suspicion] = field(default_factory=list)
    shared: frozenset[Suspicion] = frozenset()
    """Suspicions that hit other hosts at the same time. They bar no host for every run."""
    runs: set[str] = field(default_factory=set)
    """Runs that hold an incident against it, also if the record cannot be read."""
    failed: str = ""
    """Failures of its newest checks; empty if none failed or it was never checked."""
    one_cause: bool = False
    """True if the checks failed on enough hosts to count as one cause: they then bar none for every run."""
    of_node: str = ""
    """Reason why a node there gets no group, though the host is not barred. Its checks could not be done, or those of
    another node there have passed since."""
    keys: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """Returns why the host is barred for every run, and by whom; empty if it is not."""
        if self.person is not None:
            return f"{'drained' if self.person.drain else 'cordoned'} by {self.person.by}: {self.person.why}"
        if self.unreadable:
            return UNREADABLE
        if self.failed and not self.one_cause:
            return self.failed
        two = [f"incident {s.incident} of run {s.run} ({s.kind.value})" for s in repeated(self.suspicions, self.shared)]
        return f"{' and '.join(two)} within a day" if two else ""


def by_host(mirror: Mirror) -> dict[str, HostCordons]:
    """Returns the hosts against which anything is held."""
    return mirror.derived(_by_host, "cordons", "check", "registration")


def _by_host(mirror: Mirror) -> dict[str, HostCordons]:
    found: dict[str, HostCordons] = {}
    for key in mirror.of_sort("cordons"):
        match key[len(keys.CORDONS) :].split("/"):
            case [host, "person"]:
                held = found.setdefault(host, HostCordons())
                held.person = mirror.record(key, Cordon)
                held.unreadable = held.person is None
            case [host, "incident", run, _]:
                held = found.setdefault(host, HostCordons())
                suspicion = mirror.record(key, Suspicion)
                held.suspicions += [suspicion] if suspicion is not None else []
                if suspicion is None or not suspicion.freed:
                    held.runs.add(run)
            case _:
                continue  # not ours: the audit reports it
        held.keys.append(key)
    shared = together(s for held in found.values() for s in held.suspicions)
    for held in found.values():
        held.shared = shared
    checks = newest_checks(mirror)
    failed = {host for host, (_, check) in checks.items() if check.stands == "failed"}
    many = one_cause(len(failed), len(checks))
    for host in sorted(failed):
        held = found.setdefault(host, HostCordons())
        held.failed, held.one_cause = failure(checks[host][1]), many
    for key in mirror.of_sort("check"):
        check = mirror.record(key, NodeCheck)
        if check is None or check.stands not in ("failed", "unknown"):
            continue
        if check.host not in failed and keys.registration(check.node) in mirror.items:
            found.setdefault(check.host, HostCordons()).of_node = failure(check)
        if check.host in found:
            found[check.host].keys.append(key)
    return found


def newest_checks(mirror: Mirror) -> dict[str, tuple[str, NodeCheck]]:
    """Returns, by host, the key and record of the checks that ended last. Unreadable, undone and unfinished first
    checks do not count."""
    return mirror.derived(_newest_checks, "check")


def _newest_checks(mirror: Mirror) -> dict[str, tuple[str, NodeCheck]]:
    found: dict[str, tuple[int, str, NodeCheck]] = {}
    for key in mirror.of_sort("check"):
        check = mirror.record(key, NodeCheck)
        revision = mirror.items[key].mod_revision
        if check is None or check.stands not in ("passed", "failed"):
            continue
        if revision > found.get(check.host, (0, "", check))[0]:
            found[check.host] = (revision, key, check)
    return {host: (key, check) for host, (_, key, check) in found.items()}


def failure(check: NodeCheck) -> str:
    """Returns what failed in a check, or could not be done, as a sentence; empty if nothing."""
    if check.stands not in ("failed", "unknown"):
        return ""
    said = "; ".join(f"{r.name}: {r.evidence}" for r in check.results if r.outcome == check.stands)
    how = "failed" if check.stands == "failed" else "could not run"
    return f"its checks {how} on node {check.node} ({check.why}): {said}"


def freed_by_checks(mirror: Mirror) -> dict[str, Suspicion]:
    """Returns, by key, the cleared suspicions to write: those that existed when a check began that their host has
    passed."""
    return mirror.derived(_freed_by_checks, "cordons", "check", "registration")


def _freed_by_checks(mirror: Mirror) -> dict[str, Suspicion]:
    found: dict[str, Suspicion] = {}
    checks = newest_checks(mirror)
    for host, held in by_host(mirror).items():
        _, check = checks.get(host, ("", None))
        if check is None or check.state != "passed":
            continue
        by_key = {key: s for key in held.keys if (s := _suspicion(mirror, key)) is not None}
        older = [s for key, s in by_key.items() if mirror.items[key].mod_revision <= check.began]
        freed = freeable(older, by_key.values(), held.shared)
        why = f"the checks that it passed on node {check.node} ({check.why})"
        found |= {key: replace(s, freed=why) for key, s in by_key.items() if s in freed}
    return found


def _suspicion(mirror: Mirror, key: str) -> Suspicion | None:
    return mirror.record(key, Suspicion) if "/incident/" in key else None


def seen_by(mirror: Mirror, run: str) -> dict[str, CordonView]:
    """Returns the cordons as a run sees them."""
    return {
        host: CordonView(
            why=held.why,
            drain=held.why if held.person is not None and held.person.drain else "",
            ours=run in held.runs,
            passed=max((s.freed for s in held.suspicions if s.run == run), default=""),
            failed=bool(held.failed),
        )
        for host, held in by_host(mirror).items()
        if held.why or held.failed or held.suspicions or held.runs
    }


def sentences(mirror: Mirror) -> Mapping[str, str]:
    """Returns, by host, why groups are kept away from it, for people: groups of every run, or of the named runs."""
    found = {}
    for host, held in by_host(mirror).items():
        own = {run: why for run in sorted(held.runs) if (why := _own(mirror, run, host))}
        if held.why:
            found[host] = held.why
        elif own:
            found[host] = "; ".join(f"{why} (only for run {run})" for run, why in own.items())
    return found


def _own(mirror: Mirror, run: str, host: str) -> str:
    memory = mirror.record(keys.memory(run, "run"), Memory)
    ended = memory is None or memory.phase in ENDED
    return "" if memory is None or ended else say(memory.cordons.get(host))
