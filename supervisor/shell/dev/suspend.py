"""Stops the runs with a last checkpoint when `up` ends, and resumes them when it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from supervisor.core.model.memory import Memory
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.store import Store
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.inspect import client, status
from supervisor.wire import keys
from supervisor.wire.records import Control, RunRecord

STOP_WITHIN_S = 60.0
"""How long an ending `up` waits for the runs' last checkpoints. systemd gives a service 90 s by default."""

LOOK_S = 0.25

OVER = ("finished", "halted")
"""Phases of runs that ended by themselves while being stopped: `up` does not resume them."""

AGAIN = "`supervisor up` runs again"
"""Reason in the journal why a run that was stopped with `up` goes on."""


def of_home(mirror: Mirror, runs: Path) -> list[RunRecord]:
    """Returns the runs of this home on local nodes, pools first: an etcd may hold others too."""
    found = sorted(observe.runs(mirror).values(), key=lambda r: not r.spec.is_pool)
    return [
        r for r in found if observe.engine_of(mirror, r.spec) == LocalEngine.name and Path(r.run_dir).parent == runs
    ]


def _phases(mirror: Mirror, runs: Path) -> Iterator[tuple[RunRecord, Memory, Control]]:
    for record in of_home(mirror, runs):
        memory = mirror.record(keys.memory(record.spec.name, "run"), Memory)
        control = mirror.record(keys.control(record.spec.name), Control)
        yield record, memory or Memory(), control or Control()


def _mirror(store: Store) -> Mirror:
    return Mirror(store.list(keys.PREFIX))


def going_on(store: Store, runs: Path) -> list[str]:
    """Returns a sentence for each live run that a starting `up` finds in its home."""
    mirror = _mirror(store)
    sentences = []
    for record, memory, control in _phases(mirror, runs):
        if control.suspended and memory.phase not in OVER:
            sentences.append(f"{_named(record)} was stopped with `up`, and goes on: {_saved(record, memory)}")
        elif control.stop and memory.phase not in ENDED:
            sentences.append(f"{_named(record)} is being stopped, as a person asked")
        elif memory.phase not in ENDED and record.spec.is_pool:
            sentences.append(f"{_named(record)} goes on ({memory.phase})")
        elif memory.phase not in ENDED:
            found = status.run_status(mirror, record)
            sentences.append(f"run {record.spec.name} goes on ({found.phase}, last step {found.step})")
    return sentences


def suspend(store: Store, runs: Path, say: Callable[[str], None], tend: Callable[[], None]) -> None:
    """Stops the home's live runs, all groups after one step with a checkpoint. Marks those that no person stopped as
    stopped with `up`. Waits at most STOP_WITHIN_S, calling `tend` meanwhile. Raises Retryable if etcd is away."""
    live = [(r.spec.name, c) for r, m, c in _phases(_mirror(store), runs) if m.phase not in ENDED]
    for name, control in live:
        client.change_control(store, name, _suspended)
        if control.paused:
            say(f"run {name} was paused; the pause ends when it goes on")
    if not live:
        return
    names = ", ".join(name for name, _ in live)
    say(f"stopping {names}: a last checkpoint first, for at most {STOP_WITHIN_S:.0f} s; Ctrl-C again ends all at once")
    end, left = time.monotonic() + STOP_WITHIN_S, {name for name, _ in live}
    while left and time.monotonic() < end:
        for record, memory, control in _phases(_mirror(store), runs):
            if record.spec.name in left and memory.phase in ENDED:
                left.discard(record.spec.name)
                goes_on = "; `supervisor up` goes on with it" if control.suspended and memory.phase == "stopped" else ""
                say(f"{_named(record)} is {memory.phase}, {_saved(record, memory)}{goes_on}")
        tend()
        time.sleep(LOOK_S)
    if left:
        say(
            f"{', '.join(sorted(left))} did not stop in time: ended now; `supervisor up` goes on from the newest checkpoint"
        )


def resume(store: Store, runs: Path) -> bool:
    """Resumes the runs that were stopped with `up`. Returns true if some still stop: call again later."""
    stopping = False
    for record, memory, control in _phases(_mirror(store), runs):
        if not control.suspended:
            continue
        if memory.phase not in ENDED:
            stopping = True
        elif memory.phase in OVER:
            client.change_control(store, record.spec.name, lambda c: replace(c, suspended=False))
        else:
            client.change_control(store, record.spec.name, lambda c: client.resumed(c, AGAIN))
    return stopping


def _suspended(control: Control) -> Control:
    """Requests a stop. A run that a person stopped stays stopped."""
    return replace(control, stop=True, paused=False, suspended=control.suspended or not control.stop)


def _named(record: RunRecord) -> str:
    return f"{'pool' if record.spec.is_pool else 'run'} {record.spec.name}"


def _saved(record: RunRecord, memory: Memory) -> str:
    if record.spec.is_pool:
        return "its nodes are given back"
    return (
        f"its checkpoint of step {memory.checkpoint.step} is complete" if memory.checkpoint else "it has no checkpoint"
    )
