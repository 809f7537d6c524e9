"""Judges what a seed would have left by the checkers of a real run: those of its files, and the promises that apply
here.

Left out are checkers of numbers, which the model lacks (digests, badput, samples). `every_fault_happened` is left out as a
planned fault may find no victim, and `nothing_left` as leftovers have ended the seed before. The model replaces
`steps_not_lost`, as it knows more (`Checks._lost`). To that checker, a step that one group alone had is lost when it is
trained again because that group is frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fault_injection.checkers import consistency
from fault_injection.checkers.budgets import within_budgets
from fault_injection.checkers.recovery import one_incident_each, others_go_on, recovered_in_time
from fault_injection.sim.bounds import RECOVERY_BOUND_S, SEEN_S, Bounds
from fault_injection.sim.faults import CONTROL, Fault
from fault_injection.sim.files import its_host_is_cordoned, spent_when_said
from fault_injection.sim.world import World
from supervisor.core.model.kinds import Kind
from supervisor.shell.history import files
from supervisor.shell.history.files import FaultDone, History, Setting

OTHERS_S = 20.0
"""Seconds for which a group may stand still because of another: a node's lease, the drop of a silent group, a heal."""
UNTOUCHED_S = 3.0
"""As OTHERS_S, for a fault that takes nothing from training: three steps."""
KINDS_OF: Mapping[str, tuple[Kind, ...]] = {
    "crash": (Kind.CRASH,),
    "crash_again": (Kind.CRASH,),
    "error": (Kind.ERROR,),
    "node_lost": (Kind.NODE_LOST, Kind.ALLOCATION_LOST),  # whichever reports it first, its lease or the scheduler
    "allocation_taken": (Kind.ALLOCATION_LOST,),
    "frozen_for_good": (Kind.STALLED,),
    "frozen_at_start": (Kind.CRASH,),  # while that is open, its next process is found never to train
}
"""Faults of one group, and the kinds that a supervisor with clear sight gives them."""
MAY_HAVE: Mapping[str, tuple[Kind, ...]] = {
    "freeze": (Kind.STALLED,),
    "heal_source_killed": (Kind.CRASH,),
    "unplugged": (Kind.NODE_LOST, Kind.STALLED),
    "split": (Kind.NODE_LOST, Kind.STALLED),
    "beats_lost": (Kind.STALLED,),
    "beats_late": (Kind.STALLED,),
    "agent_cut": (),
    "gate_killed": (),
    "gate_frozen": (),
    "host_off": (),
}
"""Faults that may pass without an incident, or have some of these, of any group: it depends on how long they last, and
on the victim. All groups may stand still for as long as the recovery may take."""
UNTOUCHED = (*CONTROL, "agent_cut")
NOBODY = -1
"""The group of a fault that belongs to no single group."""

OF_FILES = {
    name: checker
    for name, checker in consistency.CHECKERS.items()
    if name not in ("steps_not_lost", "each_sample_once")
}
ALWAYS: Mapping[str, Callable[[History], list[str]]] = {
    **OF_FILES,
    "within_budgets": within_budgets,
    "its_host_is_cordoned": its_host_is_cordoned,
    "spent_when_said": spent_when_said,
}
WHEN_WELL = {"recovered_in_time": recovered_in_time}
"""Checkers for a run that got well again: one with tight budgets may halt."""
WHERE_CLEAR = {"one_incident_each": one_incident_each, "others_go_on": others_go_on}
"""Checkers for a plan that began once all groups trained."""


@dataclass(frozen=True)
class Asked:
    """Counts of faults about which the checkers had something specific to check."""

    faults: int = 0
    """Faults that found a victim."""
    bound: int = 0
    """Faults whose recovery had its own bound, shorter than RECOVERY_BOUND_S."""
    none: int = 0
    """Faults for which neither an incident nor a group that stands still is right."""
    one: int = 0
    """Faults for which one incident of the right kind is right, and no other group may stand still."""


@dataclass(eq=False)
class _Struck:
    """A fault that found a victim."""

    fault: Fault
    began: float
    groups: Mapping[int, str]
    """The groups that it hit, and their nodes."""
    clear: bool
    """True if all was well, and nothing of another fault still showed."""
    spare: bool = False
    """True if a node was free."""
    cut: frozenset[int] = frozenset()
    """The groups with nodes on both sides of a split."""
    unwell: float = 0.0
    """When all was last seen not to be well."""
    over: float | None = None
    within_s: float = RECOVERY_BOUND_S
    """Most seconds from its beginning until all is well."""


