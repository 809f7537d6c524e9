"""`supervisor top`: the page in a terminal. It feeds itself from etcd, as the page does, so it needs no supervisor that lives."""

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
from supervisor.shell import client
from supervisor.shell.metrics import Metrics
from supervisor.shell.page.feed import Feed
from supervisor.shell.page.terminal import ENDLESS, PLAIN, SIGNS, Drawing, clock, lasted, zone
from supervisor.shell.page.watcher import Page
from supervisor.shell.store.status import Asked
from supervisor.shell.store_watch import StoreWatch
from supervisor.wire.printer import Printer

REDRAW_S = 1.0
"""At least so often: a terminal's size changes, and the age of what is shown."""


class Looked(Store, Asked, Protocol):
    """An etcd that is followed, and asked how it is."""


def top(store: Looked, run: str, console: Printer) -> None:
    """Until interrupted; where nobody looks at a terminal, once. No name: the newest run. Raises Fatal when there is none, and
    PortError when etcd does not answer at first."""
    page: Page
    asking = StoreWatch(store, Metrics(), lambda: page.silent_s)
    page = Page(store, alarms=lambda: asking.alarms)
    client.choose_run(page.begin(), run)
    asking.look()
    with page.reading(run) as feed:
        page.begin()
        if not console.is_terminal or console.is_dumb_terminal:
            told = feed.newest
            word = (
                f"one look, at {clock(told['now'])} {zone(told['now'])}: that no step comes is seen only by who watches"
            )
            for line in Drawing(told, ENDLESS, _signs(console)).lines(word, ENDLESS):
                console.print(line, soft_wrap=True)
            return
        asking.start()  # beside the page, which goes on while etcd does not answer; nor does Ctrl-C wait for it
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


def _word(told: Mapping[str, Any], age_s: float) -> str:
    """How old the picture is; `age_s`: since when the page's own thread has told nothing."""
    if told["store_since"]:
        return f"no word from etcd since {clock(told['store_since'])}"
    if age_s > 3 * told["every_s"] + 4:  # so long a browser waits as well
        return f"no word since {clock(told['now'])} ({lasted(age_s)})"
    return f"live {clock(told['now'])} {zone(told['now'])}"


def _signs(console: Printer) -> Mapping[str, str]:
    if console.encoding.startswith("utf"):
        return SIGNS
    if isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")  # what a trainer wrote may be anything
    return PLAIN


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """Nothing is logged into the picture: it says itself how old it is."""
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [logging.NullHandler()]
    try:
        yield
    finally:
        root.handlers = before
