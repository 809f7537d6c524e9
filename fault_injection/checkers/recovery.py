"""Checks what is promised of a run that is broken on purpose. These checkers work as those of `checkers`, on the same
history and the faults in it."""

from __future__ import annotations

import itertools
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from fault_injection.checkers.budgets import within_budgets
from fault_injection.checkers.consistency import CHECKERS
from fault_injection.checkers.evidence import contradicted, not_told
from fault_injection.checkers.ownership import nodes_of, without_life
from supervisor.shell.history.files import FaultDone, History, Setting, Unknown
from supervisor.shell.history.goodput import SLACK_S, Span, does_not_add_up, ledger
from supervisor.shell.history.incidents import Acted, incidents, mended

Digests = dict[tuple[int, int, int], tuple[float, set[str]]]
"""The type that `digests` returns."""

WRITERS = frozenset({"checkpoint_blocked", "checkpoint_disk_full", "checkpoint_folder_gone"})
"""Faults of the group that then writes the checkpoints: their plan names no victim, or one that is ignored."""

LONGEST_BOUND_S = 86_400.0
"""Seconds above which a sum of timeouts, which are minutes, is no bound: a day."""


def of_fault(history: History, fault: FaultDone) -> list[Acted]:
    """Returns the incidents that are this fault's own."""
    return [i for i in incidents(history) if i.group == fault.group and i.kind in fault.kinds and _during(fault, i)]


def echoes_of(history: History, fault: FaultDone) -> list[Acted]:
    """Returns the incidents that this fault explains and no fault owns, such as those of another group it hit."""
    own = {incident.id for each in history.faults for incident in of_fault(history, each)}
    return [i for i in incidents(history) if i.id not in own and _explains(fault, i)]


def every_fault_happened(history: History) -> list[str]:
    """Checks that all that was planned was made, with evidence that the rest of the history bears out. The run was well
    before each fault and is well after it."""
    setting, found, missing = _setting(history), [], []
    done = {fault.number: fault for fault in history.faults}
    if not setting.planned:
        raise Unknown("nothing was to be broken")
    if setting.given_up:
        found.append(f"the plan was given up: {setting.given_up}")
    if setting.planned != len(setting.plan) or sorted(f.number for f in history.faults) != sorted(done):
        found.append(
            f"{setting.planned} faults were planned, the plan has {len(setting.plan)}, {len(history.faults)} are recorded"
        )
    for number, sentence in enumerate(setting.plan, 1):
        fault = done.get(number)
        if fault is not None and f": {fault.name}, " not in sentence:
            found.append(f"{_name(fault)} is not what was planned: {sentence.strip()}")
        elif fault is not None and not _is_planned_victim(fault, sentence):
            found.append(f"{_name(fault)} has another victim than planned: {sentence.strip()}")
        if fault is not None and (unlike := _unlike_the_catalogue(fault)):
            found.append(f"{_name(fault)} {unlike}")
        if fault is None:
            found.append(f"fault {number} of the plan was not made: {sentence.strip()}")
        elif fault.made is None or not fault.evidence.strip():
            found.append(f"{_name(fault)} left no evidence{': ' + fault.after if fault.after else ''}")
        else:
            found += [f"{_name(fault)}: not well before it: {fault.before}"] if fault.before else []
            found += [f"{_name(fault)}: not well after it: {fault.after}"] if fault.after else []
            others = list(_beside(history, fault))
            found += [f"{_name(fault)} was made, it says, but {but}" for but in contradicted(history, fault, others)]
            missing += [f"{_name(fault)}: {what}" for what in not_told(history, fault, others)]
    if missing and not found:
        raise Unknown("; ".join(missing))
    return found


def _is_planned_victim(fault: FaultDone, sentence: str) -> bool:
    return fault.name in WRITERS or f", group {fault.group} rank {fault.rank}," in f"{sentence},"


