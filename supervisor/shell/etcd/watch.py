"""A watch that survives what etcd3's does not: lost streams, a frozen member, lost quorum, compaction."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from supervisor.ports.errors import Fatal, PortError
from supervisor.ports.store import Changes, Snapshot
from supervisor.shell.etcd.connection import Connection
from supervisor.shell.etcd.convert import range_of
from supervisor.shell.etcd.errors import details_of, is_refusal
from supervisor.shell.etcd.place import Place
from supervisor.shell.etcd.stubs import rpc

_log = logging.getLogger(__name__)

PROGRESS_S = 1.0
"""Seconds until a quiet server is asked for progress."""

IDLE_S = 3.0
"""A stream that is silent for longer is replaced: gRPC's own keepalive missed a frozen leader for 18 s."""

LONGEST_IDLE_S = 10.0
"""The same, after several silent streams in a row: a server that is only slow must be able to catch up."""

# Without it, a member without a quorum keeps the watch open and silent.
_METADATA = (("hasleader", "true"),)

_ENDED = object()


class EtcdWatch:
    """A resumable watch, made by `EtcdStore.watch`. A thread follows the stream and feeds a queue for `poll`."""

    def __init__(
        self, connection: Connection, prefix: str, after_revision: int, list_prefix: Callable[[str], Snapshot]
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._list = list_prefix
        self._place = Place(after_revision)
        self._queue: queue.SimpleQueue[Changes | None] = queue.SimpleQueue()
        self._failure: Fatal | None = None
        self._heard = time.monotonic()
        self._failed = False
        self._mute_streams = 0
        self._closed = threading.Event()
        self._stream: _Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{prefix}", daemon=True)
        self._thread.start()

    def poll(self, timeout_s: float) -> Changes | None:
        """Returns the next changes, as the port defines. Raises Fatal if etcd refuses the watch for good."""
        if self._failure is not None and self._queue.empty():
            raise self._failure
        try:
            # a None wakes a waiting poll when the watch is closed or has failed
            return self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard

    def close(self) -> None:
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        self._queue.put(None)

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            pause = random.uniform(0.2, 1.0) if self._failed else random.uniform(0.02, 0.1)
            self._failed = True
            try:
                if self._place.doubt is not None:
                    self._list_again()
                self._follow()
            except Fatal as error:
                if not self._closed.is_set():
                    self._failure = error
                    self._queue.put(None)
                return
            except PortError as error:
                _log.debug("watch of %s: %s", self._prefix, error)

    def _follow(self) -> None:
        """Follows one stream to its end. Raises Fatal if etcd refuses it."""
        client = self._connection.client
        stream = self._stream = _Stream(client, self._request())
        self._place.new_stream()
        quiet_since = asked = time.monotonic()
        idle_s = min(LONGEST_IDLE_S, IDLE_S * 2**self._mute_streams)
        try:
            while not self._closed.is_set() and self._place.doubt is None:
                response = stream.next(PROGRESS_S / 4)
                now = time.monotonic()
                if response is _ENDED:
                    self._ended(client, stream.error)
                    return
                if response is not None:
                    quiet_since = self._heard = now
                    self._failed, self._mute_streams, idle_s = False, 0, IDLE_S
                    for changes in self._place.take(response):
                        self._queue.put(changes)
                elif now - quiet_since > idle_s:
                    _log.info("watch of %s: no sign of %s for %.1f s", self._prefix, self._connection.endpoint, idle_s)
                    self._mute_streams += 1
                    self._connection.suspect(client, silent=True)
                    return
                elif now - max(asked, quiet_since) >= PROGRESS_S:
                    asked = now
                    stream.ask_progress()
        finally:
            stream.close()

    def _request(self) -> Any:
        start, end = range_of(self._prefix)
        create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=self._place.next)
        return rpc.WatchRequest(create_request=create)

    def _ended(self, client: Any, error: grpc.RpcError | None) -> None:
        if is_refusal(error):
            raise Fatal(f"watch of {self._prefix}: etcd refuses ({details_of(error)})")
        if self._closed.is_set():
            return
        _log.debug("watch of %s: the stream ended: %s", self._prefix, details_of(error))
        self._connection.suspect(client, silent=False)

    def _list_again(self) -> None:
        """Settles a doubt about the place. Raises Retryable or Fatal."""
        snapshot = self._list(self._prefix)
        self._heard = time.monotonic()
        reset = self._place.listed(snapshot)
        if reset is not None:
            self._queue.put(reset)
        else:
            # the member merely lags or ails: leave it
            self._connection.suspect(self._connection.client, silent=False)


class _Stream:
    """One gRPC watch stream: a thread pumps responses into an inbox, so that the reader can wait with a limit."""

    def __init__(self, client: Any, first: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(first)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: grpc.RpcError | None = None
        self._call: Any = None
        stub: Any = rpc.WatchStub  # built at run time, so it has no types
        try:
            self._call = stub(client.channel).Watch(self._sending(), metadata=_METADATA)
        except ValueError:
            # gRPC raises it if the channel was closed meanwhile
            self._inbox.put(_ENDED)
            return
        threading.Thread(target=self._pump, name="watch-pump", daemon=True).start()

    def next(self, timeout_s: float) -> Any:
        """Returns the next response, None after `timeout_s`, or _ENDED; `error` then says why."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def ask_progress(self) -> None:
        self._requests.put(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def close(self) -> None:
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def _sending(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request

    def _pump(self) -> None:
        try:
            for response in self._call:
                self._inbox.put(response)
        except grpc.RpcError as error:
            self.error = error
        self._inbox.put(_ENDED)
