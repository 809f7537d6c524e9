"""An authority that lives in the memory of one process, for connections that no one else may join."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(days=365)
BEFORE = datetime.timedelta(hours=1)
"""A certificate is valid from this long before: the clocks of two machines differ."""


class Authority:
    """Makes a key and a certificate for each member. Its own key is written nowhere."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "everstep mesh")])
        own = self._begun(self._name, self._key.public_key())
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._ca = own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def pems(self, name: str, address: str) -> dict[str, str]:
        """Returns {"ca", "cert", "key"} as PEM for a member that others reach at `address`, an IP address or a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        reached: x509.GeneralName = x509.DNSName(address)
        with contextlib.suppress(ValueError):
            reached = x509.IPAddress(ipaddress.ip_address(address))
        made = self._begun(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]), key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName([reached]), critical=False)
        pem, form, open_ = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return {
            "ca": self._ca,
            "cert": made.sign(self._key, hashes.SHA256()).public_bytes(pem).decode(),
            "key": key.private_bytes(pem, form, open_).decode(),
        }

    def _begun(self, name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + LIFE)
        )
