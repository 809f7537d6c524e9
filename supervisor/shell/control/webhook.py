"""Sends notices to a webhook. Each has one sender, however leaders change, and the loop never waits for it."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_jsonable_python

from supervisor.core.report.notifications import Notice
from supervisor.ports.errors import Fenced, PortError
from supervisor.ports.store import Expect, Store, Term
from supervisor.wire import keys, logged
from supervisor.wire.records import encode
from supervisor.wire.security import is_open

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""Deadline of each wait for the webhook's server: a chat server answers well within a second."""

AGAIN_S = (1.0, 5.0, 15.0, 30.0)
"""Pauses before an untaken notice is sent again: a restarted chat server is back within a minute. If only its answer
was lost, it gets the notice twice, which is better than never."""

MOST_WAITING = 100
"""Most notices that wait to be sent; further ones are only logged."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would follow it, to any host, with a GET that carries no notice."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


class Notifier:
    """Sends in its own thread, during one leadership term."""

    def __init__(self, store: Store, term: Term) -> None:
        self._store, self._term = store, term
        self._waiting: queue.Queue[tuple[Notice, str] | None] = queue.Queue(MOST_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, notice: Notice, file: str) -> None:
        """Sends a notice to the URL in a file. Returns at once."""
        try:
            self._waiting.put_nowait((notice, file))
        except queue.Full:
            log.error(
                "%s: %d notices wait already; not sent: %s", notice.run, MOST_WAITING, notice.text, extra=_about(notice)
            )

    def stop(self) -> None:
        """Stops the thread: a notice being sent is finished, or given up at its deadline; waiting ones are dropped."""
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
    """Sends a notice; returns true if the webhook took it. Claims it in etcd first, so that no one else sends it. If
    this sender then dies or is stopped, no one does."""
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
        return False  # another sender has it, or leads in our place
    except PortError as error:
        log.error("%s: not sent, the store is away (%s): %s", notice.run, error, notice.text, extra=_about(notice))
        return False
    body = json.dumps(to_jsonable_python(notice)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    for pause_s in (*AGAIN_S, None):
        try:
            with _OPENER.open(request, timeout=DEADLINE_S):
                return True
        except (OSError, HTTPException, ValueError) as error:
            # Omits the URL, since anyone who has it may write there.
            what = "given up" if pause_s is None else f"again in {pause_s:g} s"
            log.error(
                "%s: the webhook did not accept it (%s), %s: %s",
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
    """Returns a sentence if the policy's webhook file holds no URL on this machine; empty if it does, or is not set."""
    if not file:
        return ""
    try:
        url_in(Path(file))
    except ValueError as error:
        return (
            f"policy.webhook_file: {error}; each supervisor reads it on its own machine: if one leads without the URL, "
            "no one is notified when a run needs a person"
        )
    return ""


def _about(notice: Notice) -> dict[str, dict[str, object]]:
    return logged.about(run=notice.run, group=notice.group, incident=notice.incident, node=notice.node)


def url_in(file: Path) -> str:
    """Returns the URL in a file. Raises ValueError with what is wrong, without the URL."""
    try:
        with file.open() as opened:
            open_to_others = is_open(os.fstat(opened.fileno()))
            url = opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read here ({getattr(error, 'strerror', None) or 'no text'})") from error
    try:
        parts = urlsplit(url)
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and len(url.split()) == 1
    except ValueError:
        well = False
    if not well:
        raise ValueError(f"{file} does not hold one http or https URL")
    if open_to_others:
        raise ValueError(f"{file} may be used by others than its owner: run `chmod 600 {file}`")
    return url
