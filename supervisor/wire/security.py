"""Our identity and the authority that we trust: the security file, and the TLS contexts made from it (ADR 7).

Standard library only: the shim imports this.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import logging
import math
import os
import re
import ssl
import threading
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from supervisor.wire.deny_list import holds_unix_s

log = logging.getLogger(__name__)

PRIVATE = 0o077
"""The umask of our processes: what they and their children write is for their user alone."""

VARIABLE = "SUPERVISOR_SECURITY"
"""Environment variable that stands for `--security`."""

_FILES = ("ca", "cert", "key")
_PATHS = (*_FILES, "crl", "nodes", "signs")
_KEYS = (*_PATHS, "enroll", "insecure")

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name."""

_NO_LIST, _REVOKED = 3, 23
"""OpenSSL's X509_V_ERR_UNABLE_TO_GET_CRL and X509_V_ERR_CERT_REVOKED."""


def is_open(about: os.stat_result) -> bool:
    """Returns true if others than we may use a file with a secret. Root's may be read by its group, ours if we can: so a
    mounted secret of Kubernetes is."""
    allowed = 0o040 if about.st_uid == 0 and os.geteuid() != 0 else 0
    return bool(about.st_mode & PRIVATE & ~allowed)


SECRET_AT_LEAST = 16
"""Fewest bytes of a secret that signs: an empty or a half written file is none."""


def secret_in(path: Path) -> bytes:
    """Returns the secret in a file, without the space around it. Raises SecurityError, or OSError if it is unreadable."""
    with path.open("rb") as file:
        others_may = is_open(os.fstat(file.fileno()))
        secret = file.read().strip()
    if others_may:
        raise SecurityError(f"others than its owner may use the key {path}: run `chmod 600 {path}`")
    if len(secret) < SECRET_AT_LEAST:
        raise SecurityError(
            f"the key {path} has fewer than {SECRET_AT_LEAST} bytes: make one by `openssl rand -hex 32`"
        )
    return secret


class SecurityError(ValueError):
    """A security file that cannot be used, or an address that it does not cover; the text says what to do."""


Stamp = tuple[tuple[int, int, int], ...]
"""Time of the last change in ns, bytes and inode of each file."""


