"""Queries of one round of deciding: on what was observed, on the spec, and on the memory as it stands in this round.

A rule that takes a RoundView changes nothing: mypy and the type of each attribute hold that. All that it leaves behind
is a wait, with a time to look again. A rule that changes something takes a Round (draft.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from supervisor.core.evidence import disk_faults, gpu_faults
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Is, Kind, Rung, RunPhase, that_are
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory
from supervisor.core.model.observed import Grant, NodeView, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import RunSpec
from supervisor.core.policy import budgets, cordons
from supervisor.core.policy.ladder import Choice, Means, choose

MAX_CHANGES = 15
"""Groups that one round may change."""
MAX_RECORDS = 105
"""Records that the changes of one round may take: a group and its incident, and for each of its nodes the allocation
that is given back, the new one and the suspicion of its host. They are written at once, and a transaction holds 120."""

MAY_COME_BACK = that_are(Is.MAY_COME_BACK)


class RoundView:
    """One round, to be read."""

    groups: Mapping[int, GroupMemory]
    allocations: Mapping[str, AllocationMemory]
    incidents: Mapping[str, Incident]
    """The open ones."""
    cordons: Mapping[str, Reason]
    spent: Mapping[str, tuple[float, ...]]
    spent_by_kind: Mapping[str, tuple[float, ...]]
    restarts_done: Mapping[int, int]

    def __init__(self, observed: Observed, spec: RunSpec, memory: Memory) -> None:
        self.observed = observed
        self.spec = spec
        self.before = memory
        self.now = observed.now
        self.groups = dict(memory.groups)
        self.allocations = dict(memory.allocations)
        self.incidents = dict(memory.incidents)
        self.cordons = dict(memory.cordons)
        self.spent = dict(memory.spent)
        self.spent_by_kind = dict(memory.spent_by_kind)
        self.restarts_done = dict(memory.restarts_done)
        self._barred_for_all = cordons.barred(observed, {})
        self._draft = memory
        self.waits: dict[str, Reason] = {}
        self._wake: list[float] = []
        self._touched: set[int] = set()
        self._records: set[str] = set()
        """Records about nodes in this round, by names of their own: allocations, hosts suspected or cleared."""
        self._arrived: set[str] | None = None
        self._candidates: list[str] | None = None
        self._ill: dict[str, str] | None = None
        self._well: int | None = None
        self._held_now: set[str] = set()
        """Nodes given to a group in this round."""

    @property
    def draft(self) -> Memory:
        """Memory of the next round, except groups, allocations, incidents, cordons and budgets, which are above."""
        return self._draft

    def wait(self, why: Reason, until: float | None = None, group: int | None = None) -> None:
        """Reports that something is not done yet, and why. `group`: the one that it is about, if `why` does not name it."""
        why = why if group is None else Reason.of(Code.ABOUT_GROUP, group=group, why=why)
        self.waits.setdefault(repr(why), why)
        if until is not None:
            self.look_again(until)

    def look_again(self, at: float) -> None:
        self._wake.append(at)

    @property
    def paused(self) -> bool:
        return self.observed.control.paused

    @property
    def phase(self) -> RunPhase:
        return self.draft.phase

    def full(self, group: int) -> bool:
        """Returns true if this round may change no further group; the next round follows at once."""
        if not self._touched and not self._records:
            return False
        # one that only its phase has touched so far may still be moved: that is three records for each of its nodes
        more = group not in self._touched
        if len(self._touched) + more <= MAX_CHANGES and self.room >= 2 * more + 3 * self.spec.groups.nodes_per_group:
            return False
        self.look_again(self.now)
        return True

    @property
    def room(self) -> int:
        """Records that this round may still write, below 0 if it has taken more than that."""
        return MAX_RECORDS - 2 * len(self._touched) - len(self._records)

    @property
    def quiet(self) -> bool:
        """True if this round has changed no group and no incident yet."""
        return not self._touched

    @property
    def handover_at_step(self) -> int | None:
        return self.draft.handover_at_step if self.phase == "running" else None

    def taken(self) -> set[str]:
        """Nodes that a group holds. Those that a group keeps while it waits for another may serve the others."""
        return {
            node
            for g in self.groups.values()
            if g.phase != "finished" and (g.placed or g.phase != "placing")
            for node in g.nodes
        }

    def spares(self) -> list[str]:
        """Healthy nodes of our allocations that no group holds and no cordon bars: warm ones first, then by name."""
        return [*self._spares()]

    def last_resort(self) -> list[str]:
        """Nodes that lack only a usable disk, for when there is no spare and none can be asked for."""
        return [name for name in self._free() if name in self.ill]

    @property
    def ill(self) -> dict[str, str]:
        """Nodes whose disk cannot be used now -> why."""
        if self._ill is None:
            self._ill = disk_faults.ill(self.observed.nodes.values())
        return self._ill

    def needs(self, group: GroupMemory) -> int:
        """Number of nodes that the group must be given if it moves: for those at fault, or else for all that it has."""
        lost = [seat for seat in group.seats if seat.node in group.at_fault] or group.seats
        return group.size - len(group.seats) + len(lost)

    def can_move(self, group: int) -> bool:
        """Returns true if there are spares enough for the group to move."""
        wanted = self.needs(self.groups[group])
        return any(count == wanted for count, _ in enumerate(self._spares(), 1))

    @property
    def next_spare(self) -> str:
        """The first spare, or empty."""
        return next(self._spares(), "")

    def _spares(self) -> Iterator[str]:
        """Yields spares as they are needed, since failures ask one by one."""
        return (name for name in self._free() if name not in self.ill)

    @property
    def one_in_need(self) -> str:
        """The first node of last resort, if no other may be asked for: for a group that cannot stay where it is."""
        return next(iter(self.last_resort()), "") if self.ill and not self.left(Rung.REALLOCATE, 0) else ""

    @property
    def well(self) -> int:
        """Number of groups that trained when this round began."""
        if self._well is None:
            running = [g for g in self.before.groups.values() if g.phase == "running"]
            failed = [g for g in running if g.incident and not trains(g, self.before.incidents)]
            self._well = len(running) - len(failed)
        return self._well

    def busy(self, group: GroupMemory) -> str:
        """The group's open incident, if it is acted on; empty: there is none, or it is only observed."""
        incident = self.incidents.get(group.incident)
        return "" if incident is not None and incident.shadow else group.incident

    def _free(self) -> Iterator[str]:
        if self._candidates is None:
            held = self.taken()
            free = (
                n
                for n in self.observed.nodes.values()
                if n.name not in held and not (n.checking or self.observed.lacks_code(n)) and self._may_serve(n)
            )
            self._candidates = [n.name for n in sorted(free, key=lambda n: (not n.warm, n.name))]
        held, bars = self._held_now, self.bars
        for name in self._candidates:
            if name not in held and not (bars and self.is_barred(self.host_of(name))):
                yield name

    def unfit(self) -> dict[str, Reason]:
        """Free nodes on which no group is placed -> why."""
        held, nodes = self.taken(), self.observed.nodes.values()
        told = (n for n in nodes if n.gpus or n.failed or n.unsure)
        free = (n for n in told if n.registered and n.role == "trainer" and n.name not in held)
        return {n.name: Reason.of(Code.NODE_UNFIT, node=n.name, why=why) for n in free if (why := self.unfit_for(n))}

    def passed_over(self) -> dict[str, Reason]:
        """Nodes as in unfit, and those that get a group only if there is no other."""
        held, nodes = self.taken(), self.observed.nodes
        ill = {name: why for name, why in self.ill.items() if name not in held and not self.unfit_for(nodes[name])}
        return self.unfit() | {n: Reason.of(Code.NODE_DISFAVOURED, node=n, why=why) for n, why in ill.items()}

    def unfit_for(self, node: NodeView, for_good: bool = False) -> str:
        """Explains why no group is placed on a node: its checks, or its GPUs (`for_good`: a lasting condition)."""
        return node.failed or node.unsure or gpu_faults.unfit(node, self.spec, for_good)

    @property
    def bars(self) -> bool:
        """True if any host is barred."""
        return bool(self.cordons or self._barred_for_all)

    def is_barred(self, host: str) -> bool:
        """Returns true if a cordon keeps new groups away from the host: one of this run's own, or one for every run."""
        return host in self.cordons or host in self._barred_for_all

    def why_barred(self, host: str) -> Reason | str:
        return self.cordons.get(host) or self._barred_for_all.get(host, "")

    def checking(self) -> Reason | None:
        """States that nodes which could take a group are being checked, within a limit of their agents, or fetch its code;
        else None."""
        held = self.taken()
        nodes = [n for n in self.observed.nodes.values() if n.checking or self.observed.lacks_code(n)]
        free = sorted((n for n in nodes if n.name not in held and self._may_serve(n)), key=lambda n: n.name)
        if found := [n.name for n in free if n.checking]:
            return Reason.of(Code.BEING_CHECKED, node=found[0], more=len(found) - 1)
        return lack_of_code(self.observed, [n for n in free if n.name not in self.ill])  # a full disk takes no code

    def drained(self, host: str) -> str:
        """Explains why a person drains a host; empty if its groups may stay."""
        cordon = self.observed.cordons.get(host)
        return cordon.drain if cordon is not None else ""

    def may_stay(self, seat: Seat) -> bool:
        """Returns true if a group that waits for another node may start on this one, which it has kept."""
        node = self.observed.nodes.get(seat.node)
        if node is None or not self._may_serve(node):
            return False
        same = not seat.allocation or node.allocation == seat.allocation
        return same and not (self.bars and self.is_barred(node.machine))

    def _may_serve(self, node: NodeView) -> bool:
        if not node.registered or node.role != "trainer":
            return False
        allocation, grant = self.allocations.get(node.allocation), self.observed.grants.get(node.allocation)
        if allocation is None or allocation.state != "wanted" or grant is None or grant.state != "granted":
            return False
        if node.slots < self.spec.groups.slots or self.unfit_for(node):
            return False
        return not (node.leaving or grant.leaving or (self.observed.cordons and self.drained(node.machine)))

    def host_of(self, node: str) -> str:
        """The machine of a node, as far as it is known: a node that was never here counts as its own host."""
        view = self.observed.nodes.get(node)
        if view is not None and (view.host or view.registered):
            return view.machine
        for g in self.groups.values() if node else ():
            for seat in g.seats:
                if seat.node == node and seat.host:
                    return seat.host
        return node

    def seat_on(self, node: str) -> Seat:
        """Returns a seat on a node as it is now."""
        key = self.allocation_of(node)
        grant = self.observed.grants.get(key)
        return Seat(node, self.host_of(node), key, grant.through if grant is not None else "")

    def its_host(self, group: GroupMemory) -> str:
        """The machine that a failure of the group counts for: that of the node at fault, or of its first one."""
        return self.host_of(group.failed_node)

    def held(self) -> set[str]:
        """Allocations on which a group lives, or has lived and is not proved gone; of a pool, those that a run has."""
        there = [g for g in self.groups.values() if g.phase != "finished"]
        seats = (seat for g in there for seat in (g.last_seats if g.phase == "fencing" else g.seats))
        return {self.given_by(seat) for seat in seats} | self.observed.lent.keys()

    def leaving(self, node: str) -> str:
        """Explains why a node must be left: the engine takes it, or a person drains its host. Empty: it may stay."""
        view = self.observed.nodes.get(node)
        grant = self.observed.grants.get(self.allocation_of(node))
        if grant is not None and grant.state == "granted" and grant.leaving:
            return grant.leaving
        if view is not None and view.leaving:
            return view.leaving
        return self.drained(self.host_of(node)) if self.observed.cordons else ""

    def must_leave(self, group: GroupMemory) -> str:
        """Explains why a group must leave a node of its own, as `leaving` does; empty if it may stay."""
        return next((why for node in group.nodes if (why := self.leaving(node))), "")

    def seats_to_leave(self, group: GroupMemory) -> tuple[Seat, ...]:
        """Returns the seats whose nodes must be left, as `leaving` has it; all of the group's if none must."""
        return tuple([seat for seat in group.seats if self.leaving(seat.node)]) or group.seats

    def successor(self, key: str) -> str:
        """The allocation that was asked for in place of a leaving one, if it still may serve for it."""
        allocation = self.allocations.get(key)
        after = self.allocations.get(allocation.successor) if allocation is not None else None
        if after is None or after.state != "wanted":
            return ""
        grant = self.observed.grants.get(after.key)
        if grant is not None and grant.state in ("gone", "refused"):
            return ""
        placed = (g for g in self.groups.values() if g.seats and g.phase != "finished")
        held = {given for g in placed for given in self.placed_by(g)}
        return "" if after.key in held else after.key

    def refused(self) -> list[AllocationMemory]:
        """Wanted allocations that the engine has refused, and after which it has granted none; the newest first."""
        wanted = [a for a in self.allocations.values() if a.state == "wanted"]
        states = {g.key: g.state for g in self.observed.grants.values()}
        since = max((a.since for a in wanted if states.get(a.key) == "granted"), default=-1.0)
        found = [a for a in wanted if states.get(a.key) == "refused" and a.since >= since]
        return sorted(found, key=lambda a: a.since, reverse=True)

    def engines_word(self, key: str) -> str:
        """The engine's words on an allocation; empty if there are none."""
        grant = self.observed.grants.get(key)
        return grant.reason if grant is not None else ""

    def placed_by(self, group: GroupMemory) -> tuple[str, ...]:
        """Keys of the allocations by which a group is where it is, or was until it is proved gone."""
        return tuple([self.given_by(seat) for seat in group.last_seats])

    def given_by(self, seat: Seat) -> str:
        """Key of the allocation that gave a seat, or an empty string."""
        return seat.allocation or self.allocation_of(seat.node)

    def allocations_of(self, group: GroupMemory) -> list[AllocationMemory]:
        """Our allocations of placed_by."""
        return [self.allocations[key] for key in self.placed_by(group) if key in self.allocations]

    def is_leaving(self, group: GroupMemory) -> bool:
        """Returns true if a notice was seen that an allocation of the group will be taken away."""
        return any(allocation.leaving_since is not None for allocation in self.allocations_of(group))

    def is_taken_away(self, seat: Seat) -> bool:
        """Returns true if a notice was seen that the allocation of a seat will be taken away."""
        allocation = self.allocations.get(self.given_by(seat))
        return allocation is not None and allocation.leaving_since is not None

    def word_on(self, group: GroupMemory, words: Mapping[str, str]) -> str:
        """The word on an allocation of the group; empty if there is none. `words`: by allocation."""
        return next((words[key] for key in self.placed_by(group) if key in words), "")

    def grants_of(self, group: GroupMemory) -> list[Grant]:
        """The engine's answers for the allocations of placed_by."""
        grants = (self.observed.grants.get(key) for key in self.placed_by(group))
        return [grant for grant in grants if grant is not None]

    def allocation_of(self, node: str) -> str:
        """Key of the allocation that gave a node, or an empty string."""
        view = self.observed.nodes.get(node)
        if view is not None and view.allocation:
            return view.allocation
        # A node may have been given twice, one time after the other: the allocation that is still wanted counts.
        keys = [g.key for g in self.observed.grants.values() if node in g.nodes]
        return next(
            (k for k in keys if k in self.allocations and self.allocations[k].state == "wanted"), "".join(keys[-1:])
        )

    def pending(self) -> list[AllocationMemory]:
        """Wanted allocations that have not brought a usable node yet."""
        return [a for a in self.allocations.values() if a.state == "wanted" and not self._delivered(a)]

    def exhausted(self, allocation: AllocationMemory) -> bool:
        """Returns true if the engine has no node left for it."""
        grant = self.observed.grants.get(allocation.key)
        return grant is not None and grant.state == "pending" and grant.exhausted

    def queued(self) -> list[AllocationMemory]:
        """Wanted allocations that the engine has queued and not granted: asking again would lose their place."""
        grants = self.observed.grants
        wanted = [a for a in self.allocations.values() if a.state == "wanted" and a.key in grants]
        return [a for a in wanted if grants[a.key].state == "pending" and grants[a.key].engine_id]

    def _delivered(self, allocation: AllocationMemory) -> bool:
        grant = self.observed.grants.get(allocation.key)
        if grant is None or grant.state == "pending":
            return False
        if grant.state in ("gone", "refused"):
            return True
        if allocation.key in self.here() or any(self.is_barred(self.host_of(node)) for node in grant.nodes):
            return True
        # Granted, but its node does not come, or came and went: after a while it is not waited for any more.
        since = allocation.unheard_since if allocation.unheard_since is not None else self.now
        deadline = since + self.spec.policy.allocation_timeout_s
        if self.now < deadline:
            self.look_again(deadline)
        return self.now >= deadline

    def here(self) -> set[str]:
        """Allocations of which a node is registered."""
        if self._arrived is None:
            self._arrived = {n.allocation for n in self.observed.nodes.values() if n.registered}
        return self._arrived

    def choose(
        self,
        kind: Kind,
        group: int,
        at_least: Rung = Rung.RIDE_THROUGH,
        passed: Reason | None = None,
        *,
        unpaid: bool = False,
    ) -> Choice:
        """Chooses the rung for a failure by the ladder. `unpaid`: whatever the budgets have left."""
        of_kind = self.spent_by_kind.get(budgets.kind_scope(kind, group), ())
        spare = self.can_move(group) or bool(kind != Kind.STRAGGLER and self.one_in_need)
        means = Means(now=self.now, spent={} if unpaid else self.spent, of_kind=() if unpaid else of_kind, spare=spare)
        return choose(kind, group, self.spec.policy, means, at_least, passed)

    def left(self, rung: Rung, group: int) -> int:
        """Number of draws that a rung's budget has left."""
        return budgets.left(self.spent, self.spec.policy.budget, rung, group, self.now)


def lack_of_code(observed: Observed, nodes: Sequence[NodeView]) -> Reason | None:
    """States that nodes have not all of the code of the next start yet; None if they have."""
    lack = [n for n in nodes if observed.lacks_code(n)]
    if not lack:
        return None
    about = {"node": lack[0].name, "more": len(lack) - 1, "why": lack[0].code_error}
    return Reason.of(Code.LACKS_CODE, **about, knows=lack[0].codes is not None)


def trains(group: GroupMemory, incidents: Mapping[str, Incident]) -> bool:
    """Returns true if the group steps, as far as incidents show: one that is only slow, and left so, does."""
    incident = incidents.get(group.incident)
    slow = incident is not None and incident.shadow and incident.kind == Kind.STRAGGLER
    return group.phase == "running" and (slow or not group.incident)


def is_rider(incident: Incident | None) -> bool:
    """Returns true if the incident is being ridden through."""
    # In a paused run a silence may turn into a graver kind without a decision: the group still may come back.
    return incident is not None and incident.rung == Rung.RIDE_THROUGH and incident.kind in MAY_COME_BACK
