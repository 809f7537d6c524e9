"""A lease with its keepalive thread and a deadline of its own."""

from __future__ import annotations

import logging
import random
import threading
import time

import grpc

from supervisor.ports.errors import PortError
from supervisor.shell.etcd.connection import Connection
from supervisor.shell.etcd.errors import MUTE, code_of
from supervisor.shell.etcd.stubs import rpc

_log = logging.getLogger(__name__)


def boot_time() -> float:
    """Returns seconds since boot. They count while the machine sleeps (a paused VM, a laptop), as the server's clock
    does; time.monotonic does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EtcdLease:
    """A lease, renewed at about a third of its TTL. Created by `EtcdStore.lease`."""

    def __init__(self, connection: Connection, lease_id: int, ttl_s: float, sent: float) -> None:
        """`ttl_s` as granted (etcd raises small ones); `sent` is the `boot_time` before the request."""
        self._connection = connection
        self._id = lease_id
        self.ttl_s = ttl_s
        self._lock = threading.Lock()
        self._deadline = sent + ttl_s
        self._lost = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{lease_id:x}", daemon=True)
        self._thread.start()

    @property
    def id(self) -> int:
        return self._id

    @property
    def lost(self) -> bool:
        with self._lock:
            self._lost = self._lost or boot_time() >= self._deadline
            return self._lost

    def revoke(self) -> None:
        with self._lock:
            self._lost = True
        self.close()
        try:
            with self._connection.call(f"revoke lease {self._id:x}") as client:
                client.revoke_lease(self._id)
        except PortError as error:
            _log.info("lease %x is left to lapse: %s", self._id, error)

    def close(self) -> None:
        """Ends the keepalive; the lease lapses by itself."""
        self._stop.set()

    def _keep(self) -> None:
        pause = self._third()
        while not self._stop.wait(pause) and not self.lost:
            pause = self._third() if self._renew() else min(0.5, self.ttl_s / 10)

    def _third(self) -> float:
        # spread, so that a thousand agents that started together do not renew together
        return self.ttl_s / 3 * random.uniform(0.8, 1.0)

    def _renew(self) -> bool:
        """Renews once on a stream of its own: no stream can be lost unnoticed, and each renewal has a deadline."""
        client = self._connection.client
        sent = boot_time()
        timeout_s = min(self._connection.timeout_s, self.ttl_s / 3)
        try:
            call = client.leasestub.LeaseKeepAlive(iter([rpc.LeaseKeepAliveRequest(ID=self._id)]), timeout_s)
            answer = next(iter(call), None)
        except grpc.RpcError as error:
            code = code_of(error)
            _log.debug("lease %x not renewed: %s", self._id, code.name)
            if code in MUTE:
                self._connection.suspect(client, silent=code is grpc.StatusCode.DEADLINE_EXCEEDED)
            return False
        except ValueError:
            # gRPC raises it if the channel was closed meanwhile
            return False
        if answer is None:
            return False
        with self._lock:
            if answer.TTL <= 0 or self._lost or boot_time() >= self._deadline:
                # the server reports it gone, or the answer came too late: lost is lost
                self._lost = True
                return False
            self._deadline = sent + answer.TTL
        return True
