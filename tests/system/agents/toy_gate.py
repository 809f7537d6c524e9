"""A stand-in for agents.gate: listens, touches its file, takes every connection and holds it. Ends on TERM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path


class Holder:
    """A listener that accepts connections and sends nothing but PONG; it can be closed and opened again at its port. A
    deaf one does not even read."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0, deaf: bool = False) -> None:
        self.address, self.port, self.deaf = address, port, deaf
        self.lines: list[bytes] = []
        self.open()

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    def open(self) -> None:
        self._clients: list[socket.socket] = []
        self._listener = socket.create_server((self.address, self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Ends everything, as a machine does with a killed process. A second call does no harm."""
        for each in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._clients.append(client)
            if not self.deaf:
                threading.Thread(target=self._hold, args=(client,), daemon=True).start()

    def _hold(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if data.endswith(b"PING\n"):
                    client.sendall(b"PONG\n")
                    data = data.removesuffix(b"PING\n")
                if data:
                    self.lines.append(data)


def main(arguments: list[str]) -> int:
    options = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    state = Path(options["folder"]) / "gate.json"
    holder = Holder(options["address"])
    state.write_text(json.dumps({"port": holder.port, "hearing": {}}))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(1.0):
        os.utime(state)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
