"""A stranger's attempts: sockets and requests with any certificate, or none."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any

from supervisor.wire.security import Reloading, Security


def client_context(security: Security) -> ssl.SSLContext:
    """The TLS context of a client of ours."""
    return Reloading(security).context()


def dial(address: str, security: Security | None, timeout_s: float = 5.0) -> socket.socket:
    """A connection to HOST:PORT, in plain without `security`. OSError when TLS fails."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=timeout_s)
    if security is None:
        return plain
    try:
        return client_context(security).wrap_socket(plain)
    except OSError:
        plain.close()
        raise


def without_certificate() -> ssl.SSLContext:
    """A TLS context that shows no certificate and asks for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def closed(connection: socket.socket, within_s: float) -> bool:
    """True if the other side ends the connection within this time, in any way, without sending anything."""
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def header(node: str, run: str, group: int, generation: int) -> bytes:
    """A forwarder's first line."""
    return json.dumps({"node": node, "run": run, "group": group, "generation": generation}).encode() + b"\n"


def metrics(port: int, context: ssl.SSLContext | None) -> str:
    """The text of /metrics, in plain without a context. Raises OSError or http.client.HTTPException without an
    answer."""
    connection: Any = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=5.0, context=context)
    )
    try:
        connection.request("GET", "/metrics")
        return str(connection.getresponse().read().decode())
    finally:
        connection.close()


def serial(address: str, security: Security) -> str:
    """The serial number of the certificate that a TLS listener shows now."""
    with dial(address, security) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        certificate = connection.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])
