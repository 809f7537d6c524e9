"""Defines what breaks in the simulator, and how a seed unfolds into a plan of faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from fault_injection.sim.leaders import PROVED_S, Killed, Supervisor
from supervisor.ports.errors import Retryable

if TYPE_CHECKING:
    from fault_injection.sim.nodes import Node, Trainer
    from fault_injection.sim.training import Step
    from fault_injection.sim.world import World

FIRST_S, LAST_S = 3.0, 60.0
"""Seconds, from the launch or from TRAINED_S, within which faults come."""
TRAINED_S = 70.0
"""Seconds after the launch when all groups train: a run of 500 nodes without faults needs up to 58 s."""
APART_S = (20.0, 45.0)
"""Least and most seconds from the end of one fault to the next, where they come one by one. Nothing of the first shows
after 15 s (bounds.SEEN_S)."""
AGAIN_S = (10.0, 15.0)
"""Least and most seconds from one fault to the next of those that spend a budget."""
PASSED_S = 70.0
"""Seconds after which a draw on a budget is forgotten."""
OF_ONE_GROUP = ("crash", "crash_again", "error", "node_lost", "allocation_taken", "frozen_for_good", "frozen_at_start")
"""Faults that hit one group and have one incident."""
CONTROL = ("agent_killed", "watch_late", "watch_reset", "engine_pending", "engine_away", "leader_killed", "leader_killed_deciding",
           "leader_killed_committed", "leader_frozen", "answer_lost", "etcd_away", "calls_lost", "calls_late")  # fmt: skip
"""Faults that take nothing from training: no incident may come of them."""
AT_ONCE = (*OF_ONE_GROUP, "leader_killed", "watch_reset", "gate_killed")
"""Faults that are over as soon as they are made, whatever their seconds are."""
LOOK_S, AWAITED_S = 0.1, 60.0
"""How often, and for how long, a fault looks for a process that it breaks at its start."""
LOST = (0.2, 0.9)
"""Least and most share that a lossy network loses."""
WATCH_LATE_S = (0.5, 4.0)
BEATS_LATE_S, CALLS_LATE_S = (0.5, 4.0), (0.1, 2.0)
"""Least and most of the largest delay, sometimes beyond the heartbeat timeout or a lease's renewal interval."""


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that breaks at a virtual time. `seconds`: how long, where it ends; `target` picks the victim."""

    at: float
    kind: str
    target: int
    seconds: float

    @property
    def lasts_s(self) -> float:
        """Returns the seconds until it is over, or its consequences have begun."""
        return 0.0 if self.kind in AT_ONCE else self.seconds

    def told(self) -> dict[str, float | int | str]:
        return asdict(self)


def is_tight(seed: int) -> bool:
    """Returns true for every fourth seed, which has budgets that are soon spent: its run may halt."""
    return seed % 4 == 3


def plan(seed: int) -> list[Fault]:
    """Returns the seed's faults in order of time.

    One seed of eight, whose budgets are tight, spends them. Of each three others, one begins while the run still
    starts, and one when all groups train. In those two, some faults come two at once, and some hit one victim
    repeatedly. In the third, faults come one by one, and it is clear what each of them did."""
    dice = random.Random(f"plan {seed}")
    if is_tight(seed) and seed % 8 == 7:
        return _spending(dice)
    if seed % 3 == 2:
        return _apart(dice)
    faults: list[Fault] = []
    since = TRAINED_S if seed % 3 == 1 else 0.0
    at = since + dice.uniform(FIRST_S, LAST_S / 2)
    for _ in range(dice.choice((1, 2, 3, 3, 4, 5, 6))):
        fault = Fault(round(at, 2), dice.choice(KINDS), dice.randrange(1 << 16), round(dice.uniform(1.0, 20.0), 1))
        if faults and dice.random() < 0.25:
            last = faults[-1]
            fault = Fault(fault.at, last.kind, last.target, fault.seconds)
        faults.append(fault)
        at = min(since + LAST_S, at + (0.0 if dice.random() < 0.3 else dice.uniform(0.5, 20.0)))
    return sorted(faults)


def _spending(dice: random.Random) -> list[Fault]:
    """Ends one group again and again within a budget's window (world.spec), or loses nodes; then perhaps once more,
    after the window has passed."""
    at = TRAINED_S + dice.uniform(FIRST_S, LAST_S / 2)
    faults = [Fault(round(at, 2), dice.choice(("crash", "node_lost")), dice.randrange(1 << 16), 1.0)]
    kind = "node_lost" if faults[0].kind == "node_lost" and dice.random() < 0.5 else "crash_again"
    for _ in range(dice.choice((2, 3, 4))):
        at += dice.uniform(*AGAIN_S)
        faults.append(Fault(round(at, 2), kind, dice.randrange(1 << 16), AGAIN_S[0]))
    if dice.random() < 0.5:
        faults.append(Fault(round(at + PASSED_S, 2), "crash_again", 0, AGAIN_S[0]))
    return faults


def _apart(dice: random.Random) -> list[Fault]:
    faults: list[Fault] = []
    at = TRAINED_S + dice.uniform(FIRST_S, LAST_S / 2)
    for _ in range(dice.choice((1, 2, 2, 3))):
        kind = dice.choice(OF_ONE_GROUP if dice.random() < 0.5 else KINDS)
        faults.append(Fault(round(at, 2), kind, dice.randrange(1 << 16), round(dice.uniform(1.0, 10.0), 1)))
        at += faults[-1].seconds + dice.uniform(*APART_S)
    return faults


Attributes = Mapping[str, object]


def inject(world: World, fault: Fault) -> bool:
    """Makes the fault; returns false if there was no victim."""
    return (_ALL | _BY_PLAN)[fault.kind](world, fault)


def heal(world: World) -> None:
    """Ends all faults: what recovers by itself does so, and what is broken for good stays broken. A process that was
    frozen for a while already goes on."""
    world.etcd.start()
    world.etcd.delay_s = world.delay_s
    world.engine.away = world.engine.stalled = False
    world.island = frozenset()
    for node in [*world.nodes.values(), *world.hosts.values(), *world.ghosts]:
        node.linked = node.etcd_linked = True
        node.beats_lost, node.beats_late = 0.0, (0.0, 0.0)
        if node.role == "service":
            node.switch(True)
        node.start_agent()
    for gate in world.gates:
        gate.frozen = False
    for client in world.etcd.clients:
        client.lost, client.late_s = 0.0, (0.0, 0.0)
    world.connect()
    world.calm()


def _meanwhile(world: World, fault: Fault, thing: object, during: Attributes, after: Attributes) -> bool:
    """Sets attributes for as long as the fault lasts."""

    def set_to(values: Attributes) -> None:
        for name, value in values.items():
            setattr(thing, name, value)

    set_to(during)
    world.clock.after(fault.seconds, lambda: set_to(after))
    return True


# --- processes and nodes ---


def _trainer(world: World, target: int) -> Trainer | None:
    found = [t for node in world.nodes.values() for t in node.living() if t.ending is None]
    return found[target % len(found)] if found else None


def _node(world: World, target: int) -> Node | None:
    found = [node for node in world.nodes.values() if node.power]
    return found[target % len(found)] if found else None


def _placed_on(world: World, node: str) -> list[tuple[int, str]]:
    """Returns the groups placed on this node, started or not, each with the node."""
    return [(g, node) for g, group in world.checks.memory.groups.items() if group.holds(node)]


def _crash(world: World, fault: Fault) -> bool:
    trainer = _trainer(world, fault.target)
    if trainer is not None:
        world.victims.append((trainer.group, trainer.node.name))
        trainer.end(signal=(9, 11, 6)[fault.target % 3])
    return trainer is not None


def _crash_again(world: World, fault: Fault) -> bool:
    """Ends the last fault's victim again, or a rank of it, as soon as it trains."""
    if not world.victims:
        return _crash(world, fault)
    (group, node), until = world.victims[-1], world.clock.now + fault.seconds
    world.victims.append((group, node))

    def look() -> None:
        # not `node` again: in Python 3.12 and 3.13 the lambda below would then lose the outer one
        found = [t for at in world.nodes.values() for t in at.living() if t.group == group and t.commits]
        for trainer in sorted(found, key=lambda t: (t.node.name != node, t.rank))[:1]:
            trainer.end(signal=9)
            world.struck_at[fault] = world.clock.now
        if not found and world.clock.now < until:
            world.clock.after(LOOK_S, look)

    look()
    return True


