"""One gRPC channel to one etcd member at a time, and the way to the next one when this one is mute."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from supervisor.ports.errors import Fatal
from supervisor.shell.store.errors import MUTE, code_of, raise_port_error
from supervisor.shell.store.stubs import etcd3

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # etcd answers a client that pings more often than every 5 s, or without a call, with GOAWAY too_many_pings
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # gRPC's name for how long one attempt to connect may take; 20 s by default
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # a new channel must not inherit the stuck connection of the one that it replaces
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # no retries by a service config from DNS: a transaction must never be repeated
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
)


class Connection:
    """The current etcd3 client. With several endpoints a mute member is left for the next; a single one gets a fresh
    channel. Names are resolved by gRPC, again on each reconnect."""

    def __init__(self, endpoints: Sequence[str], timeout_s: float) -> None:
        self.endpoints = tuple(parse_endpoint(endpoint) for endpoint in endpoints)
        if not self.endpoints:
            raise Fatal("no etcd endpoint given: give HOST:PORT, several with commas between")
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        # a thousand agents must not all sit on the first member
        self._place = random.randrange(len(self.endpoints))
        self._client = self._open()
        self._retired: list[tuple[float, Any]] = []
        self._closed = False

    @property
    def client(self) -> Any:
        """The etcd3 client to use now; ask for it anew for each call and stream."""
        return self._client

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the member in use."""
        host, port = self.endpoints[self._place]
        return f"{host}:{port}"

    @contextmanager
    def call(self, what: str, writes: bool = False, size: int = 0) -> Iterator[Any]:
        """Gives the client for one call, and turns its errors into the ports'.

        Raises Retryable, Fatal or Fenced (see `errors`); `writes` and `size` as there.
        """
        if self._closed:
            raise Fatal(f"{what}: this store was closed")
        client = self._client
        try:
            yield client
        except (grpc.RpcError, etcd3.Etcd3Exception) as error:
            # etcd3 raises its own errors for some codes; gRPC's is then the context
            cause = error if isinstance(error, grpc.RpcError) else error.__context__
            if code_of(cause) in MUTE:
                self.suspect(client, silent=code_of(cause) is grpc.StatusCode.DEADLINE_EXCEEDED)
            raise_port_error(cause, what, writes, client, size)

    def suspect(self, client: Any, silent: bool) -> None:
        """Says that `client` got no good answer. `silent`: no answer at all, so that even a single endpoint's channel
        is made anew (its connection may be a dead one)."""
        with self._lock:
            if client is not self._client or self._closed or (len(self.endpoints) == 1 and not silent):
                return
            now = time.monotonic()
            self._place = (self._place + 1) % len(self.endpoints)
            # others' calls on the old channel may still be answered: it is closed when their deadlines are over
            self._retired.append((now, client))
            self._client = self._open()
            over = [old for since, old in self._retired if now - since > 2 * self.timeout_s]
            self._retired = [(since, old) for since, old in self._retired if old not in over]
        for old in over:
            old.close()

    def close(self) -> None:
        """Ends all calls and streams."""
        with self._lock:
            self._closed = True
            clients = [self._client, *(old for _, old in self._retired)]
            self._retired = []
        for client in clients:
            client.close()

    def _open(self) -> Any:
        host, port = self.endpoints[self._place]
        return etcd3.client(host=host, port=port, timeout=self.timeout_s, grpc_options=CHANNEL_OPTIONS)


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """'10.0.0.1:2379', 'http://etcd-0:2379', '[::1]:2379' as host and port. Raises Fatal."""
    host, _, port = endpoint.strip().removeprefix("http://").rstrip("/").rpartition(":")
    if endpoint.startswith("https://"):
        raise Fatal(f"{endpoint}: TLS to etcd is not supported yet; give HOST:PORT of a plain listener")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Fatal(f"{endpoint!r} is not an etcd endpoint: give HOST:PORT, for example 127.0.0.1:2379")
    return host, int(port)
