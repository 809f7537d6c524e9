"""A version of the user's code (ADR 24)."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 12
"""Hexadecimal digits of a version that people are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """A version of the code, which a generation is started with."""

    version: str
    """SHA-256 of its manifest, in hexadecimal."""
    folder: str = ""
    """Absolute path of the folder that was synced, on the machine of that client. Its tree stands for it on nodes."""

    def __str__(self) -> str:
        return f"{self.version[:SHOWN]} of {self.folder}"
