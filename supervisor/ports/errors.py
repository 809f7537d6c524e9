"""The errors of the ports. The class of an error is the decision about it: nobody looks at its text."""

from __future__ import annotations


class PortError(Exception):
    """Base of the three below; never raised itself."""


class Retryable(PortError):
    """It may work later: nothing is wrong with the request. `after_s` is the least to wait.

    The outcome of the failed call is unknown (a transaction may still commit): read again, never repeat blindly.
    """

    def __init__(self, message: str, after_s: float = 1.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Fatal(PortError):
    """It will never work as asked: a person has to change something. The text says what."""


class Fenced(PortError):
    """Somebody else owns this now: a compare of the transaction failed. Nothing was written."""