@dataclass
class Struck:
    """The faults that were made, in the order of time."""

    world: World
    all: list[_Struck] = field(default_factory=list)

    def look(self) -> None:
        """Looks at every step from now on: a later look would make a recovery seem longer than it was."""
        self.well()
        self.world.clock.after(self.world.pace.step_s, self.look)

    def well(self) -> None:
        """Marks the faults that are over, if all is well now."""
        now, open_ = self.world.clock.now, [s for s in self.all if s.over is None]
        if not open_:
            return
        if not self.world.healthy():
            for one in open_:
                one.unwell = now
            return
        for one in open_:
            if now >= one.began + one.fault.seconds + SEEN_S:
                one.over = max(one.began + one.fault.lasts_s, one.unwell + self.world.pace.step_s)

    def add(self, fault: Fault, inject: Callable[[World, Fault], bool]) -> bool:
        """Makes a fault; returns false if there was no victim."""
        world, now = self.world, self.world.clock.now
        self.well()
        clear = world.healthy() and all(one.over is not None or one.began == now for one in self.all)
        before, spare = len(world.victims), _has_spare(world)
        if not inject(world, fault):
            return False
        known = world.checks.memory.groups
        groups = {g: node if known[g].holds(node) else known[g].first_node for g, node in world.victims[before:]}
        cut = frozenset(g for g, m in known.items() if 0 < sum(n in world.island for n in m.nodes) < len(m.nodes))
        self.all.append(_Struck(fault, now, groups, clear, spare, cut, unwell=now))
        return True

    def done(self, over: float | None) -> list[FaultDone]:
        """Returns the faults as a real run's history has them. Where the right incident is not clear, any is
        allowed."""
        found: list[FaultDone] = []
        clear = self.clear(over)
        spec = self.world.spec
        bounds = Bounds(spec, self.world.pace, climbs=spec.policy.budget.restart <= len(self.all))
        faults = [replace(s.fault, at=self._struck_at(s)) for s in self.all]
        for struck, fault in zip(self.all, faults, strict=True):
            free = struck in clear
            kinds = self._kinds(struck, over) if free else ()
            # listed twice, a fault is never alone, so its number of incidents does not count
            whom = (tuple(struck.groups) or (NOBODY,)) if kinds else (NOBODY,) if free else (NOBODY, NOBODY)
            trained = self.trained(struck.began)
            waited_s = self._struck_at(struck) - struck.began
            struck.within_s = waited_s + bounds.within_s(fault, faults, free, trained, struck.spare)
            within_s = struck.within_s + self.world.pace.step_s  # looked at once a step
            for group in whom:
                done = self._done(len(found) + 1, struck, group, kinds or (), free, struck.over or over)
                found.append(replace(done, within_s=within_s, others_within_s=_others_s(fault, faults, within_s, free)))
        return found

    def _struck_at(self, struck: _Struck) -> float:
        """Returns when a fault struck: one that waits until its victim trains again does so later than it begins."""
        return self.world.struck_at.get(struck.fault, struck.began)

    def _kinds(self, struck: _Struck, over: float | None) -> tuple[Kind, ...]:
        """Returns the kinds that a supervisor may give it; empty: it has no incident, or not one alone."""
        kinds, end = KINDS_OF.get(struck.fault.kind, ()), float("inf")
        beside = [o for o in self.all if o is not struck and o.began <= (struck.over or over or end)]
        beside = [o for o in beside if (o.over or over or end) >= struck.began]
        guessed = Kind.ALLOCATION_LOST in kinds or Kind.STALLED in kinds
        if kinds and ((guessed and beside) or any(o.fault.kind in CONTROL for o in beside)):
            # a node's lease may end first where the scheduler, or the gate that hears it, is away. So may a silent
            # node's where etcd is away, and any node's whose agent is away
            return (*kinds, Kind.NODE_LOST)
        return kinds

    def trained(self, at: float) -> bool:
        """Returns true if every group had trained by then: how long a run's start takes does not measure a recovery."""
        all_at = self.world.training.all_at
        return all_at is not None and self.world.launched_at + all_at < at

    def clear(self, over: float | None) -> list[_Struck]:
        """Returns faults with known right incidents: none, or one of a kind, with nothing unclear beside them."""
        end = over if over is not None else float("inf")

        def beside(one: _Struck, other: _Struck) -> bool:
            return one is not other and one.began <= (other.over or end) and other.began <= (one.over or end)

        known = [s for s in self.all if s.fault.kind in CONTROL or s.clear]
        effects = [s for s in self.all if s.fault.kind not in CONTROL]
        # a fault that may or may not have an incident is clear where nothing else has one
        known = [s for s in known if s.fault.kind not in MAY_HAVE or not any(beside(s, o) for o in effects)]
        while True:
            others = [s for s in self.all if s not in known]
            kept = [s for s in known if not any(beside(s, o) for o in others)]
            if len(kept) == len(known):
                return known
            known = kept

    def _done(
        self, number: int, struck: _Struck, group: int, kinds: Sequence[Kind], clear: bool, over: float | None
    ) -> FaultDone:
        node, echoes = struck.groups.get(group, ""), (Kind.PEERS_GONE, *MAY_HAVE.get(struck.fault.kind, ()))
        if self.world.spec.groups.nodes_per_group > 1:
            seen = self.world.checks.incidents.values()
            if struck.fault.kind != "node_lost" and any((i.group, i.kind) == (group, Kind.NODE_LOST) for i in seen):
                node = ""  # the group is silent as a whole: any of its nodes whose agent is away seems lost
            if struck.cut and {i.group for i in seen if i.kind == Kind.ERROR} <= struck.cut:
                echoes += (Kind.ERROR,)  # ranks on both sides lose each other, while the gate hears all their nodes
        return FaultDone(
            number=number, name=struck.fault.kind, group=group, rank=0, generation=0, node=node, step=0, began=struck.began,
            made=struck.began, evidence=struck.fault.kind, healed=over, over=over, kinds=tuple(kinds) if group != NOBODY else (),
            echoes=echoes if clear else tuple(Kind), within_s=0.0, others_within_s=0.0,
        )  # fmt: skip


