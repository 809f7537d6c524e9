"""The same end again: what is remembered of the last one, and when it is the program's fault and no machine's.

A program's error comes back wherever it is started again. Three shapes of it are known: the same error at the same step in
every group; at the same step again after resuming from the checkpoint before it; and before the first commit, whatever was
tried. Starting it once more then burns budgets and hosts for nothing.

An error of what all nodes share (a store that is away) looks the same, but passes (`away`).
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import away, breaker, errors, often, outside, shadow
from supervisor.core import budget as budgets
from supervisor.core.kinds import Is, that_are
from supervisor.core.model import Failure, GroupMemory, Kind, RankView, Rung, Seen
from supervisor.core.reason import Code, Reason, strings
from supervisor.core.round import Round

TRIED = 3
"""The same end so many times in a row: in place, again, and then elsewhere if there is a spare. Of an exception that comes
after steps that went well, at the same step, two are enough."""

BY_END = that_are(Is.ALIKE_BY_END)

NOBODYS = that_are(Is.SAYS_NOTHING_OF_PROGRAM)
"""Ends that say nothing of the program: what was seen before them is not over."""


def remember(r: Round, group: GroupMemory, failure: Failure, ranks: tuple[RankView, ...]) -> GroupMemory:
    """Take this end into the group's memory; once for a generation."""
    seen = group.seen
    if failure.kind in NOBODYS or (seen is not None and seen.generation == group.generation):
        return group
    step = max((rank.step for rank in ranks), default=0)
    if group.checkpoint is not None:
        step = max(step, group.checkpoint.step)
    trained = any(rank.commits > 0 for rank in ranks)
    host = r.host_of(group.node)
    now = Seen(same=failure.same, step=step, generation=group.generation, trained=trained, hosts=(host,))
    # While others train, what a start begins with is newer each time; that it commits nothing is the same.
    never = seen is not None and not seen.trained and not trained
    if seen is not None and now.same and seen.same == now.same and (never or seen.step == now.step):
        hosts = seen.hosts if host in seen.hosts else (*seen.hosts, host)
        now = replace(now, times=seen.times + 1, trained=seen.trained or trained, hosts=hosts)
    if away.may_pass(failure):
        before = seen if seen is not None and seen.outside_since is not None else now
        hosts = before.hosts if host in before.hosts else (*before.hosts, host)
        now = replace(now, outside_since=r.now if before is now else before.outside_since, hosts=hosts)
    group = replace(group, seen=now if now.same else None)
    r.set_group(group)
    return group


def forget(r: Round, group: GroupMemory, ranks: tuple[RankView, ...]) -> GroupMemory:
    """A group that commits a step past the one it ended at has that behind it."""
    seen = group.seen
    if seen is None or seen.generation == group.generation:
        return group
    if not any(rank.commits > 0 and rank.step > seen.step for rank in ranks):
        return group
    group = replace(group, seen=None)
    r.set_group(group)
    return group


def told(group: GroupMemory, failure: Failure) -> Failure:
    """The failure, with how often and where it was seen, if more than once."""
    seen = again(group, failure.kind)
    if seen is None:
        return failure
    seen_again = Reason.of(Code.SEEN_AGAIN, step=step_of(seen), times=seen.times, hosts=seen.hosts)
    return replace(failure, evidence=(*failure.evidence, seen_again))


def step_of(seen: Seen) -> int:
    """As a reason keeps it; -1: before the first commit."""
    return seen.step if seen.trained else -1


def again(group: GroupMemory, kind: Kind) -> Seen | None:
    """What was seen now, and at least once before."""
    seen = group.seen
    if seen is None or seen.generation != group.generation or seen.times < 2:
        return None
    return seen if kind in BY_END else None


