"""The TLS of our listeners: the files of new connections, and the certificates of open ones that were revoked since."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Protocol

from supervisor.wire.deny_list import Serial, revoked, serial_of
from supervisor.wire.security import Reloading, Security, SecurityError

LOOKED_AT_S = 1.0
"""Seconds between two looks at the deny list for connections that are open."""


class ListenerFiles(Reloading):
    """A listener's files. `denied` has what the deny list in use names; `stamp()` takes a new one into use."""

    def __init__(self, security: Security) -> None:
        """Raises SecurityError if the files cannot be used."""
        self.denied: frozenset[Serial] = frozenset()
        super().__init__(security, ssl.PROTOCOL_TLS_SERVER)

    def _read(self) -> None:
        denied: frozenset[Serial] = frozenset()
        if crl := self._security.crl:
            try:
                denied = revoked(Path(crl).read_text(errors="replace"))
            except (ValueError, IndexError) as error:
                raise SecurityError(f"crl = {crl} cannot be read: {error}") from error
        super()._read()
        self.denied = denied


class _Connected(Protocol):
    def getpeercert(self, binary_form: bool = False) -> Any: ...


def shown(connected: _Connected | None) -> Serial | None:
    """Returns which certificate the peer showed; None if it showed none, or the connection is unencrypted."""
    der = connected.getpeercert(True) if connected is not None else None
    return serial_of(der) if der else None


def server_context(newest: ListenerFiles, anyone: bool = False) -> ssl.SSLContext:
    """Returns a listener's context: it shows our certificate, and requires one signed by our `ca`, or none if `anyone`
    may connect.

    It checks the files at every handshake: connections after a change get the new certificate.
    """
    context = newest.context()

    def renew(connection: ssl.SSLObject, server_name: str | None, _: ssl.SSLContext) -> None:
        # OpenSSL takes certificate and authorities of this one connection from the context that is set here
        connection.context = newest.context()

    context.sni_callback = renew
    if anyone:
        context.verify_mode = ssl.CERT_NONE  # a connection keeps that of its first context
    return context
