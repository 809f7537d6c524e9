"""Lends the nodes of a pool to the runs that are launched on it (docs/POOLS.md). Pure, and level-triggered: it compares
what runs want with what they have, as an engine's driver does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.model.memory import AllocationMemory
from supervisor.core.model.observed import Grant

GIVEN_BACK = "given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An allocation that a pool holds and wants to keep."""

    grant: Grant
    host: str
    switch: str = ""
    usable: bool = True
    """True if its node is registered, stays, and no cordon bars its host."""
    comes: bool = False
    """True if it is not usable yet and may be soon, without a person: it is asked for, or its node is starting."""
    runs: frozenset[str] = frozenset()
    """Runs that still have a process there, or of which one is desired there."""
    mesh: bool = False
    """True if someone has a Monarch mesh there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool, as its own records show it."""

    name: str
    there: bool = True
    """False if no pool of this name exists any more."""
    over: str = ""
    """Reason why it lends nothing any more, now and later; empty: it does."""
    grants: Mapping[str, Grant] = field(default_factory=dict)
    """The engine's reports of all its allocations, by key."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """By key: allocations that it wants and that are granted or asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An allocation of a run on the pool, and what the run has been granted for it."""

    run: str
    allocation: AllocationMemory
    grant: Grant | None


def lend(pool: Pool, asked: Sequence[Asked], elsewhere: Mapping[str, str]) -> dict[str, Grant]:
    """Returns the grants of these allocations, by key, as they must be now.

    `elsewhere` names the pool's allocations that must not be lent for another reason, each with the run that may have
    it. An allocation of the pool is lent to one run at a time. The oldest request gets the first free node, in the
    order of switches and names.
    """
    found = {each.allocation.key: grant for each in asked if (grant := _standing(pool, each)) is not None}
    lent = {g.through: each.run for each in asked if (g := found.get(each.allocation.key)) and g.state == "granted"}
    lent = {**elsewhere, **lent}
    free = sorted((held for key, held in pool.held.items() if key not in lent), key=_order)
    waiting = [each for each in asked if each.allocation.key not in found]
    waiting.sort(key=lambda each: (each.allocation.since, each.run, _natural(each.allocation.key)))
    for each in waiting:
        one = next((held for held in free if _suits(held, each)), None)
        if one is not None:
            free.remove(one)
            found[each.allocation.key] = _granted(pool, each.allocation.key, one.grant)
            lent[one.grant.key] = each.run
    left = [each.allocation.key for each in waiting if each.allocation.key not in found]
    coming, why = sum(held.comes or bool(held.usable and held.runs) for held in free), _why(pool, lent, free)
    for number, key in enumerate(left):
        if pool.over or not pool.there:
            found[key] = Grant(key=key, state="refused", reason=pool.over or f"there is no pool {pool.name}")
        else:
            # named, so that it counts as queued: the run waits in line for as long as it takes
            exhausted = number >= coming
            found[key] = Grant(key=key, state="pending", engine_id=pool.name, reason=why, exhausted=exhausted)
    return found


def _standing(pool: Pool, each: Asked) -> Grant | None:
    """Returns the grant of an allocation that needs no node: it has one, or gets none any more. Else None."""
    told, key = each.grant, each.allocation.key
    if each.allocation.state == "released":
        if told is None or told.state == "refused":
            return Grant(key=key, state="gone", reason=GIVEN_BACK)
        back = told if told.state == "gone" else replace(told, state="gone", reason=GIVEN_BACK, exhausted=False)
        return _with_its_end(pool, back)
    if told is None or told.state == "pending":
        return None
    if told.state == "granted":
        through = pool.grants.get(told.through)
        if not pool.there:
            return replace(told, state="gone", reason=f"there is no pool {pool.name} any more")
        if through is None:
            return told  # its record cannot be read: unknown is not gone
        if through.state == "granted":
            return replace(told, leaving=through.leaving, leaves_in_s=through.leaves_in_s)
        gone = f"allocation {through.key} of pool {pool.name} is {through.state}"
        told = replace(told, state="gone", reason=f"{gone}: {through.reason}" if through.reason else gone)
    return _with_its_end(pool, told)


def _with_its_end(pool: Pool, gone: Grant) -> Grant:
    """Passes on that the engine has ended what ran there. That a run gave a node back proves no such thing."""
    through = pool.grants.get(gone.through)
    ended = through is not None and through.state == "gone" and through.ended
    return replace(gone, ended=True) if ended and not gone.ended else gone


def _granted(pool: Pool, key: str, of_pool: Grant) -> Grant:
    return Grant(
        key=key,
        state="granted",
        nodes=of_pool.nodes,
        engine_id=f"{pool.name}/{of_pool.key}",
        through=of_pool.key,
        leaving=of_pool.leaving,
        leaves_in_s=of_pool.leaves_in_s,
    )


def _suits(held: Held, each: Asked) -> bool:
    """Returns true if the node may go to that run. Its agent ends what an earlier run left there; until it has, no other
    run gets it. A mesh keeps it."""
    return held.usable and not held.mesh and held.host not in each.allocation.exclude and not held.runs - {each.run}


def _order(held: Held) -> tuple[object, ...]:
    return (held.switch, [_natural(node) for node in held.grant.nodes], _natural(held.grant.key))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _why(pool: Pool, lent: Mapping[str, str], free: Collection[Held]) -> str:
    """Returns how many nodes the pool has and who uses them."""
    users = sorted(Counter(run for key, run in lent.items() if key in pool.held).items())
    parts = [f"run {run} has {count}" for run, count in users]
    leaves = sorted({run for held in free if held.usable for run in held.runs})
    parts += [f"run {run} is still leaving its own" for run in leaves]
    not_yet = sum(held.comes for held in free)
    parts += [f"{not_yet} still to come" if not_yet else ""]
    meshes = sum(held.usable and held.mesh for held in free)
    parts += [f"{meshes} with a Monarch mesh" if meshes else ""]
    others = sum(held.usable and not held.runs and not held.mesh for held in free)
    parts += [f"{others} free on hosts that it must not have" if others else ""]
    useless = sum(not held.usable and not held.comes for held in free)
    parts += [f"{useless} that cannot be used" if useless else ""]
    said = ", ".join(part for part in parts if part)
    return f"pool {pool.name} has no free node for it (nodes: {len(pool.held)}{f'; {said}' if said else ''})"
