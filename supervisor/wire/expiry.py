"""When the certificates that a process uses expire."""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator

from supervisor.wire.security import Security, SecurityError, list_lapses, read_certificate


def expiries(security: Security) -> Iterator[tuple[str, float]]:
    """Yields each of our certificate, its authorities and the deny list, in words, and the Unix time at which it expires
    (infinity: never). Nothing without certificates. Raises OSError, SecurityError."""
    if not security.tls:
        return
    own = read_certificate(security)
    yield f"our certificate {security.cert} ({own.name})", own.not_after_unix_s
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=security.ca)
    for authority in context.get_ca_certs():
        yield f"the authority {security.ca}", float(ssl.cert_time_to_seconds(str(authority["notAfter"])))
    if security.crl:
        yield f"the deny list {security.crl}", list_lapses(security)


def first_expiry_unix_s(security: Security) -> float:
    """Returns when the first of them expires: infinity without certificates, 0 if they cannot be used."""
    try:
        return min((until for _, until in expiries(security)), default=math.inf)
    except (OSError, SecurityError):
        return 0.0