def _error(world: World, fault: Fault) -> bool:
    trainer = _trainer(world, fault.target)
    if trainer is not None:
        world.victims.append((trainer.group, trainer.node.name))
        trainer.end(code=1, error=f"RuntimeError: no {fault.target}")
    return trainer is not None


def _freeze(world: World, fault: Fault) -> bool:
    trainer = _trainer(world, fault.target)
    return trainer is not None and _meanwhile(world, fault, trainer, {"frozen": True}, {"frozen": False})


def _frozen_for_good(world: World, fault: Fault) -> bool:
    """Freezes a trainer until it is restarted, as a frozen cgroup does, which the kernel does not show as stopped. A
    new lighthouse never hears it. Then only the length of its step would show it, which the model lacks: it goes on.
    For the same reason it is the rank of its group that heartbeats."""
    found = _trainer(world, fault.target)
    of_group = world.training.all_of(found) if found is not None else []
    trainer = next((t for t in of_group if t.rank == 0), None)
    if trainer is None or not trainer.lives:
        return False
    world.victims.append((trainer.group, trainer.node.name))
    trainer.frozen = True

    def look() -> None:
        unheard = (gate.state for gate in world.gates if gate.serves and trainer.group in gate.state.admitted)
        if any(state.hearing(trainer.group, world.clock.now) == "holding" for state in unheard):
            trainer.frozen = False
        if trainer.frozen and trainer.lives:
            world.clock.after(world.pace.step_s, look)

    look()
    return True


