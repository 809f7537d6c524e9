"""Who we are and whom we believe: the security file, and the TLS contexts made of it (ADR 7).

Standard library only: the shim imports this.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import re
import ssl
import threading
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)

VARIABLE = "SUPERVISOR_SECURITY"
"""Environment variable that stands for `--security`."""

_FILES = ("ca", "cert", "key")
_KEYS = (*_FILES, "insecure")

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""


class SecurityError(ValueError):
    """A security file that cannot be used, or an address that it does not cover; the text says what to do."""


@dataclass(frozen=True)
class Security:
    """Either three files (TLS both ways), or `insecure`, or neither: then nothing leaves loopback."""

    ca: str = ""
    """PEM: whose certificates are believed."""
    cert: str = ""
    """PEM: our chain. Its common name is who we are."""
    key: str = ""
    insecure: bool = False
    path: str = ""
    """The security file itself, to be handed on to what we start."""

    @property
    def tls(self) -> bool:
        return bool(self.cert)

    def arguments(self) -> list[str]:
        """The command line option that hands this on; empty without a file."""
        return [f"--security={self.path}"] if self.path else []

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when one of the files does. Raises OSError."""
        found = []
        for path in (self.ca, self.cert, self.key):
            stat = Path(path).stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


def load(path: str | Path) -> Security:
    """Read a security file; an empty path is no file. Raises SecurityError.

    Paths in it are relative to its own folder.
    """
    if not str(path):
        return Security()
    file = Path(path).absolute()
    try:
        body = tomllib.loads(file.read_text())
    except OSError as error:
        raise SecurityError(f"the security file {file} cannot be read: {error.strerror}") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # no TOML, no UTF-8, a number of thousands of digits, a list in a list in a list
        raise SecurityError(f"the security file {file} is no TOML: {error}") from error
    _check(file, body)
    named = {name: str(file.parent / body[name]) for name in _FILES if name in body}
    security = Security(insecure=body.get("insecure", False), path=str(file), **named)
    if security.tls:
        read_certificate(security)
    return security


def checked(path: str | Path, endpoints: Iterable[str] = (), listeners: Iterable[tuple[str, str]] = ()) -> Security:
    """`load`, and a look at what is to be reached and listened on ((what, host) each). Raises SecurityError."""
    security = load(path)
    refusals = [refuse_endpoint(endpoint.strip(), security) for endpoint in endpoints]
    refusals += [refuse_listener(what, host, security) for what, host in listeners]
    for refusal in refusals:
        if refusal is not None:
            raise SecurityError(refusal)
    return security


def file_of_node(security: Security, node: str) -> str:
    """The security file of a node that is started here: `node-NAME.toml` beside ours, or ours where all is insecure.

    Raises SecurityError when it is not there.
    """
    if not security.tls:
        return security.path
    file = Path(security.path).with_name(f"{node_name(node)}.toml")
    if not file.is_file():
        raise SecurityError(
            f"node {node} needs a certificate of its own: {file} is missing (deploy/certificates.sh {file.parent} "
            f"{node_name(node)}, and `supervisor init-auth --node {node}`)"
        )
    return str(file)


