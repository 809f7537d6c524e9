"""Is it training, and does a person have to get up: the two questions at three in the morning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from supervisor.core.model import Incident, Memory, Observed, Rung
from supervisor.core.spec import RunSpec
from supervisor.shell.page.verdicts import LETTERS, TRAINS, GroupVerdict
from supervisor.shell.status import RunStatus

AWAY_S = 60.0
"""An etcd that is away for longer does not come back by itself: an election, or a restart, takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """level: how good it is. `text` is one sentence."""

    level: Literal["good", "care", "bad"]
    text: str


@dataclass(frozen=True, kw_only=True)
class GetUp:
    """no: nothing is asked of anybody. soon: in working hours. now: nothing will mend it until a person does something."""

    level: Literal["no", "soon", "now"]
    why: tuple[str, ...]
    """A sentence each, with what to do."""

    @property
    def word(self) -> str:
        """In words."""
        return _WORDS[self.level]


_WORDS: Mapping[str, str] = {
    "no": "Nobody has to get up.",
    "soon": "Nobody has to get up; look at this in working hours:",
    "now": "A person has to act now:",
}


_ENDED: Mapping[str, Headline] = {
    "finished": Headline(level="good", text="Finished: all its steps are committed."),
    "stopped": Headline(level="care", text="Stopped, as a person asked for."),
    "halted": Headline(level="bad", text="Halted: it does not train, and its state is safe."),
}


def headline(status: RunStatus, verdicts: Mapping[int, GroupVerdict], still_s: float | None) -> Headline:
    """Whether it trains. `still_s`: for how long no step was committed, where that is longer than steps take."""
    if status.phase in _ENDED:
        return _ENDED[status.phase]
    if status.phase == "resuming":
        return Headline(level="care", text="Resuming: it starts again from its newest checkpoint.")
    train = [g for g, v in verdicts.items() if v.worst in TRAINS]
    others = _others(verdicts)
    if not train:
        if status.phase == "new" or all(v.worst in ("w", "t") for v in verdicts.values()):
            return Headline(level="care", text=f"Starting: no group has committed a step yet ({others}).")
        return Headline(level="bad", text=f"Not training: no group steps ({others}).")
    if still_s is not None:
        return Headline(level="bad", text=f"No new step for more than {still_s:.0f} s, though {len(train)} groups run.")
    verb = "Stopping" if status.phase == "stopping" else "Training"
    if len(train) == len(verdicts):
        slow = any(v.worst == "s" for v in verdicts.values())
        text = f"{verb}: all {len(verdicts)} groups step{f' ({others})' if slow else ''}."
        return Headline(level="care" if slow else "good", text=text)
    return Headline(level="care", text=f"{verb} on {len(train)} of {len(verdicts)} groups: {others}.")


def _others(verdicts: Mapping[int, GroupVerdict]) -> str:
    """Which groups are not well, by what they are."""
    said = []
    for letter in reversed([*LETTERS]):
        found = [g for g, v in verdicts.items() if v.worst == letter]
        if found and letter != "h":
            named = f"{', '.join(map(str, found[:4]))}{f' and {len(found) - 4} more' if len(found) > 4 else ''}"
            said.append(f"{'group' if len(found) == 1 else 'groups'} {named} {LETTERS[letter]}")
    return "; ".join(said)


def get_up(
    status: RunStatus, memory: Memory, observed: Observed, verdicts: Mapping[int, GroupVerdict], away_s: float = 0.0
) -> GetUp:
    """What is asked of a person; what can wait is told only where nothing is urgent. `away_s`: for how long etcd has not
    answered."""
    away = (*_away(status, away_s),)
    if now := (*away, *_now(status, memory, observed, verdicts)):
        return GetUp(level="now", why=now)
    soon = (*_soon(status),) if status.phase not in _ENDED else ()
    return GetUp(level="soon" if soon else "no", why=soon)


def settings(status: RunStatus, memory: Memory, spec: RunSpec) -> list[str]:
    """What is set, or holds, that has less done than there would be."""
    policy = spec.policy
    said = {
        "paused: nothing is done": status.paused,
        "observe: it decides, and does nothing": policy.mode == "observe",
        f"only observed: {', '.join(policy.observe)}": bool(policy.observe),
        "breaker holds": memory.breaker_since is not None,
    }
    return [words for words, holds in said.items() if holds]


def _away(status: RunStatus, away_s: float) -> Iterable[str]:
    if away_s > AWAY_S and status.phase not in _ENDED:
        minutes = f"{away_s // 60:.0f} min" if away_s >= 120 else f"{AWAY_S:.0f} s"
        yield (
            f"etcd has not answered for more than {minutes}: what runs goes on, but nothing that fails is mended; "
            "`supervisor doctor` looks at it"
        )


def _now(status: RunStatus, memory: Memory, observed: Observed, verdicts: Mapping[int, GroupVerdict]) -> Iterable[str]:
    run = status.run
    if status.phase == "halted":
        yield f'it is halted ({status.halt_reason}): mend that, then `supervisor resume {run} --because "..."`'
        return
    if status.phase in _ENDED:
        return
    if not status.leader:
        yield "no supervisor leads: what runs goes on, but nothing that fails is mended; start one (`supervisor run`)"
    for problem in status.problems:
        yield f"a record cannot be read and is left alone: {problem}"
    if memory.breaker_since is not None:
        yield "the breaker holds: many nodes were lost at once, none is given up; look for what they share"
    unwell = [i for i in memory.incidents.values() if i.state in ("open", "acting")]
    if status.paused and (unwell or any(v.worst == "d" for v in verdicts.values())):
        yield f"it is paused, and something has failed: nothing is done about it until `supervisor resume {run}`"
    for incident in unwell:
        if incident.shadow and not status.paused:
            yield f"{incident.id} ({_about(incident)}) is only observed, as the policy says: nothing is done about it"
        elif incident.rung == Rung.STOP:
            yield f"{incident.id} ({_about(incident)}): the run is being halted"
    refused = [g for g in observed.grants.values() if g.state == "refused"]
    if refused and any(not g.node for g in memory.groups.values()):
        yield f"a group has no node, and the engine refused {refused[0].key}: {refused[0].reason or 'it does not say why'}"


def _about(incident: Incident) -> str:
    return f"{incident.kind.value} of group {incident.group}"


def _soon(status: RunStatus) -> Iterable[str]:
    if status.paused:
        yield f"it is paused: what fails is not mended until `supervisor resume {status.run}`"
    if not status.spares:
        yield "no spare is left: the next lost node waits for the engine, or shrinks the run"
    spent = [scope for scope, left in status.budgets_left.items() if left == 0]
    if spent:
        yield f"a budget is spent ({', '.join(spent[:5])}): the next such failure climbs a rung, or halts the run"
    for host, why in status.cordons.items():
        yield f"host {host} is given no group: {why}"
    yield from status.warnings
