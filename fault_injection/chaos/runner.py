"""Carries out a plan: waits for each fault's step, makes and heals it, and notes when everything trains again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from fault_injection.chaos.schedule import Plan, Planned
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Fault, Scene, Target
from fault_injection.testbed.interrupts import finished_first
from supervisor.core.model.spec import RunSpec
from supervisor.ports.errors import Fatal, PortError
from supervisor.shell.history.files import FaultDone

LOOK_S = 0.1

STEPS_ON = 3
"""Steps to commit after a fault, or after it was healed, before it counts as over. Two show nothing of a killed
lighthouse. One may be committed and not reported yet, and the next one already has its quorum."""

PATIENCE_S = 300.0
"""Seconds for which a fault waits for a run that commits nothing new: five times the slowest start seen here."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the run. `not_well`: empty when all groups train in one quorum, none is mended and a spare is
    there."""

    step: int
    """The newest step that every group has committed."""
    not_well: str
    acted: frozenset[tuple[str, int]]
    """(id, group) of each incident that was acted on, over or not."""
    ended: str = ""
    """Why the run has ended or is stopping; empty while it goes on."""
    stopped: bool = False
    """True once it has stopped as asked."""


class Live(Protocol):
    """The run, and what it runs on."""

    @property
    def scene(self) -> Scene: ...
    def look(self) -> Look: ...
    def target(self, planned: Planned, fault: Fault) -> Target: ...
    def tend(self) -> None:
        """Restarts what has ended of a system that was started for the run."""
        ...

    def made(self, name: str) -> None:
        """Reports that a fault was made, without blocking: etcd may be what it broke."""
        ...

    def let_go(self) -> None:
        """Frees the hosts that the fault made suspect, which the next faults need."""
        ...


@dataclass(frozen=True)
class Bounds:
    """Limits that the timeouts of a run set on a fault, in seconds."""

    within_s: float
    others_within_s: float


def bounds(spec: RunSpec, fault: Fault) -> Bounds:
    """Derives the limits from the policy's and TorchFT's own timeouts.

    Survivors of a loss are free after a heartbeat timeout and, twice, a join and a collective. A hang ends when it is
    found, a stop when it counts, and an unseen end when a lease has lapsed. A fault without an incident is not found,
    and no group is started for it."""
    torchft, policy = spec.torchft, spec.policy
    freed = (
        torchft.heartbeat_timeout_ms + 2 * (torchft.join_timeout_ms + torchft.process_group_timeout_ms)
    ) / 1000 + policy.term_grace_s
    hangs = fault.stalls and bool(fault.kinds)
    seen_s = policy.hang.stopped_s if fault.shown and policy.hang.stopped_s else policy.hang.at_most_s
    found = seen_s + freed if hangs else 2 * policy.node_lease_s + freed
    again = policy.start_timeout_s + policy.backoff_max_s if fault.kinds else 0.0
    again += policy.allocation_timeout_s if fault.takes_spares else 0.0
    return Bounds(fault.stays_s + fault.takes_s + found + again, fault.stays_s + found if fault.stalls else freed)


def together(each: Sequence[Bounds]) -> Bounds:
    """Adds the limits of faults that come together: one may have to be mended before the next can be."""
    return Bounds(sum(one.within_s for one in each), sum(one.others_within_s for one in each))


@dataclass
class _Made:
    """A fault that is not over yet. `heal` undoes it, and is on the runner's own stack too."""

    fault: Fault
    done: FaultDone
    heal: ExitStack
    known: frozenset[tuple[str, int]]
    """Incidents that were there before it."""
    step: int
    """The step at which it was made, or healed by the runner."""
    is_healing: bool = False
    """True once healing has begun. A healing that raised, or was interrupted, is not noted and not repeated."""

    @property
    def made(self) -> bool:
        return self.done.made is not None

    def undo(self, clock: Callable[[], float]) -> None:
        """Heals it at most once, and notes the time when that succeeds."""
        if not self.is_healing:
            self.is_healing = True
            self.heal.close()
            self.done = replace(self.done, healed=clock())


