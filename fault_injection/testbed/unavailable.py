"""Explains why a fault cannot be made on this machine, independently of the program that it would break."""

from __future__ import annotations

import shutil

from supervisor.ports.errors import Fatal

PACKAGES = {
    "ip": "iproute2", "ss": "iproute2", "iptables": "iptables", "strace": "strace", "nsenter": "util-linux", "unshare": "util-linux",
}  # fmt: skip
"""Maps a command to the Debian package that has it."""

NOT_ROOT = "not root: run it as root"


class NotHere(Fatal):
    """Raised where this machine lacks a command, a right or a part of the kernel for a fault. The text names it."""


def no_command(name: str) -> str:
    """Returns the sentence about a missing command, and how to get it."""
    return f"no `{name}` command (Debian: apt-get install {PACKAGES[name]})"


def missing(*commands: str) -> str:
    """Returns that sentence for the first of these that is not on PATH; empty if all are."""
    return next((no_command(name) for name in commands if shutil.which(name) is None), "")
