"""Bugs to plant in the real program: one for each family of checks. Only the checks on their effects catch them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agents.agent import reconcile
from agents.agent.names import Name, TrainerName
from agents.gate.state import GateState, Verdict
from fault_injection.sim.faults import Fault
from fault_injection.sim.nodes import Node
from supervisor.core import decide, invariants
from supervisor.core.evidence import exit_status, group_failure, group_nodes
from supervisor.core.model.incident import Failure, Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory, Lighthouse
from supervisor.core.model.observed import Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import BudgetSpec, PolicySpec
from supervisor.core.policy import budgets
from supervisor.core.policy.ladder import Choice
from supervisor.core.remediation import apply, lighthouse, placement
from supervisor.core.round import view as rounds
from supervisor.core.round.draft import Round
from supervisor.ports.store import Expect
from supervisor.shell.control import loop, projection
from supervisor.shell.etcd.election import Leadership
from supervisor.wire.records import NodeDesired, ProcessRecord, TrainerDesired
from tests.helpers.reasons import codes


def budget_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = budgets.allowed

    def one_more(spec: BudgetSpec, rung: Rung) -> int:
        return right(spec, rung) + 1

    patch.setattr(budgets, "allowed", one_more)


def no_epoch_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "expect", lambda self: Expect(self.key))


def no_proof_of_emptiness(patch: pytest.MonkeyPatch) -> None:
    for module in (group_failure, invariants):  # the loop's own check must not find it
        patch.setattr(module, "gone", lambda group, below, node, observed: True)


def stale_generation_accepted(patch: pytest.MonkeyPatch) -> None:
    def passage(self: GateState, group: int, generation: int, node: str, now: float) -> Verdict:
        entry = self.generations.get((group, generation))
        ready = entry is not None and entry.spoken and not entry.gone
        return "admit" if ready and self.opened and not self.retired and not self.closed else "hold"

    patch.setattr(GateState, "is_stale", lambda self, group, generation: False)
    patch.setattr(GateState, "passage", passage)


def nothing_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "release", lambda self, key, reason: None)


def agents_end_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_unwanted", lambda desired, known: iter(()))


def crash_called_oom(patch: pytest.MonkeyPatch) -> None:
    right = exit_status.Failure

    def named(kind: Kind, *args: Any, **more: Any) -> Failure:
        return right(Kind.OOM if kind == Kind.CRASH else kind, *args, **more)

    patch.setattr(exit_status, "Failure", named)


def gate_closes_for_good(patch: pytest.MonkeyPatch) -> None:
    right = GateState.judge_etcd

    def judge_etcd(self: GateState, silent_s: float, read_again: bool, now: float) -> bool:
        return not self.closed and right(self, silent_s, read_again, now)

    patch.setattr(GateState, "judge_etcd", judge_etcd)


def gate_closes_whomever_it_hears(patch: pytest.MonkeyPatch) -> None:
    right = GateState.judge_etcd

    def judge_etcd(self: GateState, silent_s: float, read_again: bool, now: float) -> bool:
        if self.closed or silent_s <= self.etcd_silence_s:
            return right(self, silent_s, read_again, now)
        self.closed = True
        return True

    patch.setattr(GateState, "judge_etcd", judge_etcd)


def agents_begin_again_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    right = reconcile._trainer

    def trainer(
        wanted: TrainerDesired, known: Sequence[tuple[Name, ProcessRecord]], allocation: str
    ) -> Iterator[reconcile.Action]:
        return right(wanted, [(name, record) for name, record in known if not record.exited], allocation)

    patch.setattr(reconcile, "_trainer", trainer)


def agents_end_who_has_no_gate(patch: pytest.MonkeyPatch) -> None:
    right = reconcile._unwanted

    def unwanted(
        desired: Mapping[str, NodeDesired], known: Sequence[tuple[Name, ProcessRecord]]
    ) -> Iterator[reconcile.Stop]:
        yield from right(desired, known)
        waiting = {(t.run, t.group) for node in desired.values() for t in node.trainers if not t.gate}
        for name, record in known:
            if not record.exited and isinstance(name, TrainerName) and (name.run, name.group) in waiting:
                yield reconcile.Stop(record.name, "it has no gate")

    patch.setattr(reconcile, "_unwanted", unwanted)


def checkpoint_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    right = projection.TrainerDesired

    def desired(**said: Any) -> Any:
        return right(**{**said, "checkpoint": None})

    patch.setattr(projection, "TrainerDesired", desired)


def no_reason_kept(patch: pytest.MonkeyPatch) -> None:
    right = Round.decide_incident

    def decided(self: Round, incident: Incident, choice: Choice, generation: int) -> Incident:
        return right(self, incident, replace(choice, reason=Reason.of(Code.TEXT, text="")), generation)

    patch.setattr(Round, "decide_incident", decided)


def checkpoint_is_what_is_told_now(patch: pytest.MonkeyPatch) -> None:
    def note(r: Round) -> None:
        ranks = [(g, rank) for g in r.groups.values() for rank in group_nodes.ranks_of(g, r.observed)]
        marks = [rank.checkpoint for g, rank in ranks if rank.checkpoint and rank.checkpoint.generation == g.generation]
        r.draft = replace(r.draft, checkpoint=max(marks, key=lambda mark: mark.step, default=None))

    patch.setattr(decide, "_note_checkpoint", note)


def fence_names_the_generation_that_it_shuts_out(patch: pytest.MonkeyPatch) -> None:
    right = Round.act

    def act(self: Round, verb: Any, key: str, reason: str, **about: Any) -> None:
        if verb == "fence":
            about["generation"] -= 1
        right(self, verb, key, reason, **about)

    patch.setattr(Round, "act", act)


def nothing_compared(patch: pytest.MonkeyPatch) -> None:
    """Plants no_epoch_compared, and skips the comparison of the memory too: each alone stands in for the other."""
    no_epoch_compared(patch)
    patch.setattr(loop, "Expect", lambda key, **wanted: Expect(key))


def decisions_not_counted(patch: pytest.MonkeyPatch) -> None:
    right = decide.decide

    def decided(observed: Any, spec: Any, memory: Any) -> Any:
        made = right(observed, spec, memory)
        return replace(made, memory=replace(made.memory, decisions=max(1, memory.decisions)))

    patch.setattr(loop, "decide", decided)


def incidents_are_dropped(patch: pytest.MonkeyPatch) -> None:
    right = Round.set_incident

    def set_incident(self: Round, incident: Incident) -> None:
        if incident.state == "recovered":
            self.incidents.pop(incident.id)
        else:
            right(self, incident)

    patch.setattr(Round, "set_incident", set_incident)


def restarts_are_put_off_for_a_minute(patch: pytest.MonkeyPatch) -> None:
    """Delays the first restart in a row too, which has no pause."""
    right = Round.set_group

    def set_group(self: Round, group: GroupMemory) -> None:
        decided = group.phase == "placing" and group.since == self.now and group.attempts > 0
        right(self, replace(group, not_before=self.now + 60.0) if decided else group)

    patch.setattr(Round, "set_group", set_group)


def nothing_is_withdrawn(patch: pytest.MonkeyPatch) -> None:
    right = loop.Loop._difference

    def difference(self: Any, *about: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
        at_once, later = right(self, *about)
        return {key: value for key, value in at_once.items() if value != loop._nothing(key)}, later

    patch.setattr(loop.Loop, "_difference", difference)


def both_sides_of_a_split_train(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GateState, "doubted", lambda self, now: ())


def no_checkpoint_is_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_note_checkpoint", lambda r: None)


def checkpoints_are_noted_four_at_once(patch: pytest.MonkeyPatch) -> None:
    right = decide._note_checkpoint

    def note(r: Round) -> None:
        right(r)
        before, newest = r.before.checkpoint, r.draft.checkpoint
        if before is not None and newest is not None and newest.step < before.step + 40:
            r.draft = replace(r.draft, checkpoint=before)

    patch.setattr(decide, "_note_checkpoint", note)


def nobody_writes_checkpoints(patch: pytest.MonkeyPatch) -> None:
    right = projection.TrainerDesired

    def desired(**said: Any) -> Any:
        return right(**{**said, "writer": False})

    patch.setattr(projection, "TrainerDesired", desired)


def nothing_is_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "renew", lambda r: None)


def no_spare_is_counted_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "can_move", lambda self, group: False)


def spares_stay_spares(patch: pytest.MonkeyPatch) -> None:
    """Gives a group only nodes that were requested after the first failure."""
    right = Round.spares

    def spares(self: Round) -> list[str]:
        launched = {a.key for a in self.allocations.values() if a.reason.code == Code.RUN_STARTS}
        return [n for n in right(self) if not self.seen or self.observed.nodes[n].allocation not in launched]

    patch.setattr(Round, "spares", spares)


def restarts_are_eight_seconds_late(patch: pytest.MonkeyPatch) -> None:
    """The delay is about as long as a restart takes here."""
    right = Round.set_group

    def set_group(self: Round, group: GroupMemory) -> None:
        decided = group.phase == "placing" and group.since == self.now and group.attempts > 0
        right(self, replace(group, not_before=self.now + 8.0) if decided else group)

    patch.setattr(Round, "set_group", set_group)


def next_lighthouse_is_held_back(patch: pytest.MonkeyPatch) -> None:
    """Holds it back for 100 s, in which all stand still."""
    right = lighthouse._next
    since: dict[tuple[int, int], float] = {}

    def next_(r: Round, seat_: Lighthouse, reason: str) -> Lighthouse:
        at = since.setdefault((id(r.spec), seat_.generation), r.now)
        if seat_.node and at <= r.now < at + 100.0:
            r.look_again(r.now + 1.0)
            return seat_
        return right(r, seat_, reason)

    patch.setattr(lighthouse, "_next", next_)


def _never(patch: pytest.MonkeyPatch, kind: Kind) -> None:
    """Hides this kind of failure from the program."""
    right = group_failure.failure

    def failure(*about: Any, **more: Any) -> Failure | None:
        found = right(*about, **more)
        return None if found is not None and found.kind == kind else found

    patch.setattr(group_failure, "failure", failure)


def the_silent_are_never_ended(patch: pytest.MonkeyPatch) -> None:
    _never(patch, Kind.STALLED)


def who_never_trains_is_never_ended(patch: pytest.MonkeyPatch) -> None:
    _never(patch, Kind.START_TIMEOUT)


def a_spares_host_is_cordoned(patch: pytest.MonkeyPatch) -> None:
    """Cordons a spare's host in the place of the node's own."""
    right, done = Round.cordon, Round.done

    def cordon(self: Round, host: str, node: str, incident: Incident) -> None:
        other = self.next_spare
        right(self, self.host_of(other) if other else host, node, incident)
        self.cordons.setdefault(host, "")  # its caller reads it

    def without(self: Round) -> Any:
        self.cordons = {host: why for host, why in self.cordons.items() if why}
        return done(self)

    patch.setattr(Round, "cordon", cordon)
    patch.setattr(Round, "done", without)


def the_window_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budgets, "within", lambda instants, now, window_s: tuple(instants))


def nothing_is_dearer(patch: pytest.MonkeyPatch) -> None:
    """Ends the ladder where the budget of the first rung is spent."""
    right = rounds.choose

    def choose(kind: Kind, group: int, policy: PolicySpec, *more: Any) -> Choice:
        found = right(kind, group, policy, *more)
        if Rung.RESTART < found.rung < Rung.STOP and Code.BUDGET_SPENT in codes(found.reason):
            return Choice(Rung.STOP, Reason.of(Code.NOTHING_LEFT, passed=found.considered), found.considered)
        return found

    patch.setattr(rounds, "choose", choose)


def a_mistake_is_raised(patch: pytest.MonkeyPatch) -> None:
    def moved(*about: Any) -> None:
        raise ValueError("budget of replace is spent")

    patch.setattr(apply, "_move_away", moved)


def a_part_of_the_seats_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Starts a group that lacks one node on the others."""
    right = placement._no_node

    def no_node(r: Round, group: GroupMemory, free: list[str], last: list[str]) -> None:
        there = [*group.nodes, *free]
        if group.size > 1 and len(there) == group.size - 1:
            free.clear()
            placement._start(r, group, there)
        else:
            right(r, group, free, last)

    patch.setattr(placement, "_no_node", no_node)
    patch.setattr(GroupMemory, "placed", property(lambda self: len(self.seats) >= max(1, self.size - 1)))
    patch.setattr(invariants, "violations", lambda *about: [])  # the loop's own check must not find it


