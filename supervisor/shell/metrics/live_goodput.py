"""The live ledger of a run: accounts each second of its groups by cause, from what etcd holds.

A trainer reports, by cause, where the seconds of its process went; seconds that it has not reported yet are held back.
The rest follows from the phase in which the supervisor has a group. The exact ledger is made afterwards, from the
trainers' own records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from supervisor.core.attribution.stragglers import Slow
from supervisor.core.goodput import causes
from supervisor.core.goodput.causes import WITHOUT_A_PROCESS, Cause
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import TRAINS_ON, Kind, Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Observed, RankView
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.durations import lasted_s
from supervisor.core.round import observe_mode
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys
from supervisor.wire.records import Held, NodeObserved

HELD_S, HELD_STEPS = 60.0, 3.0
"""Unreported seconds beyond both limits (seconds, and steps of the group) are counted by the rank's current phase,
where that is known."""

_BY_NAME = {cause.value: cause for cause in Cause}

_CAUSE = {
    "unplaced": Cause.ALLOCATE,
    "fencing": Cause.PLACE,
    "placing": Cause.PLACE,
    "starting": Cause.START,
    "running": Cause.PRODUCTIVE,
    "finished": Cause.END,
}

_IN = {
    "starting": Cause.START,
    "built": Cause.ADMISSION,
    "quorum": Cause.QUORUM,
    "healing": Cause.HEAL,
    "checkpoint": Cause.CHECKPOINT,
    "finished": Cause.END,
    "failed": Cause.LOST_STEP,
}
"""Cause by the phase that a rank reports. In any other phase, a rank hangs once it exceeds its limit. Before that it
may evaluate or compile, which it reports with its step."""

HELD = (Cause.START, Cause.PRODUCTIVE)
"""Causes that only the trainer can tell apart."""

Told = Mapping[tuple[int, int], Mapping[str, float]]
"""Seconds of the process of rank 0 so far, by cause, for each group and generation."""


def told(mirror: Mirror, run: str) -> Told:
    """Returns the seconds that the agents have reported, each for the groups of its own node: any may claim others."""
    found: dict[tuple[int, int], Mapping[str, float]] = {}
    groups = mirror.table(keys.memory(run, "group-"), GroupMemory).values()
    seats = {(seat.node, of.group) for of in groups for seat in (*of.seats, *of.left)}
    for key in mirror.of_sort("observed"):
        node = mirror.record(key, NodeObserved)
        for rank in node.trainers if node is not None else ():
            if (
                rank.rank == 0
                and rank.run == run
                and rank.progress is not None
                and node is not None
                and (node.node, rank.group) in seats
            ):
                found[rank.group, rank.generation] = rank.progress.seconds
    return found


def stepped_unix_s(mirror: Mirror, run: str) -> float:
    """Returns when the newest reported step was committed, by its node's clock, for people only; 0 if unknown."""
    newest = 0.0
    for key in mirror.of_sort("observed"):
        node = mirror.record(key, NodeObserved)
        for rank in node.trainers if node is not None else ():
            if rank.rank == 0 and rank.run == run and rank.progress is not None:  # a group commits as one
                newest = max(newest, rank.progress.stepped_unix_s)
    return newest


@dataclass
class _Group:
    generation: int
    mark: int
    """Newest step of the run when this term first saw this generation."""
    cause: Cause | None = None
    """Cause that applies since the last look."""
    told: Mapping[str, float] | None = None
    before_s: float = 0.0
    """Seconds, over all causes, that its process had reported when the last term counted them."""
    commits: int = 0
    held: float = 0.0
    """Seconds of its process that it has not reported yet."""


