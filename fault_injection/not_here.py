"""Why a fault cannot be made on this machine: no word on the program that it was to break."""

from __future__ import annotations

import shutil

from supervisor.ports.errors import Fatal

PACKAGES = {
    "ip": "iproute2", "ss": "iproute2", "iptables": "iptables", "strace": "strace", "nsenter": "util-linux", "unshare": "util-linux",
}  # fmt: skip
"""Command -> the Debian package that has it."""

NOT_ROOT = "not root: run it as root"


class NotHere(Fatal):
    """This machine cannot make it: a command, a right or a part of the kernel is missing. The text says which."""


def no_command(name: str) -> str:
    """The sentence about a command that is missing, and how to get it."""
    return f"no `{name}` command (Debian: apt-get install {PACKAGES[name]})"


def missing(*commands: str) -> str:
    """The same of the first of these that is not on PATH; empty when all are."""
    return next((no_command(name) for name in commands if shutil.which(name) is None), "")
