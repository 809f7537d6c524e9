"""Tells the demo's story: train, break it three ways, each when training has moved on, and stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fault_injection.faults import acts
from fault_injection.faults.acts import Injected
from supervisor.core.model import Incident
from supervisor.core.restored import ENDED
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd import EtcdStore
from supervisor.shell.inspect import client, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.wire import keys
from supervisor.wire.records import Control, NodeObserved, RunRecord

VICTIM = 1
"""The group that is broken; group 0 must train on."""

STEPS_BETWEEN = 20
"""Committed steps between a recovery and the next fault."""

PATIENCE_S = 120.0
"""Seconds without any news after which the demo gives up: four times the slowest phase seen here."""


@dataclass
class Look:
    """One look at the run."""

    status: RunStatus
    incidents: list[Incident]
    mirror: Mirror


@dataclass
class Story:
    """Drives one run through its faults. `show` gets every look."""

    store: EtcdStore
    record: RunRecord
    system: Path
    lose_node: Callable[[int, str], Injected]
    show: Callable[[Look, str], None]
    dead: Callable[[], list[str]]
    injected: list[Injected] = field(default_factory=list)

    def tell(self) -> list[Injected]:
        """Runs the whole story. Raises Fatal when nothing moves any more."""
        self._until(partial(self._training, STEPS_BETWEEN), "training starts")
        for inject, name in (
            (self._kill_trainer, "SIGKILL a trainer"),
            (self._lose_node, "lose a node"),
            (self._take_allocation, "take an allocation away"),
        ):
            fault = inject(self._look())
            self.injected.append(fault)
            count = len(self.injected)
            self._until(partial(self._recovered, count), f"{name}: {fault.evidence}")
            goal = self._look().status.step + STEPS_BETWEEN
            self._until(partial(self._training, goal), f"recovered; training on to step {goal}")
        client.change_control(self.store, self.record.spec.name, _stop)
        self._until(lambda look: look.status.phase in ENDED, "stopping at one step")
        return self.injected

    def _look(self) -> Look:
        while True:
            try:
                mirror = Mirror(self.store.list(keys.PREFIX))
                break
            except Retryable as error:
                time.sleep(min(1.0, error.after_s))
        found = client.incidents(mirror, self.record.spec.name)
        return Look(status.run_status(mirror, self.record), found, mirror)

    def _until(self, reached: Callable[[Look], bool], what: str) -> None:
        news: object = None
        since = time.monotonic()
        while True:
            look = self._look()
            self.show(look, what)
            if reached(look):
                return
            ended = self.dead()
            if ended:
                raise Fatal("; ".join(ended))
            if look.status.halt_reason:
                raise Fatal(f"the run was halted: {look.status.halt_reason}")
            current = (look.status.step, look.status.groups, len(look.incidents), look.status.phase)
            if current != news:
                news, since = current, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                raise Fatal(f"nothing moved for {PATIENCE_S:g} s while: {what}")
            time.sleep(0.25)

    def _training(self, step: int, look: Look) -> bool:
        return look.status.step >= step and self._all_running(look)

    def _recovered(self, count: int, look: Look) -> bool:
        recovered = [i for i in look.incidents if i.state == "recovered"]
        return len(recovered) >= count and not look.status.incidents_open and self._all_running(look)

    def _all_running(self, look: Look) -> bool:
        return all(g.phase == "running" for g in look.status.groups)

    def _kill_trainer(self, look: Look) -> Injected:
        group = look.status.groups[VICTIM]
        seen = look.mirror.record(keys.observed(group.node), NodeObserved)
        ranks = [
            t
            for t in (seen.trainers if seen is not None else ())
            if (t.group, t.generation) == (VICTIM, group.generation)
        ]
        if not ranks:
            raise Fatal(f"node {group.node} shows no trainer of group {VICTIM}")
        return acts.kill_trainer(VICTIM, group.node, ranks[0].pid)

    def _lose_node(self, look: Look) -> Injected:
        return self.lose_node(VICTIM, look.status.groups[VICTIM].node)

    def _take_allocation(self, look: Look) -> Injected:
        node = look.status.groups[VICTIM].node
        memory = observe.memory(look.mirror, self.record.spec.name)
        observed = observe.observed(look.mirror, self.record.spec.name, memory, memory.clock, 0.0)
        return acts.take_allocation(VICTIM, node, observed.nodes[node].allocation, self.system)


def _stop(control: Control) -> Control:
    return replace(control, stop=True)
