"""Kills a client of the command line at a chosen moment."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence

Client = subprocess.Popen[bytes]


def killed(command: Sequence[str], environment: Mapping[str, str], moment: Callable[[Client], None]) -> int:
    """Starts a client, and sends it SIGKILL once `moment` returns. Returns its exit status: that of the kill, or another
    if it had ended before."""
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        moment(client)
    finally:
        client.kill()
        client.wait()
    return client.returncode


def after_s(seconds: float) -> Callable[[Client], None]:
    """Returns a moment: that many seconds after the start, or its end if that comes first."""

    def wait(client: Client) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(seconds)

    return wait
