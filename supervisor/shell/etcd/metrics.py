"""Measures etcd for a supervisor's metrics, whether it leads or not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from supervisor.ports.errors import PortError
from supervisor.shell.control.loop import SILENCE_S
from supervisor.shell.etcd.status import Asked
from supervisor.shell.metrics.registry import Metrics
from supervisor.wire import keys

log = logging.getLogger(__name__)

EVERY_S = 5.0


class StoreWatch(threading.Thread):
    """A thread that measures etcd. `silent_s`: seconds for which the process's page has heard nothing."""

    def __init__(self, store: Asked, metrics: Metrics, silent_s: Callable[[], float]) -> None:
        super().__init__(name="store-watch", daemon=True)
        self._store, self._metrics = store, metrics
        self._ended = threading.Event()
        self._heard = False
        self.alarms: tuple[str, ...] = ()
        """etcd's alarms, as last reported."""
        metrics.gauge("supervisor_watch_silent_seconds").set_function(silent_s)
        metrics.gauge("supervisor_store_up").set_function(lambda: float(self._heard and silent_s() <= SILENCE_S))

    def run(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(EVERY_S)

    def look(self) -> None:
        """Measures once."""
        began, m = time.monotonic(), self._metrics
        try:
            try:
                self._store.get(keys.LEADER)  # a read that needs a quorum of its members
            finally:  # a call without an answer is the slowest of all
                m.histogram("supervisor_store_seconds").observe(time.monotonic() - began)
            status = self._store.status()
        except PortError as error:
            log.debug("etcd does not report its status: %s", error)
            return
        self._heard = True
        if status.db_size:
            m.gauge("supervisor_store_size_bytes").set(status.db_size)
        m.gauge("supervisor_store_alarms").set(len(status.alarms))
        self.alarms = status.alarms

    def stop(self) -> None:
        """Stops the thread; waits up to EVERY_S for it."""
        self._ended.set()
        if self.is_alive():
            self.join(EVERY_S)
