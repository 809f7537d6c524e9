"""The end of a deny list, and what is on it, are read from its bytes."""

from __future__ import annotations

import base64
import datetime
import math
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from supervisor.wire.deny_list import holds_unix_s, revoked, serial_of
from tests.helpers.authority import Authority, authority

UNTIL_2036 = """\
-----BEGIN X509 CRL-----
MIHFMG0wCgYIKoZIzj0EAwIwGDEWMBQGA1UEAwwNc3VwZXJ2aXNvci1jYRcNMjYw
MTAxMDAwMDAwWhcNMzYwMTAyMDMwNDA1WjAnMCUCFAQM1BtjADiEg8+kxLPAuZmf
C3qvFw0yNjExMjgwMzAxNTVaMAoGCCqGSM49BAMCA0gAMEUCIQDAd+lHAwRmdYnf
H+fOLRagYADvhRquaFYOb3Xj+Ex20wIgaXc/xyKVzVvuQmXaeMCySwl2tcRDYYMi
rW/pybdtDxw=
-----END X509 CRL-----
"""
UNTIL_2056 = """\
-----BEGIN X509 CRL-----
MIHHMG8wCgYIKoZIzj0EAwIwGDEWMBQGA1UEAwwNc3VwZXJ2aXNvci1jYRcNMjYw
MTAxMDAwMDAwWhgPMjA1NjAxMDIwMzA0MDVaMCcwJQIUBAzUG2MAOISDz6TEs8C5
mZ8Leq8XDTI2MTEyODAzMDE1NVowCgYIKoZIzj0EAwIDSAAwRQIhAP9Qxtg6UZlI
iPsRgco8Av9Np2tzW+X2SFSbaRQwoJXsAiBxaQioERIbCZBQq1rkCfkzRiXY9UoI
v/3vYmT0sQ59sg==
-----END X509 CRL-----
"""
"""From 2050 on a year has four digits (RFC 5280, 5.1.2.5)."""


def when(year: int) -> float:
    return datetime.datetime(year, 1, 2, 3, 4, 5, tzinfo=datetime.UTC).timestamp()


def without_end() -> str:
    """The second list without its nextUpdate, which RFC 5280 wants and OpenSSL does not."""
    der = base64.b64decode("".join(UNTIL_2056.splitlines()[1:-1]))
    at = der.index(b"20560102030405Z") - 2
    # the lengths of the whole (0x81, octet) and of its first part (octet)
    head = bytes([der[0], der[1], der[2] - 17, der[3], der[4] - 17])
    return as_pem(head + der[5:at] + der[at + 17 :])


def as_pem(der: bytes) -> str:
    return f"-----BEGIN X509 CRL-----\n{base64.b64encode(der).decode()}\n-----END X509 CRL-----\n"


@pytest.mark.parametrize(
    ("pem", "lapses"),
    [
        (UNTIL_2036, when(2036)),
        (UNTIL_2056, when(2056)),
        ("the first one to lapse counts\n" + UNTIL_2056 + UNTIL_2036, when(2036)),
        (without_end(), math.inf),
        ("", math.inf),
    ],
)
def test_the_end(pem: str, lapses: float) -> None:
    begins, ends = holds_unix_s(pem)
    assert ends == lapses
    assert datetime.datetime.fromtimestamp(begins, datetime.UTC) == datetime.datetime(
        2026 if pem else 1970, 1, 1, tzinfo=datetime.UTC
    )


def der(folder: Path, name: str) -> bytes:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()).public_bytes(Encoding.DER)


def deny(made: Authority, *names: str) -> str:
    made.deny(*(x509.load_der_x509_certificate(der(made.folder, name)) for name in names))
    return (made.folder / "crl.pem").read_text()


def test_what_is_on_it(tmp_path: Path) -> None:
    one = authority(tmp_path / "one", *(f"node-n{number}" for number in range(20)))
    listed = [f"node-n{number}" for number in range(0, 20, 2)]
    found = revoked(deny(one, *listed))
    assert {f"node-n{n}" for n in range(20) if serial_of(der(one.folder, f"node-n{n}")) in found} == set(listed)
    assert len(found) == len(listed)
    assert revoked(deny(one)) == revoked("") == frozenset()


def test_the_lists_of_two_authorities_are_read_and_a_number_is_its_authoritys(tmp_path: Path) -> None:
    one = authority(tmp_path / "one", "node-n1")
    name, number = serial_of(der(one.folder, "node-n1"))
    found = revoked("one\n" + UNTIL_2036 + deny(one, "node-n1"))
    assert (name, number) in found
    assert len(found) == 2
    ((other, _),) = revoked(UNTIL_2036)
    assert (other, number) not in found
