"""Answers two questions for someone woken at three in the morning: does the run train, and must a person act?"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Observed
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import cordons
from supervisor.core.policy.cordons import REPEATED_S
from supervisor.core.remediation import suspended_groups
from supervisor.core.report.words import say
from supervisor.shell.inspect.status import ALONE, RunStatus
from supervisor.shell.web.calls import AWAY_S, CALLS, STILL_S, UNALERTED, Level
from supervisor.shell.web.verdicts import LETTERS, TRAINS, GroupVerdict


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One sentence (`text`) and how good the news is (`level`)."""

    level: Literal["good", "care", "bad"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Lasts:
    """Seconds for which conditions have lasted, as far as was seen; infinite: since before the first look."""

    still_s: float = 0.0
    """No step was committed, though a group could have stepped."""
    away_s: float = 0.0
    """etcd has not answered."""
    leaderless_s: float = math.inf
    unlit_s: float = math.inf
    """No lighthouse was open."""


@dataclass(frozen=True, kw_only=True)
class GetUp:
    """The call to a person: how urgent it is, and why."""

    level: Level
    why: tuple[str, ...] = ()
    """Sentences, each with what to do."""
    yet: tuple[str, ...] = ()
    """Conditions that call a person if they last."""

    @property
    def word(self) -> str:
        """The call as a sentence."""
        if self.level == "now":
            return "A person must act now:"
        lasting = f"No one needs to act yet: {', '.join(self.yet)}." if self.yet else ""
        if self.level == "soon":
            return f"{lasting} Look at this in working hours:" if lasting else _SOON
        return lasting or "No one needs to act."


_KINDS = re.compile(rf"\b({'|'.join(kind.value for kind in Kind)})\b")

_SOON = "No one needs to act now; look at this in working hours:"

_ENDED: Mapping[str, Headline] = {
    "finished": Headline(level="good", text="Finished: all steps are committed."),
    "stopped": Headline(level="care", text="Stopped, as a person requested."),
    "halted": Headline(level="bad", text="Halted: the run does not train, and its state is safe."),
}


def _phase(status: RunStatus) -> str:
    """Returns the run's phase; "finished" once all groups have finished, even while it still gives nodes back."""
    done = status.groups and all(g.phase == "finished" for g in status.groups)
    return "finished" if done and status.phase == "running" else status.phase


def headline(
    status: RunStatus, verdicts: Mapping[int, GroupVerdict], still_s: float | None, unsaved: str = ""
) -> Headline:
    """Returns the sentence about whether the run trains. `still_s`: seconds without a committed step, if longer than
    steps take. `unsaved`: as in checkpoint_lag.with_reason."""
    if (phase := _phase(status)) in _ENDED:
        return _ENDED[phase]
    if status.phase == "resuming":
        return Headline(level="care", text="Resuming: the run starts again from its newest checkpoint.")
    train = [g for g, v in verdicts.items() if v.worst in TRAINS]
    others = _others(verdicts)
    if not train:
        if any(v.worst == "b" for v in verdicts.values()):
            return Headline(level="care", text=f"Waiting for a person in the debugger: {others}.")
        if status.phase == "new" or all(v.worst in ("w", "t") for v in verdicts.values()):
            return Headline(level="care", text=f"Starting: no group has committed a step yet ({others}).")
        return Headline(level="bad", text=f"Not training: no group steps ({others}).")
    if still_s is not None:
        return Headline(level="bad", text=f"No new step for more than {still_s:.0f} s, though {len(train)} groups run.")
    verb = "Stopping" if status.phase == "stopping" else "Training"
    if len(train) == len(verdicts):
        slow = any(v.worst == "s" for v in verdicts.values())
        step = status.checkpoint_step
        but = f", but there is no checkpoint {'yet' if step is None else f'since step {step}'}" if unsaved else ""
        text = f"{verb}: all {len(verdicts)} groups step{f' ({others})' if slow else ''}{but}."
        return Headline(level="care" if slow or unsaved else "good", text=text)
    return Headline(level="care", text=f"{verb} on {len(train)} of {len(verdicts)} groups: {others}.")


def _others(verdicts: Mapping[int, GroupVerdict]) -> str:
    """Names the groups that are not well, by their state."""
    said = []
    for letter in reversed([*LETTERS]):
        found = [g for g, v in verdicts.items() if v.worst == letter]
        if found and letter != "h":
            named = f"{', '.join(map(str, found[:4]))}{f' and {len(found) - 4} more' if len(found) > 4 else ''}"
            said.append(f"{'group' if len(found) == 1 else 'groups'} {named} {LETTERS[letter]}")
    return "; ".join(said)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All inputs of the decision if a person must act."""

    status: RunStatus
    memory: Memory
    observed: Observed
    now: float
    """Run clock now; the memory's clock is that of the newest decision."""
    spec: RunSpec
    verdicts: Mapping[int, GroupVerdict]
    headline: Headline
    unsaved: str = ""
    """Reason from `core.evidence.checkpoint_lag.with_reason`."""
    incidents: Sequence[Incident] = ()
    """All incidents of the run in etcd."""
    allowed: Mapping[str, int]
    """Size of each budget, with the keys of RunStatus.budgets_left."""
    alarms: Sequence[str] = ()
    """etcd's alarms, each with its remedy."""
    lasts: Lasts


Sign = tuple[Level, str]


def get_up(seen: Seen) -> GetUp:
    """Returns what a person must do. What can wait is omitted while something is urgent."""
    run, phase = seen.status.run, _phase(seen.status)
    if phase in _ENDED:
        why = f'the run is halted ({seen.status.halt_reason}): fix the cause, then `supervisor resume {run} --because "..."`'
        return GetUp(level=CALLS["RunNotProgressing"], why=(why,)) if phase == "halted" else GetUp(level="no")
    signs = [*_of_the_system(seen), *_of_the_run(seen), *_of_incidents(seen), *_of_what_is_left(seen)]
    if now := tuple(words for level, words in signs if level == "now"):
        return GetUp(level="now", why=now)
    soon = tuple(words for level, words in signs if level == "soon")
    return GetUp(level="soon" if soon else "no", why=soon, yet=(*_yet(seen),))


def settings(status: RunStatus, memory: Memory, spec: RunSpec) -> list[str]:
    """Returns the settings and states that make the supervisor act less than it would."""
    policy = spec.policy
    said = {
        "paused: nothing is done": status.paused,
        "observe mode: decisions are recorded, and nothing is done": policy.mode == "observe",
        f"only observed: {', '.join(policy.observe)}": bool(policy.observe),
        "breaker holds": memory.breaker_since is not None,
    }
    return [words for words, holds in said.items() if holds]


def _of_the_system(seen: Seen) -> Iterable[Sign]:
    if seen.lasts.away_s > AWAY_S:
        yield (
            CALLS["StoreAway"],
            (
                f"etcd has not answered for more than {_minutes(seen.lasts.away_s)}: running processes go on, but failures are not "
                "repaired; `supervisor doctor` checks it"
            ),
        )
    for alarm in seen.alarms:
        yield CALLS["StoreOutOfSpace"], alarm
    if not seen.status.leader and seen.lasts.leaderless_s > AWAY_S:
        yield (
            CALLS["NoLeader"],
            (
                "no supervisor leads: running processes go on, but failures are not repaired; start one "
                "(`supervisor run --etcd HOST:PORT --home HOME`; on Slurm repeat `supervisor submit RUN.toml`)"
            ),
        )
    for problem in seen.status.problems:
        yield (
            UNALERTED["a record cannot be read"],
            (f"a record cannot be read and is left alone: {problem}; `supervisor doctor` says what to do"),
        )


def _of_the_run(seen: Seen) -> Iterable[Sign]:
    run, memory = seen.status.run, seen.memory
    if _could_step(seen) and not seen.spec.trainer.plain and seen.lasts.still_s >= STILL_S:
        newest = f", `supervisor explain {[*memory.incidents][-1]} --run {run}` why" if memory.incidents else ""
        yield (
            CALLS["RunNotProgressing"],
            (
                f"no step for more than {_minutes(seen.lasts.still_s)}: `supervisor status --run {run}` shows what the "
                f"run waits for{newest}"
            ),
        )
    if _unlit(seen) and seen.lasts.unlit_s > AWAY_S:
        how = f"it is {seen.status.lighthouse.state}" if seen.status.lighthouse.node else "it has no node"
        yield (
            CALLS["LighthouseAway"],
            (
                f"the lighthouse has not been open for more than {AWAY_S:.0f} s ({how}): groups find no quorum; `supervisor nodes` "
                "shows whether a node with the role service is alive"
            ),
        )
    if memory.breaker_since is not None:
        yield (
            CALLS["BreakerOpen"],
            (
                "the breaker holds: many nodes or groups failed at once, and none is given up. Look for a shared cause "
                f'(`supervisor nodes`). If they are lost: `supervisor resume {run} --because "..."`'
            ),
        )
    if seen.unsaved:
        yield (
            CALLS["CheckpointsBehind"],
            (
                f"{seen.unsaved}; repair this while they train (`supervisor nodes` shows their disks, "
                "docs/runbooks/checkpoints-behind.md lists what to check)"
            ),
        )
    for group in memory.groups.values():
        if group.left_out:
            yield UNALERTED["a group is left out"], say(suspended_groups.about(group))
    refused = [g for g in seen.observed.grants.values() if g.state == "refused"]
    waits = [g.group for g in memory.groups.values() if not (g.placed or g.left_out)]
    if refused and waits:
        yield (
            UNALERTED["the engine refused a node that a group needs"],
            (
                f"group {waits[0]} has no node, and the engine refused {refused[0].key}: "
                f"{refused[0].reason or 'without a reason'}; `supervisor restart {waits[0]} --run {run}` requests it again"
            ),
        )


def _of_incidents(seen: Seen) -> Iterable[Sign]:
    run, paused = seen.status.run, seen.status.paused
    out = {g.group for g in seen.memory.groups.values() if g.left_out}  # the supervisor acts on none of these
    unwell = [i for i in seen.memory.incidents.values() if i.state in ("open", "acting") and i.group not in out]
    if paused and (unwell or any(v.worst == "d" for g, v in seen.verdicts.items() if g not in out)):
        yield (
            UNALERTED["paused, and something has failed"],
            (f"the run is paused, and something has failed: nothing is done about it until `supervisor resume {run}`"),
        )
    elif paused:
        yield UNALERTED["paused"], f"the run is paused: failures are not repaired until `supervisor resume {run}`"
    for incident in unwell:
        if incident.shadow and not paused and incident.rung != Rung.RIDE_THROUGH:
            yield (
                CALLS["ShadowWouldHaveKilled"],
                (
                    f"{incident.id} ({_about(incident)}) is only observed, by policy: nothing is done about it; "
                    f"`supervisor restart {incident.group} --run {run}` brings the group back"
                ),
            )
        elif incident.rung == Rung.STOP and not incident.shadow:
            yield (
                CALLS["RunNotProgressing"],
                (
                    f"{incident.id} ({_about(incident)}): the run is being halted; `supervisor explain {incident.id} --run {run}` "
                    "says why"
                ),
            )
    failed = [i for i in seen.incidents if not i.shadow and cordons.accuses(i)]
    recent = [i for i in failed if seen.now - i.opened <= REPEATED_S]
    for node, times in Counter(i.node for i in recent if i.state == "recovered").items():
        host = seen.observed.nodes[node].machine if node in seen.observed.nodes else node
        if times >= 2 and host not in seen.status.cordons:
            yield (
                CALLS["FlappingNode"],
                (
                    f"node {node} had {times} incidents within a day: `supervisor incidents --run {run}`; "
                    f'`supervisor drain {node} --because "..."` keeps groups away from it'
                ),
            )


def _of_what_is_left(seen: Seen) -> Iterable[Sign]:
    status = seen.status
    wanted = status.phase == "running" and _could_step(seen) and seen.spec.allocation.spares > 0
    if wanted and not status.spares:
        yield CALLS["NoSpares"], "no spare is left: replacing a lost node needs the engine (`supervisor nodes`)"
    left = {scope: n for scope, n in status.budgets_left.items() if n <= 1 and n < seen.allowed[scope]}
    if left:
        named = ", ".join(f"{_budget(scope)}: {n} of {seen.allowed[scope]} left" for scope, n in [*left.items()][:5])
        yield (
            CALLS["BudgetNearlySpent"],
            (
                f"a budget is nearly spent ({named}); beyond it such a failure climbs a rung, or halts the run: "
                f"`supervisor incidents --run {status.run}`"
            ),
        )
    for host, why in status.cordons.items():
        yield (
            UNALERTED["a host is given no group"],
            (f"cordoned {host}: {plain(why.removesuffix(ALONE))} (once repaired: `supervisor uncordon {host}`)"),
        )
    for warning in status.warnings:
        yield UNALERTED["allowed, but dangerous"], warning


def _yet(seen: Seen) -> Iterable[str]:
    """Yields what is not well, yet still repairs itself."""
    if not seen.status.leader:
        yield f"no supervisor leads (another takes over within seconds; a person is called after {AWAY_S:.0f} s)"
    if _unlit(seen):
        yield f"no lighthouse is open (one is opened within seconds; a person is called after {AWAY_S:.0f} s)"
    if seen.headline.level == "bad":
        yield f"no step comes (a person is called after {STILL_S / 60:.0f} min without one)"


def _could_step(seen: Seen) -> bool:
    """Returns true if a group was ever started: a run that waits for its first nodes need not step."""
    return any(group.generation for group in seen.memory.groups.values())


def _unlit(seen: Seen) -> bool:
    return seen.status.phase == "running" and _could_step(seen) and seen.status.lighthouse.state != "open"


def _about(incident: Incident) -> str:
    return plain(f"{incident.kind.value} of group {incident.group}")


def plain(words: str) -> str:
    """Writes kinds as in incident headings: `node_lost` as "node lost"."""
    return _KINDS.sub(lambda found: found[0].replace("_", " "), words)


def _budget(scope: str) -> str:
    """Writes `restart:1` in words."""
    name, _, group = scope.partition(":")
    return plain(f"{name}{f' of group {group}' if group else ''}")


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 120 else f"{AWAY_S:.0f} s"
