"""Keeps one gRPC channel to one etcd member at a time, and moves to the next when that member is mute."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.etcd.errors import MUTE, code_of, raise_port_error
from supervisor.shell.etcd.stubs import etcd3
from supervisor.wire.security import (
    UNIX,
    CurrentFiles,
    Security,
    SecurityError,
    host_and_port,
    read_certificate,
    refuse_endpoint,
    socket_of,
)
from supervisor.wire.sockets import opened

FILES_LOOKED_AT_S = 1.0
"""Seconds between checks for a renewed certificate, which cost three stats."""

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
    # a new channel must not inherit the stuck connection of its predecessor
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # no retries by a service config from DNS: a transaction must never be repeated
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
)


class Connection:
    """The current etcd3 client. With several endpoints it leaves a mute member for the next; a single one gets a new
    channel. gRPC resolves names again on each reconnect. A certificate renewed on disk gets a new channel too."""

    def __init__(self, endpoints: Sequence[str], timeout_s: float, security: Security | None = None) -> None:
        self.security = security or Security()
        self.endpoints = tuple(parse_endpoint(endpoint) for endpoint in endpoints)
        if not self.endpoints:
            raise Fatal("no etcd endpoint given: give HOST:PORT, and separate several by commas")
        self._folders = _socket_folders(endpoints)
        self._https = tuple(endpoint.strip().startswith("https://") for endpoint in endpoints)
        for endpoint in endpoints:
            refusal = refuse_endpoint(endpoint.strip(), self.security)
            if refusal:
                raise Fatal(refusal)
        self.timeout_s = timeout_s
        self._files: CurrentFiles | None = None
        self._user = ""
        if any(self._https):
            self._files, self._user = _credentials(self.security)
        self._stamp = self._files.stamp() if self._files is not None else None
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        # a thousand agents must not all use the first member
        self._place = random.randrange(len(self.endpoints))
        self._client = self._open()
        self._retired: list[tuple[float, Any]] = []
        self._closed = False

    @property
    def encrypted(self) -> bool:
        """True if etcd sees who we are, at any of its endpoints."""
        return any(self._https)

    @property
    def client(self) -> Any:
        """The current etcd3 client; read it again for each call and stream."""
        if self._files is not None and time.monotonic() - self._looked > FILES_LOOKED_AT_S:
            self._renew(self._files)
        return self._client

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the member in use."""
        host, port = self.endpoints[self._place]
        return f"{host}:{port}"

    @contextmanager
    def call(self, what: str, writes: bool = False, size: int = 0) -> Iterator[Any]:
        """Yields the client for one call, and turns its errors into the ports'.

        Raises Retryable, Fatal or Fenced (see `errors`); `writes` and `size` as there.
        """
        if self._closed:
            raise Fatal(f"{what}: this store was closed")
        client = self.client
        try:
            yield client
        except (grpc.RpcError, etcd3.Etcd3Exception) as error:
            # etcd3 raises its own errors for some codes; gRPC's is then the context
            cause = error if isinstance(error, grpc.RpcError) else error.__context__
            if code_of(cause) in MUTE:
                self.suspect(client, silent=code_of(cause) is grpc.StatusCode.DEADLINE_EXCEEDED)
            raise_port_error(cause, what, writes, client, size, self._user)

    def suspect(self, client: Any, silent: bool) -> None:
        """Reports that `client` got no good answer. `silent`: it got none at all, so even a single endpoint gets a new
        channel (its connection may be dead)."""
        with self._lock:
            if client is not self._client or self._closed or (len(self.endpoints) == 1 and not silent):
                return
            self._place = (self._place + 1) % len(self.endpoints)
            self._retired.append((time.monotonic(), client))
            self._client = self._open()
            over = self._over()
        for old in over:
            old.close()

    def _over(self) -> list[Any]:
        """Removes and returns the channels to close: calls on an old channel may be answered until their deadlines."""
        now = time.monotonic()
        over = [old for since, old in self._retired if now - since > 2 * self.timeout_s]
        self._retired = [(since, old) for since, old in self._retired if old not in over]
        return over

    def _renew(self, files: CurrentFiles) -> None:
        """Opens a new channel if the certificate's files have changed. Streams on the old one move over when it is
        closed."""
        with self._lock:
            self._looked = time.monotonic()
            if self._closed:
                return
            stamp = files.stamp()
            if stamp != self._stamp:
                try:
                    fresh = self._open()
                except OSError:
                    return  # replaced again just now: the next check is in a second
                self._retired.append((time.monotonic(), self._client))
                self._client, self._stamp = fresh, stamp
            over = self._over()
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
        while self._folders:
            os.close(self._folders.popitem()[1])

    def _open(self) -> Any:
        host, port = self.endpoints[self._place]
        if self._place in self._folders:
            # by a descriptor, since the path of a socket may have only 107 bytes
            host = f"{UNIX}/proc/self/fd/{self._folders[self._place]}/{Path(host).name}"
        files = {}
        if self._https[self._place]:
            files = {"ca_cert": self.security.ca, "cert_key": self.security.key, "cert_cert": self.security.cert}
        return etcd3.client(host=host, port=port, timeout=self.timeout_s, grpc_options=CHANNEL_OPTIONS, **files)


def _socket_folders(endpoints: Sequence[str]) -> dict[int, int]:
    """Returns a descriptor of the folder of each endpoint that is a socket, by the endpoint's place. Raises Retryable."""
    found = {}
    for place, endpoint in enumerate(endpoints):
        path = socket_of(endpoint.strip())
        if path is not None:
            try:
                found[place] = opened(path.parent)
            except OSError as error:
                raise Retryable(f"no etcd answers at {path}: {error.strerror}") from error
    return found


def _credentials(security: Security) -> tuple[CurrentFiles, str]:
    """Returns a follower of the files, and the name in the certificate."""
    try:
        return CurrentFiles(security), read_certificate(security).name
    except (SecurityError, OSError) as error:
        raise Fatal(str(error)) from error


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Parses '10.0.0.1:2379', 'https://etcd-0:2379' or '[::1]:2379' into host and port. Raises Fatal."""
    try:
        return host_and_port(endpoint)
    except ValueError as error:
        raise Fatal(str(error)) from error