def one_node_proves_that_all_are_empty(patch: pytest.MonkeyPatch) -> None:
    right = group_failure.gone

    def gone(group: int, below: int, seats: Sequence[Seat], observed: Observed) -> bool:
        return any(right(group, below, [seat], observed) for seat in seats)

    for module in (group_failure, invariants):  # the loop's own check must not find it
        patch.setattr(module, "gone", gone)


def agents_offer_the_same_store(patch: pytest.MonkeyPatch) -> None:
    """Offers one store for as long as a node lives, and the leader takes what is offered."""
    patch.setattr(Node, "_free_store", lambda self: f"{self.name}:29500")
    right = placement._start

    def start(r: Round, group: GroupMemory, nodes: Sequence[str]) -> None:
        right(r, replace(group, store=""), nodes)

    patch.setattr(placement, "_start", start)
    patch.setattr(invariants, "violations", lambda *about: [])  # the loop's own check must not find it


def taken_and_split(seed: int) -> list[Fault]:
    """A group's next node may be cut off after it was ordered and before it starts there, so that it is moved again."""
    dice = random.Random(f"taken and split {seed}")
    taken = Fault(90.0, "allocation_taken", dice.randrange(1 << 16), 2.0)
    return [taken, Fault(90.0 + dice.choice((0.0, 1.0, 2.0)), "split", dice.randrange(1 << 16), 16.0)]