def _unlike_the_catalogue(fault: FaultDone) -> str:
    """Returns what the history claims of this kind of fault, if the catalogue differs: the history's author does not
    decide which incidents are right."""
    from fault_injection.faults.catalogue import FAULTS  # judging a simulated run needs nothing that makes faults

    known = FAULTS.get(fault.name)
    if known is None:
        return "is no fault that there is"
    told = tuple(map(str, fault.kinds)), tuple(map(str, fault.echoes)), fault.drifts
    right = tuple(map(str, known.kinds)), tuple(map(str, known.echoes)), known.drifts
    return "" if told == right else f"may cause {told}, it says, and such a fault may cause {right}"


def one_incident_each(history: History) -> list[str]:
    """Checks that each fault has exactly one incident, of its group and of the right kind, or none where none is right.
    No incident lacks a fault. Two faults that hit one group at once may share one."""
    setting, found = _setting(history), []
    for fault in history.faults:
        if not fault.kinds or fault.made is None:
            continue
        own = of_fault(history, fault)
        alone = not any(other.group == fault.group for other in _beside(history, fault) if other.kinds)
        if len(own) > 1 and alone:
            found.append(f"{_name(fault)} has {len(own)} incidents: {', '.join(i.id for i in own)}")
        found += [
            f"{_name(fault)} was on node {fault.node}, and its incident {i.id} is about {i.node}"
            for i in own
            if alone and i.node and fault.node and i.node != fault.node and _blames(history, i)
        ]
        echoed = Counter(i.group for i in incidents(history) if i.group != fault.group and _explains(fault, i))
        if not any(_beside(history, fault)):
            found += [f"{_name(fault)} has {n} incidents of group {g}" for g, n in sorted(echoed.items()) if n > 1]
        together = [f for f in (fault, *_beside(history, fault)) if f.group == fault.group and f.kinds]
        all_own = {i.id for f in together for i in of_fault(history, f)}
        if not alone and len(all_own) > len(together):
            found.append(f"{_name(fault)}: {len(together)} faults at once have {len(all_own)} incidents")
        if not own and (alone or not any(of_fault(history, other) for other in _beside(history, fault))):
            others = [f"{i.id} {i.kind} of group {i.group}" for i in incidents(history) if _during(fault, i)]
            seen = f", but {' and '.join(others)}" if others else ""
            found.append(f"{_name(fault)} has no incident that is {' or '.join(fault.kinds)}{seen}")
    found += list(_others_cordoned(history))
    for incident in incidents(history):
        before = incident.opened < setting.began  # a run that is broken while live may have had its own
        if not before and not any(_explains(fault, incident) for fault in history.faults):
            found.append(f"incident {incident.id} ({incident.kind} of group {incident.group}) has no fault")
    return found


def _blames(history: History, incident: Acted) -> bool:
    """Returns true unless an incident is about a group on several nodes, as a whole: it then names no rank, and of its nodes
    all stay or none."""
    starts = [a for d in history.committed() for a in d.actions if a["verb"] in ("start", "place")]
    on = {a["generation"]: set(nodes_of(a)) for a in starts if a["group"] == incident.group}
    before = on.get(incident.before, set())
    after = next((on[n] for n in sorted(on) if n > incident.before), before)
    return incident.rank is not None or len(before) < 2 or (before != after and bool(before & after))


def _others_cordoned(history: History) -> Iterator[str]:
    """Finds nodes cordoned for an incident never about them. One that climbs may be about several in turn."""
    about: dict[str, set[str]] = defaultdict(set)
    where: dict[int, set[str]] = {}
    for decision in history.committed():
        for incident in decision.incidents:
            about[incident["id"]] |= ({incident.get("node", "")} | where.get(incident["group"], set())) - {""}
        for action in decision.actions:
            nodes = about.get(action.get("incident") or "", set())
            if action["verb"] == "cordon" and nodes and action.get("node") and action["node"] not in nodes:
                told = " and ".join(sorted(nodes))
                yield f"{action['node']} was cordoned for {action['incident']}, which is about {told}"
        where |= {g: {*(state.get("nodes") or [state.get("node") or ""])} for g, state in decision.groups.items()}


