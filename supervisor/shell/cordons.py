"""What keeps groups away from hosts, read from etcd (ADR 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.cordons import repeated
from supervisor.core.model import CordonView, Memory, Suspicion
from supervisor.shell.mirror import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Cordon

UNREADABLE = "a person's cordon that cannot be read: say `supervisor uncordon` and cordon it again"


@dataclass(kw_only=True)
class HostCordons:
    """All that is held against one host."""

    person: Cordon | None = None
    unreadable: bool = False
    """A person has cordoned it, and the record cannot be read."""
    suspicions: list[Suspicion] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    """Of which an incident is held against it, also where the record cannot be read."""
    keys: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """Why it is barred for every run, and by whom; empty: it is not."""
        if self.person is not None:
            return f"{'drained' if self.person.drain else 'cordoned'} by {self.person.by}: {self.person.why}"
        return UNREADABLE if self.unreadable else repeated(self.suspicions)


def by_host(mirror: Mirror) -> dict[str, HostCordons]:
    """Hosts against which anything is held."""
    found: dict[str, HostCordons] = {}
    for key in mirror.keys(keys.CORDONS):
        match key[len(keys.CORDONS) :].split("/"):
            case [host, "person"]:
                held = found.setdefault(host, HostCordons())
                held.person = mirror.record(key, Cordon)
                held.unreadable = held.person is None
            case [host, "incident", run, _]:
                held = found.setdefault(host, HostCordons())
                held.runs.add(run)
                suspicion = mirror.record(key, Suspicion)
                held.suspicions += [suspicion] if suspicion is not None else []
            case _:
                continue  # none of ours: the audit says so
        held.keys.append(key)
    return found


def seen_by(mirror: Mirror, run: str) -> dict[str, CordonView]:
    """What a run sees of them."""
    return {
        host: CordonView(
            why=held.why,
            drain=held.why if held.person is not None and held.person.drain else "",
            ours=run in held.runs,
        )
        for host, held in by_host(mirror).items()
    }


def sentences(mirror: Mirror) -> Mapping[str, str]:
    """Host -> why groups are kept away from it, for people: of every run, or of those that are named."""
    found = {}
    for host, held in by_host(mirror).items():
        own = {run: why for run in sorted(held.runs) if (why := _own(mirror, run, host))}
        if held.why:
            found[host] = held.why
        elif own:
            found[host] = "; ".join(f"{why} (for run {run} alone)" for run, why in own.items())
    return found


def _own(mirror: Mirror, run: str, host: str) -> str:
    memory = mirror.record(keys.memory(run, "run"), Memory)
    ended = memory is None or memory.phase in ("finished", "stopped", "halted")
    return "" if memory is None or ended else memory.cordons.get(host, "")