PLANS = {nothing_is_withdrawn: taken_and_split}
"""Plans for bugs that the seeds' own plans expose too seldom."""

SEVERAL = (
    (a_part_of_the_seats_is_enough, "part"),
    (one_node_proves_that_all_are_empty, "single_owner"),
    (no_proof_of_emptiness, "fence"),
    (agents_offer_the_same_store, "store"),
)
"""Bugs of groups on several nodes, and the family of checks that reports each first, in runs of FEW nodes, two a
group."""

FEW, ONE_GROUP = 8, 2
"""Numbers of nodes, a spare among them. With ONE_GROUP a resume from disk follows each end of the group."""

PLANTED = (
    (budget_off_by_one, "budget", FEW),
    (no_epoch_compared, "fencing", 7),  # seldom does harm, as the memory that is written is compared too
    (no_proof_of_emptiness, "single_owner", FEW),  # its node was reported empty
    (nothing_is_given_back, "leak", 7),  # what should be given back is mostly gone by itself: seldom with other numbers
    (agents_end_nothing, "orphan", FEW),
    (crash_called_oom, "one_incident_each", FEW),
    (stale_generation_accepted, "owners", FEW),  # the newer generation may step too
    (fence_names_the_generation_that_it_shuts_out, "stale", FEW),
    (gate_closes_for_good, "progress", FEW),
    (gate_closes_whomever_it_hears, "others_go_on", FEW),
    (agents_begin_again_what_has_ended, "start", FEW),
    (agents_end_who_has_no_gate, "no_kill_without_reason", FEW),
    (checkpoint_not_handed_on, "steps", ONE_GROUP),
    (no_reason_kept, "reason", FEW),
    (checkpoint_is_what_is_told_now, "monotonic", FEW),
    (restarts_are_put_off_for_a_minute, "recovered_in_time", FEW),
    (both_sides_of_a_split_train, "steps", FEW),
    (no_checkpoint_is_noted, "steps", FEW),
    (checkpoints_are_noted_four_at_once, "steps", FEW),
    (nobody_writes_checkpoints, "checkpoint", FEW),
    (nothing_is_renewed, "kept", FEW),
    (no_spare_is_counted_on, "spare", FEW),
    (spares_stay_spares, "spare", FEW),
    (restarts_are_eight_seconds_late, "recovered_in_time", FEW),
    (next_lighthouse_is_held_back, "recovered_in_time", FEW),
    (the_silent_are_never_ended, "progress", FEW),
    (who_never_trains_is_never_ended, "progress", FEW),
    (a_spares_host_is_cordoned, "its_host_is_cordoned", FEW),
    (the_window_never_ends, "progress", FEW),
    (nothing_is_dearer, "spent_when_said", FEW),
    (a_mistake_is_raised, "crash", FEW),
)
"""Each bug with the family of checks that reports it first, and the number of nodes of its runs."""