def others_go_on(history: History) -> list[str]:
    """Checks that while one group is mended, no other stands still for longer than the run's timeouts allow."""
    setting, found = _setting(history), []
    if not any(steps.committed() for steps in history.steps):
        raise Unknown("there are no committed steps")
    commits = _commits(history)
    for fault in history.faults:
        hit = {other.group for other in (fault, *_beside(history, fault)) if other.kinds}
        for group in set(range(setting.groups)) - hit:
            until = fault.over if fault.over is not None else setting.ended
            # what begins with the next fault belongs to that one
            following = [f.began for f in history.faults if f.began >= until and f is not fault]
            own = [*(t for t in commits[group] if t < min(following)), min(following)] if following else commits[group]
            stall = longest_stall(own, fault.began, until)
            # a fault that comes with another may take as long as the other allows
            allowed = max(f.others_within_s for f in (fault, *_beside(history, fault)))
            if not (stall <= allowed <= LONGEST_BOUND_S):
                found.append(
                    f"{_name(fault)}: group {group} stood still for {stall:.1f} s, at most {allowed:.1f} s are allowed"
                )
    return found + list(_for_no_fault(history, setting, commits))


def _for_no_fault(history: History, setting: Setting, commits: Mapping[int, list[float]]) -> Iterator[str]:
    """Finds groups that stand still between two faults, or after the last. Nothing is allowed there, so the shortest
    time allowed in any fault is generous."""
    allowed = min((f.others_within_s for f in history.faults), default=float("inf"))
    for group in range(setting.groups):
        for one, two in itertools.pairwise([*commits[group], setting.ended]):
            if two - one <= allowed:
                continue
            touched = any(f.began <= two and one <= (f.over or setting.ended) for f in history.faults)
            if setting.began <= one and not touched:
                yield f"group {group} stood still for {two - one:.1f} s, and no fault was there"


def recovered_in_time(history: History) -> list[str]:
    """Checks that after each fault everything trains again within its bound, and that its incident recovered too."""
    setting, found, begun = _setting(history), [], _begun(history)
    # the last record of an incident may be in such a decision: then the files cannot show that it is not over
    perhaps = {i["id"]: d.number for d in history.unresolved() for i in d.incidents if i.get("state") == "recovered"}
    missing = []
    for fault in history.faults:
        if fault.made is None:
            continue
        if fault.over is None:
            found.append(f"{_name(fault)}: not everything trained again")
        elif fault.healed is None or not fault.began <= fault.made <= fault.healed <= fault.over:
            found.append(f"{_name(fault)}: it was not begun, made, healed and over in this order")
        elif away := _away(history, setting, begun, fault, fault.made, fault.over):
            found.append(f"{_name(fault)}: all was reported well, and group {away[0]} committed no step")
        elif not (fault.over - fault.began <= fault.within_s <= LONGEST_BOUND_S):
            took = fault.over - fault.began
            found.append(f"{_name(fault)}: it took {took:.1f} s until all was well, at most {fault.within_s:.1f} s")
        open_ = [i.id for i in incidents(history) if _explains(fault, i) and i.recovered is None]
        found += [f"{_name(fault)}: its incident {id_} is not over" for id_ in open_ if id_ not in perhaps]
        missing += [
            f"{_name(fault)}: its incident {id_} is over if decision {perhaps[id_]} was committed, and nothing says whether it was"
            for id_ in open_
            if id_ in perhaps
        ]
    spawned = {(p.group, p.generation): p.spawned for p in sorted(history.processes, key=lambda p: p.spawned)}
    for id_, group, generation, at in mended(history):
        if (group, generation) not in spawned:
            missing.append(
                f"incident {id_} is over, and no shim tells when generation {generation} of group {group} began"
            )
        elif spawned[group, generation] > at:
            found.append(f"incident {id_} was over before generation {generation} of group {group} had begun")
    if missing and not found:
        raise Unknown("; ".join(missing))
    return found


def _away(
    history: History,
    setting: Setting,
    begun: Mapping[int, list[tuple[float, float]]],
    fault: FaultDone,
    made: float,
    over: float,
) -> list[int]:
    """Returns groups that commit no step begun since the fault was made, nor after it was over, for longer than any may
    stand still. The next fault ends the search."""
    until = min([setting.ended, *(f.began for f in history.faults if f.began > over)])
    found = []
    for group in range(setting.groups):
        own = begun[group]
        since = itertools.islice(own, bisect_left(own, (made,)), None)
        at = next((t for t, start in since if start >= made), until)
        if min(at, until) > over + fault.others_within_s:
            found.append(group)
    return found