def _frozen_at_start(world: World, fault: Fault) -> bool:
    """Ends a group, and freezes its next process for good before its first commit."""
    crashed = _trainer(world, fault.target)
    if crashed is None:
        return False
    _crash(world, fault)
    until = world.clock.now + AWAITED_S

    def look() -> None:
        of_group = (t for node in world.nodes.values() for t in node.living() if t.group == crashed.group)
        found = [t for t in of_group if t.generation > crashed.generation]
        for trainer in found:
            trainer.frozen = True
        if not found and world.clock.now < until:
            world.clock.after(LOOK_S, look)

    world.clock.after(LOOK_S, look)
    return True


def _node_lost(world: World, fault: Fault) -> bool:
    node = _node(world, fault.target)
    if node is None:
        return False
    world.victims += _placed_on(world, node.name)
    node.power_off()
    if fault.target % 2:  # its processes were killed, and its kernel closed their connections
        world.clock.after(PROVED_S, lambda: setattr(node, "proved", True))
    if fault.target % 3:  # the scheduler notices, sooner or later, or never
        key = node.allocation
        world.clock.after(fault.seconds, lambda: world.engine.end(key, "node failed", notices=False))
    return True


def _unplugged(world: World, fault: Fault) -> bool:
    node = _node(world, fault.target)
    if node is not None and fault.target % 2:  # a proof that is wrong: its old generation lives on
        world.clock.after(PROVED_S, lambda: setattr(node, "proved", not node.linked))
        world.clock.after(fault.seconds, lambda: setattr(node, "proved", False))
    return _cut(world, fault, "linked")


def _agent_cut(world: World, fault: Fault) -> bool:
    return _cut(world, fault, "etcd_linked")


def _cut(world: World, fault: Fault, link: Literal["linked", "etcd_linked"]) -> bool:
    node = _node(world, fault.target)
    if node is None:
        return False

    def set_to(up: bool) -> None:
        setattr(node, link, up)
        world.connect()

    set_to(False)
    world.clock.after(fault.seconds, lambda: set_to(True))
    return True


def _agent_killed(world: World, fault: Fault) -> bool:
    node = _node(world, fault.target)
    if node is None:
        return False
    node.kill_agent()
    world.clock.after(fault.seconds / 4, node.start_agent)
    return True


def _taken(world: World, fault: Fault) -> bool:
    granted = [key for key, held in world.engine.held.items() if held.state == "granted"]
    if granted:
        key = granted[fault.target % len(granted)]
        world.victims += _placed_on(world, world.engine.held[key].host)
        world.engine.end(key, "preempted")
    return bool(granted)


