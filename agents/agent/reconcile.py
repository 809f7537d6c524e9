"""Computes the node's actions from what is desired and what runs. Pure: no clock, no I/O.

Called again at every change, so nothing here waits: an action that cannot be done yet is not in the list yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agents.agent.names import LighthouseName, Name, TrainerName, parse
from supervisor.wire.records import LighthouseDesired, NodeDesired, ProcessRecord, TrainerDesired


@dataclass(frozen=True)
class Start:
    """Start these ranks of a generation."""

    desired: TrainerDesired
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class NotOurs:
    """Starts none of these ranks: they are meant for another allocation's agent of this node name."""

    desired: TrainerDesired
    why: str


@dataclass(frozen=True)
class StartLighthouse:
    """Start a gate with its lighthouse."""

    desired: LighthouseDesired


@dataclass(frozen=True)
class Forward:
    """Point the forwarder of a generation at the run's gate."""

    desired: TrainerDesired


@dataclass(frozen=True)
class Stop:
    """End a process: TERM, then KILL once `policy.term_grace_s` has passed, or KILL at once."""

    name: str
    why: str
    at_once: bool = False
    cut_off_s: float | None = None
    """`policy.cut_off_stop_s`, if it is the reason; None: another one is."""


@dataclass(frozen=True)
class Forget:
    """Let the shim drop the record of this exited process."""

    name: str


Action = Start | NotOurs | StartLighthouse | Forward | Stop | Forget


def reconcile(
    desired: Mapping[str, NodeDesired], processes: Sequence[ProcessRecord], allocation: str = ""
) -> list[Action]:
    """Returns the actions, in order.

    `desired` is by run. A run that is missing is unknown (its record is corrupt, or was never read), and what runs of
    it is left alone. A run that must not run here has a record that says so. `allocation` is the one that gave this
    node; empty: unknown.
    """
    known = [(name, record) for record in processes if (name := parse(record.name)) is not None]
    stops = {
        stop.name: stop for stop in [*_drained(desired, known), *_orphaned_ranks(known), *_unwanted(desired, known)]
    }
    return [
        *stops.values(),
        *_forgettable(desired, known),
        *(a for node in desired.values() for trainer in node.trainers for a in _trainer(trainer, known, allocation)),
        *(action for node in desired.values() for light in node.lighthouses for action in _lighthouse(light, known)),
    ]


_Known = Sequence[tuple[Name, ProcessRecord]]


def _newest_wanted(desired: Mapping[str, NodeDesired], name: Name) -> int | None:
    """Returns the desired generation of the group or lighthouse that `name` belongs to; None if none is desired."""
    node = desired[name.run]
    if isinstance(name, LighthouseName):
        return max((light.generation for light in node.lighthouses), default=None)
    return max((trainer.generation for trainer in node.trainers if trainer.group == name.group), default=None)


def _unwanted(desired: Mapping[str, NodeDesired], known: _Known) -> Iterator[Stop]:
    for name, record in known:
        if record.exited or name.run not in desired:
            continue
        wanted = _newest_wanted(desired, name)
        if wanted is None:
            yield Stop(record.name, "it must not run on this node")
        elif wanted > name.generation:
            # it may be inside a collective with a lost rank, where no signal is handled; its step is lost with its
            # generation, and the ranks on all other nodes of its group wait until it is gone
            at_once = _is_on_several(desired[name.run], name)
            yield Stop(record.name, f"generation {wanted} replaces it", at_once)
        elif isinstance(name, LighthouseName) and _is_to_close(desired[name.run], name):
            yield Stop(record.name, "the supervisor closes it")
        # an older desired generation is a stale record: what runs is newer than its writer knew


def _is_on_several(node: NodeDesired, name: Name) -> bool:
    return isinstance(name, TrainerName) and any(t.nodes > 1 for t in node.trainers if t.group == name.group)


def _drained(desired: Mapping[str, NodeDesired], known: _Known) -> Iterator[Stop]:
    """Stops commands that report no steps, where the others end at a common step."""
    ends = {
        f"{each.run}.{each.group}.{each.generation}"
        for node in desired.values()
        for each in node.trainers
        if each.trainer.plain and each.stop_at_step is not None
    }
    for name, record in known:
        if isinstance(name, TrainerName) and not record.exited and name.way in ends:
            yield Stop(record.name, "its group is drained, and it knows no step to end at")


def _is_to_close(node: NodeDesired, name: LighthouseName) -> bool:
    return any(light.close and light.generation == name.generation for light in node.lighthouses)


def _orphaned_ranks(known: _Known) -> Iterator[Stop]:
    """Stops the other ranks of a generation once one has failed: a group steps with all of its ranks or not at all."""
    failed = {
        name.way: record.name
        for name, record in known
        if isinstance(name, TrainerName) and record.exited and record.exit_code != 0
    }
    for name, record in known:
        if isinstance(name, TrainerName) and not record.exited and name.way in failed:
            yield Stop(record.name, f"{failed[name.way]}, another rank of its generation, has failed")


def _forgettable(desired: Mapping[str, NodeDesired], known: _Known) -> Iterator[Forget]:
    """Forgets an exited process whose group is not desired here, or that has a newer generation here. Not earlier: the
    newest record is what shows that a desired record is stale."""
    for name, record in known:
        if not record.exited or name.run not in desired:
            continue
        successor = any(_successor(name, other) for other, _ in known)
        if successor or _newest_wanted(desired, name) is None:
            yield Forget(record.name)


def _successor(name: Name, other: Name) -> bool:
    if isinstance(name, TrainerName):
        same = isinstance(other, TrainerName) and (name.run, name.group) == (other.run, other.group)
    else:
        same = isinstance(other, LighthouseName) and name.run == other.run
    return same and other.generation > name.generation


def _trainer(trainer: TrainerDesired, known: _Known, allocation: str) -> Iterator[Action]:
    of_group = [
        (name, record)
        for name, record in known
        if isinstance(name, TrainerName) and (name.run, name.group) == (trainer.run, trainer.group)
    ]
    if any(name.generation > trainer.generation for name, _ in of_group):
        return  # a stale record
    if any(name.generation < trainer.generation and not record.exited for name, record in of_group):
        return  # never two generations at once: the older is being stopped
    own = {name.rank: record for name, record in of_group if name.generation == trainer.generation}
    if own:
        yield Forward(trainer)  # also for one that has ended: a new gate must hear that it is gone
    missing = tuple(rank for rank in trainer.ranks if rank not in own)
    # a generation is started once: when one rank has exited, the missing ones are not started any more
    if trainer.hold or not missing or any(record.exited for record in own.values()):
        return
    # a host may be granted again under its name before the supervisor withdraws the last allocation's record
    if allocation and trainer.allocation and trainer.allocation != allocation:
        yield NotOurs(trainer, _not_ours(trainer, allocation))
    else:
        yield Start(trainer, missing)


def _not_ours(trainer: TrainerDesired, allocation: str) -> str:
    return (
        f"run {trainer.run} group {trainer.group} generation {trainer.generation} is wanted here by allocation "
        f"{trainer.allocation}, but this node is of {allocation}: not started; the supervisor will place it again"
    )


def _lighthouse(light: LighthouseDesired, known: _Known) -> Iterator[Action]:
    of_run = [(n, r) for n, r in known if isinstance(n, LighthouseName) and n.run == light.run]
    if light.close or any(name.generation >= light.generation for name, _ in of_run):
        return
    if all(record.exited for _, record in of_run):
        yield StartLighthouse(light)
