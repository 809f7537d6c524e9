"""A TCP relay between a client and etcd: a network that can fall silent, lose replies, or cut its connections."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator


class Relay:
    """Each direction of each connection has a thread. What is held is kept, and sent when the hold ends."""

    def __init__(self, target: str, listener: socket.socket | None = None) -> None:
        """`listener`: another than one on loopback, such as one of another network namespace."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.endpoint = "{}:{}".format(*self._listener.getsockname()[:2])
        self.requests, self.replies = threading.Event(), threading.Event()
        self.requests.set()
        self.replies.set()
        self._lock = threading.Lock()
        self._ended = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._mute: set[socket.socket] = set()
        self.accepted, self.seen = 0, 0
        self.most = math.inf
        """Number of pieces, of either direction, that are passed on; later ones are lost."""
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Silences the current connections in both directions; new ones work."""
        with self._lock:
            self._mute.update(each for pair in self._pairs for each in pair)

    def cut(self) -> None:
        """Ends the current connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in (each for pair in pairs for each in pair):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.requests.set()
        self.replies.set()
        self.cut()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
                self.accepted += 1
            threads = [
                threading.Thread(target=self._pump, args=(near, far, self.requests), daemon=True),
                threading.Thread(target=self._pump, args=(far, near, self.replies), daemon=True),
            ]
            for thread in threads:
                thread.start()
            threading.Thread(target=self._close, args=(threads, near, far), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                gate.wait()
                with self._lock:
                    self.seen += 1
                    mute = source in self._mute or self.seen > self.most
                if not mute:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _close(self, threads: list[threading.Thread], *ends: socket.socket) -> None:
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()


@contextlib.contextmanager
def relay(target: str, listener: socket.socket | None = None) -> Iterator[Relay]:
    """A relay to HOST:PORT, ended with the block."""
    made = Relay(target, listener)
    try:
        yield made
    finally:
        made.stop()
