"""How a node gets its certificate by request: what its job is given for that, and what it asks for where (ADR 7).

Standard library only: signing and keys are in `supervisor.shell.enroll` and `agents.enrollment`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.wire.security import Security, SecurityError

VARIABLE = "SUPERVISOR_ENROLL"
"""Environment variable of a node's job (JSON of `Given`). It holds a secret: only `supervisor-agent run` reads it, and
starts nothing with it."""

PATH = "/enroll"
"""Path of the one request, a POST."""

BYTES_AT_MOST = 16384
"""Most bytes of a request."""


@dataclass(frozen=True)
class Given:
    """Everything that a job needs to ask for its nodes' certificates."""

    addresses: tuple[str, ...]
    """Where supervisors answer, IP:PORT each."""
    ca: str
    """PEM: the authority that vouches for them."""
    secrets: Mapping[str, str] = field(repr=False)
    """By allocation key: of its one node, or of each node of a job of several."""

    def encode(self) -> str:
        return json.dumps({"addresses": self.addresses, "ca": self.ca, "secrets": dict(self.secrets)})


def decode(text: str) -> Given:
    """Reads `Given.encode`. Raises ValueError with a sentence that does not show the text."""
    try:
        body = json.loads(text)
        return Given(tuple(map(str, body["addresses"])), str(body["ca"]), dict(body["secrets"]))
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{VARIABLE} cannot be read: the supervisor that submits jobs sets it") from None


def secret(signing_key: bytes, allocation: str) -> str:
    """Returns the secret of an allocation. Any supervisor with the same file as signing key finds the same."""
    return hmac.new(signing_key, f"enroll:{allocation}".encode(), hashlib.sha256).hexdigest()


def given(security: Security, allocations: Iterable[str]) -> Given:
    """Returns what a job with these allocations is given. Raises SecurityError."""
    try:
        key, ca = Path(security.signs).read_bytes(), Path(security.ca).read_text()
    except OSError as error:
        raise SecurityError(f"{error.filename} cannot be read: {error.strerror}") from error
    return Given(security.enroll, ca, {allocation: secret(key, allocation) for allocation in allocations})
