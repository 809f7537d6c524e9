"""The errors of the ports. An error's class decides how it is handled; no one parses its text."""

from __future__ import annotations


class PortError(Exception):
    """Base of the three below; never raised itself."""


class Retryable(PortError):
    """The call may work later: nothing is wrong with the request. `after_s` is the least time to wait.

    The outcome of the failed call is unknown (a transaction may still commit): read again, never repeat blindly.
    """

    def __init__(self, message: str, after_s: float = 1.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Fatal(PortError):
    """The call will never work as asked: a person must change something. The text says what."""


class Fenced(PortError):
    """Another leader owns this now: an expectation of the transaction failed. Nothing was written."""
