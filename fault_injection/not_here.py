"""Why a fault cannot be made on this machine: no word on the program that it was to break."""

from __future__ import annotations

from supervisor.ports.errors import Fatal


class NotHere(Fatal):
    """This machine cannot make it: a command, a right or a part of the kernel is missing. The text says which."""