def digests_equal(history: History) -> list[str]:
    """Checks that all groups hash the same state at one step, except while a fault makes them differ, which the hashes
    must show. After each fault, every rank's hashes must have been compared before the next fault."""
    setting, found, missing = _setting(history), [], []
    shared = digests(history, setting.groups)
    if not shared:
        raise Unknown("no step was hashed by all groups")
    for (_, step, rank), (at, values) in sorted(shared.items()):
        drifting = any(f.drifts and f.began <= at <= (f.over or setting.ended) for f in history.faults)
        if len(values) > 1 and not drifting:
            found.append(f"the groups' states differ at step {step} (rank {rank}): {', '.join(sorted(values))}")
    for fault in history.faults:
        if fault.over is None:
            continue
        until = min((f.began for f in history.faults if f.began > fault.over), default=float("inf"))
        compared = {rank for (_, _, rank), (at, _) in shared.items() if fault.over <= at <= until}
        if mute := sorted(set(range(setting.ranks)) - compared):
            of = "" if setting.ranks == 1 else f" of rank {' and '.join(map(str, mute))}"
            missing.append(f"{_name(fault)}: the groups' states{of} were not compared before the next")
        # a group that heals from the drifting one has its state: then there may be no difference
        if fault.drifts and fault.made is not None and not any(_beside(history, fault)):
            told = _while_it_drifts(history, shared, fault, fault.made, fault.over)
            if not told:
                missing.append(f"{_name(fault)}: the groups' states were not compared while it lasted")
            elif max(map(len, told)) == 1:
                found.append(f"{_name(fault)}: the groups' states never differed while it lasted")
    if missing and not found:
        raise Unknown("; ".join(missing))
    return found


def _while_it_drifts(history: History, shared: Digests, fault: FaultDone, made: float, over: float) -> list[set[str]]:
    """Returns the states of all groups at the steps at which the drifting group hashed its own since."""
    own = [s for s in history.steps if s.group == fault.group]
    steps = {x["step"] for s in own for x in s.lines if x.get("event") == "digest" and made <= x["t"] <= over}
    return [values for (_, step, _), (at, values) in shared.items() if step in steps and made <= at <= over]


def nothing_left(history: History) -> list[str]:
    """Checks that no process and no allocation of the run is left, and that nothing stopped was restarted."""
    if history.left is None:
        raise Unknown("no one looked what was left")
    found = [f"a process is left: {process}" for process in history.left.processes]
    found += list(_no_end(history))
    done = [action for decision in history.committed() for action in decision.actions]
    stopped = next((at for at, action in enumerate(done) if action["verb"] == "stop"), None)
    if stopped is not None:
        # the last of each key: an allocation that was released before it was requested is still there
        last = {action["key"]: at for at, action in enumerate(done)}
        acquired = [(key.removeprefix("acquire:"), at) for key, at in last.items() if key.startswith("acquire:")]
        found += [
            f"{key} was acquired and never released" for key, at in acquired if last.get(f"release:{key}", -1) < at
        ]
        again = [action for action in done[stopped:] if action["verb"] in ("start", "place")]
        found += [f"group {a['group']} was started again once the run was stopped" for a in again]
    return found + [f"an allocation is left: {allocation}" for allocation in history.left.allocations]


def _no_end(history: History) -> Iterator[str]:
    """Finds processes that still ran, by their shims, when the run had ended. Older generations may have ended unseen:
    their node was lost, and they were fenced."""
    if history.setting is None or not history.setting.to_its_end:
        return
    newest = {p.group: p.generation for p in sorted(history.processes, key=lambda p: p.generation)}
    for p in history.processes:
        if p.over_by is None and p.generation == newest[p.group]:
            yield f"no one saw group {p.group} generation {p.generation} rank {p.rank} on {p.node} end"