def programs_fault(r: Round, group: GroupMemory, failure: Failure) -> Reason | None:
    """Why no machine is to blame; None when one may be."""
    if away.may_pass(failure):
        others = away.since_it_ends_all(r) is None and shadow.trains_beside(r, group)
        return None if others else away.for_too_long(r, group, failure)
    if failure.misconfigured and group.resume == "disk":
        return Reason.of(
            Code.MISCONFIGURED, group=group.group
        )  # beside others it is left out like any that cannot start
    if _everywhere(r, group, failure):
        return Reason.of(Code.SAME_EVERYWHERE)
    if failure.of_the_model:
        return Reason.of(Code.MODELS_NUMBERS, evidence=failure.of_the_model)
    seen = again(group, failure.kind)
    if seen is None:
        return None
    # A device, a file or a library of the node's own raises the same error again and again too.
    hosts = _hosts(r, seen, failure)
    if len(hosts) < 2 and (failure.kind != Kind.ERROR or errors.of_the_machine(failure.error)):
        return None
    if shadow.trains_beside(r, group) or (not seen.trained and _others_are_held(r, group)):
        return None  # the same program trains there, or does when what is held is over
    where = () if len(hosts) > len(seen.hosts) else seen.hosts
    if seen.trained and failure.kind == Kind.ERROR:
        return Reason.of(Code.SAME_STEP_AGAIN, step=seen.step, hosts=where)
    if seen.times < TRIED:
        return None
    return Reason.of(Code.SAME_END_AGAIN, step=step_of(seen), times=seen.times, hosts=where)


def _everywhere(r: Round, group: GroupMemory, failure: Failure) -> bool:
    """The same error at the same step in every group, and none has come past it since."""
    seen = group.seen
    if failure.kind != Kind.ERROR or seen is None or seen.generation != group.generation or len(_there(r)) < 2:
        return False
    return _all_alike(r, seen)


def _all_alike(r: Round, seen: Seen) -> bool:
    theirs = [g.seen for g in _there(r)]
    return all(s is not None and (s.same, s.step) == (seen.same, seen.step) for s in theirs)


def _others_are_held(r: Round, group: GroupMemory) -> bool:
    """Whether the breaker holds others for what is no program's doing. A person was called; and they may go on without this one."""
    return breaker.tripped(r) and any(_is_nobodys(r, g) for g in _there(r) if g.group != group.group)


def _is_nobodys(r: Round, group: GroupMemory) -> bool:
    incident = r.incidents.get(group.incident)
    if incident is None or group.seen is None:
        return incident is not None and incident.kind in NOBODYS
    return group.seen.outside_since is not None and not errors.of_a_lost_peer(group.seen.same)


def _there(r: Round) -> list[GroupMemory]:
    """Who is left out has its own reason, and is started no more: it says nothing of what the others end by. Nor does who waits for
    an allocation."""
    for_s = r.spec.policy.hang.at_least_s
    return [g for g in r.groups.values() if not g.left_out and not g.waits_for_long(r.now, for_s)]


def _hosts(r: Round, seen: Seen, failure: Failure) -> set[str]:
    """Where it was seen: on all groups' hosts, where all ended in the same way at the same step. But what a store or a network may
    have done, as far as its log says, is no sign against the program on however many."""
    if any(map(outside.of_what_is_shared, strings(failure.evidence))) or not _all_alike(r, seen):
        return set(seen.hosts)
    return {host for g in _there(r) if g.seen is not None for host in g.seen.hosts}


def elsewhere(r: Round, group: GroupMemory, failure: Failure) -> Reason | None:
    """Why another node is to be tried before this one again, if a spare is there and paid for; else None."""
    budget = r.spec.policy.budget
    left = [budgets.left(r.spent, budget, rung, group.group, r.now) for rung in (Rung.RESTART, Rung.REPLACE)]
    if not r.next_spare or not all(left):
        return None  # then the ladder says why
    lately = group.oom_at is not None and r.now - group.oom_at < budget.window_s
    if failure.kind == Kind.OOM and lately and group.oom_host == r.host_of(group.node):
        return Reason.of(Code.OOM_TWICE, window_s=budget.window_s, host=group.oom_host)
    if not failure.outside and (why := often.here(r, group, failure.kind)):
        return why
    seen = again(group, failure.kind)
    if seen is None or len(seen.hosts) > 1 or outside.of_what_is_shared(failure.error):
        return None
    if seen.trained and failure.kind == Kind.ERROR and not errors.of_the_machine(failure.error):
        return None  # where it had gone well until then the node is not suspect
    return Reason.of(Code.SAME_END_HERE, times=seen.times, host=seen.hosts[0])


def as_the_programs(failure: Failure) -> Failure:
    """The failure as the program's fault. It stays one of its own kind as well: who only observes that wants no halt for it."""
    return replace(failure, kind=Kind.SAME_ERROR, causes=(failure.kind, *failure.causes))
