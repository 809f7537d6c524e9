"""How long a rank's steps usually take, and when one has taken too long. Pure: the time is given.

The bound is learned from the rank itself. Apart from the ordinary steps are the first ones (lazy set-up), and those with a
checkpoint, a heal, an evaluation or a compile in them: these are bounded by the policy's longest time alone, until one of the
same sort has been seen to end; a compile always, for how long one took says nothing of the next.

Nothing is learned from a step in which the members of the quorum changed, but it is bounded like any other. Who reconfigures
or sends a heal waits for others meanwhile, which is forgiven once it is over; and a change of members is when hangs are likely.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import NamedTuple

from supervisor.core.blame import WAITING
from supervisor.core.measured import Measured
from supervisor.core.spec import HangSpec
from supervisor.wire.activity import Activity
from supervisor.wire.records import Progress, Stuck

WARM_UP_COMMITS = 3
LEARNED_AT_LEAST = 5
STANDS_S = 1.0
"""Who hangs stays where it is; who has just gone on, or has begun to wait for another, is not told before it has stayed there."""
STANDS_SHARE = 0.5
"""Of the bound: who waits for nobody is told only once it has been at the same thing for so long. What went before, a commit that
failed or a quorum that was made anew, may have taken most of the bound; a hang is found within the bound from its beginning all the same."""
MOVES_ON = 3.0
"""In bounds: whoever goes from one thing to the next for so long, and comes to no commit, hangs too. Who comes to one that fails, again and
again, as where collectives take longer than their timeout on machines with too much to do, hangs in nothing of its own: the policy's
longest time is its bound."""
IN_VAIN = 2
"""One commit fails wherever a peer is lost."""
KEPT = 64
"""Steps that a bound is learned from: minutes of a large run, and a change of its pace is known after half of them."""
NEWEST = 8
"""Of these: where they are slower than the rest the machine has become so, and the next one may be as long as they make it."""
UNSEEN_S = 0.5
"""Of a time in which nothing could be seen so much counts: a disk that is slow at each look must not hide a hang for ever."""
APART: frozenset[Activity] = frozenset({"checkpoint", "heal", "evaluate", "compile", "save"})
UNLIKE: frozenset[Activity] = frozenset({"compile", "save"})
"""Of these no two are alike: the first of a restart finds all in a cache, one for a new shape takes minutes."""
STEPPING = frozenset({"quorum", "healing", "step", "checkpoint"})


class Own(NamedTuple):
    """What of a step a rank takes itself, in seconds: all but its waits for others."""

    compute_s: float = 0.0
    data_s: float = 0.0


class Pace:
    """One rank's process; a new generation has a new one."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._own: deque[Own] = deque(maxlen=KEPT)
        self.past = Own()
        """Medians over the first KEPT steps; all 0 until then."""
        self._longest_apart: dict[Activity, float] = {}
        """The most that was seen of each in one step."""
        self._first: set[Activity] = set()
        """Of the step in progress, what ended in it for the first time: it may come in several parts, and the first says nothing of the next."""
        self._longest_collective = 0.0
        self._collective = 0.0
        """The longest of the step in progress: it counts once that is committed."""
        self._failed_commits = 0
        self._tries, self._tried_s = 0, 0.0
        """Since the last commit: how many attempts at the step came to their end and were not committed, and of what it had taken itself how
        much when the last of them did."""
        self._last_tries = 0
        self._committed_at = 0.0
        self._began: float | None = None
        self._seen_starting = False
        self._told_step_s = 0.0
        """By the rank itself, of its last step before it was taken over: what is known of its pace until that is learned."""
        self._start_s = 0.0
        self._commits = 0
        self._quorum_id = -1
        self._apart: dict[Activity, float] = {}
        """Of the step in progress, what it has taken of each so far; one that was not seen whole is 0."""
        self._mark: tuple[int, Activity] | None = None
        self._mark_since = 0.0
        self._waits_since: float | None = None
        self._moved_at: float | None = None
        self._unseen = False
        self._looked_at = 0.0
        self._in_part = False
        """The step in progress was not seen whole: nothing is learned from it."""
        self._mark_in_part = True
        """Nor was what it does now: how long it takes is not known. At first: an agent may take over a rank in the middle of it."""

    def unseen(self) -> None:
        """Nothing can be seen of it now. That time counts for nothing, but for UNSEEN_S."""
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
        """To be called at every look, with a clock that stands still while nobody looks.

        `activity`: as read from its file. `reaches`: whether its forwarder reaches the gate: to wait for one that is away is
        no hang. `untold`: it cannot write its progress: then whether it commits is not known, and while it goes from one thing to
        the next it does not hang. `starved_s`: seconds in which it could have gone on and others had its processor: they count for
        nothing."""
        if self._began is None:
            # an agent that takes over a rank which steps already knows nothing of its start
            self._seen_starting = progress is None or progress.commits == 0
            if progress is not None and progress.commits > WARM_UP_COMMITS:
                self._told_step_s = progress.step_s
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
        """How long the step in progress may take."""
        unlike = self._mark is not None and self._mark[1] in UNLIKE | self._first
        learned = len(self._steps) >= LEARNED_AT_LEAST
        if not (learned or self._told_step_s) or unlike or self._apart.keys() - self._longest_apart.keys():
            return limits.at_most_s
        ordinary = max(median(self._steps), median(list(self._steps)[-NEWEST:])) if learned else self._told_step_s
        usual = ordinary + sum(self._longest_apart[name] for name in self._apart)
        # one step tells nothing of the spread: as much again
        spread = median(abs(step - ordinary) for step in self._steps) if learned else ordinary
        return min(limits.at_most_s, max(limits.at_least_s, limits.factor * (usual + spread)))

    def stands(self, now: float) -> tuple[int, Activity] | None:
        """What it does, once it has done that for a while."""
        return self._mark if now - self._mark_since >= STANDS_S else None

    @property
    def own(self) -> Own:
        """Medians over the last steps; all 0 until enough were seen."""
        if len(self._own) < LEARNED_AT_LEAST:
            return Own()
        return Own(*(round(median(values), 4) for values in zip(*self._own, strict=True)))

    @property
    def measured(self) -> Measured:
        """What timeouts have to leave room for; of the gate and of etcd it knows nothing."""
        learned = len(self._steps) >= LEARNED_AT_LEAST
        return Measured(
            step_s=round(median(self._steps), 3) if learned else 0.0,
            longest_step_s=round(max(self._steps), 3) if learned else 0.0,
            collective_s=round(self._longest_collective, 1),
            apart_s=self._longest_of("checkpoint", "heal"),
            pause_s=self._longest_of("evaluate", "compile"),
            start_s=round(self._start_s, 1),
        )

    def stuck(self, now: float, bound_s: float, longest_s: float, share: float = 1.0) -> Stuck | None:
        """What it hangs in, once its step has taken longer than the bound, or than this share of it; None while all is well. `longest_s`: what
        the policy gives to any step, if it comes to its end again and again and is not committed."""
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
        return Stuck(
            activity=self._mark[1] if self._mark is not None else "",
            activity_s=round(now - self._mark_since, 1),
            bound_s=round(bound_s, 1),
            lasted_s=round(still_s, 2),
            usual_s=round(median(self._steps), 3) if self._steps else 0.0,
        )

    def _in_vain(self, still_s: float, now: float, moves_on_s: float, longest_s: float) -> bool:
        """Whether it makes its step again and again: then only what it stands still in for a whole bound is no part of that."""
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
            self._steps.append(progress.step_s)
            self._own.append(Own(progress.compute_s, progress.data_s))
            if len(self._own) == KEPT and self.past == Own():
                self.past = self.own
        self._commits, self._quorum_id, self._apart = progress.commits, progress.quorum_id, {}
        self._first = set()
        self._in_part = False

    def _forgive(self, now: float, activity: tuple[int, Activity] | None) -> None:
        """A wait for others that is over is no part of how long it takes itself: they came, and it goes on."""
        waits = activity is not None and activity[1] in WAITING
        if waits and self._waits_since is None:
            self._waits_since = now
        elif not waits and self._waits_since is not None:
            if self._moved_at is not None:
                self._moved_at = min(now, self._moved_at + now - self._waits_since)
            self._waits_since = None

    def _leave_out(self, seconds: float, now: float) -> None:
        """As if they had not been. What has begun in the middle of them begins now."""
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
