"""Chooses the checkpoint of a start from disk: the newest complete one there. The etcd record is a hint (ADR 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.model.memory import GroupMemory, Resumed
from supervisor.core.model.observed import Checkpoint, DiskView
from supervisor.core.model.reason import Code, Reason
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

AGAIN_S = 0.1
"""Seconds until the next look: a listing of a few folders takes milliseconds."""


def waits_for_list(r: RoundView, group: GroupMemory) -> Reason | None:
    """Explains why a start from disk must wait: the folder was not listed since the old generation was gone."""
    disk = r.observed.disk
    if disk is None or disk.at >= group.since:
        return None
    r.look_again(r.now + AGAIN_S)
    return Reason.of(Code.BEING_LISTED)


def choose(
    known: Checkpoint | None, disk: DiskView | None, generations: Mapping[int, int]
) -> tuple[Checkpoint | None, Reason | None]:
    """Returns the checkpoint to start from, and why it. `known`: etcd's. `generations`: as Resumed."""
    if disk is None:
        return known, None
    if disk.unseen:
        return known, _starts(_by_record(known, disk.unseen)) if known is not None else None
    given_up = [mark for mark in disk.complete if _is_given_up(mark, known, generations)]
    left = [mark for mark in disk.complete if mark not in given_up]
    passed: tuple[Reason | str, ...] = (
        *(Reason.of(Code.GIVEN_UP, checkpoint=_named(mark)) for mark in given_up),
        *disk.others,
    )
    if not left:
        # to begin at step 0 would throw the record's steps away; where its checkpoint cannot be read the trainers
        # report that
        if known is not None:
            return known, _starts(_by_record(known), passed=passed)
        return known, _starts(Reason.of(Code.STEP_0), passed=passed) if passed else None
    newest = Reason.of(Code.NEWEST_COMPLETE, checkpoint=_named(left[0]))
    return left[0], _starts(newest, _against(known, left), passed)


def _is_given_up(mark: Checkpoint, known: Checkpoint | None, generations: Mapping[int, int]) -> bool:
    """True if a thawed writer saved it: the run started from an older one, and its steps are others since."""
    return mark.generation < generations.get(mark.group, 0) and (known is None or mark.step > known.step)


def _against(known: Checkpoint | None, left: list[Checkpoint]) -> Reason | None:
    """States how the newest one compares with the record; None: they are one."""
    if known is None:
        return Reason.of(Code.NO_RECORD)
    if _same(left[0], known):
        return None
    there = any(_same(known, mark) for mark in left)
    return Reason.of(Code.RECORD_OLDER if there else Code.RECORD_GONE, step=known.step)


def _starts(checkpoint: Reason, record: Reason | None = None, passed: tuple[Reason | str, ...] = ()) -> Reason:
    return Reason.of(Code.STARTS_FROM, checkpoint=checkpoint, record=record, passed=passed)


def _by_record(known: Checkpoint, why: str = "") -> Reason:
    return Reason.of(Code.BY_RECORD, checkpoint=_named(known), why=why)


def take(r: Round, group: GroupMemory) -> Reason | None:
    """Takes the newest complete checkpoint for a start of groups from disk; returns why it."""
    if r.observed.disk is None:
        return None
    before: Resumed | None = r.draft.resumed
    known = r.draft.checkpoint
    taken, said = choose(known, r.observed.disk, before.generations if before is not None else {})
    generations = {g: each.generation for g, each in r.groups.items() if each.generation > 1}
    if taken == known and before is not None and before.generations == generations:
        return before.said  # another group of the same start
    r.draft = replace(r.draft, checkpoint=taken, resumed=Resumed(said=said, generations=generations))
    if said is not None:
        step = taken.step if taken is not None else 0
        r.act("load", f"load:{group.group}:{group.generation}:{step}", said, group=group.group)
    return said


def note(r: Round, group: GroupMemory, said: Reason | None) -> None:
    """Notes the checkpoint from which a group is started in the incident for which it is."""
    incident = r.incidents.get(group.incident)
    if incident is not None and incident.resumed != said:
        r.set_incident(replace(incident, resumed=said))


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    """Returns true if both are one checkpoint: the folder may have been moved."""
    return (one.step, one.group, one.generation) == (other.step, other.group, other.generation)


def _named(mark: Checkpoint) -> Reason:
    return Reason.of(Code.CHECKPOINT, step=mark.step, group=mark.group, generation=mark.generation)
