"""Waits for a run, and follows it: looks again whenever etcd's watch brings a change."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from supervisor.core.model.incident import Incident
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import say
from supervisor.ports.store import Store
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.wire import keys

EVERY_S = 0.25
"""Least seconds between two looks: the nodes of a large run report all the time."""

POLL_S = 1.0
"""Longest sleep in seconds: a silence of etcd is noticed within this."""

SILENCE_S = 5.0
"""A watch that is silent for longer means that etcd does not answer."""

STEPS_EVERY_S = 5.0
"""Seconds between two lines about steps."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Goal:
    """The state of a run that is waited for. `step` counts for "step" alone."""

    what: Literal["running", "step", "finished"]
    step: int = 0

    @classmethod
    def of(cls, text: str) -> Goal:
        """Reads `running`, `step=N` or `finished`. Raises ValueError with a sentence for anything else."""
        if text == "running":
            return cls("running")
        if text == "finished":
            return cls("finished")
        if (match := re.fullmatch(r"step=(\d{1,18})", text, re.ASCII)) is not None:
            return cls("step", int(match[1]))
        raise ValueError(f"{text!r}: give running, step=N or finished")

    def reached(self, at: RunStatus, min_groups: int) -> bool:
        """Returns true if the run is there. It is running once as many groups as may step together have committed; groups
        of a command that reports no steps run once it is started."""
        if self.what == "step":
            return at.step >= self.step
        if self.what == "finished":
            return at.phase == "finished"
        return at.phase == "running" and _running(at) >= min_groups

    def __str__(self) -> str:
        return f"at step {self.step}" if self.what == "step" else self.what


def _running(at: RunStatus) -> int:
    return sum(g.phase == "running" for g in at.groups)


def looks(store: Store, until: float, note: Say) -> Iterator[Mirror]:
    """Yields all that etcd holds, now and after changes, and ends at `until` (time.monotonic()). `note` gets a sentence
    when etcd falls silent: the watch goes on when it answers again. Raises PortError if it does not answer at first."""
    mirror = Mirror(store.list(keys.PREFIX))
    silent = False
    with contextlib.closing(store.watch(keys.PREFIX, mirror.revision)) as watch:
        yield mirror
        while (left_s := until - time.monotonic()) > 0:
            threading.Event().wait(min(EVERY_S, left_s))
            changes = watch.poll(min(POLL_S, left_s))
            if watch.silent_s > SILENCE_S and not silent:
                note("etcd does not answer; the run may train on, and this goes on once it answers")
            silent = watch.silent_s > SILENCE_S
            if changes is None:
                continue
            while changes is not None:
                mirror.apply(changes)
                changes = watch.poll(0.0)
            yield mirror


def wait(store: Store, run: str, goal: Goal, until: float, note: Say) -> tuple[bool, str]:
    """Waits until the run is there, or can no longer get there, or until the time (time.monotonic()). Returns whether
    it is there, and a sentence. An empty name means the newest run. Raises Fatal if there is no such run at first."""
    at: RunStatus | None = None
    for mirror in looks(store, until, note):
        if at is not None and at.run not in observe.runs(mirror):
            return False, f"run {at.run} was removed: it is not {goal}"
        record = client.choose_run(mirror, at.run if at is not None else run)
        at = status.run_status(mirror, record)
        if goal.reached(at, record.spec.groups.min_groups):
            return True, f"run {at.run} is {goal}" + (f": step {at.step}" if goal.what != "running" else "")
        if at.phase in ENDED:
            return False, f"{ended(at)}; it is not {goal}"
    assert at is not None
    where = f"at step {at.step}"
    if goal.what == "running":
        least = record.spec.groups.min_groups
        where = f"with {_running(at)} of {len(at.groups)} groups running (groups.min_groups = {least})"
    return False, f"run {at.run} is not {goal} in time: it is {at.phase}, {where}"


def ended(at: RunStatus) -> str:
    """Returns how a run ended, and what to do to let it go on."""
    how = f"run {at.run} {'was stopped' if at.phase == 'stopped' else f'is {at.phase}'} at step {at.step}"
    if at.phase == "finished":
        return how
    why = f": {at.halt_reason}" if at.halt_reason else ""
    return f'{how}{why} (to let it go on: supervisor resume {at.run} --because "...")'


def follow(store: Store, run: str, say_line: Say, note: Say) -> str:
    """Prints what a run waits for, what its groups do, its steps and its incidents, until it ends. Returns its phase
    then; empty if it was removed. Raises Fatal if there is no such run at first."""
    told: _Lines | None = None
    for mirror in looks(store, float("inf"), note):
        if told is not None and run not in observe.runs(mirror):
            say_line(f"run {run} was removed")
            return ""
        record = client.choose_run(mirror, run)
        told = told or _Lines(say_line, record.spec.titan.steps)
        at = status.run_status(mirror, record)
        told.look(at, client.incidents(mirror, run), time.monotonic())
        if at.phase in ENDED:
            say_line(ended(at))
            return at.phase
    raise AssertionError("the looks never end by themselves")


class _Lines:
    """The lines printed about a run so far, so that each is printed once."""

    def __init__(self, say_line: Say, steps: int) -> None:
        self._say, self._steps = say_line, steps
        self._known: dict[str, str] = {}
        self._step = 0
        self._stepped = float("-inf")

    def look(self, at: RunStatus, incidents: list[Incident], now: float) -> None:
        """Prints what is new. `now`: time.monotonic()."""
        for sentence in at.waiting:
            self._new(_without_numbers(sentence), "", sentence)
        for g in (g for g in at.groups if g.phase != "unplaced"):  # what it waits for is printed above
            where = f" on {g.where}, generation {g.generation}" if g.nodes else ""
            self._new(f"group {g.group}", f"{g.phase}{where}", f"group {g.group}: {g.phase}{where}")
        for i in incidents:
            about = f"incident {i.id}: {i.kind.value} of group {i.group}" + (f" on {i.node}" if i.node else "")
            why = f": rung {i.rung.value} {i.rung.name.lower()}, {say(i.reason)}" if i.state == "acting" else ""
            self._new(f"incident {i.id}", i.state, f"{about} ({i.state}){why}")
        if at.step > self._step and (now >= self._stepped + STEPS_EVERY_S or at.phase in ENDED):
            self._step, self._stepped = at.step, now
            first = max(at.groups, key=lambda g: g.step)
            loss = f", loss {first.loss:.3f}" if first.loss is not None else ""
            took = f", {first.step_s:.2f} s a step" if first.step_s else ""
            self._say(f"step {at.step} of {self._steps}{loss}{took}")

    def _new(self, about: str, state: str, line: str) -> None:
        if self._known.get(about) != state:
            self._known[about] = state
            self._say(line)


def _without_numbers(sentence: str) -> str:
    """Returns a sentence without its numbers: a wait that grows longer is no news."""
    return re.sub(r"\d+", "", sentence)
