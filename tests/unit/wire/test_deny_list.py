"""The end of a deny list is read from its bytes."""

from __future__ import annotations

import base64
import datetime
import math

import pytest

from supervisor.wire.deny_list import holds_unix_s

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
