"""Checks the network between this machine and other nodes. It connects to the metrics ports of their agents, where the
kernel answers, and sends nothing."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from supervisor.wire.checks import CheckResult

PATIENCE_S = 3.0
"""Seconds to wait for an answer. Linux repeats a lost SYN after 1 s, so one may be lost."""


@dataclass(frozen=True)
class Peer:
    """Another node's agent."""

    node: str
    address: str
    port: int


def peers(others: Sequence[Peer]) -> CheckResult:
    """Fails when two or more nodes, and most of them, do not answer: a single silent node may itself be broken."""
    if not others:
        return CheckResult(name="peers", outcome="skipped", evidence="no other node is known")
    with ThreadPoolExecutor(len(others)) as pool:
        answers = dict(zip(others, pool.map(_round_trip, others), strict=True))
    times = [answer for answer in answers.values() if isinstance(answer, float)]
    silent = [f"{p.node} ({p.address}): {answer}" for p, answer in answers.items() if isinstance(answer, str)]
    said = f"{len(times)} of {len(others)} other nodes answer" + (f"; not {', '.join(silent)}" if silent else "")
    if not times and len(others) == 1:
        said += ": which of the two is to blame is not known"
        return CheckResult(name="peers", outcome="skipped", evidence=said)
    slowest_ms = round(1e3 * max(times), 3) if times else None
    outcome: Literal["passed", "failed"] = "failed" if len(silent) > 1 and len(silent) > len(times) else "passed"
    said += f", within {slowest_ms:g} ms" if slowest_ms is not None else ""
    return CheckResult(name="peers", outcome=outcome, evidence=said, value=slowest_ms, unit="ms")


def _round_trip(peer: Peer) -> float | str:
    """Returns the seconds, or why there is no answer. A refusal counts as an answer: a machine is there."""
    began = time.monotonic()
    try:
        socket.create_connection((peer.address, peer.port), PATIENCE_S).close()
    except OSError as error:
        if error.errno != errno.ECONNREFUSED:
            return error.strerror or str(error)
    return time.monotonic() - began
