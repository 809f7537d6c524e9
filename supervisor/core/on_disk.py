"""Chooses the checkpoint of a start from disk: the newest complete one there. The etcd record is a hint (ADR 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.model import Checkpoint, DiskView, GroupMemory, Resumed
from supervisor.core.reason import Code, Reason
from supervisor.core.round import Round

AGAIN_S = 0.1
"""Seconds until the next look: a listing of a few folders takes milliseconds."""


def waits_for_list(r: Round, group: GroupMemory) -> Reason | None:
    """Explains why a start from disk must wait: the folder was not listed since the old generation was gone."""
    disk = r.observed.disk
    if disk is None or disk.at >= group.since:
        return None
    r.look_again(r.now + AGAIN_S)
    return Reason.of(Code.BEING_LISTED)


def choose(
    known: Checkpoint | None, disk: DiskView | None, generations: Mapping[int, int]
) -> tuple[Checkpoint | None, str]:
    """Returns the checkpoint to start from, and a sentence on it. `known`: etcd's. `generations`: as Resumed."""
    if disk is None:
        return known, ""
    if disk.unseen:
        return known, f"{_named(known)}, as the record in etcd has it: {disk.unseen}" if known is not None else ""
    given_up = [mark for mark in disk.complete if _is_given_up(mark, known, generations)]
    left = [mark for mark in disk.complete if mark not in given_up]
    passed = [*map(_why_given_up, given_up), *disk.others]
    if not left:
        # to begin at step 0 would throw the record's steps away; where its checkpoint cannot be read the trainers
        # report that
        said = f"{_named(known)}, as the record in etcd has it: no complete one is there" if known is not None else ""
        return known, _and_passed(said or "step 0: no complete checkpoint is there", passed) if said or passed else ""
    return left[0], _and_passed(f"{_named(left[0])}, the newest complete one{_against(known, left)}", passed)


def _is_given_up(mark: Checkpoint, known: Checkpoint | None, generations: Mapping[int, int]) -> bool:
    """True if a thawed writer saved it: the run started from an older one, and its steps are others since."""
    return mark.generation < generations.get(mark.group, 0) and (known is None or mark.step > known.step)


def _why_given_up(mark: Checkpoint) -> str:
    return f"{_named(mark)} (the run had gone on from an older step by then, without that generation)"


def _against(known: Checkpoint | None, left: list[Checkpoint]) -> str:
    """States how the newest one compares with the record."""
    if known is None:
        return "; etcd had no record of one"
    if _same(left[0], known):
        return ""
    gone = "" if any(_same(known, mark) for mark in left) else ", which is not there or not complete any more"
    return f"; the record in etcd had step {known.step}{gone}"


def _and_passed(said: str, passed: list[str]) -> str:
    return f"{said}; passed over: {', '.join(passed)}" if passed else said


def take(r: Round, group: GroupMemory) -> str:
    """Takes the newest complete checkpoint for a start of groups from disk; returns the sentence on it."""
    if r.observed.disk is None:
        return ""
    before: Resumed | None = r.draft.resumed
    known = r.draft.checkpoint
    taken, said = choose(known, r.observed.disk, before.generations if before is not None else {})
    generations = {g: each.generation for g, each in r.groups.items() if each.generation > 1}
    if taken == known and before is not None and before.generations == generations:
        return before.said  # another group of the same start
    r.draft = replace(r.draft, checkpoint=taken, resumed=Resumed(said=said, generations=generations))
    if said:
        step = taken.step if taken is not None else 0
        why = Reason.of(Code.TEXT, text=said)
        r.act("load", f"load:{group.group}:{group.generation}:{step}", why, group=group.group)
    return said


def note(r: Round, group: GroupMemory, said: str) -> None:
    """Notes the checkpoint from which a group is started in the incident for which it is."""
    incident = r.incidents.get(group.incident)
    if incident is not None and incident.resumed != said:
        r.set_incident(replace(incident, resumed=said))


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    """Returns true if both are one checkpoint: the folder may have been moved."""
    return (one.step, one.group, one.generation) == (other.step, other.group, other.generation)


def _named(mark: Checkpoint) -> str:
    return f"step {mark.step} of {_writer(mark)}"


def _writer(mark: Checkpoint) -> str:
    return f"group {mark.group}, generation {mark.generation}"
