"""How long a recovery takes at most in the model: the sum of the timeouts and spans on its way, each at its longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.gate_etcd import GATE_LEASE_S
from fault_injection.sim.faults import CALLS_LATE_S, WATCH_LATE_S, Fault
from fault_injection.sim.leaders import LOOK_S
from fault_injection.sim.pace import Pace
from fault_injection.sim.store import PATIENCE_S
from supervisor.core.detect import SLURM_WORD_S
from supervisor.core.spec import RunSpec
from supervisor.shell.service import LEASE_S

RECOVERY_BOUND_S = 300.0
"""From the end of all faults until every group commits, whatever they were: seven times the model's longest timeout (allocation_timeout_s)."""
IN_PLACE = ("crash", "error")
ELSEWHERE = ("node_lost", "allocation_taken")


@dataclass(frozen=True)
class Bounds:
    """Of one run."""

    spec: RunSpec
    pace: Pace
    climbs: bool
    """Its budgets are so small that what is to be restarted may have to move."""

    @property
    def _told_s(self) -> float:
        """From a change on a node until the loop has decided about it; as long is the way back."""
        pace, allocation = self.pace, self.spec.allocation
        turn_s = pace.turn_s + pace.turn_s_a_node * (allocation.nodes + allocation.spares)
        return pace.lag_s[1] + pace.delay_s[1] + turn_s + pace.idle_s

    @property
    def _back_s(self) -> float:
        """From its start until its first commit is known: the others are in a step in which somebody heals, then it is in one."""
        pace = self.pace
        start_s = max(pace.start_s[1], pace.move_s[1])
        return start_s + pace.gate_tick_s + 2 * (pace.step_s + pace.heal_s[1]) + self._told_s

    @property
    def in_place_s(self) -> float:
        """A group whose process ended: told, paused, told back, started."""
        return self.spec.policy.backoff_max_s + 2 * self._told_s + self._back_s

    @property
    def elsewhere_s(self) -> float:
        """A group whose node is gone: missed, shut out of the quorum, placed, where no spare is left on a node that is asked for."""
        pace, policy = self.pace, self.spec.policy
        missed_s = max(policy.node_lease_s, pace.poll_s + pace.kill_s[1]) + SLURM_WORD_S
        fenced_s = self.spec.torchft.heartbeat_timeout_ms / 1000 + 2 * self._told_s
        granted_s = 2 * pace.poll_s + 2 * pace.queue_s[1] + pace.boot_s[1] + 2 * self._told_s
        return missed_s + fenced_s + granted_s + self.in_place_s

    @property
    def control_s(self) -> float:
        """Until somebody leads who sees all as it is: a lease runs out, a supervisor comes back, what was late has come."""
        late_s = max(WATCH_LATE_S[1], CALLS_LATE_S[1], PATIENCE_S)
        return max(LEASE_S, GATE_LEASE_S) + self.pace.back_s[1] + LOOK_S + late_s + self._told_s

    def of(self, kinds: Sequence[str]) -> float:
        """From the end of faults of these kinds until all is well, if nothing else is broken."""
        moves = any(kind in ELSEWHERE for kind in kinds) or (self.climbs and any(kind in IN_PLACE for kind in kinds))
        restarts = any(kind in IN_PLACE for kind in kinds)
        controls = any(kind not in (*IN_PLACE, *ELSEWHERE) for kind in kinds)
        mended_s = self.elsewhere_s if moves else self.in_place_s if restarts else 0.0
        return mended_s + (self.control_s if controls else 0.0)

    def within_s(self, fault: Fault, faults: Sequence[Fault], clear: bool) -> float:
        """From the beginning of this one until all is well: who comes before that is due is waited for, too."""
        end, kinds = fault.at + fault.seconds, [fault.kind]
        for other in sorted(faults, key=lambda f: f.at):
            due = end + (self.of(kinds) if clear else RECOVERY_BOUND_S)
            if other.at > due:
                break
            if other.at + other.seconds >= fault.at:
                end = max(end, other.at + other.seconds)
                kinds.append(other.kind)
        due = end + (self.of(kinds) if clear else RECOVERY_BOUND_S)
        return due - fault.at
