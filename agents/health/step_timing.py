"""Learns how long a rank's steps usually take, and decides when one has taken too long. Pure: the time is an argument.

The rank itself teaches the bound. Apart from its ordinary steps are the first ones (lazy set-up) and those with a
checkpoint, heal, evaluation or compile. Only the policy's longest time bounds these until one of the same sort has
ended. For a compile that stays so, because one tells nothing about the next.

A step in which the quorum's members changed is bounded like any other, but teaches nothing. A rank that reconfigures or
sends a heal meanwhile waits for others, which is forgiven once it is over. Hangs are likely when members change.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import NamedTuple

from supervisor.core.model.measured import Measured
from supervisor.core.model.observed import WAITING, StuckView
from supervisor.core.model.spec import HangSpec
from supervisor.wire.activity import Activity
from supervisor.wire.records import Progress

WARM_UP_COMMITS = 3
LEARNED_AT_LEAST = 5
STANDS_S = 1.0
"""Seconds for which a rank must stay in one place to count as hung there. One that has just gone on, or has just begun
to wait for another, is not reported yet."""
STANDS_SHARE = 0.5
"""Share of the bound for which a rank that waits for no other must stay at the same thing before it is reported. What
went before (a failed commit, a new quorum) may have used most of the bound. A hang is still found within the bound from
its beginning."""
MOVES_ON = 3.0
"""Bounds after which a rank that goes from one thing to the next without a commit hangs too. One whose commits fail
again and again hangs in nothing of its own: the policy's longest time bounds it. Collectives fail so when they take
longer than their timeout on an overloaded machine."""
IN_VAIN = 2
"""Failed attempts from which a rank tries in vain: a single commit fails wherever a peer is lost."""
KEPT = 64
"""Steps that teach a bound: minutes of a large run. A change of its pace shows after half of them."""
NEWEST = 8
"""Newest of these: where they are slower than the rest the machine has slowed down, and they set the next bound."""
UNSEEN_S = 0.5
"""Seconds that count of each unseen time: a disk that is slow at each look must not hide a hang forever."""
APART: frozenset[Activity] = frozenset({"checkpoint", "heal", "evaluate", "compile", "save"})
UNLIKE: frozenset[Activity] = frozenset({"compile", "save"})
"""Activities of which no two are alike: a restart's first compile finds all in a cache, a new shape takes minutes."""
STEPPING = frozenset({"quorum", "healing", "step", "checkpoint"})


class Own(NamedTuple):
    """Seconds of a step's round that a rank takes itself, without its waits for others."""

    compute_s: float = 0.0
    data_s: float = 0.0


