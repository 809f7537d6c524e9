"""`supervisor top`: the page in a terminal. Like the page, it reads etcd itself, so it needs no live supervisor."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Protocol

from rich.console import Group
from rich.live import Live

from supervisor.ports.store import Store
from supervisor.shell.etcd.metrics import StoreWatch
from supervisor.shell.etcd.status import Asked
from supervisor.shell.inspect import client
from supervisor.shell.metrics.registry import Metrics
from supervisor.shell.web.feed import Feed
from supervisor.shell.web.terminal import ENDLESS, PLAIN, SIGNS, Drawing, Word, clock, lasted, zone
from supervisor.shell.web.watcher import Page
from supervisor.wire.printer import Printer

REDRAW_S = 1.0
"""Longest time between redraws, since the terminal's size and the picture's age change."""


class Looked(Store, Asked, Protocol):
    """An etcd that can be followed and asked for its state."""


def top(store: Looked, run: str, console: Printer) -> None:
    """Draws until interrupted, or once if the output is not a terminal. Without a name it shows the newest run. Raises
    Fatal if there is none, and PortError if etcd does not answer at first."""
    page: Page
    asking = StoreWatch(store, Metrics(), lambda: page.silent_s)
    page = Page(store, alarms=lambda: asking.alarms)
    client.choose_run(page.begin(), run)
    asking.look()
    with page.reading(run) as feed:
        page.begin()
        if not console.is_terminal or console.is_dumb_terminal:
            told = feed.newest
            word = f"snapshot at {clock(told['now'])} {zone(told['now'])}: a stop of the steps shows only in a live `top` or page"
            for line in Drawing(told, ENDLESS, _signs(console)).lines(Word(word), ENDLESS):
                console.print(line, soft_wrap=True)
            return
        asking.start()  # in its own thread: neither the page nor Ctrl-C waits for etcd
        page.start()
        try:
            with (
                contextlib.suppress(KeyboardInterrupt),
                _unsaid(),
                Live(console=console, screen=True, auto_refresh=False) as live,
            ):
                _follow(feed, console, live)
        finally:
            page.stop()


def _follow(feed: Feed, console: Printer, live: Live) -> NoReturn:
    version, heard = 0, time.monotonic()
    while True:
        newest, events = feed.after(version, REDRAW_S)
        if events:
            version, heard = newest, time.monotonic()
        told = feed.newest
        lines = Drawing(told, console.width, _signs(console)).lines(
            _word(told, time.monotonic() - heard), console.height
        )
        live.update(Group(*lines), refresh=True)


def _word(told: Mapping[str, Any], age_s: float) -> Word:
    """Returns the age of the picture in words. `age_s`: seconds since the page's own thread published."""
    if told["store_since"]:
        return Word(f"no update from etcd since {clock(told['store_since'])}", lost=True)
    if age_s > 3 * told["every_s"] + 4:  # a browser waits as long
        return Word(f"no update since {clock(told['now'])} ({lasted(age_s)})", lost=True)
    return Word(f"live {clock(told['now'])} {zone(told['now'])}")


def _signs(console: Printer) -> Mapping[str, str]:
    if console.encoding.startswith("utf"):
        return SIGNS
    if isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")  # a trainer's output may hold anything
    return PLAIN


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """Discards log lines, which would break the picture; the picture itself shows its age."""
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [logging.NullHandler()]
    try:
        yield
    finally:
        root.handlers = before