@dataclass(frozen=True)
class Security:
    """Either three files (TLS both ways), or `insecure`, or neither: then nothing leaves loopback."""

    ca: str = ""
    """PEM: the authority whose certificates we trust."""
    cert: str = ""
    """PEM: our chain. Its common name is our identity."""
    key: str = ""
    crl: str = ""
    """PEM: the certificates that our authority has revoked, a list for each authority in `ca`. Empty: none is checked."""
    nodes: str = ""
    """Folder of the nodes' security files; empty: the folder of ours."""
    signs: str = ""
    """PEM: the key with which a supervisor signs certificates of nodes. It belongs to a certificate in `ca`."""
    enroll: tuple[str, ...] = ()
    """Addresses, IP:PORT, at which nodes ask supervisors for a certificate. Each listens at one that its machine has."""
    insecure: bool = False
    """Nothing is encrypted."""
    accepts_holes: bool = False
    """`insecure = true` beside certificates: an etcd that does not hold its users to their roles is used all the same."""
    path: str = ""
    """The security file itself, to pass on to our child processes."""

    @property
    def tls(self) -> bool:
        return bool(self.cert)

    @property
    def nodes_folder(self) -> Path:
        return Path(self.nodes) if self.nodes else Path(self.path).parent

    def arguments(self) -> list[str]:
        """Returns the command line option that passes this on; empty without a file."""
        return [f"--security={self.path}"] if self.path else []

    def stamp(self) -> Stamp:
        """Returns a value that changes when one of the files does. Raises OSError."""
        found = []
        for path in (self.ca, self.cert, self.key, *([self.crl] if self.crl else [])):
            stat = Path(path).stat()
            found.append((stat.st_ctime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


def load(path: str | Path) -> Security:
    """Reads a security file; an empty path means no file. Raises SecurityError.

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
    ) as error:  # no TOML, no UTF-8, a number of thousands of digits, or deeply nested lists
        raise SecurityError(f"the security file {file} is not valid TOML: {error}") from error
    _check(file, body)
    named = {name: str(file.parent / body[name]) for name in _PATHS if name in body}
    insecure = body.get("insecure", False)
    security = Security(
        insecure=insecure and not named,
        accepts_holes=insecure and bool(named),
        path=str(file),
        enroll=tuple(body.get("enroll", ())),
        **named,
    )
    if security.tls:
        read_certificate(security)
    # a login node needs no key that signs
    for key in (security.key, *([security.signs] if security.signs and Path(security.signs).exists() else [])):
        if key and is_open(Path(key).stat()):
            raise SecurityError(f"others than its owner may use the key {key}: run `chmod 600 {key}`")
    return security


def checked(path: str | Path, endpoints: Iterable[str] = (), listeners: Iterable[tuple[str, str]] = ()) -> Security:
    """Loads a file, and checks endpoints to reach and listeners ((what, host) each). Raises SecurityError."""
    security = load(path)
    refusals = [refuse_endpoint(endpoint.strip(), security) for endpoint in endpoints]
    refusals += [refuse_listener(what, host, security) for what, host in listeners]
    for refusal in refusals:
        if refusal is not None:
            raise SecurityError(refusal)
    return security


def file_of_node(security: Security, node: str) -> str:
    """Returns the security file of a node: `node-NAME.toml` in the folder `nodes`, or ours if all is insecure.

    Raises SecurityError if it does not exist.
    """
    if not security.tls:
        return security.path
    file = security.nodes_folder / f"{node_name(node)}.toml"
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
            raise SecurityError(f"{file}: insecure = {value!r}: it must be true or false")
        if name == "enroll":
            _check_enroll(file, value)
        elif name != "insecure" and not (isinstance(value, str) and value):
            what = "a folder" if name == "nodes" else "a PEM file"
            raise SecurityError(f"{file}: {name} = {value!r}: it must be the path of {what}, in quotes")
    given = [name for name in _PATHS if name in body]
    missing = [name for name in _FILES if name not in body]
    if given and missing:
        raise SecurityError(f"{file}: {', '.join(missing)} is missing: ca, cert and key belong together")
    if ("signs" in body) != ("enroll" in body):
        raise SecurityError(f"{file}: signs and enroll belong together: give both, or neither")
    if not given and not body.get("insecure"):
        raise SecurityError(
            f"{file} sets nothing: give ca, cert and key (docs/TLS.md says how to make them), or insecure = true"
        )


def _check_enroll(file: Path, value: Any) -> None:
    try:
        if not value or not isinstance(value, list):
            raise ValueError
        for address in value:
            if ipaddress.ip_address(host_and_port(address)[0].strip("[]")).is_unspecified:
                raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise SecurityError(
            f'{file}: enroll = {value!r}: it must be a list of IP:PORT, as in ["10.0.0.5:9101"]'
        ) from None


@dataclass(frozen=True)
class Certificate:
    """The content of our own certificate."""

    name: str
    """The common name."""
    not_after: str
    """When it expires, as Python's ssl gives it."""

    @property
    def not_after_unix_s(self) -> float:
        return float(
            ssl.cert_time_to_seconds(self.not_after)
        )  # its first call imports for 2 ms: most only want the name


def read_certificate(security: Security) -> Certificate:
    """Reads our own certificate as a peer that trusts our `ca` does, even if it has expired. Files that have not changed
    since are not read again.

    Raises SecurityError if the files cannot be read, do not belong together, or have no common name.
    """
    try:
        stamp = security.stamp()
    except OSError:
        return _certificate_at.__wrapped__(security, ())  # reading them tells which one is missing
    return _certificate_at(security, stamp)


@functools.lru_cache(maxsize=64)
def _certificate_at(security: Security, stamp: Stamp) -> Certificate:
    server, client = _context(ssl.PROTOCOL_TLS_SERVER, security), _context(ssl.PROTOCOL_TLS_CLIENT, security)
    # only the client's certificate is read, which is what etcd and the gate see of this process
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
        if error.verify_code == _REVOKED:
            raise SecurityError(f"{security.cert} is revoked by {security.crl}: make a new certificate") from error
        if error.verify_code == _NO_LIST:
            raise SecurityError(
                f"{security.crl} has no list of the authority that signed {security.cert}: put a list of each authority "
                f"in {security.ca} there"
            ) from error
        raise SecurityError(
            f"{security.cert} is not a certificate that {security.ca} vouches for ({error.verify_message}): give the "
            "authority that signed it as ca"
        ) from error
    except (ssl.SSLError, ValueError) as error:
        raise SecurityError(f"{security.cert} cannot be used for TLS: {error}") from error
    name = _common_name(found)
    if not name:
        raise SecurityError(f"{security.cert} has no common name: its owner cannot be identified")
    return Certificate(name, str(found["notAfter"]))


def trouble(security: Security) -> str:
    """Returns a sentence if our own certificate cannot be used (any more); empty if it can, or if there is none."""
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
    """Returns the peer's name on a TLS connection; empty if it is unencrypted or shows no certificate."""
    return _common_name((connected.getpeercert() if connected is not None else None) or {})


def _common_name(certificate: Any) -> str:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


SUPERVISOR = "supervisor"
"""The common name of supervisors."""

ROOT = "root"
"""The common name of the person who makes etcd's users."""

NAME_AT_MOST = 64
"""Most characters of a common name (X.509's ub-common-name)."""


def node_name(node: str) -> str:
    """Returns the common name of a node's certificate."""
    return f"node-{node}"


class CurrentFiles:
    """Follows the files of certificates, which a renewal replaces. Threads may share it. Raises SecurityError if they
    cannot be used at first."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._lock = threading.Lock()
        try:
            self._stamp = security.stamp()
        except OSError as error:
            raise SecurityError(f"{error.filename} cannot be read: {error.strerror}") from error
        self._trouble = ""
        self._lapses_unix_s = math.inf
        self._read()

    def stamp(self) -> Stamp:
        """Returns the stamp of the files in use. Files that do not belong together (yet) leave the last good ones in use."""
        with self._lock:
            self._follow()
            return self._stamp

    def _read(self) -> None:
        """Takes the files into use. Raises OSError, SecurityError."""
        self._lapses_unix_s = list_lapses(self._security)

    def _follow(self) -> None:
        try:
            stamp = self._security.stamp()
            if stamp != self._stamp:
                read_certificate(self._security)
                self._read()
                self._stamp = stamp
            self._note(lapsed(self._security, self._lapses_unix_s))
        except (OSError, SecurityError) as error:
            self._note(f"going on with the files that were read before: {error}")

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


class Reloading(CurrentFiles):
    """A context that is rebuilt when the files change."""

    def __init__(self, security: Security, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> None:
        self._protocol = protocol
        super().__init__(security)

    def context(self) -> ssl.SSLContext:
        """Returns the context for the next connection, of the files in use.

        A client's context checks no host name: the caller checks the `common_name`.
        """
        with self._lock:
            self._follow()
            return self._context

    def _read(self) -> None:
        fresh = _context(self._protocol, self._security)
        super()._read()
        self._context = fresh


def list_lapses(security: Security) -> float:
    """Returns when the deny list lapses; infinity without one. Raises OSError, SecurityError."""
    return _list_holds(security.crl)[1] if security.crl else math.inf


def _list_holds(crl: str) -> tuple[float, float]:
    try:
        return holds_unix_s(Path(crl).read_text(errors="replace"))
    except (ValueError, IndexError) as error:
        raise SecurityError(f"crl = {crl} cannot be read: {error}") from error


def lapsed(security: Security, lapses_unix_s: float) -> str:
    """Returns a sentence if the deny list has lapsed; empty if not."""
    if time.time() < lapses_unix_s:
        return ""
    return (
        f"the deny list {security.crl} has lapsed, so every new connection is refused: renew it, no restart is needed"
    )


def _context(protocol: int, security: Security) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        # who resumes a session shows no certificate, so one that expired or was revoked since would pass. Below 1.3 Python
        # cannot turn this off
        context.minimum_version, context.num_tickets = ssl.TLSVersion.TLSv1_3, 0
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=security.ca)
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(f"ca = {security.ca} cannot be used: {_why(error)}") from error
    if security.crl:
        _deny(context, security.crl)
    for path in (security.cert, security.key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise SecurityError(f"{path} cannot be read: {_why(error)}") from error
    try:
        # the password: OpenSSL would otherwise ask for that of an encrypted key at the terminal
        context.load_cert_chain(security.cert, security.key, password="none")  # pragma: allowlist secret
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(
            f"cert = {security.cert} and key = {security.key} cannot be used: {_why(error)}; they must be PEM, belong "
            "together, and the key must have no password"
        ) from error
    return context


def _deny(context: ssl.SSLContext, crl: str) -> None:
    """Has the context refuse the certificates on a list. Certificates in that file would be authorities: none may be."""
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(cafile=crl)
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(f"crl = {crl} cannot be used: {_why(error)}") from error
    after = context.cert_store_stats()
    if after["x509"] != before["x509"] or after["crl"] == before["crl"]:
        raise SecurityError(f"crl = {crl} must have lists of revoked certificates (X509 CRL) alone")
    if (begins := _list_holds(crl)[0]) > time.time():
        # the time, not what is left: a sentence that changes by the second would be logged at each look
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begins))
        raise SecurityError(
            f"crl = {crl} begins at {at} and refuses every connection until then: set this machine's clock, or have the "
            "list begin an hour back"
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or error)


UNIX = "unix:"
"""Begins the endpoint of an etcd at a Unix socket. Its path is percent-encoded."""


def unix_endpoint(socket: Path) -> str:
    """Returns the endpoint of an etcd at a socket, whose name must end with a colon and a number: etcd wants a port."""
    host, _, port = str(socket).rpartition(":")
    return f"{UNIX}{quote(host)}:{port}"


def socket_of(endpoint: str) -> Path | None:
    """Returns the path that `unix_endpoint` was given; None for any other endpoint."""
    if not endpoint.startswith(UNIX):
        return None
    host, port = host_and_port(endpoint)
    return Path(f"{unquote(host.removeprefix(UNIX))}:{port}")


def is_loopback(host: str) -> bool:
    """Returns true if only this machine reaches it. Any name but `localhost` may be anywhere."""
    host = host.strip("[]")
    if host == "localhost" or host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_plain(what: str, host: str, security: Security) -> str | None:
    """Returns the sentence that refuses `what` (in words) unencrypted at `host`; None if it is allowed."""
    if security.insecure or is_loopback(host):
        return None
    if security.tls:
        return f"{what} at {host} would be unencrypted, though there are certificates: write https://HOST:PORT"
    return (
        f"{what} at {host} is off loopback and would be unencrypted: give --security FILE with ca, cert and key "
        "(docs/SECURITY.md), or with insecure = true if everyone on that network may do anything"
    )


def refuse_listener(what: str, host: str, security: Security) -> str | None:
    """Returns what `refuse_plain` does, for our own listeners: they use TLS wherever there are certificates."""
    return None if security.tls else refuse_plain(what, host, security)


def refuse_endpoint(endpoint: str, security: Security) -> str | None:
    """Returns what `refuse_plain` does, for an etcd endpoint. Refuses malformed ones too, and `https://` without certificates."""
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
    """Parses 10.0.0.1:2379, https://etcd-0:2379, [::1]:2379, or unix:/folder/etcd:1 (a socket named `etcd:1`). Raises
    ValueError with a sentence."""
    bare = re.sub(r"^https?://", "", endpoint.strip()).rstrip("/")
    found = re.fullmatch(rf"(\[[^\s/\[\]]+\]|{UNIX}/[^\s:,]+|[^\s/:\[\]]+):([0-9]{{1,5}})", bare)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError(f"{endpoint!r} is not an etcd endpoint: give HOST:PORT, for example 127.0.0.1:2379")
    return found[1], int(found[2])