def badput_adds_up(history: History) -> list[str]:
    """Checks that each second of each group is under one cause, which the trainers' own records do not contradict."""
    setting = _setting(history)
    span = Span(setting.began, setting.ended)
    length = span.end - span.begin
    if length <= 0:
        return [f"the run ended {-length:g} s before it began"]
    found = [
        f"{_name(f)} is not within the run's time"
        for f in history.faults
        if not span.begin <= f.began <= (f.over or f.began) <= span.end
    ]
    ledgers = {group: ledger(history, group, span) for group in range(setting.groups)}
    return [*found, *does_not_add_up(history, ledgers, span)]


PROMISES: Mapping[str, Callable[[History], list[str]]] = {
    "every_fault_happened": every_fault_happened,
    "one_incident_each": one_incident_each,
    "within_budgets": within_budgets,
    "others_go_on": others_go_on,
    "recovered_in_time": recovered_in_time,
    "digests_equal": digests_equal,
    "nothing_left": nothing_left,
    "badput_adds_up": badput_adds_up,
}

ALL: Mapping[str, Callable[[History], list[str]]] = {**CHECKERS, **PROMISES}
"""The checkers of a certificate."""


# --- what they share with the report ---


def longest_stall(commits: Sequence[float], begin: float, until: float) -> float:
    """Returns the longest time in seconds without a committed step that touches begin..until; one that lasts longer
    ends with the first commit after it. `commits`: a group's, sorted."""
    first, last = bisect_left(commits, begin), bisect(commits, until)
    before = commits[first - 1] if first else begin
    after = commits[last] if last < len(commits) else until
    moments = [before, *commits[first:last], after]
    return max((float(b - a) for a, b in itertools.pairwise(moments)), default=0.0)


def _commits(history: History) -> Mapping[int, list[float]]:
    """Returns when each group committed a step, in order."""
    found: dict[int, list[float]] = defaultdict(list)
    for steps in history.steps:
        if steps.rank == 0:
            found[steps.group] += [line["t"] for line in steps.committed()]
    for instants in found.values():
        instants.sort()
    return found


def _begun(history: History) -> Mapping[int, list[tuple[float, float]]]:
    """Returns when each group committed a step, in order, and when it had begun it."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for steps in history.steps:
        if steps.rank == 0:
            found[steps.group] += [(line["t"], line.get("start", line["t"])) for line in steps.committed()]
    for pairs in found.values():
        pairs.sort()
    return found


def digests(history: History, groups: int) -> Digests:
    """Maps (stretch, step, rank) to when the last group had hashed it, and the different values. Leaves out those that
    some group did not hash. A resume from disk begins a new stretch, in which steps are made again; within one the
    newest counts."""
    pauses = without_life(history)
    by: dict[tuple[int, int, int], dict[int, tuple[float, str]]] = defaultdict(dict)
    for steps in history.steps:
        for line in steps.lines:
            if line.get("event") == "digest":
                of_step = by[bisect(pauses, line["t"]), line["step"], steps.rank]
                said = (line["t"], line["value"])
                of_step[steps.group] = max(said, of_step.get(steps.group, said))
    return {
        key: (max(t for t, _ in of.values()), {value for _, value in of.values()})
        for key, of in by.items()
        if len(of) == groups
    }


def _setting(history: History) -> Setting:
    if history.setting is None:
        raise Unknown("the history does not say what was to be broken")
    if history.setting.groups < 1 or history.setting.ranks < 1:
        raise Unknown(f"{history.setting.groups} groups of {history.setting.ranks} ranks are no run")
    return history.setting


def _name(fault: FaultDone) -> str:
    return f"fault {fault.number} ({fault.name} of group {fault.group} rank {fault.rank} at step {fault.step})"


def _during(fault: FaultDone, incident: Acted) -> bool:
    return fault.began - SLACK_S <= incident.opened <= (fault.over if fault.over is not None else float("inf"))


def _explains(fault: FaultDone, incident: Acted) -> bool:
    kinds = fault.kinds if incident.group == fault.group else fault.echoes
    return incident.kind in kinds and _during(fault, incident)


def _beside(history: History, fault: FaultDone) -> Iterator[FaultDone]:
    """Yields faults that are not over when this one begins, or begin before it is over."""
    for other in history.faults:
        early, late = sorted((fault, other), key=lambda f: f.began)
        if other is not fault and late.began <= (early.over if early.over is not None else float("inf")):
            yield other