def _check(file: Path, body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name not in _KEYS:
            near = difflib.get_close_matches(name, _KEYS, 1, 0.5)
            hint = f"nearest: {near[0]}" if near else f"known: {', '.join(_KEYS)}"
            raise SecurityError(f"{file}: there is no {name!r}; {hint}")
        if name == "insecure" and not isinstance(value, bool):
            raise SecurityError(f"{file}: insecure = {value!r}: it is true or false")
        if name != "insecure" and not (isinstance(value, str) and value):
            raise SecurityError(f"{file}: {name} = {value!r}: it is the path of a PEM file, in quotes")
    given = [name for name in _FILES if name in body]
    missing = [name for name in _FILES if name not in body]
    if given and body.get("insecure"):
        raise SecurityError(
            f"{file}: insecure = true contradicts {', '.join(given)}: with certificates nothing goes in plain; remove one"
        )
    if given and missing:
        raise SecurityError(f"{file}: {', '.join(missing)} is missing: ca, cert and key belong together")
    if not given and not body.get("insecure"):
        raise SecurityError(
            f"{file} says nothing: give ca, cert and key (docs/SECURITY.md says how to make them), or insecure = true"
        )


@dataclass(frozen=True)
class Certificate:
    """What our own certificate says."""

    name: str
    """The common name."""
    not_after_unix_s: float


def read_certificate(security: Security) -> Certificate:
    """Our own certificate, as a peer that believes our `ca` reads it; one that has expired is read too.

    Raises SecurityError when the files cannot be read, do not belong together, or name nobody.
    """
    server, client = _context(ssl.PROTOCOL_TLS_SERVER, security), _context(ssl.PROTOCOL_TLS_CLIENT, security)
    # only the client's certificate is read: what this process shows to the etcd, and the gate's clients to it
    client.verify_mode = ssl.CERT_NONE
    server.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            for side in (ours, theirs):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        found = theirs.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        raise SecurityError(
            f"{security.cert} is not a certificate that {security.ca} vouches for ({error.verify_message}): give the "
            "authority that signed it as ca"
        ) from error
    except (ssl.SSLError, ValueError) as error:
        raise SecurityError(f"{security.cert} cannot be used for TLS: {error}") from error
    name = _common_name(found)
    if not name:
        raise SecurityError(f"{security.cert} has no common name: nobody could say whose it is")
    return Certificate(name, float(ssl.cert_time_to_seconds(str(found["notAfter"]))))


def trouble(security: Security) -> str:
    """A sentence when our own certificate cannot be used (any more); empty when it can, or there is none."""
    if not security.tls:
        return ""
    try:
        left_s = read_certificate(security).not_after_unix_s - time.time()
    except SecurityError as error:
        return str(error)
    return f"our certificate {security.cert} has expired: renew it, no restart is needed" if left_s <= 0 else ""


class _Connected(Protocol):
    def getpeercert(self) -> Any: ...


def common_name(connected: _Connected | None) -> str:
    """Who is at the other end of a TLS connection; empty when it is plain or shows no certificate."""
    return _common_name((connected.getpeercert() if connected is not None else None) or {})


def _common_name(certificate: Any) -> str:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


NAME_AT_MOST = 64
"""Characters of a common name (X.509's ub-common-name)."""


def node_name(node: str) -> str:
    """The common name of a node's certificate."""
    return f"node-{node}"


def server_context(security: Security) -> ssl.SSLContext:
    """For a listener: shows our certificate, wants one that our `ca` vouches for. Raises SecurityError.

    It follows the files by itself: a connection that comes after they have changed meets the new certificate.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, security)
    follow(context, security)
    return context


def follow(context: ssl.SSLContext, security: Security) -> None:
    """Have a listener's context look at the files at every handshake."""
    newest = Reloading(security, ssl.PROTOCOL_TLS_SERVER)

    def renew(connection: ssl.SSLObject, server_name: str | None, _: ssl.SSLContext) -> None:
        # OpenSSL takes certificate and authorities of this one connection from the context that is set here
        connection.context = newest.context()

    context.sni_callback = renew


class Reloading:
    """A context that is made anew when the files change. Threads may share it."""

    def __init__(self, security: Security, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> None:
        self._security = security
        self._protocol = protocol
        self._lock = threading.Lock()
        self._context, self._stamp = _context(protocol, security), security.stamp()
        self._trouble = ""

    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that do not belong together (yet) leave the last good ones in use.

        A client's checks no host name: the caller asks for the `common_name`.
        """
        with self._lock:
            try:
                stamp = self._security.stamp()
                if stamp != self._stamp:
                    self._context, self._stamp = _context(self._protocol, self._security), stamp
                self._trouble = ""
            except (OSError, SecurityError) as error:
                if str(error) != self._trouble:
                    log.warning("going on with the certificate that was read before: %s", error)
                self._trouble = str(error)
            return self._context


def _context(protocol: int, security: Security) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=security.ca)
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(f"ca = {security.ca} cannot be used: {_why(error)}") from error
    for path in (security.cert, security.key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise SecurityError(f"{path} cannot be read: {_why(error)}") from error
    try:
        # the password: OpenSSL would ask for that of an encrypted key at the terminal
        context.load_cert_chain(security.cert, security.key, password="none")
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(
            f"cert = {security.cert} and key = {security.key} cannot be used: {_why(error)}; they must be PEM, belong "
            "together, and the key must have no password"
        ) from error
    return context


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or error)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it. Any name but `localhost` may be anywhere."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_plain(what: str, host: str, security: Security) -> str | None:
    """The sentence that refuses `what` (in words) in plain at `host`; None when it may be."""
    if security.insecure or is_loopback(host):
        return None
    if security.tls:
        return f"{what} at {host} would be in plain although there are certificates: write https://HOST:PORT"
    return (
        f"{what} at {host} is off loopback and would be in plain: give --security FILE with ca, cert and key "
        "(docs/SECURITY.md), or with insecure = true if everybody on that network may do anything"
    )


def refuse_listener(what: str, host: str, security: Security) -> str | None:
    """As `refuse_plain`, for what we listen on ourselves: TLS wherever there are certificates."""
    return None if security.tls else refuse_plain(what, host, security)


def refuse_endpoint(endpoint: str, security: Security) -> str | None:
    """As `refuse_plain`, for an etcd endpoint; what is none, and `https://` without certificates, is refused too."""
    try:
        host, _ = host_and_port(endpoint)
    except ValueError as error:
        return str(error)
    if endpoint.startswith("https://"):
        if security.tls:
            return None
        return f"{endpoint}: TLS to etcd needs a certificate: give --security FILE with ca, cert and key"
    return refuse_plain("etcd", host, security)


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Of 10.0.0.1:2379, https://etcd-0:2379 or [::1]:2379. Raises ValueError with a sentence."""
    bare = re.sub(r"^https?://", "", endpoint.strip()).rstrip("/")
    found = re.fullmatch(r"(\[[^\s/\[\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})", bare)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError(f"{endpoint!r} is not an etcd endpoint: give HOST:PORT, for example 127.0.0.1:2379")
    return found[1], int(found[2])