@dataclass
class Accounts:
    """The account of one run in one term. `seconds` add up to the time of all groups since the first look. They lack
    what is held, and the time between a halt and its resume."""

    step: int = 0
    """Newest step seen as committed; initially that of earlier terms."""
    seconds: dict[Cause, float] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)
    """Seconds that earlier terms counted, by cause."""
    ran_s: float = 0.0
    """Seconds that the run has lasted, earlier terms included."""
    last: float | None = None
    """Run clock at the newest look; initially, that up to which earlier terms counted. None before any look."""
    stood: Sequence[tuple[float, float]] = ()
    """As Account.stood: seconds without a leader belong to the run as well."""
    held_before: Sequence[Held] = ()
    """Seconds whose cause earlier terms did not know."""
    began: float | None = None
    """Run clock at the run's very first look. None if an earlier term made it."""
    _ended: bool = False
    _groups: dict[int, _Group] = field(default_factory=dict)

    def look(self, memory: Memory, observed: Observed, told: Told, slow: Sequence[Slow] = ()) -> None:
        """Counts the time since the last look. While groups are slow, all step as slowly as the slowest. The excess
        over an ordinary step counts as straggling, except for the groups that wait for their own data."""
        beyond, for_data = max((s.beyond for s in slow), default=0.0), {s.group for s in slow if s.for_data}
        now, last = observed.now, self.last
        if last is None:
            self.began = now
        self.last = now
        newest = self.step
        ranks = {(r.group, r.generation): r for node in observed.nodes.values() for r in node.ranks if r.rank == 0}
        self.step = max(newest, *(rank.step for rank in ranks.values()), 0)
        elapsed = 0.0 if last is None or self._ended else max(0.0, lasted_s(last, now, self.stood))
        self.ran_s += elapsed
        self._ended = memory.phase in ENDED
        away = last is not None and observed.store_stable_s < now - last
        for group in memory.groups.values():
            known = self._groups.get(group.group)
            if known is None:  # time before this term saw the group is counted by its present state
                first = cause_of(group, memory.incidents.get(group.incident)) if elapsed else None
                known = self._groups[group.group] = self._taken_over(group, newest, first)
            self._pass(known, elapsed, away)
            rank = ranks.get((group.group, known.generation))
            if rank is not None:
                news = told.get((group.group, known.generation), {})
                self._hear(known, group, news, rank, 0.0 if group.group in for_data else beyond)
            incident = memory.incidents.get(group.incident)
            left_alone = incident is not None and incident.shadow
            trains_on = left_alone and not observe_mode.has_ended(group, memory.incidents, observed)
            cause = cause_of(group, None if trains_on else incident)
            if known.generation != group.generation or cause not in HELD:
                self._give_up(known, cause, incident, now)
            elif known.cause == Cause.START and cause == Cause.PRODUCTIVE:
                self._settle(known, Cause.ACT if known.told else Cause.START)  # the time until its process was born
            if known.generation != group.generation:
                known = self._groups[group.group] = _Group(group.generation, newest)
            known.cause = cause
            if observed.store_stable_s > HELD_S:
                self._count_what_is_held(known, rank)

    def _taken_over(self, group: GroupMemory, newest: int, first: Cause | None) -> _Group:
        """Returns a group at its first look, with its held seconds. Those of an ended generation are a lost step."""
        known = _Group(group.generation, newest, first)
        for held in self.held_before:
            if (held.group, held.generation) == (group.group, group.generation):
                known.held, known.before_s = held.seconds, held.reported_s
            elif held.group == group.group:
                self._add(Cause.LOST_STEP, held.seconds)
        return known

    @property
    def held(self) -> tuple[Held, ...]:
        """Elapsed seconds that are not in `seconds` yet, for the next term."""
        return tuple(
            Held(
                group=group,
                generation=known.generation,
                seconds=round(known.held, 3),
                reported_s=round(sum(known.told.values()) if known.told is not None else known.before_s, 3),
            )
            for group, known in self._groups.items()
            if known.held > 0 or known.told
        )

    def _pass(self, known: _Group, elapsed: float, away: bool) -> None:
        if known.cause in HELD:
            known.held += elapsed
        elif known.cause is not None:
            self._add(Cause.STORE_AWAY if away and known.cause in WITHOUT_A_PROCESS else known.cause, elapsed)

    def _count_what_is_held(self, known: _Group, rank: RankView | None) -> None:
        if known.held <= max(HELD_S, HELD_STEPS * rank.step_s if rank is not None else 0.0):
            return
        if rank is not None and (rank.phase in _IN or rank.stuck is not None):
            self._settle(known, _IN.get(rank.phase, Cause.HUNG))
        elif rank is None and known.cause == Cause.START:
            self._settle(known, Cause.ACT)

    @property
    def since_launch(self) -> dict[str, float]:
        """Seconds of all terms, by cause."""
        found = dict(self.before)
        for cause, seconds in self.seconds.items():
            found[cause.value] = found.get(cause.value, 0.0) + seconds
        return found

    @property
    def ettr(self) -> float | None:
        """Share of productive seconds since the launch; None if no seconds were counted."""
        return causes.ettr(self.since_launch)

    def _hear(
        self, known: _Group, group: GroupMemory, told: Mapping[str, float], rank: RankView, beyond: float
    ) -> None:
        if told and known.told is None:
            whole = sum(told.values())  # what an earlier term counted had the same mix of causes, as far as is known
            new = max(0.0, 1.0 - known.before_s / whole) if whole > 0 else 0.0
            news = {cause: value * new for cause, value in told.items()}
        elif told:
            news = {cause: max(0.0, value - (known.told or {}).get(cause, 0.0)) for cause, value in told.items()}
        else:  # an older trainer without `seconds`: it made what passed until it committed a step
            news = {Cause.PRODUCTIVE.value: known.held} if rank.commits > known.commits else {}
        whole = sum(news.values())
        share = min(1.0, known.held / whole) if whole > 0 else 0.0
        redone = group.resume == "disk" and 0 < rank.step <= known.mark
        for name, value in news.items():
            cause = _BY_NAME.get(name, Cause.OTHER)
            if cause == Cause.PRODUCTIVE:
                self._add(Cause.STRAGGLING, value * share * beyond)
                self._add(Cause.RECOMPUTE if redone else cause, value * share * (1.0 - beyond))
            else:
                self._add(cause, value * share)
        known.held -= whole * share
        known.told, known.commits = told or known.told, rank.commits

    def _give_up(self, known: _Group, cause: Cause, incident: Incident | None, now: float) -> None:
        """Counts the unreported seconds of an ended process. If it fell silent, the last of them are detection and
        decision. A process that started and failed during its incident was not silent."""
        if incident is not None and incident.kind == Kind.HANG:
            self._settle(known, Cause.HUNG)
        elif incident is not None and incident.kind not in TRAINS_ON and known.generation == incident.generation_before:
            self._settle(known, Cause.DECIDE, now - incident.opened)
            self._settle(known, Cause.DETECT, incident.took_s)
        self._settle(known, Cause.END if cause == Cause.END else Cause.LOST_STEP)

    def _settle(self, known: _Group, cause: Cause, most_s: float = inf) -> None:
        seconds = min(known.held, max(0.0, most_s))
        self._add(cause, seconds)
        known.held -= seconds

    def _add(self, cause: Cause, seconds: float) -> None:
        if seconds > 0:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds


def cause_of(group: GroupMemory, incident: Incident | None = None) -> Cause:
    """Returns the cause that a group's phase stands for. A group with an incident waits for a decision, unless it is
    ridden through. It may train on then, and reports so itself."""
    if group.phase != "running" or incident is None or incident.kind in TRAINS_ON or incident.rung == Rung.RIDE_THROUGH:
        return _CAUSE[group.phase]
    if incident.generation_before < incident.generation_after == group.generation:
        return _CAUSE[group.phase]  # it steps again, if not with the others yet
    return Cause.HUNG if incident.kind == Kind.HANG else Cause.DECIDE
