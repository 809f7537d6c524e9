"""A schedule (TOML) and the plan that it unfolds into, in which every victim is named. A plan is a schedule too, and
can be replayed.

Neither holds a clock: a fault comes when the run has committed a step."""

from __future__ import annotations

import difflib
import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from fault_injection.chaos.bounds import LAST_STEP, MOST_FAULTS
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.control import LEADERS
from fault_injection.faults.fault import Fault, Site

Together = Literal["", "with", "during"]
"""`with`: right after the fault before it. `during`: as soon as that one is acted on. Empty: when all is well again."""

Step = Annotated[int, Field(ge=1, le=LAST_STEP)]

COMPOUND_SHARE = 0.25
"""The share of the other faults drawn that bring a second one, from which no group suffers."""

COMPOUNDS = 2
"""Number of compounds among six or more drawn faults: one with a second crashing group, one with a killed part of the
control plane. The second fault comes while the first is mended; a crash may also come at once with it. Three to five
faults have one of the two."""

CRASHES = ("sigkill", "sigsegv", "sigabrt")
"""Crashes that can hit a group at any moment, also one that waits for the others."""

CONTROL = ("supervisor_killed", "lighthouse_killed", "gate_killed")


class ScheduleError(ValueError):
    """Lists what is wrong with a schedule, one sentence for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))


_STRICT = ConfigDict(extra="forbid", strict=True)


@checked(frozen=True, kw_only=True, config=_STRICT)
class FaultAt:
    """One fault. The seed names a group or rank that is not given. For a fault that comes while a group is mended, or
    that breaks one at once with it, it names another group than that one. `failpoint`: where the next leader dies, for
    the fault of that name."""

    name: str
    at_step: Step
    group: Annotated[int, Field(ge=0)] | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    together: Together = ""
    failpoint: str = ""


@checked(frozen=True, kw_only=True, config=_STRICT)
class Rate:
    """One fault again and again: every `every_steps`, or with a mean of `mtbf_steps` between two."""

    name: str
    until_step: Step
    first_step: Step = 1
    every_steps: Step | None = None
    mtbf_steps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@checked(frozen=True, kw_only=True, config=_STRICT)
class Each:
    """Every fault that can be made here, once, in an order that the seed draws."""

    every_steps: Step
    first_step: Step = 1


@checked(frozen=True, kw_only=True, config=_STRICT)
class Schedule:
    """The content of a schedule file. `ranks_per_group`, `nodes_per_group`: of the run started for it (default: one node,
    and a rank on each), or required of a live run."""

    seed: int = 0
    ranks_per_group: Annotated[int, Field(ge=1)] | None = None
    nodes_per_group: Annotated[int, Field(ge=1)] | None = None
    fault: tuple[FaultAt, ...] = ()
    rate: tuple[Rate, ...] = ()
    each: Each | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One fault of a plan. Group and rank have no meaning if it hits the current writer of the checkpoints."""

    number: int
    name: str
    at_step: int
    group: int
    rank: int
    together: Together = ""
    failpoint: str = ""

    def __str__(self) -> str:
        when = {"": f"at step {self.at_step}", "with": "at once with it", "during": "while it is mended"}[self.together]
        whom = "whichever group writes" if FAULTS[self.name].writers else f"group {self.group} rank {self.rank}"
        return f"{self.number:3d}  {when}: {self.name}, {whom}{f', {self.failpoint}' if self.failpoint else ''}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The faults to make, in this order, in groups of `ranks` ranks on `nodes` nodes. `not_available`: the catalogue's
    other faults, each with why it cannot be made here."""

    seed: int
    ranks: int
    faults: tuple[Planned, ...]
    not_available: Mapping[str, str]
    nodes: int = 1

    def save(self, path: Path) -> None:
        """Writes the plan as a schedule that names everything."""
        lines = [
            "# `supervisor chaos replay` does this again, victim by victim.",
            f"seed = {self.seed}",
            f"ranks_per_group = {self.ranks}",
            f"nodes_per_group = {self.nodes}",
        ]
        for planned in self.faults:
            unsaid = {"number", *(("group", "rank") if FAULTS[planned.name].writers else ())}
            body = {k: v for k, v in asdict(planned).items() if k not in unsaid and v != ""}
            lines += ["", "[[fault]]", *(f"{key} = {json.dumps(value)}" for key, value in body.items())]
        path.write_text("\n".join(lines) + "\n")


def load(path: Path) -> Schedule:
    """Reads a schedule file; raises ScheduleError with all that is wrong with it."""
    try:
        return parse(tomllib.loads(path.read_bytes().decode()))
    except OSError as error:
        raise ScheduleError([f"cannot read the schedule {path}: {error.strerror}"]) from error
    except ScheduleError:
        raise
    except (ValueError, RecursionError) as error:
        # also what is not UTF-8, a number of thousands of digits, a list in a list in a list
        raise ScheduleError([f"{path} is not valid TOML: {error}"]) from error


def parse(body: dict[str, Any]) -> Schedule:
    """Checks a schedule; raises ScheduleError with all that is wrong with it."""
    try:
        # as JSON, where strict mode takes lists for tuples and tables for dataclasses
        schedule = TypeAdapter(Schedule).validate_json(json.dumps(body, default=str))
    except ValidationError as error:
        raise ScheduleError([_sentence(e) for e in error.errors()]) from error
    problems = list(_contradictions(schedule))
    if problems:
        raise ScheduleError(problems)
    return schedule


def unfold(schedule: Schedule, groups: int, ranks: int, site: Site, nodes: int = 1) -> Plan:
    """Returns the plan of a schedule for a run of that size. Raises ScheduleError when a fault cannot be made here, or
    its victim does not exist."""
    given = (("ranks_per_group", schedule.ranks_per_group, ranks), ("nodes_per_group", schedule.nodes_per_group, nodes))
    problems = [f"{key} = {said}: a group of the run has {has}" for key, said, has in given if said not in (None, has)]
    for i, fault in enumerate(schedule.fault):
        if fault.group is not None and fault.group >= groups:
            problems.append(f"fault.{i}.group = {fault.group}: the run has groups 0 to {groups - 1}")
        if fault.rank is not None and fault.rank >= ranks:
            problems.append(f"fault.{i}.rank = {fault.rank}: a group has ranks 0 to {ranks - 1}")
    named = {fault.name for fault in schedule.fault} | {rate.name for rate in schedule.rate}
    for name in sorted(named):
        if why := FAULTS[name].why_not(site):
            problems.append(f"{name} cannot be made here: {why}")
    if problems:
        raise ScheduleError(problems)
    wanted = [*schedule.fault, *_rates(schedule), *_each(schedule, site)]
    if not wanted and schedule.each:
        raise ScheduleError([_none_here(site)])
    if not wanted and schedule.rate:
        raise ScheduleError(["nothing would be broken: its rates come to no fault before their last step"])
    faults: list[Planned] = []
    mended: set[int] = set()
    victims = random.Random(f"victims:{schedule.seed}")
    for fault in _in_order(wanted):
        # drawn even if not needed, so that naming one victim moves no other
        group, rank = victims.randrange(groups), victims.randrange(ranks)
        mended = mended if fault.together else set()
        breaks_a_group = fault.together == "during" or bool(fault.together and FAULTS[fault.name].kinds)
        if breaks_a_group and len(mended) < groups:
            # a group that is being started, or was just broken, has nothing left to break
            group = next(g for g in (*range(group, groups), *range(group)) if g not in mended)
        faults.append(
            Planned(
                number=len(faults) + 1,
                name=fault.name,
                at_step=fault.at_step,
                group=group if fault.group is None else fault.group,
                rank=rank if fault.rank is None else fault.rank,
                together=fault.together,
                failpoint=fault.failpoint,
            )
        )
        mended |= {faults[-1].group} if FAULTS[fault.name].kinds else set()
    return Plan(seed=schedule.seed, ranks=ranks, faults=tuple(faults), not_available=not_available(site), nodes=nodes)


def drawn(seed: int, count: int, every_steps: int, site: Site) -> Schedule:
    """Returns a schedule of `count` faults that the seed draws from those that can be made here. Some come alone, some
    with another from which no group suffers, and in COMPOUNDS two must be mended at once. Raises ScheduleError for more
    than a plan may have."""
    if count > MOST_FAULTS:
        raise ScheduleError([_too_many(count)])
    rng = random.Random(f"faults:{seed}")
    possible = [fault for fault in FAULTS.values() if not fault.why_not(site)]
    if not possible:
        raise ScheduleError([_none_here(site)])
    riders = [fault.name for fault in possible if not fault.kinds and not fault.stalls and not fault.writers]
    first_crashes = rng.random() < 0.5
    chains = [_compound(rng, possible, crashes=first_crashes != bool(n % 2)) for n in range(min(COMPOUNDS, count // 3))]
    while (left := count - sum(map(len, chains))) > 0:
        first = rng.choice(possible)
        chain: list[tuple[str, Together]] = [(first.name, "")]
        if first.kinds and riders and left > 1 and rng.random() < COMPOUND_SHARE:
            chain.append((rng.choice(riders), _together(rng)))
        chains.append(chain)
    rng.shuffle(chains)
    faults: list[FaultAt] = []
    at_step = 0
    for chain in chains:
        at_step += rng.randint(max(1, every_steps // 2), every_steps + every_steps // 2)
        if at_step > LAST_STEP:
            raise ScheduleError(
                [f"a fault would come after step {LAST_STEP}, which no run makes: fewer faults, or fewer steps apart"]
            )
        faults += [FaultAt(name=name, at_step=at_step, together=together) for name, together in chain]
    return Schedule(seed=seed, fault=tuple(faults))


def _compound(rng: random.Random, possible: Sequence[Fault], crashes: bool) -> list[tuple[str, Together]]:
    """Draws a fault that hits a group, and one while it is mended: another group, or a part of the control plane."""
    mended = [f for f in possible if f.kinds and not (f.echoes or f.stays_s or f.writers) and f.family != "supervisor"]
    if not crashes:
        # a lost node that has the lighthouse takes it along: then there is none to kill
        mended = [f for f in mended if f.family in ("process", "data")]
    there = [f.name for f in possible if f.name in (CRASHES if crashes else CONTROL)]
    if not mended or not there:
        return []
    return [(rng.choice(mended).name, ""), (rng.choice(there), _together(rng) if crashes else "during")]


def _none_here(site: Site) -> str:
    why = site.not_here or next(iter(not_available(site).values()))
    return f"no fault can be made here: {why}; all: supervisor chaos list"


def _together(rng: random.Random) -> Together:
    return "with" if rng.random() < 0.5 else "during"


def not_available(site: Site) -> dict[str, str]:
    """Maps each fault that cannot be made here to the reason."""
    return {name: why for name, fault in FAULTS.items() if (why := fault.why_not(site))}


def _rates(schedule: Schedule) -> Iterator[FaultAt]:
    for i, rate in enumerate(schedule.rate):
        rng = random.Random(f"rate:{schedule.seed}:{i}:{rate.name}")
        at = float(rate.first_step) if rate.every_steps else rate.first_step + _gap(rng, rate)
        while at <= rate.until_step:
            yield FaultAt(name=rate.name, at_step=round(at))
            at += _gap(rng, rate)


def _expected(rate: Rate) -> float:
    """Returns the largest mean number of faults that a rate comes to."""
    return 1 + (rate.until_step - rate.first_step) / (rate.every_steps or max(1.0, rate.mtbf_steps or 1.0))


def _too_many(count: float) -> str:
    return f"these are {count:.0f} faults, and a plan has {MOST_FAULTS} at the most: give fewer, or a rate that is lower or ends sooner"


def _gap(rng: random.Random, rate: Rate) -> float:
    return float(rate.every_steps) if rate.every_steps else max(1.0, rng.expovariate(1.0 / (rate.mtbf_steps or 1.0)))


def _each(schedule: Schedule, site: Site) -> Iterator[FaultAt]:
    if schedule.each is None:
        return
    names = [name for name, fault in FAULTS.items() if not fault.why_not(site)]
    random.Random(f"each:{schedule.seed}").shuffle(names)
    for i, name in enumerate(names):
        yield FaultAt(name=name, at_step=schedule.each.first_step + i * schedule.each.every_steps)


def _in_order(faults: Sequence[FaultAt]) -> list[FaultAt]:
    """Sorts by step; a fault that comes together with another stays right after it, at its step."""
    chains: list[list[FaultAt]] = []
    for fault in faults:
        if fault.together and chains:
            chains[-1].append(replace(fault, at_step=chains[-1][0].at_step))
        else:
            chains.append([fault])
    return [fault for chain in sorted(chains, key=lambda c: c[0].at_step) for fault in chain]


def _contradictions(schedule: Schedule) -> Iterator[str]:
    yield from _names_that_are_none(schedule)
    yield from _of_single_faults(schedule)
    if (ranks := schedule.ranks_per_group) and ranks % (nodes := schedule.nodes_per_group or 1):
        yield f"nodes_per_group = {nodes}: ranks_per_group = {ranks} is no multiple of it"
    for i, rate in enumerate(schedule.rate):
        if (rate.every_steps is None) == (rate.mtbf_steps is None):
            yield f"rate.{i}: give every_steps or mtbf_steps, one of them"
        if rate.until_step < rate.first_step:
            yield f"rate.{i}.until_step = {rate.until_step} is before first_step = {rate.first_step}"
    if (count := len(schedule.fault) + sum(map(_expected, schedule.rate))) > MOST_FAULTS:
        yield _too_many(count)
    if schedule.each and schedule.each.first_step + schedule.each.every_steps * len(FAULTS) > LAST_STEP:
        yield f"each: its last fault might come after step {LAST_STEP}, which no run makes: give a smaller every_steps"
    yield from _of_compounds(schedule)
    if not (schedule.fault or schedule.rate or schedule.each):
        yield "the schedule has no fault: give [[fault]], [[rate]] or [each]"


def _names_that_are_none(schedule: Schedule) -> Iterator[str]:
    names = [(f"fault.{i}", fault.name) for i, fault in enumerate(schedule.fault)]
    names += [(f"rate.{i}", rate.name) for i, rate in enumerate(schedule.rate)]
    for where, name in names:
        if name not in FAULTS:
            near = difflib.get_close_matches(name, FAULTS, n=1, cutoff=0.4)
            hint = f"; nearest: {near[0]!r}" if near else ""
            yield f"{where}.name = {name!r}: there is no such fault{hint}; all: supervisor chaos list"


def _of_single_faults(schedule: Schedule) -> Iterator[str]:
    for i, fault in enumerate(schedule.fault):
        writers = fault.name in FAULTS and FAULTS[fault.name].writers
        if writers and (fault.group is not None or fault.rank is not None):
            yield f"fault.{i}: {fault.name} hits whichever group writes the checkpoints: leave out group and rank"
        if fault.failpoint and fault.name != "failpoint":
            yield f"fault.{i}.failpoint: {fault.name} has none, only the fault failpoint has"
        elif fault.failpoint and fault.failpoint not in LEADERS:
            yield f"fault.{i}.failpoint = {fault.failpoint!r}: a leader passes {', '.join(LEADERS)}"


def _of_compounds(schedule: Schedule) -> Iterator[str]:
    first = 0
    for i, fault in enumerate(schedule.fault):
        if not fault.together:
            first = i
        elif fault.at_step != (step := schedule.fault[first].at_step):
            yield f"fault.{i}.at_step = {fault.at_step}: it comes with fault.{first}, at step {step}: give that step"
    if schedule.fault and schedule.fault[0].together:
        yield f"fault.0.together = {schedule.fault[0].together!r}: there is no fault before it"


def _sentence(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{path}: missing, and it has no default"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        kinds: dict[str, Any] = {"fault": FaultAt, "rate": Rate, "each": Each}
        kind = kinds[str(error["loc"][0])] if len(error["loc"]) > 1 else Schedule
        known = [field.name for field in fields(kind)]
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.4)
        return f"{path}: there is no such key; " + (f"nearest: {near[0]}" if near else f"known: {', '.join(known)}")
    return f"{path} = {error['input']!r}: {error['msg'].replace('Input should be', 'must be')}"