def _others_s(fault: Fault, faults: Sequence[Fault], within_s: float, clear: bool) -> float:
    if not clear:
        return min(within_s, RECOVERY_BOUND_S)
    if fault.kind in KINDS_OF:
        # a gate that misses a group while etcd is away closes until etcd is back: all stand still
        away = (
            f for f in faults if f.kind == "etcd_away" and f.at <= fault.at + OTHERS_S and f.at + f.seconds >= fault.at
        )
        return OTHERS_S + sum(f.seconds for f in away)
    return UNTOUCHED_S if fault.kind in UNTOUCHED else within_s


def _has_spare(world: World) -> bool:
    """Returns true if a node is free that no group waits for."""
    groups = world.checks.memory.groups.values()
    used, waiting = {node for g in groups for node in g.nodes}, sum(g.size - len(g.seats) for g in groups)
    return sum(n.power and n.name not in used for n in world.nodes.values()) > waiting


def judge(world: World, struck: Struck, over: float | None) -> Asked:
    """Reports violations to the checks. `over`: when all was well again."""
    found = recorded(world)
    policy = world.spec.policy
    budget, began = policy.budget, world.launched_at
    in_time = all(
        struck.trained(s.began) for s in struck.all
    )  # before, a group may still be placed on a node that is already lost
    if in_time and world.training.all_at is not None:
        began += world.training.all_at  # groups that join one after another keep the others waiting with their heals
    struck.well()
    found.faults = struck.done(over)
    found.setting = Setting(
        seed=0, plan=(), planned=0, groups=world.spec.groups.count, ranks=world.spec.groups.ranks_per_group, began=began, ended=world.clock.now,
        budgets={"restart": budget.restart, "replace": budget.replace, "reallocate": budget.reallocate},
        window_s=budget.window_s, breaker_window_s=policy.breaker.window_s,
    )  # fmt: skip
    asked = {
        **ALWAYS,
        **(WHEN_WELL if over is not None else {}),
        **(WHERE_CLEAR if in_time and over is not None else {}),
    }
    for verdict in consistency.check(found, asked):
        silent = verdict.answer == "unknown" and not world.training.newest  # no group ever trained
        if verdict.answer != "pass" and not silent:
            world.checks.broke(f"{verdict.checker}: {verdict.answer}: {'; '.join(verdict.sentences[:2])}")
    clear = struck.clear(over) if over is not None else []
    return Asked(
        faults=len(struck.all),
        bound=sum(s.within_s < RECOVERY_BOUND_S for s in struck.all) if over is not None else 0,
        none=sum(s.fault.kind in UNTOUCHED for s in clear) if in_time else 0,
        one=sum(s.fault.kind in KINDS_OF for s in clear) if in_time else 0,
    )


def recorded(world: World) -> files.History:
    """Returns the history that the files of the same run would give in the real world."""
    steps = [
        files.Steps(group, generation, rank, node, tuple(rows))
        for (group, generation, rank, node), rows in world.training.rows.items()
    ]
    found = files.of_lines(world.spec.name, world.journal, sorted(world.shims.items()), steps)
    # a leader that dies once its last decision is committed leaves no outcome of it, and the next may have nothing to
    # decide. Then the count in the memory shows that it took effect (shell/control/journal.py)
    found.reached = max(found.reached, world.checks.memory.decisions)
    return found
