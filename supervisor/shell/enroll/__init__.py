"""Certificates of nodes by request: a supervisor with `signs` in its security file signs them (ADR 7)."""

from __future__ import annotations

from supervisor.ports.store import Store
from supervisor.wire.security import Security


def check(security: Security) -> None:
    """Raises SecurityError if certificates cannot be signed with this file's `signs`."""
    from supervisor.shell.enroll.signer import check

    check(security)


def serve(store: Store, security: Security) -> None:
    """Answers nodes' requests from now on, in threads. Raises Fatal if the address is taken."""
    # cryptography is loaded only where something is signed
    from supervisor.shell.enroll import listener, signer

    listener.serve(signer.Signer(security, signer.grants(store)), security)
