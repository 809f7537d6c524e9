"""Signs certificates of nodes, each for a node that the request's allocation was granted."""

from __future__ import annotations

import contextlib
import datetime
import hmac
import ipaddress
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor.core.model.observed import Grant
from supervisor.ports.store import Store
from supervisor.wire import keys
from supervisor.wire.enrollment import secret
from supervisor.wire.records import RecordError, decode
from supervisor.wire.security import NAME_AT_MOST, Security, SecurityError, node_name

log = logging.getLogger(__name__)

LIFE_S = 86400.0
"""Seconds for which a certificate holds: long enough for a night without supervisors (a node asks again when a third is
left), and short enough that no one needs to revoke it."""

OURS_LIFE_S = 600.0
"""Seconds for which a certificate holds that a supervisor signs for itself, to try etcd as a node."""

BEFORE = datetime.timedelta(hours=1)
"""A certificate is valid from this long before: the clocks of two machines differ."""


class Refused(Exception):
    """A request that gets no certificate. The text is for the supervisor's log, not for the one who asks."""


class Early(Refused):
    """The secret is right, and etcd does not show the grant: a job may run before the leader's next list."""


@dataclass(frozen=True)
class _Request:
    """A request as it came."""

    node: str
    allocation: str
    secret: str
    csr: bytes
    """PEM: the certificate signing request."""


class Signer:
    """The authority's key, and the grants by which it signs. Threads may share it."""

    def __init__(self, security: Security, grant: Callable[[str], Grant | None], life_s: float = LIFE_S) -> None:
        """`grant` finds what etcd holds of an allocation, by its key."""
        self._security = security
        self._grant = grant
        self._life_s = life_s

    def answer(self, body: bytes, peer: str) -> bytes:
        """Answers a request that came from the address `peer`: with the certificate, the authorities and the deny list.
        Raises Refused, PortError if etcd is away, SecurityError or OSError for files that cannot be used."""
        request = _read(body)
        key, issuer, file = _authority(self._security)
        who = f"node {request.node[:80]!r} of allocation {request.allocation[:80]!r}"
        if not hmac.compare_digest(secret(file, request.allocation), request.secret):
            raise Refused(f"{who}: the secret is not that of the allocation")
        grant = self._grant(request.allocation)
        if grant is None or grant.state != "granted":
            state = grant.state if grant is not None else "unknown"
            raise (Early if state in ("pending", "unknown") else Refused)(f"{who}: the allocation is {state}")
        if request.node not in grant.nodes:
            raise Refused(f"{who}: the allocation was granted with {', '.join(grant.nodes) or 'no node'}")
        if len(node_name(request.node)) > NAME_AT_MOST:
            raise Refused(f"{who}: a common name has {NAME_AT_MOST} characters at most")
        public = _public_key(request.csr)
        if public is None:
            raise Refused(f"{who}: the signing request is not valid")
        address = x509.IPAddress(ipaddress.ip_address(peer.partition("%")[0]))
        made = _certificate(node_name(request.node), public, [address], (key, issuer), self._life_s)
        log.info(
            "node %s (allocation %s, from %s) gets a certificate until %s, serial number %x",
            *(request.node, request.allocation, peer, made.not_valid_after_utc, made.serial_number),
        )
        crl = Path(self._security.crl).read_text() if self._security.crl else ""
        pem = made.public_bytes(serialization.Encoding.PEM).decode()
        return json.dumps({"certificate": pem, "ca": Path(self._security.ca).read_text(), "crl": crl}).encode()


@contextlib.contextmanager
def signed_for_us(security: Security, name: str) -> Iterator[Security]:
    """Yields files for `name`, by a key of our own, in a private folder that goes with the block. They hold for
    OURS_LIFE_S. Raises SecurityError if `signs` cannot be used, OSError."""
    key, issuer, _ = _authority(security)
    own = ec.generate_private_key(ec.SECP256R1())
    made = _certificate(name, own.public_key(), [], (key, issuer), OURS_LIFE_S)
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        file = Path(folder) / "both.pem"
        file.touch(mode=0o600)
        pkcs8, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem = own.private_bytes(serialization.Encoding.PEM, pkcs8, open_)
        file.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
        yield Security(ca=security.ca, cert=str(file), key=str(file), crl=security.crl)


def _certificate(
    name: str,
    public: Any,
    addresses: Sequence[x509.IPAddress],
    authority: tuple[Any, x509.Certificate],
    life_s: float,
) -> x509.Certificate:
    key, issuer = authority
    now = datetime.datetime.now(datetime.UTC)
    until = min(now + datetime.timedelta(seconds=life_s), issuer.not_valid_after_utc)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign"), False
    ) | dict.fromkeys(("crl_sign", "encipher_only", "decipher_only"), False)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - BEFORE, issuer.not_valid_before_utc))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *addresses]), critical=False)
        .add_extension(_key_of(issuer), critical=False)
        .sign(key, hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) else None)
    )


def check(security: Security) -> None:
    """Raises SecurityError if the key that signs cannot be used."""
    _authority(security)


def grants(store: Store) -> Callable[[str], Grant | None]:
    """Returns how a `Signer` finds a grant in etcd, without the nodes that a person removed."""

    def grant(allocation: str) -> Grant | None:
        run, _, _ = allocation.rpartition("-a")
        item = store.get(keys.grant(run, allocation))
        try:
            found = decode(item.value, Grant) if item is not None else None
        except RecordError:  # the audit reports it
            return None
        removed = {node for node in (found.nodes if found else ()) if store.get(keys.removed_node(node)) is not None}
        if found is None or not removed:
            return found
        log.warning("%s: removed by `init-auth --remove-node`; --node lets it in again", ", ".join(sorted(removed)))
        return replace(found, nodes=tuple(node for node in found.nodes if node not in removed))

    return grant


def _read(body: bytes) -> _Request:
    try:
        found = json.loads(body)
        parts = [found[name] for name in ("node", "allocation", "secret", "request")]
    except (ValueError, TypeError, KeyError, RecursionError):
        parts = []
    # only ASCII, which `compare_digest` takes
    if not parts or not all(isinstance(part, str) and part.isascii() for part in parts):
        raise Refused("it is not a request for a certificate")
    node, allocation, given, csr = parts
    return _Request(node, allocation, given, csr.encode())


def _public_key(csr: bytes) -> Any:
    """Returns the key of a signing request, from which nothing else is taken. None if its owner has not signed it."""
    try:
        request = x509.load_pem_x509_csr(csr)
        if request.is_signature_valid:
            return request.public_key()
    except (ValueError, UnsupportedAlgorithm):
        pass
    return None


def _authority(security: Security) -> tuple[Any, x509.Certificate, bytes]:
    """Returns the key that signs, the certificate in `ca` to which it belongs, and the key's file. Raises
    SecurityError."""
    try:
        file = Path(security.signs).read_bytes()
        authorities = x509.load_pem_x509_certificates(Path(security.ca).read_bytes())
    except OSError as error:
        raise SecurityError(f"{error.filename} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SecurityError(f"ca = {security.ca} cannot be read: {error}") from error
    try:
        key: Any = serialization.load_pem_private_key(file, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SecurityError(
            f"signs = {security.signs} cannot be used: it must be a private key in PEM without a password"
        ) from error
    for certificate in authorities:
        if certificate.public_key() == key.public_key():
            return key, certificate, file
    raise SecurityError(
        f"signs = {security.signs} is not the key of a certificate in {security.ca}: give the key of one of its authorities"
    )


def _key_of(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        found = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        public: Any = issuer.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found.value)