class Runner:
    """Goes once through a plan. Whatever ends it, a SIGINT too, it first heals what is broken."""

    def __init__(
        self,
        live: Live,
        spec: RunSpec,
        plan: Plan,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._live, self._spec, self._plan, self._say = live, spec, plan, say
        self._clock, self._pause = clock, pause
        self._not_before_step = 0
        self._is_interrupted = False
        self.done: list[FaultDone] = []
        """The faults in the plan's order, interrupted ones included."""

    @property
    def settle_steps(self) -> int:
        """Steps to commit between two faults, in which the groups' states are compared."""
        return self._spec.titan.digest_interval_steps + STEPS_ON

    def run(self) -> None:
        """Raises Fatal when the run does not get well before a fault; `done` holds what was done until then."""
        with ExitStack() as everything:
            for chain in _chains(self._plan.faults):
                self._chain(chain, everything)
            self._well_at(0)

    def _chain(self, chain: Sequence[Planned], everything: ExitStack) -> None:
        first = self._well_at(chain[0].at_step)
        promised = together([bounds(self._spec, FAULTS[planned.name]) for planned in chain])
        open_: list[_Made] = []
        try:
            for planned in chain:
                if planned.together == "during":
                    self._until_something_is_done(open_)
                self._make(planned, promised, first, everything, open_)
            self._until_over(open_)
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise
        finally:
            try:
                with ExitStack() as left:
                    for each in reversed(open_):
                        left.callback(self._heal, each)
            finally:
                self.done += [each.done for each in open_]
        self._live.let_go()

    def _make(self, planned: Planned, promised: Bounds, known: Look, everything: ExitStack, open_: list[_Made]) -> None:
        """Makes one fault and adds it to `open_`, also where it was interrupted."""
        fault = FAULTS[planned.name]
        heal = everything.enter_context(ExitStack())
        look = self._live.look()
        step = max(known.step, look.step)  # a group that is being started has committed none yet
        began = self._clock()
        done = FaultDone(
            number=planned.number, name=planned.name, group=planned.group, rank=planned.rank, generation=0, node="",
            step=step, began=began, made=None, evidence="", healed=None, over=None, kinds=tuple(fault.kinds),
            echoes=tuple(fault.echoes), drifts=fault.drifts, within_s=promised.within_s,
            others_within_s=promised.others_within_s, before="" if planned.together else look.not_well,
        )  # fmt: skip
        assert fault.inject is not None
        try:
            target = self._target(planned, fault, open_, began + promised.within_s)
            done = replace(
                done, generation=target.generation, node=target.node, group=target.group, rank=target.rank,
                began=self._clock(),
            )  # fmt: skip
            self._say(f"step {step}: {planned}: {fault.how}")
            evidence = fault.inject(self._live.scene, target, heal)
            done = replace(done, made=self._clock(), evidence=evidence)
            self._live.made(planned.name)
            self._say(f"  {evidence}")
        except (PortError, OSError) as error:
            done = replace(done, after=str(error), over=self._clock())
            self._say(f"  it did not happen: {error}")
        except KeyboardInterrupt:
            done = replace(done, after="interrupted while it was made")
            raise
        finally:
            open_.append(_Made(fault, done, heal, known.acted, step))

    def _target(self, planned: Planned, fault: Fault, open_: Sequence[_Made], until: float) -> Target:
        """Returns the victim. For a fault that comes with another it waits, as the group may be being started."""
        while True:
            try:
                return self._live.target(planned, fault)
            except Fatal:
                if not planned.together or self._clock() > until:
                    raise
            self._heal_what_is_due(open_)
            self._next()

    def _until_something_is_done(self, open_: Sequence[_Made]) -> None:
        """Waits until the last fault is acted on, as the next one comes on top of it. Skips one without an incident."""
        last = open_[-1]
        if not last.made or not last.fault.kinds:
            return
        until = last.done.began + last.done.within_s
        while self._clock() < until and not self._acted(last, self._live.look()):
            self._heal_what_is_due(open_)
            self._next()

    def _until_over(self, open_: list[_Made]) -> None:
        while waiting := [each for each in open_ if each.done.over is None and not each.done.after]:
            self._heal_what_is_due(open_)
            look, now = self._live.look(), self._clock()
            if look.ended:
                self._give_up(waiting, look.ended)
                raise Fatal(look.ended)
            for each in waiting:
                if self._is_over(each, look):
                    self._heal(each, now)
                    each.done = replace(each.done, over=now)
                    self._say(f"  fault {each.done.number}: all is well after {now - each.done.began:.1f} s")
                elif now > each.done.began + each.done.within_s:
                    why = look.not_well or "nothing was done about it"
                    self._give_up([each], f"{why} after {each.done.within_s:g} s")
            self._next()
        self._not_before_step = self._live.look().step + self.settle_steps

    def _give_up(self, waiting: Sequence[_Made], why: str) -> None:
        for each in waiting:
            self._heal(each)
            each.done = replace(each.done, after=why)
            self._say(f"  fault {each.done.number}: {why}")

    def _is_over(self, each: _Made, look: Look) -> bool:
        if look.not_well or (each.fault.stays_s and each.done.healed is None):
            return False
        if each.fault.kinds and not self._acted(each, look):
            return False
        return look.step >= each.step + STEPS_ON

    def _acted(self, each: _Made, look: Look) -> bool:
        return any(group == each.done.group for _, group in look.acted - each.known)

    def _heal_what_is_due(self, open_: Sequence[_Made]) -> None:
        for each in open_:
            stays_s = each.fault.stays_s
            if stays_s and each.done.healed is None and each.done.made is not None:
                if self._clock() < each.done.made + stays_s:
                    continue
                self._heal(each)
                each.step = self._live.look().step
                self._say(f"  fault {each.done.number}: healed after {stays_s:g} s")

    def _heal(self, each: _Made, at: float | None = None) -> None:
        """Heals one fault to the end, and delays an interrupt for that. A second interrupt cuts it short. `at`: the
        time to note instead of now."""
        try:
            with nullcontext() if self._is_interrupted else finished_first():
                each.undo(lambda: self._clock() if at is None else at)
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise

    def _well_at(self, step: int) -> Look:
        """Waits for the step, and until all is well."""
        news, since = (-1, ""), self._clock()
        while True:
            look = self._live.look()
            if look.ended:
                raise Fatal(look.ended)
            if not look.not_well and look.step >= max(step, self._not_before_step):
                return look
            if (look.step, look.not_well) != news:
                news, since = (look.step, look.not_well), self._clock()
            elif self._clock() - since > PATIENCE_S:
                raise Fatal(
                    f"nothing moved for {PATIENCE_S:g} s before step {step}: {look.not_well or 'no step is committed'}"
                )
            self._next()

    def _next(self) -> None:
        self._live.tend()
        self._pause(LOOK_S)


def _chains(faults: Sequence[Planned]) -> Iterator[list[Planned]]:
    """Groups the faults into chains, each a fault with those that come together with it."""
    chain: list[Planned] = []
    for planned in faults:
        if chain and not planned.together:
            yield chain
            chain = []
        chain.append(planned)
    if chain:
        yield chain
