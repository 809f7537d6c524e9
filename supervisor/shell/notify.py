"""Notices to a webhook: by one sender each, whoever leads; the loop never waits for it."""

from __future__ import annotations

import json
import logging
import queue
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from pydantic_core import to_jsonable_python

from supervisor.core.notice import Notice
from supervisor.ports.errors import Fenced, PortError
from supervisor.ports.store import Expect, Store, Term
from supervisor.wire import keys, logged
from supervisor.wire.records import encode

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""For each wait for the webhook's server: a chat's answers in well below a second."""

AGAIN_S = (1.0, 5.0, 15.0, 30.0)
"""What is not taken is sent again after these pauses: a chat's server that is started anew is back within a minute. Its answer may
have been lost on the way, and then it has the notice twice: better than not at all."""

MOST_WAITING = 100
"""Notices that wait to be sent; what is above is said in the log alone."""


class Notifier:
    """Sends in a thread of its own, during one leadership term."""

    def __init__(self, store: Store, term: Term) -> None:
        self._store, self._term = store, term
        self._waiting: queue.Queue[tuple[Notice, str] | None] = queue.Queue(MOST_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, notice: Notice, file: str) -> None:
        """Send it to the URL in a file. Returns at once."""
        try:
            self._waiting.put_nowait((notice, file))
        except queue.Full:
            log.error(
                "%s: %d notices wait already; not sent: %s", notice.run, MOST_WAITING, notice.text, extra=_about(notice)
            )

    def stop(self) -> None:
        """What is under way is ended, or given up at its deadline; what waits is left to nobody."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # the thread ends with the process
        if self._thread.is_alive():
            self._thread.join(DEADLINE_S)

    def _send_all(self) -> None:
        while (given := self._waiting.get()) is not None:
            send(self._store, self._term, *given, self._stopping)


def send(store: Store, term: Term, notice: Notice, file: str, stopping: threading.Event | None = None) -> bool:
    """Whether it was sent and taken. It is claimed in etcd first: nobody else sends it, and one whose sender dies in between, or is
    stopped, is sent by nobody."""
    stopping = stopping or threading.Event()
    try:
        url = url_in(Path(file))
    except ValueError as error:
        log.error("%s: not sent, policy.webhook_file: %s: %s", notice.run, error, notice.text, extra=_about(notice))
        return False
    key = keys.notice(notice.run, notice.about)
    try:
        store.commit({key: encode(notice)}, expect=[term.expect(), Expect(key, create_revision=0)])
    except Fenced:
        return False  # somebody has sent it, or leads in our place
    except PortError as error:
        log.error("%s: not sent, the store is away (%s): %s", notice.run, error, notice.text, extra=_about(notice))
        return False
    body = json.dumps(to_jsonable_python(notice)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    for pause_s in (*AGAIN_S, None):
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S):
                return True
        except (OSError, HTTPException, ValueError) as error:
            # Not the URL: whoever has it may write there.
            what = "given up" if pause_s is None else f"again in {pause_s:g} s"
            log.error(
                "%s: the webhook did not take it (%s), %s: %s",
                notice.run,
                type(error).__name__,
                what,
                notice.text,
                extra=_about(notice),
            )
        if pause_s is None or stopping.wait(pause_s):
            break
    return False


def not_here(file: str) -> str:
    """A sentence where the file of a policy does not hold its URL on this machine; empty: it does, or there is none."""
    if not file:
        return ""
    try:
        url_in(Path(file))
    except ValueError as error:
        return (
            f"policy.webhook_file: {error}; the supervisor reads it, maybe on another machine: where it leads without the URL, "
            "nobody is told when a run needs a person"
        )
    return ""


def _about(notice: Notice) -> dict[str, dict[str, object]]:
    return logged.about(run=notice.run, group=notice.group, incident=notice.incident, node=notice.node)


def url_in(file: Path) -> str:
    """The URL that a file holds; raises ValueError with what is wrong, without the URL."""
    try:
        url = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read here ({getattr(error, 'strerror', None) or 'no text'})") from error
    try:
        parts = urlsplit(url)
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and len(url.split()) == 1
    except ValueError:
        well = False
    if not well:
        raise ValueError(f"{file} does not hold one http or https URL")
    return url
