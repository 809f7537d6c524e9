"""Detects crash loops: remembers the last end of a group, and judges when the program is at fault and no machine.

A program's error comes back wherever it is started again. It is the same at the same step in every group, or at the
same step again after a resume from the checkpoint before. Or it comes before the first commit, whatever was tried.
Starting once more then burns budgets and hosts for nothing.

An error of what all nodes share (a store that is away) looks the same, but passes (`away`).
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.attribution import circuit_breaker, flapping_hosts, shared_outage
from supervisor.core.evidence import error_text, transient_errors
from supervisor.core.model.incident import Failure
from supervisor.core.model.kinds import Is, Kind, Rung, that_are
from supervisor.core.model.memory import GroupMemory, Seen
from supervisor.core.model.observed import RankView
from supervisor.core.model.reason import Code, Reason, strings
from supervisor.core.policy import budgets
from supervisor.core.round import observe_mode
from supervisor.core.round.draft import Round
from supervisor.core.round.view import RoundView

TRIED = 3
"""Ends of the same kind in a row: in place, again, and then elsewhere if there is a spare. Two are enough for an
exception that comes at the same step, after steps that went well."""

BY_END = that_are(Is.ALIKE_BY_END)

NOBODYS = that_are(Is.SAYS_NOTHING_OF_PROGRAM)
"""Kinds of ends that reveal nothing about the program: failures seen before them still count."""


def remember(r: Round, group: GroupMemory, failure: Failure, ranks: tuple[RankView, ...]) -> GroupMemory:
    """Notes this end in the group's memory, once for a generation."""
    seen = group.seen
    if failure.kind in NOBODYS or (seen is not None and seen.generation == group.generation):
        return group
    step = max((rank.step for rank in ranks), default=0)
    if group.checkpoint is not None:
        step = max(step, group.checkpoint.step)
    trained = not r.spec.trainer.plain and any(rank.commits > 0 for rank in ranks)  # output is no step
    host = r.its_host(group)
    now = Seen(same=failure.same, step=step, generation=group.generation, trained=trained, hosts=(host,))
    # While others train, each start begins with a newer checkpoint; that it commits nothing is the same.
    never = seen is not None and not seen.trained and not trained
    if seen is not None and now.same and seen.same == now.same and (never or seen.step == now.step):
        hosts = seen.hosts if host in seen.hosts else (*seen.hosts, host)
        now = replace(now, times=seen.times + 1, trained=seen.trained or trained, hosts=hosts)
    if shared_outage.may_pass(failure):
        before = seen if seen is not None and seen.outside_since is not None else now
        hosts = before.hosts if host in before.hosts else (*before.hosts, host)
        now = replace(now, outside_since=r.now if before is now else before.outside_since, hosts=hosts)
    group = replace(group, seen=now if now.same else None)
    r.set_group(group)
    return group


def forget(r: Round, group: GroupMemory, ranks: tuple[RankView, ...]) -> GroupMemory:
    """Forgets the last end of a group that has committed a step past it, or has run well where no steps are known."""
    seen = group.seen
    if seen is None or seen.generation == group.generation:
        return group
    if not ran_well(r, group) and not any(rank.commits > 0 and rank.step > seen.step for rank in ranks):
        return group
    group = replace(group, seen=None)
    r.set_group(group)
    return group


