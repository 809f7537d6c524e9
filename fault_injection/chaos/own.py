"""A system of its own on this machine, started to be broken: real trainers that do as they are ordered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.programs import SEAM
from fault_injection.chaos.live import LiveRun
from fault_injection.chaos.watch import Watcher
from supervisor.core.spec import (
    AllocationSpec,
    BudgetSpec,
    GroupsSpec,
    HangSpec,
    PolicySpec,
    RunSpec,
    TitanSpec,
    TorchFTSpec,
)
from supervisor.shell import client
from supervisor.shell import up as up_module
from supervisor.shell.engines.local import PoolNode
from supervisor.shell.store import connect

PROGRAMS = {"trainer": "fault_injection.trainer", "warm": "fault_injection.warm"}

NODES = 6
"""Two for the groups, a spare, one in the place of one that is lost, and two that may still be ending."""


def spec(name: str) -> RunSpec:
    """TorchTitan's Llama 3 debug model in two groups. Its timeouts are short, so that a hang is found in seconds; its budgets
    are those of a run that is broken every minute."""
    return RunSpec(
        name=name,
        chaos="allowed",
        titan=TitanSpec(steps=10**6, checkpoint_interval_steps=25, digest_interval_steps=5),
        groups=GroupsSpec(count=2),
        allocation=AllocationSpec(nodes=2, spares=1),
        torchft=TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=2000, process_group_timeout_ms=4000),
        policy=PolicySpec(
            budget=BudgetSpec(restart=60, replace=60, reallocate=60),
            hang=HangSpec(at_least_s=15.0, at_most_s=60.0),
            backoff_first_s=0.0,
            backoff_max_s=0.0,
            start_timeout_s=120.0,
        ),
    )


@contextmanager
def started(home: Path, made: RunSpec, cold: bool, say: Callable[[str], None]) -> Iterator[LiveRun]:
    """The run, launched in a system of its own below `home`; all of it has ended when the block has."""
    nodes = [PoolNode(name=f"n{i + 1}") for i in range(NODES)]
    before = os.environ.get(SEAM)
    os.environ[SEAM] = json.dumps(PROGRAMS)
    try:
        with up_module.up(home / made.name, nodes, cold=cold, say=say) as up:
            store = connect([up.endpoint])
            try:
                record = client.launch(store, made, home)
                watcher = Watcher(store, made.name)
                watcher.start()
                try:
                    yield LiveRun(store, watcher, record, up.home, tended=up.mend)
                finally:
                    watcher.stop()
            finally:
                store.close()
    finally:
        os.environ.pop(SEAM)
        if before is not None:
            os.environ[SEAM] = before