TOLD_BY_FILES = (
    (no_proof_of_emptiness, "single_owner", FEW),
    (agents_begin_again_what_has_ended, "one_actuation_per_decision", FEW),
    (nothing_is_withdrawn, "no_stale_actuation", 12),  # the rest is mostly refused elsewhere
    (decisions_not_counted, "generations_grow", FEW),
    (nothing_compared, "no_dead_epoch", FEW),
    (agents_end_who_has_no_gate, "no_kill_without_reason", FEW),
    (budget_off_by_one, "within_budgets", FEW),
    (incidents_are_dropped, "recovered_in_time", FEW),
    (restarts_are_put_off_for_a_minute, "recovered_in_time", FEW),
    (crash_called_oom, "one_incident_each", FEW),
    (gate_closes_whomever_it_hears, "others_go_on", FEW),
    (a_spares_host_is_cordoned, "its_host_is_cordoned", FEW),
    (nothing_is_dearer, "spent_when_said", FEW),
)
"""Bugs with the checker of a run's files that reports each, where the model's own checks are silent. A stale generation
that is let in again is missing: its agent ends it before it ends the step in which it heals."""

NOT_TOLD_BY_FILES = ("one_quorum_per_step",)
"""Two lighthouses at once are seconds apart here, so none of their steps coincide. What the two train is committed
twice. A real run's `steps_not_lost` reports that; in the model `owners` does."""
