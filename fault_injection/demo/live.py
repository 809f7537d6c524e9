"""Shows the demo while it runs: a live table on a terminal, else a line for each event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Group
from rich.live import Live
from rich.text import Text

from fault_injection.demo.scenario import Look
from supervisor.core.words import say
from supervisor.shell.inspect import render
from supervisor.wire.printer import Printer

Show = Callable[[Look, str], None]


@contextmanager
def view(console: Printer, page: str) -> Iterator[Show]:
    """Yields a function that shows a look. `page`: where a browser finds the page, maybe not at the leader's
    address."""
    began = time.monotonic()
    if not console.is_terminal:
        yield _Lines(console, began)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(look: Look, what: str) -> None:
            head = Text(f"{time.monotonic() - began:5.1f} s  {what}", "bold")
            parts = [head, Text(), render.run(replace(look.status, page=page), time.time()), Text()]
            if look.incidents:
                parts.append(render.incidents(look.incidents))
            live.update(Group(*parts))

        yield show


class _Lines:
    """Prints what is new since the last look."""

    def __init__(self, console: Printer, began: float) -> None:
        self._console = console
        self._began = began
        self._what = ""
        self._groups: dict[int, tuple[str, int, str]] = {}
        self._incidents: dict[str, str] = {}
        self._step = -1

    def __call__(self, look: Look, what: str) -> None:
        if what != self._what:
            self._what = what
            self._say(f"-- {what}", look)
        for g in look.status.groups:
            state = (g.phase, g.generation, g.node)
            if self._groups.get(g.group) != state:
                self._groups[g.group] = state
                self._say(f"group {g.group}: {g.phase} generation {g.generation} on {g.node or '-'}", look)
        for i in look.incidents:
            if self._incidents.get(i.id) != (mark := f"{i.state} {i.rung}"):
                self._incidents[i.id] = mark
                self._say(f"incident {i.id}: {i.kind} rung {i.rung.value}: {i.state}: {say(i.reason)}", look)
        if look.status.step >= self._step + 10:
            self._step = look.status.step
            losses = [f"{g.loss:.3f}" for g in look.status.groups if g.loss is not None]
            self._say(f"loss {' '.join(losses)}", look)

    def _say(self, text: str, look: Look) -> None:
        seconds = time.monotonic() - self._began
        self._console.print(f"{seconds:6.1f} s  step {look.status.step:4d}  {text}", soft_wrap=True)
