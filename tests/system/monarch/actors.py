"""Actors of the tests, which nodes import too."""

from __future__ import annotations

import os

from monarch.actor import Actor, endpoint


class Where(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()
