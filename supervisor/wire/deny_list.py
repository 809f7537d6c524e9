"""Reads from when to when a deny list (an X.509 CRL) holds, and what is on it, which Python's `ssl` does not say.

Standard library only: the shim imports this.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Iterator

_PEM = re.compile(r"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)
_INTEGER, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME = 0x02, 0x30, 0x17, 0x18

Serial = tuple[bytes, int]
"""A certificate as a list names it: its authority's name in DER, and its serial number."""


def holds_unix_s(pem: str) -> tuple[float, float]:
    """Returns from when to when all lists of a PEM file hold; infinity if none lapses. OpenSSL has taken them before.
    Raises ValueError or IndexError for what is no list."""
    spans = [_updates(base64.b64decode(found)) for found in _PEM.findall(pem)]
    return max((begins for begins, _ in spans), default=0.0), min((lapses for _, lapses in spans), default=math.inf)


def _updates(der: bytes) -> tuple[float, float]:
    # CertificateList is a sequence, and so is its first part, in which the times are thisUpdate and nextUpdate (RFC 5280, 5.1)
    (_, whole), *_ = _parts(der)
    (_, content), *_ = _parts(whole)
    times = [_time(tag, value) for tag, value in _parts(content) if tag in (_UTC_TIME, _GENERALIZED_TIME)]
    return times[0], times[1] if len(times) > 1 else math.inf


def revoked(pem: str) -> frozenset[Serial]:
    """Returns what all lists of a PEM file name. Raises as `holds_unix_s` does."""
    found: set[Serial] = set()
    for each in _PEM.findall(pem):
        (_, whole), *_ = _parts(base64.b64decode(each))
        (_, content), *_ = _parts(whole)
        # the algorithm, the authority, and, if there are any, the entries: each begins with its number (RFC 5280, 5.1)
        _, authority, *entries = (value for tag, value in _parts(content) if tag == _SEQUENCE)
        for _, entry in _parts(entries[0]) if entries else ():
            found.add((authority, _number(next(_parts(entry)))))
    return frozenset(found)


def serial_of(der: bytes) -> Serial:
    """Returns how a list would name this certificate, which OpenSSL has taken before."""
    (_, whole), *_ = _parts(der)
    (_, content), *_ = _parts(whole)
    # its number comes before the algorithm and the authority (RFC 5280, 4.1)
    number = next(part for part in _parts(content) if part[0] == _INTEGER)
    _, authority, *_ = (value for tag, value in _parts(content) if tag == _SEQUENCE)
    return authority, _number(number)


def _number(part: tuple[int, bytes]) -> int:
    return int.from_bytes(part[1], "big", signed=True)


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the tag and the value of each element."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            octets = length & 0x7F
            length, at = int.from_bytes(der[at : at + octets], "big"), at + octets
        yield tag, der[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> float:
    text = value.decode()
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is no time of a list")
    if tag == _UTC_TIME:  # its years have two digits (RFC 5280, 4.1.2.5.1)
        text = ("19" if text >= "50" else "20") + text
    # not strptime, whose first call imports for 4 ms at the start of each process
    return datetime.datetime.fromisoformat(f"{text[:8]}T{text[8:]}").timestamp()
