"""Names the person who runs a command, for records."""

from __future__ import annotations

import getpass
import socket


def who() -> str:
    """Returns USER@MACHINE."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"  # a container's user may have no name
    return f"{user}@{socket.gethostname()}"
