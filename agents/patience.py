"""Connecting to an etcd that may be away for now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from supervisor.ports.errors import PortError, Retryable
from supervisor.shell.store import EtcdStore, connect
from supervisor.wire.security import Security

log = logging.getLogger(__name__)


class OneSentence:
    """Logs a trouble when it begins or changes, and its end, instead of at every try."""

    def __init__(self, back: str) -> None:
        self._back = back
        self._kind: type[BaseException] | None = None

    def trouble(self, error: PortError) -> None:
        if self._kind is not type(error):
            log.warning("%s", error)
        self._kind = type(error)

    def well(self) -> None:
        if self._kind is not None:
            log.info("%s", self._back)
        self._kind = None


def pause_after(error: PortError) -> float:
    """Seconds to wait before the next try; what is Fatal may be mended by a person, so it is tried again too."""
    return max(0.1, min(error.after_s, 1.0)) if isinstance(error, Retryable) else 5.0


def connect_patiently(
    endpoints: Sequence[str], stop: threading.Event, security: Security | None = None
) -> EtcdStore | None:
    """A store, however long it takes; None when `stop` was set first."""
    said = OneSentence("etcd is there")
    while not stop.is_set():
        try:
            store = connect(endpoints, security=security)
        except PortError as error:
            said.trouble(error)
            stop.wait(pause_after(error))
        else:
            said.well()
            return store
    return None