def ran_well(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if a command that reports no steps has run for so long that its start was no failure."""
    return r.spec.trainer.plain and r.now - group.since >= r.spec.policy.healthy_after_s


def told(group: GroupMemory, failure: Failure) -> Failure:
    """Adds how often and where the end was seen, if more than once."""
    seen = again(group, failure.kind)
    if seen is None:
        return failure
    seen_again = Reason.of(Code.SEEN_AGAIN, step=step_of(seen), times=seen.times, hosts=seen.hosts)
    return replace(failure, evidence=(*failure.evidence, seen_again))


def step_of(seen: Seen) -> int:
    """Step as a reason keeps it; -1: before the first commit."""
    return seen.step if seen.trained else -1


def again(group: GroupMemory, kind: Kind) -> Seen | None:
    """Returns the end that was seen now, if it was seen at least once before."""
    seen = group.seen
    if seen is None or seen.generation != group.generation or seen.times < 2:
        return None
    return seen if kind in BY_END else None


def programs_fault(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Explains why no machine is at fault; None if one may be."""
    if shared_outage.may_pass(failure):
        others = shared_outage.since_it_ends_all(r) is None and observe_mode.trains_beside(r, group)
        return None if others else shared_outage.for_too_long(r, group, failure)
    if failure.misconfigured and group.resume == "disk":
        return Reason.of(
            Code.MISCONFIGURED, group=group.group
        )  # beside others it is suspended like any that cannot start
    if _everywhere(r, group, failure):
        return Reason.of(Code.SAME_EVERYWHERE)
    if failure.of_the_model:
        return Reason.of(Code.MODELS_NUMBERS, evidence=failure.of_the_model)
    seen = again(group, failure.kind)
    if seen is None:
        return None
    # A device, a file or a library of the node itself raises the same error again and again too.
    hosts = _hosts(r, seen, failure)
    if len(hosts) < 2 and (failure.kind != Kind.ERROR or error_text.of_the_machine(failure.error)):
        return None
    if observe_mode.trains_beside(r, group) or (not seen.trained and _others_are_held(r, group)):
        return None  # the same program trains there, or will when the breaker lets go
    where = () if len(hosts) > len(seen.hosts) else seen.hosts
    if seen.trained and failure.kind == Kind.ERROR:
        return Reason.of(Code.SAME_STEP_AGAIN, step=seen.step, hosts=where)
    if seen.times < TRIED:
        return None
    return Reason.of(Code.SAME_END_AGAIN, step=step_of(seen), times=seen.times, hosts=where)


def _everywhere(r: RoundView, group: GroupMemory, failure: Failure) -> bool:
    """Returns true if every group has ended with the same error at the same step, and none has come past it since."""
    seen = group.seen
    if failure.kind != Kind.ERROR or seen is None or seen.generation != group.generation or len(_there(r)) < 2:
        return False
    return _all_alike(r, seen)


def _all_alike(r: RoundView, seen: Seen) -> bool:
    theirs = [g.seen for g in _there(r)]
    return all(s is not None and (s.same, s.step) == (seen.same, seen.step) for s in theirs)


def _others_are_held(r: RoundView, group: GroupMemory) -> bool:
    """True if the breaker holds others for another cause: a person was called, and they may go on without this one."""
    return circuit_breaker.tripped(r) and any(_is_nobodys(r, g) for g in _there(r) if g.group != group.group)


def _is_nobodys(r: RoundView, group: GroupMemory) -> bool:
    incident = r.incidents.get(group.incident)
    if incident is None or group.seen is None:
        return incident is not None and incident.kind in NOBODYS
    return group.seen.outside_since is not None and not error_text.of_a_lost_peer(group.seen.same)


def _there(r: RoundView) -> list[GroupMemory]:
    """Groups whose ends count. A suspended group has its own reason and is not started again: it reveals nothing about
    the others' ends. Nor does one that waits for an allocation."""
    for_s = r.spec.policy.hang.at_least_s
    return [g for g in r.groups.values() if not g.left_out and not g.waits_for_long(r.now, for_s)]


def _hosts(r: RoundView, seen: Seen, failure: Failure) -> set[str]:
    """Hosts where it was seen: those of all groups, if all ended in the same way at the same step. An end that a store
    or a network may have caused, by its log, proves nothing against the program on any number of hosts."""
    if any(map(transient_errors.of_what_is_shared, strings(failure.evidence))) or not _all_alike(r, seen):
        return set(seen.hosts)
    return {host for g in _there(r) if g.seen is not None for host in g.seen.hosts}


def elsewhere(r: RoundView, group: GroupMemory, failure: Failure) -> Reason | None:
    """Explains why another node must be tried before this one again, if a spare is there and paid for; else None."""
    budget = r.spec.policy.budget
    left = [budgets.left(r.spent, budget, rung, group.group, r.now) for rung in (Rung.RESTART, Rung.REPLACE)]
    if not r.can_move(group.group) or not all(left):
        return None  # the ladder reports why
    if failure.kind == Kind.OOM and _killed_here(r, group):
        return Reason.of(Code.OOM_TWICE, window_s=budget.window_s, host=r.its_host(group))
    if not failure.outside and (why := flapping_hosts.here(r, group, failure.kind)):
        return why
    seen = again(group, failure.kind)
    if seen is None or len(seen.hosts) > 1 or transient_errors.of_what_is_shared(failure.error):
        return None
    if seen.trained and failure.kind == Kind.ERROR and not error_text.of_the_machine(failure.error):
        return None  # a node where it had gone well until then is not suspect
    return Reason.of(Code.SAME_END_HERE, times=seen.times, host=seen.hosts[0])


def _killed_here(r: RoundView, group: GroupMemory) -> bool:
    """Returns true if it was killed for memory on its host before, within the window of the budgets."""
    host, window_s = r.its_host(group), r.spec.policy.budget.window_s
    before = group.newest(Kind.OOM)
    return before is not None and before.host == host and r.now - before.at < window_s


def as_the_programs(failure: Failure) -> Failure:
    """Turns the failure into the program's fault. Its own kind stays a cause: if that is only observed, so is this."""
    return replace(failure, kind=Kind.SAME_ERROR, causes=(failure.kind, *failure.causes))
