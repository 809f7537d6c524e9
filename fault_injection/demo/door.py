"""Lets this machine's browser into a network of namespaces: a listener made outside is answered inside."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

VARIABLE = "SUPERVISOR_DOOR"
"""Environment variable with the listener (a file descriptor) of a command that runs again inside a hub."""


@contextmanager
def made() -> Iterator[socket.socket]:
    """Yields a listener on loopback. It stays in the network in which it was made, wherever it is accepted from."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def environment(listener: int) -> Mapping[str, str]:
    """Returns the environment of a command that inherits the listener under this number."""
    return {VARIABLE: str(listener)}


def opened(page: str) -> str:
    """Returns the address at which a browser outside finds the page; without a door that is `page` itself."""
    number = os.environ.pop(VARIABLE, None)
    if number is None or not page:
        return page
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)
    at = urlsplit(page)
    threading.Thread(target=_answer, args=(listener, (at.hostname, at.port)), name="door", daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def _answer(listener: socket.socket, to: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):  # the listener is closed
        while True:
            came, _ = listener.accept()
            threading.Thread(target=_between, args=(came, to), daemon=True).start()


def _between(came: socket.socket, to: tuple[str, int]) -> None:
    with came, contextlib.suppress(OSError), socket.create_connection(to) as page:
        other = {came: page, page: came}
        while True:
            for ready in select.select([came, page], [], [])[0]:
                said = ready.recv(1 << 16)
                if not said:
                    return
                other[ready].sendall(said)
