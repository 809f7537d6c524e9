"""Bounds how long a recovery takes in the model: the sum of the timeouts and spans on its way, each at its longest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agents.gate.etcd import GATE_LEASE_S
from fault_injection.sim.faults import CALLS_LATE_S, CONTROL, WATCH_LATE_S, Fault
from fault_injection.sim.leaders import LOOK_S
from fault_injection.sim.pace import Pace
from fault_injection.sim.store import PATIENCE_S
from supervisor.core.model.engines import TRAITS
from supervisor.core.model.observed import GATE_ETCD_SILENCE_S
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.lighthouse import MARGIN_S
from supervisor.ports.store import LEASE_S

SEEN_S = 15.0
"""Seconds after a fault's end when nothing of it shows: a node's lease and a silent one's timeouts are shorter."""
RECOVERY_BOUND_S = 300.0
"""Most seconds from the end of all faults until every group commits, whatever they were: seven times the model's
longest timeout (allocation_timeout_s)."""
IN_PLACE = ("crash", "crash_again", "error")
ELSEWHERE = ("node_lost", "allocation_taken", "unplugged", "split")
FROZEN = ("freeze", "beats_lost", "beats_late")
"""Faults after which a silent group is ended, by its shim after a grace period, and started again."""
ENDED = (*IN_PLACE, *FROZEN, "frozen_for_good", "frozen_at_start")
"""Faults by which a group's process ends, or is ended; the group is then started again."""
LIGHTHOUSE = ("gate_frozen", "host_off")
ARMED = ("leader_killed_deciding", "leader_killed_committed", "leader_frozen", "answer_lost")
"""Faults that wait for the next decision, which may be about a later fault."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of one run."""

    spec: RunSpec
    pace: Pace
    climbs: bool
    """True if its budgets are so small that a group may have to move instead of being restarted."""

    @property
    def _told_s(self) -> float:
        """Returns the seconds from a change on a node until the loop has decided about it; the way back takes as long.
        The loop's sleep adds nothing, for the change wakes it."""
        pace, allocation = self.pace, self.spec.allocation
        turn_s = pace.turn_s + pace.turn_s_a_node * (allocation.nodes + allocation.spares)
        return pace.lag_s[1] + pace.delay_s[1] + turn_s

    @property
    def _back_s(self) -> float:
        """Returns the seconds from its start until its first commit is known: the others' step, then one in which it
        heals."""
        pace = self.pace
        start_s = max(pace.start_s[1], pace.move_s[1])
        return start_s + pace.gate_tick_s + 2 * pace.step_s + pace.heal_s[1] + self._told_s

    @property
    def in_place_s(self) -> float:
        """Bounds the recovery of a group whose process ended: reported, decided, started."""
        return 2 * self._told_s + self._back_s

    @property
    def again_s(self) -> float:
        """Returns what is added where something else is broken too. The group pauses before its restart, the loop must
        wake to see the pause end, and another may heal in the step before its own."""
        pace = self.pace
        return self.spec.policy.backoff_max_s + pace.idle_s + pace.step_s + pace.heal_s[1]

    @property
    def moved_s(self) -> float:
        """Bounds the recovery of a group whose node is gone: missed, shut out of the quorum, placed on a spare."""
        pace, policy = self.pace, self.spec.policy
        missed_s = max(policy.node_lease_s, pace.poll_s + pace.kill_s[1]) + TRAITS["slurm"].word_s
        fenced_s = self.spec.torchft.heartbeat_timeout_ms / 1000 + 2 * self._told_s
        return missed_s + fenced_s + self.in_place_s

    @property
    def elsewhere_s(self) -> float:
        """Bounds the recovery of a group for which no spare is left, on a node that is requested."""
        pace = self.pace
        return self.moved_s + 2 * pace.poll_s + 2 * pace.queue_s[1] + pace.boot_s[1] + 2 * self._told_s + pace.idle_s

    @property
    def ended_s(self) -> float:
        """Bounds the recovery of a group that was already silent for too long: ended, with the grace period of one that
        does not answer, and restarted."""
        return self._told_s + self.spec.policy.term_grace_s + self.restarted_s

    @property
    def silent_s(self) -> float:
        """Bounds the recovery of a group that stands still: its missed heartbeats are noticed, it is waited for, and
        ended."""
        beats_s = self.spec.torchft.heartbeat_timeout_ms / 1000 + 2 * self.pace.gate_tick_s
        return beats_s + self._told_s + self.spec.policy.silent_timeout_s + self.pace.idle_s + self.ended_s

    @property
    def never_trains_s(self) -> float:
        """Bounds the recovery of a group that ended, and whose next process never makes its first commit."""
        return 2 * self._told_s + self.spec.policy.start_timeout_s + self.pace.idle_s + self.ended_s

    @property
    def opened_s(self) -> float:
        """Bounds the replacement of a lighthouse that ended: reported, the next one started, found by all, joined by
        its groups."""
        pace, join_s = self.pace, self.spec.torchft.join_timeout_ms / 1000
        return 4 * self._told_s + 3 * pace.gate_tick_s + join_s + pace.rejoin_s + 2 * pace.step_s + pace.heal_s[1]

    @property
    def taken_s(self) -> float:
        """Bounds the replacement of a lighthouse of which nothing is known: it loses its seat once it has surely
        closed."""
        cut_s = max(GATE_ETCD_SILENCE_S, self.spec.torchft.heartbeat_timeout_ms / 1000) + MARGIN_S
        return 3 * self._told_s + cut_s + self.pace.idle_s + self.opened_s

    @property
    def control_s(self) -> float:
        """Returns the seconds until a supervisor leads that sees all as it is: a lease runs out, a supervisor comes
        back, late messages arrive."""
        late_s = max(WATCH_LATE_S[1], CALLS_LATE_S[1], PATIENCE_S)
        return max(LEASE_S, GATE_LEASE_S) + self.pace.back_s[1] + LOOK_S + late_s + self._told_s + self.pace.idle_s

    @property
    def restarted_s(self) -> float:
        """Bounds the recovery of a group that must be started again."""
        return self.elsewhere_s if self.climbs else self.in_place_s

    def of(self, kinds: Sequence[str], spare: bool = False) -> float:
        """Returns the seconds from the end of faults of these kinds, alone, until all is well. `spare`: one is free."""
        alone = len(kinds) == 1
        mended_s = max(self._mended_s(kind, spare and alone) for kind in kinds)
        controls = any(kind in CONTROL for kind in kinds)
        return mended_s + (0.0 if alone else self.again_s) + (self.control_s if controls else 0.0)

    def _mended_s(self, kind: str, spare: bool) -> float:
        return {
            **dict.fromkeys(IN_PLACE, self.restarted_s),
            **dict.fromkeys(FROZEN, self.ended_s),
            **dict.fromkeys(ELSEWHERE, self.moved_s if spare and not self.climbs else self.elsewhere_s),
            **dict.fromkeys(LIGHTHOUSE, self.taken_s),
            "gate_killed": self.opened_s,
            "heal_source_killed": 2 * self.restarted_s + self.again_s,  # a group, and then the one from which it heals
            "frozen_for_good": self.silent_s,
            "frozen_at_start": self.never_trains_s,
        }.get(kind, self._told_s)

    def spent_s(self, faults: Sequence[Fault]) -> float:
        """Returns the wait for spent budgets: an unpaid action, and those after it, wait until the window has passed. A
        restart too many is a replacement; a replacement too many, or what the scheduler took away, a reallocation."""
        budget = self.spec.policy.budget
        kinds = [fault.kind for fault in faults]
        taken = kinds.count("allocation_taken")
        lost = sum(kind in ELSEWHERE for kind in kinds) - taken
        restarts = sum(kind in ENDED for kind in kinds) + 2 * kinds.count("heal_source_killed")
        replacements = lost + max(0, restarts - budget.restart)
        reallocations = taken + max(0, replacements - budget.replace)
        unpaid = max(0, reallocations - budget.reallocate)
        return math.ceil(unpaid / max(1, budget.reallocate)) * budget.window_s

    def within_s(self, fault: Fault, faults: Sequence[Fault], clear: bool, trained: bool, spare: bool = False) -> float:
        """Returns the seconds from the beginning of this fault until all is well, including the wait for faults before
        that.

        `trained`: all groups had trained when it came. `clear`: it is known what each of them causes; else one may be
        mended after the other. `spare`: one was free."""

        def after_s(kinds: Sequence[str]) -> float:
            if not trained or (self.climbs and not clear):
                return RECOVERY_BOUND_S  # a group that is suspended for want of a budget stays so for its window
            if clear:
                return min(RECOVERY_BOUND_S, self.of(kinds, spare) + self.spent_s(faults))
            controls = self.control_s if any(kind in CONTROL for kind in kinds) else 0.0
            return min(RECOVERY_BOUND_S, controls + sum(self._mended_s(kind, False) + self.again_s for kind in kinds))

        # until then it does not count as over, whatever its bound is
        end, kinds, seen = fault.at + fault.lasts_s, [fault.kind], fault.at + fault.seconds + SEEN_S
        for other in sorted(faults, key=lambda f: f.at):
            if other is fault:
                continue
            if other.at > max(end + after_s(kinds), seen):
                break
            if other.at + other.lasts_s + after_s([other.kind]) >= fault.at or other.kind in ARMED:
                end = max(end, other.at + other.lasts_s)
                kinds.append(other.kind)
        return end + after_s(kinds) - fault.at