def _heal_source_killed(world: World, fault: Fault) -> bool:
    """Ends a group in the middle of a heal from it: at once, or it ends a group first and waits for the next heal."""
    over_at = world.clock.now + fault.seconds

    def kill(source: Trainer) -> None:
        if source.lives:
            world.victims.append((source.group, source.node.name))
            source.end(signal=9)

    def begins(step: Step) -> None:
        world.training.on_heal = None
        if world.clock.now < over_at:
            _, source = step.heals[fault.target % len(step.heals)]
            world.clock.after((step.healed_at - step.began) / 2, lambda: kill(source))

    if healing := world.training.healing:
        kill(healing[fault.target % len(healing)][1])
        return True
    world.training.on_heal = begins
    return _crash(world, fault)


# --- supervisors ---


def _leader(world: World) -> Supervisor | None:
    return next((s for s in world.supervisors if s.leads), None)


def _leader_killed(world: World, fault: Fault) -> bool:
    leader = _leader(world)
    if leader is not None:
        leader.kill()
    return leader is not None


def _at_commit(when: str, do: Callable[[World, Fault, Supervisor], None]) -> Callable[[World, Fault], bool]:
    """Acts at the leader's next transaction that writes a memory."""

    def armed(world: World, fault: Fault) -> bool:
        leader = _leader(world)
        if leader is None:
            return False

        def reached(at: str) -> None:
            if at == when and leader.loop is not None:
                leader.store.on_commit = None
                do(world, fault, leader)

        leader.store.on_commit = reached
        return True

    return armed


def _dies(world: World, fault: Fault, leader: Supervisor) -> None:
    raise Killed


def _answer_lost(world: World, fault: Fault, leader: Supervisor) -> None:
    raise Retryable("the answer is lost", after_s=0.0)


def _sleeps(world: World, fault: Fault, leader: Supervisor) -> None:
    leader.store.cut()
    world.clock.wait(fault.seconds)
    if not leader.dead:
        leader.store.link()


# --- etcd, the engine, the lighthouse, the network ---


def _etcd_away(world: World, fault: Fault) -> bool:
    if not world.etcd.up:
        return False
    world.etcd.stop()
    share = (fault.target % 5) / 4
    dice = random.Random(fault.target)
    world.clock.after(fault.seconds, lambda: world.etcd.start(lambda lease: dice.random() < share))
    return True


def _watch_late(world: World, fault: Fault) -> bool:
    return _meanwhile(world, fault, world.etcd, {"delay_s": WATCH_LATE_S}, {"delay_s": world.delay_s})


def _watch_reset(world: World, fault: Fault) -> bool:
    world.etcd.compact(world.etcd.revision)
    for client in tuple(world.etcd.clients):
        client.lose_places()
    return True


def _power_loss(world: World, fault: Fault) -> bool:
    """Ends everything at once. All except what the scheduler had granted comes back together."""
    world.etcd.stop()
    world.engine.lose_all("the power went")
    for supervisor in tuple(world.supervisors):
        supervisor.kill()
    for host in world.hosts.values():
        host.switch(False)

    def back() -> None:
        world.engine.away = False
        world.etcd.start()
        for host in world.hosts.values():
            host.switch(True)

    world.clock.after(fault.seconds, back)
    return True


def _engine_pending(world: World, fault: Fault) -> bool:
    return _meanwhile(world, fault, world.engine, {"stalled": True}, {"stalled": False})


def _engine_away(world: World, fault: Fault) -> bool:
    return _meanwhile(world, fault, world.engine, {"away": True}, {"away": False})


def _gate_killed(world: World, fault: Fault) -> bool:
    up = [gate for gate in world.gates if gate.up]
    for gate in up:
        gate.end()
    return bool(up)


def _gate_frozen(world: World, fault: Fault) -> bool:
    up = [gate for gate in world.gates if gate.up and not gate.frozen]
    for gate in up:
        gate.frozen = True
        world.connect()

        def thaw(gate: object = gate) -> None:
            for other in world.gates:
                if other is gate:
                    other.frozen = False
            world.connect()

        world.clock.after(fault.seconds, thaw)
    return bool(up)


