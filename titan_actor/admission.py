"""Reports to the gate that this group is built, and waits until the gate lets it in.

Until then the gate holds back this group's heartbeats, so that the survivors do not wait for it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from titan_actor.process import RankProcess

NO_GATE = "SUPERVISOR_NO_GATE"
"""Set to 1 where a plain lighthouse stands at `launch.lighthouse`."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class NoAnswer(ConnectionError):
    """The connection ended before the gate answered OK."""


def admit(rank: RankProcess, replica_id: str, **built: Any) -> None:
    """Reports a rank as built, and waits until the gate lets its group into the quorum. `replica_id`: TorchFT's id of the
    group; empty: it is in no quorum. `built`: further fields of the report."""
    rank.report.update(phase="built", replica_id=replica_id, **built)
    rank.ledger.event("built", replica_id=replica_id, **built)
    if rank.launch.rank == 0 and replica_id:
        rank.ledger.event("admitted", said=announce(rank.launch.lighthouse, replica_id))


def announce(lighthouse: str, replica_id: str) -> int:
    """Sends BUILT to host:port until the gate answers OK; returns how often it was sent.

    Waits as long as it takes: the supervisor judges whether a waiting group is stuck.
    """
    if os.environ.get(NO_GATE) == "1":
        return 0
    host, _, port = lighthouse.rpartition(":")
    pause, said = FIRST_PAUSE_S, 0
    while True:
        said += 1
        try:
            _say_built(host.strip("[]"), int(port), replica_id)
            return said
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _say_built(host: str, port: int, replica_id: str) -> None:
    with socket.create_connection((host, port), timeout=10) as gate:
        # a gate may hold for minutes, until this generation is admitted
        gate.settimeout(None)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        gate.sendall(f"BUILT {json.dumps({'replica_id': replica_id})}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            more = gate.recv(64)
            if not more:
                raise NoAnswer(f"closed after {answer!r}")
            answer += more
        if answer != b"OK\n":
            raise NoAnswer(f"answered {answer!r}")