class Pace:
    """Follows one rank's process; a new generation has a new one."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=KEPT)
        """Seconds of a round: a step has more of them while groups are away."""
        self._rounds = 1
        self._own: deque[Own] = deque(maxlen=KEPT)
        self.past = Own()
        """Medians over the first KEPT steps; all 0 until then."""
        self._longest_apart: dict[Activity, float] = {}
        """Longest time seen of each activity in one step."""
        self._first: set[Activity] = set()
        """Activities that ended for the first time in the step in progress. They may come in several parts, and the
        first part tells nothing about the next."""
        self._longest_collective = 0.0
        self._collective = 0.0
        """Longest collective of the step in progress; it counts once that is committed."""
        self._failed_commits = 0
        self._tries, self._tried_s = 0, 0.0
        """Uncommitted attempts since the last commit, and the step's own seconds at the end of the last one."""
        self._last_tries = 0
        self._committed_at = 0.0
        self._began: float | None = None
        self._seen_starting = False
        self._told_step_s = 0.0
        """Time of a round that the rank itself reported before it was taken over: its pace until that is learned."""
        self._start_s = 0.0
        self._commits = 0
        self._quorum_id = -1
        self._apart: dict[Activity, float] = {}
        """Seconds of each activity so far in the step in progress; 0 for one that was not seen whole."""
        self._mark: tuple[int, Activity] | None = None
        self._mark_since = 0.0
        self._waits_since: float | None = None
        self._moved_at: float | None = None
        self._unseen = False
        self._looked_at = 0.0
        self._in_part = False
        """True if the step in progress was not seen whole: it teaches nothing."""
        self._mark_in_part = True
        """True if the current activity was not seen whole: its length is unknown. An agent may take over a rank in the
        middle of one."""

    def unseen(self) -> None:
        """Notes that the rank cannot be seen now. No more than UNSEEN_S of that time counts."""
        self._unseen = True

    def look(
        self,
        now: float,
        progress: Progress | None,
        activity: tuple[int, Activity] | None,
        reaches: bool,
        untold: bool = False,
        starved_s: float = 0.0,
    ) -> None:
        """Takes in one look. Call it at every look, with a clock that stands still while no one looks.

        `activity`: as read from its file. `reaches`: its forwarder reaches the gate; waiting for a gate that is away is
        no hang. `untold`: the rank cannot write its progress. Its commits are then unknown, and while it goes from one
        thing to the next it does not hang. `starved_s`: seconds in which it was ready to run and others had its
        processor; they count for nothing.
        """
        if self._began is None:
            # an agent that takes over a rank which already steps knows nothing of its start
            self._seen_starting = progress is None or progress.commits == 0
            if progress is not None and progress.commits > WARM_UP_COMMITS:
                self._told_step_s = progress.step_s / progress.rounds
        if self._began is None or not reaches:
            self._began = now
        blind, self._unseen = self._unseen, False
        if blind:
            self._in_part = self._mark_in_part = True
            self._leave_out(now - self._looked_at - UNSEEN_S, now)
        self._leave_out(starved_s, now)
        self._looked_at = now
        if progress is None:
            return
        self._rounds = progress.rounds
        if activity != self._mark:
            self._end_of(now, activity)
            self._forgive(now, activity)
            if untold and self._moved_at is not None:
                self._moved_at = now
            self._mark_in_part = blind or self._mark is None
            self._mark, self._mark_since = activity, now
        if activity is not None and activity[1] in APART:
            self._apart.setdefault(activity[1], 0.0)
        if progress.commits != self._commits or progress.phase not in STEPPING:
            self._note(progress, now)
            self._moved_at = self._committed_at = now
            self._tries = 0
        elif not reaches:
            self._moved_at = now
        if progress.failed_commits != self._last_tries:
            self._last_tries = progress.failed_commits
            self._tries += self._moved_at is not None and self._moved_at != now
            self._tried_s = now - self._moved_at if self._moved_at is not None else 0.0

    def bound_s(self, limits: HangSpec) -> float:
        """Returns the seconds that the step in progress may take."""
        unlike = self._mark is not None and self._mark[1] in UNLIKE | self._first
        learned = len(self._steps) >= LEARNED_AT_LEAST
        if not (learned or self._told_step_s) or unlike or self._apart.keys() - self._longest_apart.keys():
            return limits.at_most_s
        ordinary = max(median(self._steps), median(list(self._steps)[-NEWEST:])) if learned else self._told_step_s
        # one step does not show the spread, so it is assumed to be as large as the step
        spread = median(abs(step - ordinary) for step in self._steps) if learned else ordinary
        usual = (ordinary + spread) * self._rounds + sum(self._longest_apart[name] for name in self._apart)
        return min(limits.at_most_s, max(limits.at_least_s, limits.factor * usual))

    def stands(self, now: float) -> tuple[int, Activity] | None:
        """Returns the current activity once it has lasted for a while."""
        return self._mark if now - self._mark_since >= STANDS_S else None

    @property
    def own(self) -> Own:
        """Medians over the last steps; all 0 until enough were seen."""
        if len(self._own) < LEARNED_AT_LEAST:
            return Own()
        return Own(*(round(median(values), 4) for values in zip(*self._own, strict=True)))

    @property
    def measured(self) -> Measured:
        """Measured times that timeouts must leave room for; those of the gate and of etcd are not known here."""
        learned = len(self._steps) >= LEARNED_AT_LEAST
        return Measured(
            step_s=round(median(self._steps) * self._rounds, 3) if learned else 0.0,
            longest_step_s=round(max(self._steps) * self._rounds, 3) if learned else 0.0,
            collective_s=round(self._longest_collective, 1),
            apart_s=self._longest_of("checkpoint", "heal"),
            pause_s=self._longest_of("evaluate", "compile"),
            start_s=round(self._start_s, 1),
        )

    def stuck(self, now: float, bound_s: float, longest_s: float, share: float = 1.0) -> StuckView | None:
        """Returns the hang once the step has taken longer than the bound, or than this share of it; None while all is
        well.

        `longest_s`: the policy's limit for any step, which counts if attempts end again and again without a commit.
        """
        if self._moved_at is None or self._commits == 0:
            return None  # before the first commit the policy's time for a start counts
        still_s = now - self._moved_at
        waits = self._mark is None or self._mark[1] in WAITING
        stands_s = STANDS_S if waits else max(STANDS_S, STANDS_SHARE * bound_s)
        moves_on_s = MOVES_ON * bound_s
        if self._in_vain(still_s, now, moves_on_s, longest_s):
            stands_s, moves_on_s = bound_s, math.inf
        if still_s <= share * bound_s or (now - self._mark_since < stands_s and still_s <= moves_on_s):
            return None
        return StuckView(
            activity=self._mark[1] if self._mark is not None else "",
            activity_s=round(now - self._mark_since, 1),
            bound_s=round(bound_s, 1),
            lasted_s=round(still_s, 2),
            usual_s=round(median(self._steps) * self._rounds, 3) if self._steps else 0.0,
        )

    def _in_vain(self, still_s: float, now: float, moves_on_s: float, longest_s: float) -> bool:
        """Returns true if attempts at the step fail again and again. Then only an activity that lasts a whole bound
        counts as a hang."""
        lately = self._tries >= IN_VAIN and still_s - self._tried_s <= moves_on_s
        return lately and now - self._committed_at <= longest_s

    def _longest_of(self, *names: Activity) -> float:
        return round(max(self._longest_apart.get(name, 0.0) for name in names), 1)

    def _note(self, progress: Progress, now: float) -> None:
        if self._commits == 0 < progress.commits and self._seen_starting and self._began is not None:
            self._start_s = now - self._began
        if progress.failed_commits == self._failed_commits and progress.quorum_id == self._quorum_id:
            self._longest_collective = max(self._longest_collective, self._collective)
        self._collective, self._failed_commits = 0.0, progress.failed_commits
        ordinary = (
            progress.commits > max(self._commits, WARM_UP_COMMITS)
            and progress.quorum_id == self._quorum_id
            and not self._apart
            and not self._in_part
        )
        if ordinary and progress.step_s > 0:
            self._steps.append(progress.step_s / progress.rounds)
            # a group with one round more than another is no slower
            self._own.append(Own(progress.compute_s / progress.rounds, progress.data_s / progress.rounds))
            if len(self._own) == KEPT and self.past == Own():
                self.past = self.own
        self._commits, self._quorum_id, self._apart = progress.commits, progress.quorum_id, {}
        self._first = set()
        self._in_part = False

    def _forgive(self, now: float, activity: tuple[int, Activity] | None) -> None:
        """Forgives a wait for others that is over: it is no part of the rank's own time."""
        waits = activity is not None and activity[1] in WAITING
        if waits and self._waits_since is None:
            self._waits_since = now
        elif not waits and self._waits_since is not None:
            if self._moved_at is not None:
                self._moved_at = min(now, self._moved_at + now - self._waits_since)
            self._waits_since = None

    def _leave_out(self, seconds: float, now: float) -> None:
        """Leaves these seconds out, as if they had not been. What began within them begins now."""
        if seconds > 0.0:
            self._mark_since = min(now, self._mark_since + seconds)
            self._moved_at = None if self._moved_at is None else min(now, self._moved_at + seconds)
            self._committed_at = min(now, self._committed_at + seconds)
            self._waits_since = None if self._waits_since is None else min(now, self._waits_since + seconds)

    def _end_of(self, now: float, then: tuple[int, Activity] | None) -> None:
        if self._mark_in_part:
            return
        if self._mark is not None and (name := self._mark[1]) in APART:
            self._apart[name] = self._apart.get(name, 0.0) + now - self._mark_since
            if then is None or then[1] not in UNLIKE:  # else it goes on after that
                self._first |= {name} - self._longest_apart.keys()
                self._longest_apart[name] = max(self._longest_apart.get(name, 0.0), self._apart[name])
        elif self._mark is not None and self._mark[1] == "collective":
            self._collective = max(self._collective, now - self._mark_since)