def _host_off(world: World, fault: Fault) -> bool:
    """Switches a service host off, perhaps with the lighthouse. Its shim comes up again and knows what had run."""
    host = world.hosts[sorted(world.hosts)[fault.target % 2]]
    if not host.power:
        return False
    host.switch(False)
    world.clock.after(fault.seconds, lambda: host.switch(True))
    return True


def _beats_lost(world: World, fault: Fault) -> bool:
    """Loses a share of the heartbeats of a node's trainers to the gate, and with them their other requests."""
    return _beats(world, fault, random.Random(fault.target).uniform(*LOST), (0.0, 0.0))


def _beats_late(world: World, fault: Fault) -> bool:
    return _beats(world, fault, 0.0, (0.0, random.Random(fault.target).uniform(*BEATS_LATE_S)))


def _beats(world: World, fault: Fault, lost: float, late: tuple[float, float]) -> bool:
    node, well = _node(world, fault.target), {"beats_lost": 0.0, "beats_late": (0.0, 0.0)}
    return node is not None and _meanwhile(world, fault, node, {"beats_lost": lost, "beats_late": late}, well)


def _calls_lost(world: World, fault: Fault) -> bool:
    """Loses a share of the requests to etcd, or of the answers: then the write is done unknown to its client."""
    return _calls(world, fault, random.Random(fault.target).uniform(*LOST), (0.0, 0.0))


def _calls_late(world: World, fault: Fault) -> bool:
    return _calls(world, fault, 0.0, (0.0, random.Random(fault.target).uniform(*CALLS_LATE_S)))


def _calls(world: World, fault: Fault, lost: float, late_s: tuple[float, float]) -> bool:
    """Affects the calls of a node's agent; every third time those of the leader."""
    found = _leader(world) if fault.target % 3 == 0 else _node(world, fault.target)
    if found is None:
        return False
    client, well = found.store if isinstance(found, Supervisor) else found.client, {"lost": 0.0, "late_s": (0.0, 0.0)}
    return _meanwhile(world, fault, client, {"lost": lost, "late_s": late_s}, well)


def _split(world: World, fault: Fault) -> bool:
    """Isolates a service host, and some nodes with it."""
    dice = random.Random(fault.target)
    share = dice.choice((0.0, 0.1, 0.5, 0.9))
    nodes = [name for name in world.nodes if dice.random() < share]
    world.island = frozenset([dice.choice(sorted(world.hosts)), *nodes])
    world.connect()

    def back() -> None:
        world.island = frozenset()
        world.connect()

    world.clock.after(fault.seconds, back)
    return True


_ALL: dict[str, Callable[[World, Fault], bool]] = {
    "crash": _crash,
    "crash_again": _crash_again,
    "error": _error,
    "freeze": _freeze,
    "frozen_for_good": _frozen_for_good,
    "frozen_at_start": _frozen_at_start,
    "heal_source_killed": _heal_source_killed,
    "node_lost": _node_lost,
    "unplugged": _unplugged,
    "agent_cut": _agent_cut,
    "agent_killed": _agent_killed,
    "allocation_taken": _taken,
    "leader_killed": _leader_killed,
    "leader_killed_deciding": _at_commit("before", _dies),
    "leader_killed_committed": _at_commit("after", _dies),
    "leader_frozen": _at_commit("before", _sleeps),
    "answer_lost": _at_commit("after", _answer_lost),
    "etcd_away": _etcd_away,
    "watch_late": _watch_late,
    "watch_reset": _watch_reset,
    "engine_pending": _engine_pending,
    "engine_away": _engine_away,
    "gate_killed": _gate_killed,
    "gate_frozen": _gate_frozen,
    "host_off": _host_off,
    "split": _split,
    "beats_lost": _beats_lost,
    "beats_late": _beats_late,
    "calls_lost": _calls_lost,
    "calls_late": _calls_late,
}
KINDS = tuple(_ALL)
"""The kinds from which a seed draws."""

_BY_PLAN: dict[str, Callable[[World, Fault], bool]] = {"power_loss": _power_loss}
"""Kinds that no seed draws: one more would change the plan of every seed."""

PLANNED = (*KINDS, *_BY_PLAN)
"""The kinds that a plan may name."""
