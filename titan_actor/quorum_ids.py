"""Raises a fresh lighthouse's quorum ids above those of the lighthouse before it.

TorchFT's lighthouse counts from 1 and takes no start. A manager that meets its own old id does not reconfigure, and
others meet stale keys under a used prefix. So throwaway managers ask for quorums and report a failed commit each time,
which gives each quorum a new id (2,000 in 1.4 s, measured).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

from titan_actor import torchft_names

SECOND = timedelta(seconds=1)


def raise_above(torchft: Any, address: str, above: int, min_replicas: int, heartbeat_timeout_ms: int) -> None:
    """Returns when the next quorum's id is above `above` and the throwaways are forgotten.

    `address` is the lighthouse's http address; `min_replicas` must ask together. Raises what TorchFT raises.
    """
    managers = [_manager(torchft, address, n) for n in range(min_replicas)]
    clients = [torchft.ManagerClient(manager.address(), SECOND) for manager in managers]

    def climb(client: Any) -> None:
        while _next_id(client) <= above:
            pass

    with ThreadPoolExecutor(min_replicas) as pool:
        for future in [pool.submit(climb, client) for client in clients]:
            future.result()
    for manager in managers:
        manager.shutdown()
    # they count as alive for one more heartbeat timeout, and the first real quorum must not wait for them
    Event().wait(2 * heartbeat_timeout_ms / 1000)


def _manager(torchft: Any, address: str, n: int) -> Any:
    every = timedelta(milliseconds=20)
    return torchft_names.manager_server(torchft, address, f"raise-ids-{n}", "127.0.0.1", beat_every=every)


def _next_id(client: Any) -> int:
    return int(torchft_names.ask_for_quorum(client, step=0, commit_failures=1, timeout=10 * SECOND).quorum_id)
