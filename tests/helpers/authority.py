"""An authority of its own for tests that run where no openssl is: keys, certificates, deny lists, signing requests."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from supervisor.wire.security import Security, load

DAY = datetime.timedelta(days=1)


def pem_of(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    way = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, way)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def signing_request(common_name: str, key: ec.EllipticCurvePrivateKey | None = None) -> str:
    """A request as PEM."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    made = x509.CertificateSigningRequestBuilder().subject_name(named(common_name)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


@dataclass(frozen=True)
class Authority:
    """A folder with `ca.pem`, `ca.key`, and what is made of them."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def make(self, name: str) -> None:
        """NAME.pem and NAME.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(name, self.certificate.subject, key).sign(self.key, hashes.SHA256())
        _write(self.folder / f"{name}.pem", made.public_bytes(serialization.Encoding.PEM))
        _write(self.folder / f"{name}.key", pem_of(key))

    def deny(self, *revoked: x509.Certificate) -> None:
        """Makes `crl.pem`, the deny list."""
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        made = made.last_update(now - DAY).next_update(now + DAY)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(now)
            made = made.add_revoked_certificate(entry.build())
        _write(self.folder / "crl.pem", made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def security(self, name: str = "supervisor", more: str = "") -> Security:
        """The security file of a name, with these lines more, read."""
        file = self.folder / f"{name}.toml"
        file.write_text(f'ca = "ca.pem"\ncert = "{name}.pem"\nkey = "{name}.key"\n{more}')
        return load(file)


def authority(folder: Path, *names: str) -> Authority:
    """Makes an authority with certificates for these names."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("an-authority", named("an-authority"), key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder / "ca.key", pem_of(key))
    made = Authority(folder, key, certificate)
    for name in names:
        made.make(name)
    return made


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - DAY).not_valid_after(now + 9 * DAY)


def _write(file: Path, body: bytes) -> None:
    file.write_bytes(body)
    file.chmod(0o600)
