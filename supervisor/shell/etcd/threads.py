"""Threads that work with an etcd that may be away for a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from supervisor.ports.errors import PortError, Retryable
from supervisor.ports.store import Store
from supervisor.shell.etcd import EtcdStore, connect
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
    """Returns the seconds until the next try. A Fatal error is tried again too: a person may mend it."""
    return max(0.1, min(error.after_s, 1.0)) if isinstance(error, Retryable) else 5.0


def connect_patiently(
    endpoints: Sequence[str], stop: threading.Event, security: Security | None = None
) -> EtcdStore | None:
    """Connects, however long it takes; None when `stop` was set first."""
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


class EtcdThread(threading.Thread):
    """Connects, calls `_turn` until it is stopped, pauses after each failure, and finally calls `_finish`."""

    def __init__(self, name: str, back: str, etcd: Sequence[str], security: Security | None) -> None:
        """`back`: the sentence that is logged when etcd answers again."""
        super().__init__(name=name, daemon=True)
        self._etcd = etcd
        self._security = security
        self._said = OneSentence(back)
        self._stop_now = threading.Event()
        self._some = threading.Condition()
        """Guards the requests of other threads; notified when there is work."""

    def stop(self) -> None:
        with self._some:
            self._stop_now.set()
            self._some.notify()

    def run(self) -> None:
        store = connect_patiently(self._etcd, self._stop_now, self._security)
        if store is None:
            return
        while not self._stop_now.is_set():
            try:
                self._turn(store)
            except PortError as error:
                self._failed(error)
                self._said.trouble(error)
                self._stop_now.wait(pause_after(error))
        self._finish(store)
        store.close()

    def _turn(self, store: Store) -> None:
        """Does the pending work, and calls `self._said.well` once etcd has answered. May raise PortError."""
        raise NotImplementedError

    def _failed(self, error: PortError) -> None:
        """Notes that a turn failed."""

    def _finish(self, store: Store) -> None:
        """Does what is left before the end. Raises nothing."""
